"""Golden files: a recorded run is replayed against other code, and each alteration is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.stores.contract.steps import all_steps
from tenure.testing.golden import check_golden_async, golden_paths
from tenure.workflow.golden import replay_golden_file
from tenure.workflow.golden_differences import Difference
from tenure.workflow.golden_file import GoldenFile, golden_file, read_golden_file

executed: list[str] = []

Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    executed.clear()


def search(topic: str) -> list[str]:
    executed.append("search")
    return [topic, "more"]


def find(topic: str) -> list[str]:
    executed.append("find")
    return [topic]


def count(pages: list[str]) -> int:
    executed.append("count")
    return len(pages)


def write(text: str) -> str:
    executed.append("write")
    return f"on {text}"


def app_of(body: Body, **options: Any) -> tenure.App:
    app = tenure.App("sqlite:///unused.db", version="1")
    app.workflow(kind="research", on_exhausted="fail", max_attempts=1, **options)(body)
    return app


async def recorded(body: Body, *, until: Callable[[tenure.App, Any], Any] | None = None, **options: Any) -> GoldenFile:
    """The golden file of a run of this function."""
    app = app_of(body, **options)
    async with app.testing() as harness:
        handle = await app.submit("research", '{"topic":"cats"}')
        if until is None:
            await harness.run_all()
        else:
            await harness.drain()
            await until(app, handle)
            await harness.run_all()
        job = await handle.refresh()
        steps = await all_steps(await app.store(), job.id)
    executed.clear()
    return golden_file(job, steps)


async def differences(file: GoldenFile, body: Body, **options: Any) -> list[Difference]:
    """What differs between the run and this function. No step is executed."""
    app = app_of(body, **options)
    found = await replay_golden_file(file, app.kinds, app.seams)
    assert executed == []
    return found


async def kinds(file: GoldenFile, body: Body) -> list[tuple[str, str | None]]:
    return [(one.kind, one.name) for one in await differences(file, body)]


async def research(run: tenure.Run, topic: str) -> str:
    pages = await run.step(search, topic)
    number = await run.step(count, pages)
    return await run.step(write, f"{topic} {number}")


@pytest.mark.requirement("WC-09")
async def test_unchanged_code_has_no_difference_and_executes_no_step(tmp_path: Path) -> None:
    file = await recorded(research)
    path = tmp_path / file.file_name
    path.write_text(file.text())
    assert await differences(read_golden_file(path), research) == []
    await check_golden_async(app_of(research), tmp_path)
    assert golden_paths(tmp_path) == [path]


@pytest.mark.requirement("WC-09")
async def test_an_added_step_is_found() -> None:
    async def with_more(run: tenure.Run, topic: str) -> str:
        pages = await run.step(search, topic)
        await run.step(write, "a draft")
        number = await run.step(count, pages)
        return await run.step(write, f"{topic} {number}")

    file = await recorded(research)
    assert ("arguments", "write") in await kinds(file, with_more)

    async def with_another(run: tenure.Run, topic: str) -> str:
        pages = await run.step(search, topic)
        await run.step(find, "dogs")
        return f"{pages}"

    assert await kinds(file, with_another) == [("added", "find")]
    assert ("added", "find") in await kinds(file, _found_last)


async def _found_last(run: tenure.Run, topic: str) -> str:
    text = await research(run, topic)
    await run.step(find, text)
    return text


@pytest.mark.requirement("WC-09")
async def test_a_removed_step_is_found() -> None:
    async def with_less(run: tenure.Run, topic: str) -> str:
        await run.step(search, topic)
        return await run.step(write, f"{topic} 2")

    assert await kinds(await recorded(research), with_less) == [("removed", "count")]


@pytest.mark.requirement("WC-09")
async def test_a_renamed_step_is_found_and_the_replay_goes_on() -> None:
    async def renamed(run: tenure.Run, topic: str) -> str:
        pages = await run.step(find, topic)
        number = await run.step(count, pages)
        return await run.step(write, f"{topic} {number}")

    found = await differences(await recorded(research), renamed)
    assert [str(one) for one in found] == ["'find' (0): renamed; recorded is 'search'"]


@pytest.mark.requirement("WC-09")
async def test_a_step_that_is_called_before_a_recorded_one_with_its_arguments_is_added() -> None:
    async def with_more(run: tenure.Run, topic: str) -> str:
        await run.step(find, topic)
        return await research(run, topic)

    assert await kinds(await recorded(research), with_more) == [("added", "find")]


@pytest.mark.requirement("WC-09")
async def test_reordered_steps_are_found() -> None:
    async def two(run: tenure.Run, topic: str) -> None:
        await run.step(search, topic)
        await run.step(write, topic)

    async def two_reordered(run: tenure.Run, topic: str) -> None:
        await run.step(write, topic)
        await run.step(search, topic)

    found = await differences(await recorded(two), two_reordered)
    assert [one.kind for one in found] == ["reordered"]


@pytest.mark.requirement("WC-09")
async def test_other_arguments_and_another_output_are_found() -> None:
    async def changed(run: tenure.Run, topic: str) -> str:
        pages = await run.step(search, topic)
        number = await run.step(count, pages[:1])
        return await run.step(write, f"{topic} {number}") + "!"

    found = await differences(await recorded(research), changed)
    assert [one.kind for one in found] == ["arguments", "output"]
    argument, output = found
    assert str(argument) == "'count' (1): called with other arguments than recorded"
    assert '-"on cats 2"' in output.message
    assert '+"on cats 2!"' in output.message


@pytest.mark.requirement("WC-09")
@pytest.mark.parametrize("catches", [False, True])
async def test_a_result_that_no_longer_fits_its_type_is_found(catches: bool) -> None:
    def typed(topic: str) -> list[int]:
        raise AssertionError("not executed")

    typed.__name__ = "search"

    async def changed(run: tenure.Run, topic: str) -> str:
        try:
            await run.step(typed, topic)
        except Exception:
            if not catches:
                raise
        return await run.step(write, f"{topic} 2")

    found = await differences(await recorded(research), changed)
    assert found[0].kind == "result_type"
    assert "Expected `int`, got `str`" in str(found[0])


@pytest.mark.requirement("WC-09")
async def test_what_does_not_alter_the_run_is_no_difference() -> None:
    async def otherwise(run: tenure.Run, topic: str) -> str:
        retried = run.using(on_error="retry", max_attempts=3, timeout_seconds=5.0)
        found = await retried.step(search, topic)
        run.progress(50, "half")
        how_many = await run.step(count, found)
        if await run.patched("titles"):
            await run.step(find, topic)
        return await run.step(write, f"{topic} {how_many}")

    assert await differences(await recorded(research), otherwise, queue="slow") == []


async def everything(run: tenure.Run, topic: str) -> dict[str, Any]:
    first = await run.first(run.step(search, topic), run.sleep(3600))
    await run.sleep(days=2)
    word = await run.wait_for("word", str, timeout_seconds=60)
    lengths = await run.map(count, [["a"], ["b", "c"]])
    texts = await run.gather(run.step(write, "x"), run.step(write, "y"))
    order = [one.index async for one in run.as_completed(run.step(write, "1"), run.step(write, "2"))]
    await run.using(key="named").step(write, word)
    return {"first": first.value, "at": run.now(), "lengths": lengths, "texts": texts, "n": len(order)}


@pytest.mark.requirement("WC-09")
async def test_waits_branches_and_decisions_are_replayed() -> None:
    async def send(app: tenure.App, handle: Any) -> None:
        await app.signal(handle.id, "word", "hello")

    file = await recorded(everything, until=send)
    assert file.outcome.status == "succeeded"
    assert await differences(file, everything) == []

    async def later(run: tenure.Run, topic: str) -> dict[str, Any]:
        await run.step(find, "new")
        return await everything(run, topic)

    async def without_sleep(run: tenure.Run, topic: str) -> dict[str, Any]:
        await run.first(run.step(search, topic), run.sleep(3600))
        word = await run.wait_for("word", str, timeout_seconds=60)
        lengths = await run.map(count, [["a"], ["b", "c"]])
        await run.gather(run.step(write, "x"), run.step(write, "y"))
        [one.index async for one in run.as_completed(run.step(write, "1"), run.step(write, "2"))]
        await run.using(key="named").step(write, word)
        return {"lengths": lengths}

    assert await kinds(file, later) == [("added", "find")]
    found = await kinds(file, without_sleep)
    assert found == [("removed", "sleep"), ("output", None)]


@pytest.mark.requirement("WC-09")
async def test_a_failed_run_is_compared_by_its_error() -> None:
    async def fails(run: tenure.Run, topic: str) -> None:
        await run.step(search, topic)
        raise tenure.PermanentError("no pages")

    async def fails_otherwise(run: tenure.Run, topic: str) -> None:
        await run.step(search, topic)
        raise tenure.PermanentError("no books")

    async def returns(run: tenure.Run, topic: str) -> None:
        await run.step(search, topic)

    file = await recorded(fails)
    assert await differences(file, fails) == []
    [other] = await differences(file, fails_otherwise)
    assert "raises PermanentError: no books now; recorded is PermanentError: no pages" in str(other)
    [returned] = await differences(file, returns)
    assert "the function returns now" in str(returned)


@pytest.mark.requirement("WC-09")
async def test_a_run_that_was_cut_off_may_continue_where_it_ended() -> None:
    async def waits(run: tenure.Run, topic: str) -> None:
        await run.step(search, topic)
        await run.wait_for("never")

    async def cancel(app: tenure.App, handle: Any) -> None:
        await app.cancel(handle.id)

    async def waits_after_more(run: tenure.Run, topic: str) -> None:
        await run.step(find, "x")
        await run.step(search, topic)

    file = await recorded(waits, until=cancel)
    assert file.outcome.is_cut_off
    assert await differences(file, waits) == []
    assert await kinds(file, waits_after_more) == [("added", "find")]


@pytest.mark.requirement("WC-09")
async def test_children_are_not_spawned_again() -> None:
    def declared() -> tuple[tenure.App, Any]:
        app = tenure.App("sqlite:///unused.db")

        @app.job
        def summarise(page: str) -> str:
            return page.upper()

        @app.workflow
        async def parent(run: tenure.Run, page: str) -> str:
            child = await run.spawn(summarise, page)
            return await child.result()

        return app, parent

    app, parent = declared()
    async with app.testing() as harness:
        handle = await parent.enqueue("a")
        await harness.run_all(raise_errors=True)
        file = golden_file(await handle.refresh(), await all_steps(await app.store(), handle.id))
    app, _ = declared()
    assert await replay_golden_file(file, app.kinds, app.seams) == []


@pytest.mark.requirement("WC-09")
async def test_sql_in_a_commit_block_is_not_executed() -> None:
    async def commits(run: tenure.Run, topic: str) -> str:
        await run.step(search, topic)
        async with run.commit(result="kept") as tx:
            executed.append("sql")
            tx.outbox("found", {"topic": topic})
        return "kept"

    async def commits_otherwise(run: tenure.Run, topic: str) -> str:
        await run.step(search, topic)
        async with run.commit(result="other"):
            executed.append("sql")
        return "other"

    file = await recorded(commits)
    assert await differences(file, commits) == []
    assert await kinds(file, commits_otherwise) == [("output", None)]


async def test_a_workflow_that_is_no_longer_declared_is_a_difference() -> None:
    file = await recorded(research)
    assert [one.kind for one in await replay_golden_file(file, {}, app_of(research).seams)] == ["kind"]


async def test_a_payload_that_is_refused_is_a_difference() -> None:
    async def other(run: tenure.Run, subject: str) -> str:
        return subject

    assert await kinds(await recorded(research), other) == [("payload", None)]


async def test_the_pytest_helper_names_file_and_difference(tmp_path: Path) -> None:
    file = await recorded(research)
    (tmp_path / "one.json").write_text(file.text())
    with pytest.raises(AssertionError, match=r"one\.json: 'find' \(3\): added"):
        await check_golden_async(app_of(_found_last), tmp_path / "one.json")


def test_a_folder_without_golden_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tenure.InvalidInput, match="has no golden files"):
        golden_paths(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(tenure.InvalidInput, match="is not a golden file"):
        read_golden_file(tmp_path / "a.json")


async def test_a_live_run_is_not_recorded() -> None:
    app = app_of(research)
    async with app.testing():
        handle = await app.submit("research", '{"topic":"cats"}')
        with pytest.raises(tenure.InvalidInput, match="record it when it has ended"):
            golden_file(handle.job, [])

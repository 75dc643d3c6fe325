"""`tenure queues` in a process of its own, on real databases."""

from __future__ import annotations

import pytest

from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.testing.driver import OPERATOR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database


def queues(database: Database, *arguments: str) -> Answer:
    return tenure("queues", *arguments, "--database", database.url)


async def rules_of(database: Database, name: str = "mail") -> QueueLimits | None:
    async with database.opened() as store:
        return next((queue.limits for queue in await store.queues.known() if queue.name == name), None)


async def test_limits_are_set_one_by_one_and_removed(database: Database) -> None:
    async with database.opened():
        pass
    answer = queues(database, "set", "mail", "--concurrency", "10", "--rate", "100/m", "--json")
    assert answer.code == 0, answer
    assert answer.json["limits"]["concurrency_max"] == 10
    assert queues(database, "set", "mail", "--key-concurrency", "2", "--key-rate", "5/1.5s", "--fair").code == 0
    assert await rules_of(database) == QueueLimits(
        concurrency_max=10, key_concurrency_max=2, rate=Rate(100, 60), key_rate=Rate(5, 1.5), fair=True
    )
    answer = queues(database, "set", "mail", "--concurrency", "none", "--rate", "none", "--no-fair")
    assert answer.code == 0, answer
    assert await rules_of(database) == QueueLimits(key_concurrency_max=2, key_rate=Rate(5, 1.5))
    assert "5 / 1.5 s" in answer.out


async def test_a_queue_is_paused_and_resumed(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        await driver.add(queue="mail")
        assert queues(database, "pause", "mail").code == 0
        assert await driver.claim(queues=("mail",)) == []
        listed = queues(database, "ls", "--json").json["queues"]
        assert [(queue["name"], queue["paused_at"] is not None, queue["leased"]) for queue in listed] == [
            ("mail", True, 0)
        ]
        answer = queues(database, "resume", "mail", "--json")
        assert (answer.code, answer.json["paused_at"]) == (0, None)
        assert len(await driver.claim(queues=("mail",))) == 1


async def test_what_is_known_of_a_queue_is_forgotten(database: Database) -> None:
    async with database.opened() as store:
        await store.queues.put("mail", QueueLimits(concurrency_max=1), actor=OPERATOR)
    assert queues(database, "forget", "mail").code == 0
    assert await rules_of(database) is None
    for command in ("forget", "resume"):
        again = queues(database, command, "mail")
        assert again.code == 1
        assert "tenure queues ls" in again.err
    assert queues(database, "ls").out == "no queue is paused or has limits\n"


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("set", "mail"), "give a limit to change"),
        (("set", "mail", "--concurrency", "many"), "neither a number nor none"),
        (("set", "mail", "--concurrency", "0"), "pause it instead"),
        (("set", "mail", "--rate", "fast"), "not a rate such as"),
        (("set", "mail", "--rate", "5/fortnight"), "not a rate such as"),
        (("set", "mail", "--rate", "5/"), "not a rate such as"),
        (("set", "mail", "--rate", "0/s"), "rate.count"),
        (("set", " mail", "--fair"), "queue"),
        (("pause", ""), "queue"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    database: Database, arguments: tuple[str, ...], expected_text: str
) -> None:
    async with database.opened() as store:
        await store.queues.put("mail", QueueLimits(concurrency_max=3), actor=OPERATOR)
    answer = queues(database, *arguments)
    assert answer.code == 2, answer
    assert expected_text in answer.err
    assert await rules_of(database) == QueueLimits(concurrency_max=3)


async def test_every_change_is_in_the_operators_log(database: Database) -> None:
    async with database.opened():
        pass
    for arguments in (("set", "mail", "--fair"), ("set", "mail", "--fair"), ("pause", "mail"), ("forget", "mail")):
        assert queues(database, *arguments).code == 0
    rows = database.rows("select action, actor from {operator_log} order by id")
    assert [action for action, _ in rows] == ["put_queue", "pause_queue", "forget_queue"]
    assert all(actor.startswith("client:cli/") for _, actor in rows)

"""The pure parts of the benchmarks of growth, pressure and memory: what they conclude from given figures."""

from __future__ import annotations

import doctest
from dataclasses import replace
from types import ModuleType
from xml.etree import ElementTree

import pytest

from benchmarks import claimers, filling, gauges, growth, growth_plots, memory, pressure, pressure_report
from benchmarks.claimers import Drained, together
from benchmarks.growth_plots import Chart, Line, drawn
from benchmarks.growth_report import Cell, Growth, Series, growths, markdown
from benchmarks.memory import Peak
from benchmarks.pressure_report import Outcome, Sample, rate, slices


def cell(series: Series, at: int, *, p99_ms: float, per_second: float = 1000.0, jobs: int = 1000) -> Cell:
    figures = {
        "claim_p50_ms": p99_ms / 2,
        "claim_p99_ms": p99_ms,
        "jobs_per_second": per_second,
        "job_us": 1e6 / per_second,
    }
    return Cell("postgres", series, at, jobs, "by one", [figures])


def verdict(cells: list[Cell], cost: str = "claim_p99_ms") -> Growth:
    [found] = [growth for growth in growths(cells) if growth.cost == cost]
    return found


@pytest.mark.parametrize("module", [claimers, filling, gauges, growth, growth_plots, pressure])
def test_the_examples_in_the_benchmarks_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_a_claim_that_takes_as_long_as_before_grows_within_what_is_allowed() -> None:
    found = verdict([cell(Series.FINISHED, 0, p99_ms=5), cell(Series.FINISHED, 10_000_000, p99_ms=5)])
    assert found.within
    assert found.factor == 1
    assert found.allowed == pytest.approx(2.33, abs=0.01)


def test_a_claim_that_reads_all_that_was_ever_finished_is_beyond_it() -> None:
    found = verdict([cell(Series.FINISHED, 0, p99_ms=5), cell(Series.FINISHED, 10_000_000, p99_ms=5000)])
    assert not found.within


def test_a_rate_that_falls_is_a_cost_that_grows() -> None:
    cells = [
        cell(Series.QUEUED, 0, p99_ms=5, per_second=1000),
        cell(Series.QUEUED, 5_000_000, p99_ms=5, per_second=100),
    ]
    found = verdict(cells, "job_us")
    assert found.factor == 10
    assert not found.within


def test_the_first_and_the_last_cell_are_compared_in_whatever_order_they_come() -> None:
    cells = [cell(Series.QUEUED, at, p99_ms=at / 100 + 1) for at in (5000, 0, 1000)]
    found = verdict(cells)
    assert (found.smallest, found.largest, found.factor) == (0, 5000, 51)


def test_one_cell_alone_has_no_verdict() -> None:
    assert list(growths([cell(Series.QUEUED, 0, p99_ms=5)])) == []


def test_a_claimer_may_wait_for_the_others_but_not_for_more() -> None:
    fair = [cell(Series.WORKERS, 1, p99_ms=5), cell(Series.WORKERS, 64, p99_ms=5 * 64)]
    unfair = [cell(Series.WORKERS, 1, p99_ms=5), cell(Series.WORKERS, 64, p99_ms=5 * 64 * 64)]
    assert verdict(fair).factor == 1
    assert not verdict(unfair).within


def test_bytes_may_cost_as_much_as_there_are_of_them() -> None:
    assert verdict([cell(Series.PAYLOAD, 100, p99_ms=5), cell(Series.PAYLOAD, 200_000, p99_ms=9999)]).within
    assert not verdict([cell(Series.PAYLOAD, 100, p99_ms=5), cell(Series.PAYLOAD, 200_000, p99_ms=10_001)]).within


def test_pages_are_compared_with_the_cell_before_where_growth_shows_beside_a_large_constant() -> None:
    cells = [cell(Series.SERVED, at, p99_ms=5) for at in (1, 100, 1000)]
    for one in cells:
        one.rounds[0]["pages_per_job"] = 100.0 + one.at
    found = verdict(cells, "pages_per_job")
    assert (found.smallest, found.largest) == (100, 1000)
    assert not found.within
    assert found.factor == 5.5


def test_the_median_of_the_rounds_counts() -> None:
    cells = [cell(Series.QUEUED, 0, p99_ms=5), cell(Series.QUEUED, 5000, p99_ms=5)]
    cells[1].rounds.extend([cells[1].rounds[0], {**cells[1].rounds[0], "claim_p99_ms": 900.0}])
    assert verdict(cells).factor == 1


def test_the_table_marks_growth_beyond_the_limit() -> None:
    text = markdown([cell(Series.QUEUED, 0, p99_ms=5), cell(Series.QUEUED, 5_000_000, p99_ms=5000)], ["facts"])
    assert "claim p99: 1000.00 times from 0 to 5,000,000" in text
    assert text.count("**beyond**") == 1


def test_what_several_processes_drained_lasts_from_the_first_begin_to_the_last_end() -> None:
    assert together([Drained([1.0], 20, 5.0, 9.0), Drained([2.0], 30, 4.0, 8.0)]) == Drained([1.0, 2.0], 50, 4.0, 9.0)


def test_a_chart_with_an_empty_database_at_its_left_end_is_a_document() -> None:
    chart = Chart(
        "Claim <p99>", "jobs", [Line("postgres", "postgres", [(0, 5.0), (1_000_000, 6.0), (10_000_000, 7.0)])]
    )
    root = ElementTree.fromstring(drawn([chart, Chart("nothing", "jobs", [])]))
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    places = [float(circle.attrib["cx"]) for circle in circles]
    assert places == sorted(places)
    assert len(set(places)) == 3
    assert root.attrib["height"] == str(growth_plots.HEIGHT)


def outcome(name: str, per_second: int, *, slower_by: int = 0, stop_problem: str | None = None) -> Outcome:
    done, samples = 0, []
    for second in range(11):
        samples.append(
            Sample(seconds=second, succeeded=done, backlog=5, dead_tuples=second, dead_jobs=second, ready_bytes=8192)
        )
        done += per_second - second * slower_by
    return Outcome(
        scenario=name,
        samples=samples,
        cores_busy=0.5,
        enqueued=done,
        offered_per_second=None,
        burst_per_second=None,
        stop_seconds=1.0,
        stop_problem=stop_problem,
        verified="clean: 5 jobs",
    )


def ok(outcomes: list[Outcome]) -> dict[str, bool]:
    return {found["scenario"]: found["ok"] for found in pressure_report.verdicts(outcomes)}


def test_completions_are_compared_with_the_clean_runs_just_before_and_after() -> None:
    far, before, after = outcome("clean", 5000), outcome("clean", 1000), outcome("clean", 1020)
    assert not ok([far, before, outcome("idle transaction", 955), after, far])["idle transaction"]
    assert ok([far, before, outcome("idle transaction", 955)])["idle transaction"]


def test_beside_clean_runs_that_differ_much_a_share_is_not_trusted() -> None:
    assert not ok([outcome("clean", 1000), outcome("readers", 2000), outcome("clean", 2000)])["readers"]


def test_bursts_cannot_be_done_faster_than_they_come_on_the_whole() -> None:
    bursts = replace(outcome("burst", 960), offered_per_second=1000.0)
    assert ok([outcome("clean", 1000), bursts, outcome("clean", 1099)])["burst"]
    assert not ok([outcome("clean", 1000), replace(bursts, offered_per_second=None), outcome("clean", 1099)])["burst"]


def test_workers_that_do_not_stop_as_they_should_fail_a_scenario_that_was_fast() -> None:
    assert not ok([outcome("clean", 1000), outcome("burst", 1000, stop_problem="2 jobs were left held")])["burst"]


@pytest.mark.parametrize("finding", ["2 problems", "unfinished after 5 s"])
def test_a_database_that_was_not_found_clean_fails_a_scenario(finding: str) -> None:
    unclean = replace(outcome("burst", 1000), verified=finding)
    assert not ok([outcome("clean", 1000), unclean])["burst"]


def test_what_gets_slower_and_slower_is_seen_in_its_quarters() -> None:
    one = outcome("idle transaction", 1000, slower_by=50)
    assert rate(one, until=0.25) > rate(one) > rate(one, since=0.75)
    rates = [per_second for _, per_second in slices(one)]
    assert rates == sorted(rates, reverse=True)


def peaks(what: str, *megabytes: int) -> list[Peak]:
    return [Peak("sqlite", what, 10_000 * 10**n, mb * 1_000_000, 1.0) for n, mb in enumerate(megabytes)]


@pytest.mark.parametrize(
    ("what", "megabytes", "as_it_should_be"),
    [
        ("verify", (40, 56, 57), True),
        ("verify", (40, 56, 120), False),
        ("event tail", (40, 41), True),
        ("event tail", (40, 60), False),
        ("worker", (40, 299), True),
        ("worker", (40, 300), False),
    ],
)
def test_memory_may_not_grow_with_the_log_nor_a_worker_beyond_its_limit(
    what: str, megabytes: tuple[int, ...], as_it_should_be: bool
) -> None:
    [found] = memory.verdicts(peaks(what, *megabytes))
    assert found["ok"] is as_it_should_be


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert memory.peak_bytes(2**30) == 0

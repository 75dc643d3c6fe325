"""What is counted when something is measured, and how it is summed up and drawn."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.measuring.records import Measured, Unmeasured, Workload, moved
from benchmarks.measuring.rounds import Result, summarised, variants
from benchmarks.plots import Bar, Panel, drawn, scale_end
from benchmarks.reporting import Variant, markdown, plot
from tenure.cli.bench_workloads import medians, percentile


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.01, 1.0), (0.5, 50.0), (0.501, 51.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)]
)
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_a_percentile_of_few_values_is_one_of_them() -> None:
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([7.0, 3.0], 0.5) == 3.0
    assert percentile([7.0, 3.0], 0.99) == 7.0


def test_each_figure_has_its_own_median() -> None:
    assert medians([{"a": 1.0, "b": 9.0}, {"a": 5.0, "b": 1.0}, {"a": 2.0, "b": 4.0}]) == {"a": 2.0, "b": 4.0}
    assert medians([]) == {}


def test_a_counter_is_reported_as_its_difference_per_job() -> None:
    assert moved({"rows": 100.0, "wal": 0.0}, {"rows": 150.0, "wal": 10.0}, jobs=10) == {"rows": 5.0, "wal": 1.0}
    assert moved({}, {}, jobs=10) == {}


def test_only_what_workers_can_share_is_measured_with_several() -> None:
    assert variants([Workload.LATENCY, Workload.DRAIN], [1, 2]) == [
        (Workload.LATENCY, 1),
        (Workload.DRAIN, 1),
        (Workload.DRAIN, 2),
    ]
    assert variants([Workload.ENQUEUE_ONE], [4]) == [(Workload.ENQUEUE_ONE, 1)]


def measured(rate: float, *, workload: Workload = Workload.DRAIN, processes: int = 1, wal: float = 0.0) -> Measured:
    names = ("wal_bytes", "rows_inserted", "rows_updated", "rows_updated_hot", "dead_tuples")
    return Measured(
        workload=workload,
        processes=processes,
        jobs=100,
        seconds=100 / rate,
        figures={"jobs_per_second": rate},
        gauged=dict.fromkeys(names, wal) if wal else {},
    )


def test_rounds_are_summed_up_for_each_variant() -> None:
    first, second = summarised([measured(10.0), measured(7.0, processes=2), measured(30.0), measured(20.0)])
    assert (first.processes, first.figures, first.problem) == (1, {"jobs_per_second": 20.0}, None)
    assert [figures["jobs_per_second"] for figures in first.rounds] == [10.0, 30.0, 20.0]
    assert (second.processes, second.figures) == (2, {"jobs_per_second": 7.0})


def test_one_round_without_counters_leaves_no_figure() -> None:
    failed = Unmeasured(workload=Workload.DRAIN, processes=1, why="1 of 100 jobs did not succeed")
    [summary] = summarised([measured(10.0), failed, measured(30.0)])
    assert summary.problem == "1 of 100 jobs did not succeed"
    assert (summary.figures, summary.gauged, summary.rounds, summary.jobs) == ({}, {}, [], 0)


FOUND: dict[Variant, list[Result]] = {
    Variant("postgres", Workload.DRAIN, 1): [measured(6_000.0, wal=2_000.0), measured(8_000.0, wal=2_200.0)],
    Variant("raw", Workload.DRAIN, 1): [measured(10_000.0, wal=2_100.0), measured(10_000.0, wal=2_100.0)],
    Variant("sqlite", Workload.DRAIN, 1): [
        measured(5.0),
        Unmeasured(workload=Workload.DRAIN, processes=1, why="it was too slow\nsee the log"),
    ],
}


def test_the_tables_say_medians_spreads_costs_and_the_share_of_the_raw_limit() -> None:
    lines = markdown(FOUND, facts=["a machine"]).splitlines()
    assert lines[0] == "a machine"
    assert "| drain, 1 process | PostgreSQL | 100 | 7,000 /s | 6,000 to 8,000 |" in lines
    assert "| drain, 1 process | SQLite | | not reported: it was too slow | |" in lines
    assert any(line.startswith("| drain, 1 process | tenure | 2,100 |") for line in lines)
    assert "| 1 process | 7,000 /s | 10,000 /s | 70% |" in lines


def test_a_plot_is_well_formed_and_shows_what_has_a_figure_and_nothing_else() -> None:
    root = ElementTree.fromstring(plot(FOUND))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"7,000", "10,000", "PostgreSQL", "Jobs per second"} <= set(texts)
    assert "SQLite" not in texts
    assert "5" not in texts


def test_bars_are_as_long_as_their_values_say_and_stay_within_the_drawing() -> None:
    bars = [Bar("a < b", "sqlite", 50.0, 40.0, 95.0), Bar("c", "postgres", 25.0, 25.0, 25.0)]
    root = ElementTree.fromstring(drawn([Panel("p & q", bars), Panel("nothing", [])]))
    svg = "{http://www.w3.org/2000/svg}"
    widths = [float(group.findall(f"{svg}rect")[0].attrib["width"]) for group in root.findall(f"{svg}g")]
    assert widths[0] == 2 * widths[1] > 0
    assert all(float(line.attrib["x2"]) <= float(root.attrib["width"]) for line in root.iter(f"{svg}line"))
    texts = [element.text for element in root.iter(f"{svg}text")]
    assert {"a < b", "p & q"} <= set(texts)
    assert "nothing" not in texts


@pytest.mark.parametrize("most", [0.003, 0.9, 1.0, 9.99, 10.0, 12_345.0, 99_999.0])
def test_a_scale_ends_at_or_just_beyond_the_largest_value(most: float) -> None:
    assert most <= scale_end(most) <= 1.7 * most

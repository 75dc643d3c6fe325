"""The pure parts of the comparison with the peers: medians, ratios, targets and tables; and who is given what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.peers.drivers import tally
from benchmarks.peers.figures import (
    MEASURES,
    Cell,
    best,
    figures_table,
    measured,
    plot,
    ratio,
    ratios_table,
    reasons,
    summarise,
)
from benchmarks.peers.places import NoPlace, redis_program
from benchmarks.peers.roster import PEERS, WORKLOADS, Peer
from benchmarks.peers.targets import TARGETS, targets_table

TITLES = {"tenure": "tenure on PostgreSQL", "pgqueuer": "PgQueuer", "oban": "oban"}
BY_KEY = {measure.key: measure for measure in MEASURES}


def drained(peer: str, number: int, rate: float) -> Cell:
    return Cell(peer, "drain1", number, figures={"jobs": 10, "per_second": rate, "wal_bytes": None})


def waited(peer: str, p50_ms: float) -> Cell:
    return Cell(peer, "latency", 1, figures={"p50_ms": p50_ms, "p95_ms": 9.0, "p99_ms": 10.0})


def test_a_median_is_taken_over_all_rounds_of_one_peer_and_workload() -> None:
    cells = [drained("tenure", 1, 300.0), drained("tenure", 2, 100.0), drained("tenure", 3, 200.0)]
    spread = summarise([*cells, drained("pgqueuer", 1, 7.0)])["tenure", "drain1"]
    assert (spread.median, spread.least, spread.most) == (200.0, 100.0, 300.0)


def test_a_round_that_failed_has_no_part_in_the_median() -> None:
    failed = Cell("tenure", "drain1", 2, reason="it broke")
    assert summarise([drained("tenure", 1, 300.0), failed])["tenure", "drain1"].median == 300.0


def test_a_figure_that_a_peer_does_not_have_is_left_out_and_not_counted_as_nothing() -> None:
    assert ("tenure", "wal_run") not in summarise([drained("tenure", 1, 300.0)])


def test_the_figures_of_one_workload_are_not_taken_for_those_of_another() -> None:
    summary = summarise([Cell("tenure", "one", 1, figures={"per_second": 5.0})])
    assert set(summary) == {("tenure", "one")}


def test_a_ratio_is_the_median_of_the_base_over_that_of_the_peer() -> None:
    summary = summarise([drained("tenure", 1, 300.0), drained("pgqueuer", 1, 200.0)])
    assert ratio(summary, "tenure", "pgqueuer", "drain1") == 1.5


@pytest.mark.parametrize("missing", ["tenure", "pgqueuer"])
def test_there_is_no_ratio_where_one_side_was_not_measured(missing: str) -> None:
    cells = [cell for cell in (drained("tenure", 1, 3.0), drained("pgqueuer", 1, 2.0)) if cell.peer != missing]
    assert ratio(summarise(cells), "tenure", "pgqueuer", "drain1") is None


def test_there_is_no_ratio_to_a_peer_that_did_nothing() -> None:
    summary = summarise([drained("tenure", 1, 300.0), drained("pgqueuer", 1, 0.0)])
    assert ratio(summary, "tenure", "pgqueuer", "drain1") is None


def test_the_best_rate_is_the_highest_and_the_best_latency_the_lowest() -> None:
    summary = summarise([drained("a", 1, 3.0), drained("b", 1, 5.0), waited("a", 1.0), waited("b", 2.0)])
    assert best(summary, ["a", "b"], BY_KEY["drain1"]) == "b"
    assert best(summary, ["a", "b"], BY_KEY["p50"]) == "a"


def test_a_workload_without_figures_has_no_best_library() -> None:
    assert best(summarise([drained("a", 1, 3.0)]), ["a"], BY_KEY["bulk"]) is None
    assert best({}, [], BY_KEY["drain1"]) is None


def test_the_table_shows_the_median_the_spread_and_what_is_missing() -> None:
    summary = summarise([drained("tenure", 1, 1000.0), drained("tenure", 2, 3000.0), waited("pgqueuer", 4.25)])
    lines = figures_table(summary, TITLES).splitlines()
    assert lines[0] == "|  | drain, 1 process /s | latency p50 ms | latency p95 ms | latency p99 ms |"
    assert lines[2] == "| tenure on PostgreSQL | 2,000 (1,000 to 3,000) | none | none | none |"
    assert lines[3] == "| PgQueuer | none | 4.2 | 9.0 | 10.0 |"
    assert lines[4] == "| oban | none | none | none | none |"


def test_only_measures_with_a_figure_have_a_column() -> None:
    assert [measure.key for measure in measured(summarise([drained("tenure", 1, 1.0)]))] == ["drain1"]


def test_the_table_of_ratios_leaves_the_base_itself_out() -> None:
    summary = summarise([drained("tenure", 1, 300.0), drained("pgqueuer", 1, 200.0)])
    lines = ratios_table(summary, "tenure", TITLES).splitlines()
    assert lines[2:] == ["| ÷ PgQueuer | 1.50 |", "| ÷ oban | none |"]


def test_the_plot_has_a_bar_for_every_figure_the_best_first_and_none_for_what_is_missing() -> None:
    cells = [Cell("a", "one", 1, {"per_second": 10.0}), Cell("b", "one", 1, {"per_second": 30.0})]
    cells.append(Cell("b", "latency", 1, {"p50_ms": 1.5}))
    drawing = plot(summarise(cells), {"a": "First", "b": "Second", "c": "Third"}, dict.fromkeys("abc", "redis"))
    assert [word for word in ("First", "Second", "Third") if f">{word}<" in drawing] == ["First", "Second"]
    assert drawing.index(">Second<") < drawing.index(">First<")
    assert (drawing.count("enqueue one by one"), drawing.count("latency p50"), drawing.count("drain")) == (1, 1, 0)


def test_every_cell_without_figures_is_listed_with_its_reason_and_rounds() -> None:
    cells = [Cell("oban", "bulk", number, reason="no bulk interface", unsupported=True) for number in (1, 2)]
    cells.append(Cell("oban", "drain1", 2, reason="it broke"))
    assert reasons([*cells, drained("tenure", 1, 1.0)], TITLES) == [
        "oban, bulk, round 1, 2: no bulk interface",
        "oban, drain1, round 2: it broke",
    ]


@pytest.mark.parametrize(("rate", "word"), [(299.0, "no"), (300.0, "yes")])
def test_a_target_is_reached_exactly_from_its_ratio_on(rate: float, word: str) -> None:
    summary = summarise([drained("tenure", 1, rate), drained("pgqueuer", 1, 200.0), drained("oban", 1, 50.0)])
    row = targets_table(summary, TITLES, rivals=["pgqueuer", "oban"]).splitlines()[2]
    assert row.startswith("| PostgreSQL drain, 1 process | PgQueuer | ≥ 1.5 |")
    assert row.endswith(f"| {word} |")


@pytest.mark.parametrize(("p50_ms", "word"), [(0.71, "no"), (0.7, "yes")])
def test_a_target_for_a_time_is_reached_up_to_its_ratio(p50_ms: float, word: str) -> None:
    table = targets_table(summarise([waited("tenure", p50_ms), waited("oban", 1.0)]), TITLES, rivals=["oban"])
    [row] = [line for line in table.splitlines() if "latency p50" in line]
    assert row.endswith(f"| {word} |")


def test_a_target_that_was_not_measured_is_never_called_reached() -> None:
    rows = targets_table({}, TITLES, rivals=["pgqueuer"]).splitlines()[2:]
    assert len(rows) == len(TARGETS)
    assert all(row.endswith("| none | not measured |") for row in rows)


def test_the_target_for_wal_takes_enqueue_and_run_together() -> None:
    cells = [
        Cell(peer, workload, 1, figures={"wal_bytes": size})
        for peer, sizes in {"tenure": (700.0, 1300.0), "pgqueuer": (900.0, 1600.0)}.items()
        for workload, size in zip(("bulk", "drain1"), sizes, strict=True)
    ]
    row = targets_table(summarise(cells), TITLES, rivals=["pgqueuer"]).splitlines()[-1]
    assert row == "| WAL bytes, enqueued many and run | PgQueuer | ≤ 1 | 0.80 | yes |"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_a_driver_and_work_for_every_workload(peer: Peer) -> None:
    drivers = Path(tally.__file__).parent
    assert (drivers / f"{peer.driver}.py").exists()
    assert all(0 < peer.jobs(workload, 20_000) <= 20_000 for workload in WORKLOADS)


def test_no_peer_is_given_more_jobs_than_were_asked_for() -> None:
    assert {peer.jobs("drain1", 100) for peer in PEERS} == {100}


def test_the_tallies_of_all_processes_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tally.FOLDER_VARIABLE, str(tmp_path))
    mine = tally.Tally()
    mine.ran(0)
    mine.ran(1)
    (tmp_path / f"{os.getpid()}").rename(tmp_path / "another-process")
    tally.Tally().ran(0)
    counted = tally.counted(tmp_path)
    assert counted.ran == 3
    assert len(counted.samples_ns) == 1
    assert counted.first_ns is not None


def test_a_tally_that_is_just_being_made_counts_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "123").write_bytes(b"")
    assert tally.counted(tmp_path) == tally.Counted(0, None, ())


def test_redis_is_installed_only_by_root() -> None:
    with pytest.raises(NoPlace, match="as root, apt-get install redis-server"):
        redis_program(which=lambda name: "/usr/bin/apt-get" if name == "apt-get" else None, is_root=False)


def test_root_installs_redis_where_it_is_missing() -> None:
    there: dict[str, str] = {"apt-get": "/usr/bin/apt-get"}

    def install() -> None:
        there["redis-server"] = "/usr/bin/redis-server"

    assert redis_program(which=there.get, is_root=True, install=install) == "/usr/bin/redis-server"


def test_redis_that_is_there_is_used_as_it_is() -> None:
    def install() -> None:
        raise AssertionError("nothing was missing")

    assert redis_program(which=lambda name: f"/opt/{name}", is_root=True, install=install) == "/opt/redis-server"

"""The targets of tenure relative to its peers, and whether a run reached them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.peers.figures import MEASURES, NONE, Spread, Summary, best, ratio, table

POSTGRES, SQLITE = "tenure", "tenure-sqlite"
KEYS = {measure.key: measure for measure in MEASURES}


@dataclass(frozen=True)
class Target:
    """A ratio to reach; `most` where less is better. Without peers it applies to the best of all on the same
    database."""

    work: str
    base: str
    measure: str
    peers: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    def reached(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def wanted(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


TARGETS = (
    Target("PostgreSQL drain, 1 process", POSTGRES, "drain1", least=1.5),
    Target("PostgreSQL drain, 2 processes", POSTGRES, "drain2", least=1.3),
    Target("PostgreSQL drain, 1 process", POSTGRES, "drain1", ("oban",), least=5),
    Target("PostgreSQL drain, 1 process", POSTGRES, "drain1", ("procrastinate",), least=5),
    Target("PostgreSQL drain, 1 process", POSTGRES, "drain1", ("dbos",), least=5),
    Target("PostgreSQL, 1 ms jobs at default settings, 1 process", POSTGRES, "default1", ("pgqueuer",), least=1),
    Target("PostgreSQL, 1 ms jobs at default settings, 1 process", POSTGRES, "default1", ("procrastinate",), least=3),
    Target("PostgreSQL, 1 ms jobs at default settings, 1 process", POSTGRES, "default1", ("oban",), least=3),
    Target("PostgreSQL enqueue many", POSTGRES, "bulk", least=1.5),
    Target("PostgreSQL enqueue one by one", POSTGRES, "one", least=1),
    Target("PostgreSQL latency p50", POSTGRES, "p50", most=0.7),
    Target("PostgreSQL latency p99", POSTGRES, "p99", most=1),
    Target("SQLite drain, 1 process", SQLITE, "drain1", ("huey",), least=5),
    Target("SQLite drain, 1 process", SQLITE, "drain1", ("celery",), least=2),
    Target("SQLite drain, 1 process", SQLITE, "drain1", ("dramatiq",), least=2),
    Target("WAL bytes, enqueued many and run", POSTGRES, "wal", ("pgqueuer",), most=1),
)


def targets_table(summary: Summary, titles: Mapping[str, str], *, rivals: Iterable[str]) -> str:
    """Every target with the ratio that this run shows; `rivals` are the peers on PostgreSQL."""
    whole = {**summary, **_whole_wal(summary)}
    rivals = list(rivals)
    return table(
        ["work", "against", "wanted", "measured", "reached"],
        [_row(target, whole, titles, rivals) for target in TARGETS],
    )


def _row(target: Target, summary: Summary, titles: Mapping[str, str], rivals: list[str]) -> list[str]:
    peer = target.peers[0] if target.peers else best(summary, rivals, KEYS[target.measure])
    value = None if peer is None else ratio(summary, target.base, peer, target.measure)
    against = "the best" if peer is None else titles.get(peer, peer)
    if value is None:
        return [target.work, against, target.wanted, NONE, "not measured"]
    return [target.work, against, target.wanted, f"{value:.2f}", "yes" if target.reached(value) else "no"]


def _whole_wal(summary: Summary) -> dict[tuple[str, str], Spread]:
    """Enqueue and run together, as the sum of the medians."""
    whole: dict[tuple[str, str], Spread] = {}
    for peer, key in summary:
        run = summary.get((peer, "wal_run"))
        if key == "wal_bulk" and run is not None:
            added = summary[peer, key]
            whole[peer, "wal"] = Spread(added.median + run.median, added.least + run.least, added.most + run.most)
    return whole

"""The engines that are compared, and the targets."""

from __future__ import annotations

from benchmarks.peers.roster import TENURE, WATCHED, Peer

DBOS = Peer("dbos", "DBOS on PostgreSQL", "postgres", ("dbos", WATCHED))

ENGINES = (
    TENURE,
    DBOS,
    Peer("absurd", "Absurd", "postgres", ("absurd-sdk", "absurdctl", WATCHED)),
    Peer("pgtask", "pgtask", "postgres", ("pgtask", WATCHED)),
    Peer("tenure-sqlite", "tenure on SQLite", "sqlite", TENURE.requirements),
    Peer("dbos-sqlite", "DBOS on SQLite", "sqlite", DBOS.requirements),
)
"""A peer's `environment` is also the name of its driver: the two rows of an engine on two databases share both."""

TARGETS = (
    ("many", "≥", 2.0, None),
    ("long", "≥", 2.0, None),
    ("signal_p50", "≤", 1.0, None),
    ("signal_p50", "≤", 0.5, "dbos"),
    ("children", "≤", 1.0, None),
)
"""A measure, the direction, and the target of tenure's median over that of this engine, or of the best of them."""

"""What each source document allows, and the extensions that the requirements list.

Typed from those texts, each with its line in short, and not from the vocabularies: this page and they check each other.

`before → after | line of the source`. A creation has no state before it. A line in quotes is the source's own.
"""

from __future__ import annotations

from dataclasses import dataclass

# "`queued → claimed → running → succeeded|failed|stalled`"; "No transitions outside the following set are allowed."
CONTRACT = """
- → queued            | "Enqueue: Creates `queued`"
queued → claimed      | "Claim: `queued → claimed`"
stalled → claimed     | "`stalled → claimed` is allowed only as a reclaim path"
claimed → running     | "Start: `claimed → running`"
running → succeeded   | "Complete: `running → succeeded`"
running → failed      | "Fail: `running → failed`"
claimed → stalled     | "Stall: `claimed → stalled`"
running → stalled     | "`running → stalled`"
stalled → queued      | "Requeue: `stalled → queued`"
"""
CONTRACT_EXTENSIONS = """
queued → failed       | LC queued, claimed, stalled → failed
claimed → failed      |
stalled → failed      |
"""

# Two lists, of which the second adds cancellation from queued and assigned.
MACHINE = """
- → queued                 | "[*] --> queued"
queued → assigned          | "queued → assigned (claim succeeds, lease acquired)"
assigned → running         | "assigned → running (worker acknowledges start; first heartbeat)"
running → succeeded        | "running → succeeded | failed | cancelled"
running → failed           |
running → cancelled        |
queued → cancelled         | "queued/assigned/running → cancelled (policy/user action)"
assigned → cancelled       |
queued → dead_lettered     | "queued | assigned | running → dead_lettered"
assigned → dead_lettered   |
running → dead_lettered    |
"""
MACHINE_EXTENSIONS = """
running → queued           | SM running, assigned → queued (end of an attempt)
assigned → queued          |
queued → failed            | queued, assigned → failed
assigned → failed          |
"""

WORKER = """
- → queued            | "`queued`: API (creation only)"
queued → running      | "Claims runs (queued/retry → running)"
retry → running       | "`retry` always transitions back to `running` (via pool dispatch)"
running → succeeded   | "[running] ──► [succeeded]"
running → failed      | "├──► [failed]"
running → halted      | "├──► [halted]"
running → retry       | "└──► [retry]"
"""
WORKER_EXTENSIONS = """
queued → failed       | WC queued, retry → failed, halted
queued → halted       |
retry → failed        |
retry → halted        |
"""

LEDGER = """
- → PENDING                | "Submit a Job --> Job: PENDING"
PENDING → RUNNING          | "when an execution is LEASED"
RUNNING → SUCCEEDED        | "when any execution reaches DONE (after COMMITTED)"
RUNNING → PENDING          | "when lease expires and no execution is COMMITTED"
- → LEASED                 | "Execution: LEASED (exec_id, lease_expires_at)"
LEASED → IN_PROGRESS       | "`LEASED` -> `IN_PROGRESS`"
IN_PROGRESS → COMMITTED    | "`IN_PROGRESS` -> `COMMITTED`"
COMMITTED → DONE           | "`COMMITTED` -> `DONE`"
LEASED → ABORTED           | "`LEASED` -> `ABORTED` (lease expires before start)"
IN_PROGRESS → ABORTED      | "`IN_PROGRESS` -> `ABORTED` (crash/timeout before commit)"
"""
LEDGER_EXTENSIONS = """
RUNNING → FAILED           | EL RUNNING → FAILED, PENDING → FAILED (EL has no transition to FAILED)
PENDING → FAILED           |
RUNNING → PENDING          | RUNNING → PENDING by retry, suspend or release
"""

ENGINE = """
- → queued               | "Job accepted into queue"
queued → dispatched      | "queued → dispatched ✅"
dispatched → running     | "dispatched → running ✅"
running → completed      | "running → completed ✅"
running → failed         | "running → failed ✅", "after 60s (job timeout)"
queued → failed          | "`queued` → `failed` after 30s (queue stuck)"
dispatched → failed      | "`dispatched` → `failed` after 10s (engine not responding)"
"""
ENGINE_EXTENSIONS = """
running → queued         | EH running, dispatched → queued (end of an attempt, the next one counted)
dispatched → queued      |
"""
ENGINE_REJECTED = """
queued → running         | "queued → running ❌ (must dispatch first)"
queued → completed       | "queued → completed ❌ (must run first)"
dispatched → completed   | "dispatched → completed ❌ (must run first)"
"""

# "Current State Mapping": queued, started → running, finished → completed, failed. There was no dispatched.
ENGINE_OLD = """
- → queued               | "Job accepted into queue"
queued → started         | dispatched → running, where dispatched was queued
started → finished       | "running → completed ✅"
started → failed         | "running → failed ✅"
queued → failed          | "`queued` → `failed`", "`dispatched` → `failed`"
"""
ENGINE_OLD_EXTENSIONS = """
started → queued         | EH running → queued
"""

Pair = tuple[str | None, str]


def pairs(table: str) -> set[Pair]:
    """The transitions of a table."""
    found: set[Pair] = set()
    for line in table.strip().splitlines():
        before, after = (word.strip() for word in line.partition("|")[0].split("→"))
        found.add((None if before == "-" else before, after))
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """The transitions of one source, and the listed extensions of its vocabulary."""

    own: frozenset[Pair]
    extensions: frozenset[Pair]


def _source(own: str, extensions: str) -> Source:
    return Source(frozenset(pairs(own)), frozenset(pairs(extensions)))


SOURCES = {
    "contract": _source(CONTRACT, CONTRACT_EXTENSIONS),
    "machine": _source(MACHINE, MACHINE_EXTENSIONS),
    "worker": _source(WORKER, WORKER_EXTENSIONS),
    "ledger": _source(LEDGER, LEDGER_EXTENSIONS),
    "engine": _source(ENGINE, ENGINE_EXTENSIONS),
    "engine-old": _source(ENGINE_OLD, ENGINE_OLD_EXTENSIONS),
}

# The word of a record, for each source: the table of the requirements.
# record | contract | machine | worker | ledger: job / last execution | engine | engine-old
WORDS = """
queued                       | queued    | queued        | queued    | PENDING / -           | queued     | queued
queued, after an attempt     | queued    | queued        | retry     | PENDING / ABORTED     | queued     | queued
claimed                      | claimed   | assigned      | running   | RUNNING / LEASED      | queued     | queued
claimed, acked               | claimed   | assigned      | running   | RUNNING / LEASED      | dispatched | queued
running                      | running   | running       | running   | RUNNING / IN_PROGRESS | running    | started
running, committed           | running   | running       | running   | RUNNING / COMMITTED   | running    | started
waiting                      | stalled   | queued        | retry     | PENDING / ABORTED     | queued     | queued
retry                        | stalled   | queued        | retry     | PENDING / ABORTED     | queued     | queued
stalled                      | stalled   | queued        | retry     | PENDING / ABORTED     | queued     | queued
stalled, committed           | running   | running       | running   | RUNNING / COMMITTED   | running    | started
stalled while running, ends  | running   | running       | running   | RUNNING / IN_PROGRESS | running    | started
stalled while acked, ends    | claimed   | assigned      | running   | RUNNING / LEASED      | dispatched | queued
stalled while claimed, ends  | claimed   | assigned      | running   | RUNNING / LEASED      | queued     | queued
succeeded                    | succeeded | succeeded     | succeeded | SUCCEEDED / DONE      | completed  | finished
failed                       | failed    | failed        | failed    | FAILED / ABORTED      | failed     | failed
cancelled                    | failed    | cancelled     | halted    | FAILED / ABORTED      | failed     | failed
halted                       | failed    | cancelled     | halted    | FAILED / ABORTED      | failed     | failed
dead_lettered                | failed    | dead_lettered | failed    | FAILED / ABORTED      | failed     | failed
"""
WORD_ROWS = {
    name: cells for name, *cells in ([cell.strip() for cell in line.split("|")] for line in WORDS.strip().splitlines())
}
"""Record → the words in the order of the vocabularies."""

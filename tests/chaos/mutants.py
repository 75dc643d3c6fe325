"""Workers with a fault. The proofs must fail for them; otherwise they prove nothing.

Each mutant changes the code of its own process only, before the worker starts: the fault is in the paused worker, and
all others are correct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure.errors import LeaseLost
from tenure.lifecycle import decide
from tenure.lifecycle.decide import Change
from tenure.lifecycle.transitions import ClockGuard
from tenure.stores.contract import results
from tenure.stores.postgres import apply_batch
from tenure.workers import leases
from tenure.workers.commit import commit
from tenure.workers.maintenance import lease_renewer


def match_by_id_alone() -> None:
    """An owner's write is matched by the job's id alone: token, lease and revision are not checked.

    The write itself is a correct change of the current row, as in a store without fencing.
    """
    _trust_for_ever()
    _believe_that_it_is_ours()
    decide._require_lease = lambda job, operation, actor: None
    _replace(results, "decide_at", _without_lease)
    _unguard_sql()


def keep_the_effect_without_the_mark() -> None:
    """The commit block is committed although its mark was refused: the effect is not fenced by the lease."""
    _trust_for_ever()
    write = commit.Committer.write

    async def lenient(self: commit.Committer, *arguments: Any) -> Any:
        try:
            return await write(self, *arguments)
        except LeaseLost:
            return self._lease.job

    commit.Committer.write = lenient  # type: ignore[assignment,method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "match_by_id_alone": match_by_id_alone,
    "keep_the_effect_without_the_mark": keep_the_effect_without_the_mark,
}


def _replace(module: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(module, name)
    setattr(module, name, lambda *arguments, **named: around(original, *arguments, **named))


def _trust_for_ever() -> None:
    """A correct worker does not trust an expired lease; this one sends its request in any case."""

    def limit(self: commit.Committer, requested_seconds: float | None) -> float:
        return requested_seconds or 5.0

    commit.Committer.limit_seconds_for = limit  # type: ignore[method-assign]
    lease_renewer.LeaseRenewer.expire_locally = lambda self: []  # type: ignore[method-assign]


def _believe_that_it_is_ours() -> None:
    def adopt(self: leases.Lease, job: Any) -> bool:
        self.job = job
        return True

    leases.Lease.adopt = adopt  # type: ignore[method-assign]


def _without_lease(decide_at: Callable[..., Change], job: Any, operations: Any, actor: Any, **named: Any) -> Change:
    change = decide.decide_chain(job, operations, actor, request_id=named["request_id"])
    if change.guard is ClockGuard.LIVE_LEASE:
        return change
    return decide_at(job, operations, actor, **named)


def _unguard_sql() -> None:
    """In PostgreSQL the statement has the guards. It gets the row's own token as the expected one."""
    row = apply_batch._row

    def unguarded(change: Change, after: Any) -> tuple[Any, ...]:
        values = list(row(change, after))
        if change.guard is ClockGuard.LIVE_LEASE:
            values[apply_batch._CHANGE.index("tokens")] = None
            values[apply_batch._CHANGE.index("guards")] = ClockGuard.NOTHING
        return tuple(values)

    apply_batch._row = unguarded
    # The short statements always match the token; their changes can use the general one.
    for shortcut in ("is_heartbeat", "is_completion"):
        setattr(apply_batch, shortcut, lambda change: False)

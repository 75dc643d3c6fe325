"""Prints a run of a workflow: a tree of its steps, its children, its unread signals, and what it waits for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from tenure.cli.job_output import JOB_HEADINGS, abbreviate, fork_text, job_row, print_job, print_unread_signals
from tenure.cli.output import counted, print_line, print_table
from tenure.cli.tables import Column, format_value
from tenure.lifecycle.budgets import BudgetLine, amount_text, decode_spend, in_units
from tenure.lifecycle.forks import fork_origin
from tenure.lifecycle.json_text import load
from tenure.lifecycle.provenance import UnreadSignal
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import WAITING
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.views.redaction import Redaction
from tenure.views.runs import PatchUse
from tenure.workflow.branch import call_key

INDENT = "  "
STEP_HEADINGS = (
    Column("step", cut_to=20),
    Column("kind", rank=3),
    Column("name", cut_to=16),
    Column("status"),
    Column("took", is_number=True),
    Column("attempt", rank=2, is_number=True),
    Column("spent", rank=1, cut_to=16),
    Column("note", rank=1, cut_to=16),
)
SPENT = 6
"""The column that is left out where no step has spent anything."""
RUN_HEADINGS = (
    Column("id"),
    Column("kind", cut_to=20),
    Column("status"),
    Column("waits for"),
    Column("pinned", rank=2, cut_to=16),
    Column("attempt", rank=1, is_number=True),
    Column("updated", rank=3),
)
VERSION_HEADINGS = (
    Column("kind", cut_to=30),
    Column("version"),
    Column("runs", is_number=True),
    Column("pinned", is_number=True),
)
PATCH_HEADINGS = (
    Column("kind", cut_to=20),
    Column("patch", cut_to=30),
    Column("new code", is_number=True),
    Column("old code", is_number=True),
    Column("undecided", is_number=True),
    Column("removable"),
)
BUDGET_HEADINGS = (
    Column("unit", cut_to=20),
    *(Column(name, is_number=True) for name in ("limit", "spent", "reserved", "lost", "left")),
)
_SEPARATORS = re.compile(r"[/.]")

Position = tuple[tuple[bool, int, str], ...]


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its budget, steps, children and unread signals. `waits_for` is None unless it is waiting."""

    job: Job
    steps: list[StepRecord]
    children: list[Job]
    unread_signals: list[UnreadSignal]
    waits_for: str | None
    state: str | None
    """JSON text."""
    budget: list[BudgetLine]
    continued_by: list[Job]

    def redacted(self, names: Collection[str]) -> RunDetails:
        """The same without the values of secret fields."""
        hidden = Redaction.of(self.job, names, self.steps)
        return msgspec.structs.replace(
            self,
            job=hidden.job(self.job),
            steps=[hidden.step(step) for step in self.steps],
            state=hidden.optional(self.state),
        )


def print_run(run: RunDetails) -> None:
    """The record, what the run waits for, then its steps, children, unread signals, and forks."""
    print_job(run.job)
    if (fork := fork_origin({step.key: step for step in run.steps})) is not None:
        print_line(f"\nforked from {fork.forked_from} {fork_text(fork)}")
    if run.waits_for is not None:
        print_line(f"\nwaits for {format_value(run.waits_for)}")
    if run.state is not None:
        print_line(f"\nstate {format_value(run.state)}")
    if run.budget:
        print_line("\nbudget")
        print_table(BUDGET_HEADINGS, [budget_row(line) for line in run.budget])
    print_line(f"\n{counted(len(run.steps), 'recorded step')}")
    if run.steps:
        _print_steps(run.steps)
    if run.children:
        print_line("\nchildren")
        print_table(JOB_HEADINGS, [job_row(child) for child in run.children])
    print_unread_signals(run.unread_signals)
    if run.continued_by:
        print_line("\ncontinued by")
        print_table(JOB_HEADINGS, [job_row(one) for one in run.continued_by])


def _print_steps(steps: Sequence[StepRecord]) -> None:
    shown = [n for n in range(len(STEP_HEADINGS)) if n != SPENT or any(step.spend for step in steps)]
    print_table([STEP_HEADINGS[n] for n in shown], [tuple(row[n] for n in shown) for row in step_rows(steps)])


def run_row(job: Job) -> tuple[object, ...]:
    """A row under RUN_HEADINGS."""
    return job.id, job.kind, job.status, job.waiting_for, job.pinned_version, job.attempt, job.updated_at


def patch_row(use: PatchUse) -> tuple[object, ...]:
    """A row under PATCH_HEADINGS."""
    return use.kind, use.patch, use.new, use.old, use.undecided, "yes" if use.removable else "no"


def budget_row(line: BudgetLine) -> tuple[object, ...]:
    """A row under BUDGET_HEADINGS."""
    amounts = (line.limit, line.spent, line.reserved, line.lost, line.left)
    return line.unit, *(amount_text(amount) for amount in amounts)


def budget_view(line: BudgetLine) -> dict[str, object]:
    """One unit of a budget, in units. `lost` is what attempts had reserved that were lost."""
    amounts = {name: in_units(getattr(line, name)) for name in ("limit", "spent", "reserved", "lost", "left")}
    return {"unit": line.unit, **amounts}


def waits_for(job: Job, events: Sequence[Event]) -> str | None:
    """What ends the wait of a waiting job; for code, how the code differs from what is recorded."""
    if job.status is not WAITING:
        return None
    if job.waiting_for == "code":
        suspended = [event for event in events if event.type is EventType.SUSPENDED]
        code = "code that fits" if job.pinned_version is None else f"code of version {job.pinned_version}"
        return f"{code}; {load(suspended[-1].detail or '{}').get('note')}"
    if job.waiting_for == "time":
        return f"the time {format_value(job.due_at)}"
    awaited = "a signal" if job.waiting_for == "signal" else "children"
    return awaited if job.due_at is None else f"{awaited}, until {format_value(job.due_at)} at the latest"


def step_rows(steps: Sequence[StepRecord]) -> Iterator[tuple[object, ...]]:
    """Rows under STEP_HEADINGS: the steps by their place in the function, branches indented, a row for each branch."""
    branches: set[str] = set()
    calls = {step.key for step in steps}
    for step in in_order_of_calls(steps):
        depth = step.branch.count("/") + 1 if step.branch else 0
        if step.branch and step.branch not in branches:
            branches.add(step.branch)
            yield INDENT * (depth - 1) + step.branch, "branch", "", "", "", "", "", ""
        call = _call_of(step)
        if call not in calls:
            calls.add(call)
            yield INDENT * depth + call, "", step.name, "not ended", "", "", "", ""
        yield _step_row(step, INDENT * depth)


def in_order_of_calls(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps by branch and ordinal; retries and deadlines after the step that they belong to."""
    first_numbers: dict[str, int] = {}
    for step in steps:
        call = _call_of(step)
        first_numbers[call] = min(step.number, first_numbers.get(call, step.number))

    def order(step: StepRecord) -> tuple[Position, bool, int, bool, int]:
        call = _call_of(step)
        # A call with a key of its own takes no ordinal: it has that of the next call, and comes before it.
        is_placed = call in (str(step.ordinal), f"{step.branch}/{step.ordinal}")
        return _position(step), is_placed, first_numbers[call], step.key != call, step.number

    return sorted(steps, key=order)


def _call_of(step: StepRecord) -> str:
    """The key of the call that the step records, or whose retry, deadline or order it is."""
    return call_key(step.key) if step.kind in (StepKind.SLEEP, StepKind.DECISION) else step.key


def _position(step: StepRecord) -> Position:
    """The place in the function: numbers by value, keys of users after them."""
    parts = [*(_SEPARATORS.split(step.branch) if step.branch else ()), str(step.ordinal)]
    return tuple((False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts)


def _step_row(step: StepRecord, indent: str) -> tuple[object, ...]:
    took = f"{(step.finished_at - step.started_at).total_seconds():.3f} s"
    part = step.key.removeprefix(_call_of(step)).lstrip(".")
    if not part:
        return indent + step.key, step.kind, step.name, step.status, took, step.attempt, _spent(step), _note(step)
    kind, _, number = part.partition(".")
    # A retry records that an attempt of its step has failed.
    status = "failed" if kind == "retry" else kind if kind == "cancelled" else ""
    return f"{indent}{INDENT}{kind} {number}".rstrip(), "", "", status, "", step.attempt, _spent(step), _note(step)


def _spent(step: StepRecord) -> str:
    """What the step is charged, such as `cost 0.3, steps 1`."""
    return ", ".join(f"{unit} {amount_text(amount)}" for unit, amount in decode_spend(step.spend).items())


def _note(step: StepRecord) -> str:
    """The error; of a sleep, retry or deadline when it ends; of a spawn its child; of others the result."""
    if step.error is not None:
        return abbreviate(step.error)
    if step.result is None:
        return "erased"
    result = load(step.result)
    match step.kind, result:
        case StepKind.SLEEP, {"milliseconds": int(milliseconds), "error": error}:
            return f"{abbreviate(msgspec.json.encode(error).decode())}; until {_until(step, milliseconds)}"
        case StepKind.SLEEP, {"milliseconds": int(milliseconds)}:
            return f"until {_until(step, milliseconds)}"
        case StepKind.SPAWN, _:
            return f"child {step.child_id}"
    return "" if result is None else abbreviate(step.result)


def _until(step: StepRecord, milliseconds: int) -> str:
    at: datetime = step.finished_at + timedelta(milliseconds=milliseconds)
    return format_value(at)

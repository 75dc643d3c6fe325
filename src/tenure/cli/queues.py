"""`tenure queues`: pause queues, and set their concurrency limits, rate limits and fairness."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenure.cli.database import common_options, in_store
from tenure.cli.filters import operator
from tenure.cli.groups import CommandGroup
from tenure.cli.output import Exit, print_error, print_json, print_line, print_table
from tenure.cli.tables import Column
from tenure.lifecycle.queue_limits import NO_LIMITS, QueueLimits, Rate

if TYPE_CHECKING:
    from tenure.stores.contract import QueueRecord, Store

HEADINGS = (
    Column("queue", cut_to=10),
    Column("paused"),
    Column("since", rank=6),
    Column("leased", rank=5, is_number=True),
    Column("concurrency", rank=1, is_number=True),
    Column("key concurrency", rank=3, is_number=True),
    Column("rate", rank=2, is_number=True),
    Column("key rate", rank=4, is_number=True),
    Column("fair", rank=1),
)
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_NOT_CONFIGURED = "queue {!r} is not paused and has no limits; list those that are with: tenure queues ls"
_RATE = re.compile(r"(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]*)")


KEEP = object()
"""The value of an option that was not given: the limit stays."""


def _count(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    if value is None or value == "none":
        return KEEP if value is None else None
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither a number nor none")
    return int(value)


def _rate_of(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    if value is None or value == "none":
        return KEEP if value is None else None
    match = _RATE.fullmatch(value)
    if match is None or match[3] not in SECONDS or (match[2] is None and not match[3]):
        raise click.BadParameter(f"{value!r} is not a rate such as 100/60s, 10/m or 5000/h, nor none")
    return Rate(int(match[1]), float(match[2] or 1) * SECONDS[match[3]])


@click.group(cls=CommandGroup)
def queues() -> None:
    """Pause queues, and set their limits."""


@queues.command()
@common_options
def ls(*, database: str, as_json: bool) -> int:
    """List the queues that are paused or have limits."""
    known = in_store(database, lambda store: store.queues.known())
    if as_json:
        print_json({"queues": known})
    elif known:
        print_table(HEADINGS, [_row(queue) for queue in known])
    else:
        print_line("no queue is paused or has limits")
    return Exit.OK


@queues.command("set")
@common_options
@click.argument("queue")
@click.option(
    "--concurrency",
    "concurrency_max",
    callback=_count,
    metavar="N|none",
    help="Leased jobs at a time, over all workers.",
)
@click.option("--key-concurrency", "key_concurrency_max", callback=_count, metavar="N|none", help="The same per key.")
@click.option(
    "--rate", callback=_rate_of, metavar="N/TIME|none", help="Starts per time, such as 100/60s, 10/m or 5000/h."
)
@click.option("--key-rate", callback=_rate_of, metavar="N/TIME|none", help="The same per key.")
@click.option("--fair/--no-fair", default=None, help="Claim from the keys in turn.")
def set_(*, database: str, as_json: bool, queue: str, fair: bool | None, **limits: Any) -> int:
    """Change the limits of QUEUE. Options that are not given stay; `none` removes a limit.

    A key is the `partition_key` of a job.
    """
    given = {name: value for name, value in limits.items() if value is not KEEP}
    if fair is not None:
        given["fair"] = fair
    if not given:
        raise click.UsageError("give a limit to change: --concurrency, --key-concurrency, --rate, --key-rate or --fair")
    _print_queue(in_store(database, lambda store: _changed(store, queue, given)), as_json=as_json)
    return Exit.OK


async def _changed(store: Store, name: str, given: dict[str, Any]) -> QueueRecord:
    before = next((known.limits for known in await store.queues.known() if known.name == name), NO_LIMITS)
    return await store.queues.put(name, msgspec.structs.replace(before, **given), actor=operator())


@queues.command()
@common_options
@click.argument("queue")
def pause(*, database: str, as_json: bool, queue: str) -> int:
    """Stop claims from QUEUE. Running jobs continue, and jobs can still be enqueued."""
    _print_queue(in_store(database, lambda store: store.queues.pause(queue, actor=operator())), as_json=as_json)
    return Exit.OK


@queues.command()
@common_options
@click.argument("queue")
def resume(*, database: str, as_json: bool, queue: str) -> int:
    """Resume claims from QUEUE. Its limits stay."""
    record = in_store(database, lambda store: store.queues.resume(queue, actor=operator()))
    if record is None:
        print_error(_NOT_CONFIGURED.format(queue))
        return Exit.PROBLEMS
    _print_queue(record, as_json=as_json)
    return Exit.OK


@queues.command()
@common_options
@click.argument("queue")
def forget(*, database: str, as_json: bool, queue: str) -> int:
    """Remove all limits of QUEUE, and resume it if it is paused."""
    removed = in_store(database, lambda store: store.queues.forget(queue, actor=operator()))
    if as_json:
        print_json({"queue": queue, "forgotten": removed})
    elif removed:
        print_line(f"queue {queue!r} has no limits")
    else:
        print_error(_NOT_CONFIGURED.format(queue))
    return Exit.OK if removed else Exit.PROBLEMS


def _print_queue(record: QueueRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print_table(HEADINGS, [_row(record)])


def _row(queue: QueueRecord) -> tuple[object, ...]:
    limits: QueueLimits = queue.limits
    return (
        queue.name,
        None if queue.paused_at is None else "yes",
        queue.paused_at,
        queue.leased,
        limits.concurrency_max,
        limits.key_concurrency_max,
        _rate(limits.rate),
        _rate(limits.key_rate),
        "yes" if limits.fair else None,
    )


def _rate(rate: Rate | None) -> str | None:
    return None if rate is None else f"{rate.count} / {rate.seconds:g} s"

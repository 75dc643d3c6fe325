"""`tenure queues`: pause a queue, and say how much of it may go at once, in a time, and in which turns."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import operator
from tenure.cli.output import Exit, complain, say, say_json, say_table
from tenure.lifecycle.limits import NO_LIMITS, QueueLimits, Rate

if TYPE_CHECKING:
    from tenure.stores.contract import QueueRecord, Store

HEADINGS = ("queue", "paused", "held", "at once", "at once per key", "rate", "rate per key", "fair")
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]*)")


KEEP = object()
"""What an option has that was not given: the rule stays as it is."""


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


@click.group()
def queues() -> None:
    """Pause queues, and limit how much of them goes at once or in a time."""


@queues.command()
@common_options
def ls(*, database: str, as_json: bool) -> int:
    """List the queues that are paused or have rules. Others need no mention: they go by priority and age."""
    known = run(_with(database, lambda store: store.queues.known()))
    if as_json:
        say_json({"queues": known})
    elif known:
        say_table(HEADINGS, [_row(queue) for queue in known])
    else:
        say("no queue is paused or has rules")
    return Exit.OK


@queues.command("set")
@common_options
@click.argument("queue")
@click.option(
    "--concurrency", "concurrency_max", callback=_count, metavar="N|none", help="Held at once, by all workers."
)
@click.option(
    "--key-concurrency", "key_concurrency_max", callback=_count, metavar="N|none", help="The same for each key."
)
@click.option("--rate", callback=_rate_of, metavar="N/TIME|none", help="Starts in any such time.")
@click.option("--key-rate", callback=_rate_of, metavar="N/TIME|none", help="The same for each key.")
@click.option("--fair/--no-fair", default=None, help="Whether keys take turns.")
def set_(*, database: str, as_json: bool, queue: str, fair: bool | None, **rules: Any) -> int:
    """Change the rules of QUEUE. What is not given stays; `none` takes a limit away.

    A key is the `partition_key` that a job was enqueued with.
    """
    given = {name: value for name, value in rules.items() if value is not KEEP}
    if fair is not None:
        given["fair"] = fair
    if not given:
        raise click.UsageError("say which rule to change: --concurrency, --key-concurrency, --rate, --key-rate, --fair")
    _say_queue(run(_with(database, lambda store: _changed(store, queue, given))), as_json=as_json)
    return Exit.OK


async def _changed(store: Store, name: str, given: dict[str, Any]) -> QueueRecord:
    before = next((known.rules for known in await store.queues.known() if known.name == name), NO_LIMITS)
    return await store.queues.put(name, msgspec.structs.replace(before, **given), actor=operator())


@queues.command()
@common_options
@click.argument("queue")
def pause(*, database: str, as_json: bool, queue: str) -> int:
    """Let nothing more be claimed from QUEUE. What runs goes on; enqueuing goes on."""
    _say_queue(run(_with(database, lambda store: store.queues.pause(queue, actor=operator()))), as_json=as_json)
    return Exit.OK


@queues.command()
@common_options
@click.argument("queue")
def resume(*, database: str, as_json: bool, queue: str) -> int:
    """Let QUEUE go on under its rules."""
    record = run(_with(database, lambda store: store.queues.resume(queue, actor=operator())))
    if record is None:
        complain(f"tenure: queue {queue!r} was neither paused nor has it rules; see `tenure queues ls`")
        return Exit.PROBLEMS
    _say_queue(record, as_json=as_json)
    return Exit.OK


@queues.command()
@common_options
@click.argument("queue")
def forget(*, database: str, as_json: bool, queue: str) -> int:
    """Take all rules away from QUEUE, and let it go on if it was paused."""
    gone = run(_with(database, lambda store: store.queues.forget(queue, actor=operator())))
    if as_json:
        say_json({"queue": queue, "forgotten": gone})
    elif gone:
        say(f"queue {queue!r} has no rules any more")
    else:
        complain(f"tenure: queue {queue!r} was neither paused nor has it rules; see `tenure queues ls`")
    return Exit.OK if gone else Exit.PROBLEMS


async def _with(database: str, work: Callable[[Store], Awaitable[Any]]) -> Any:
    async with opened(database) as store:
        return await work(store)


def _say_queue(record: QueueRecord, *, as_json: bool) -> None:
    if as_json:
        say_json(record)
    else:
        say_table(HEADINGS, [_row(record)])


def _row(queue: QueueRecord) -> tuple[object, ...]:
    rules: QueueLimits = queue.rules
    return (
        queue.name,
        queue.paused_at,
        queue.held,
        rules.concurrency_max,
        rules.key_concurrency_max,
        _rate(rules.rate),
        _rate(rules.key_rate),
        "yes" if rules.fair else None,
    )


def _rate(rate: Rate | None) -> str | None:
    return None if rate is None else f"{rate.count} / {rate.seconds:g} s"

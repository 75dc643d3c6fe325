"""`tenure outbox`: endpoints, messages and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from tenure.cli.database import common_options, in_store
from tenure.cli.filters import TimeOrAge, operator, resolve_time, time_or_age
from tenure.cli.groups import CommandGroup
from tenure.cli.outbox_run import run_processor
from tenure.cli.outbox_webhooks import add, remove, test
from tenure.cli.output import Exit, counted, print_error, print_json, print_line, print_table
from tenure.cli.secrets import secret_options
from tenure.cli.tables import Column
from tenure.stores.contract.outbox import MessageFilter, StoredMessage
from tenure.views.redaction import Redaction

if TYPE_CHECKING:
    from tenure.stores.contract import Store

ENDPOINTS = (
    Column("endpoint", cut_to=10),
    Column("kind", rank=2),
    Column("topics", cut_to=20, rank=1),
    Column("pending", is_number=True),
    Column("dead", is_number=True),
    Column("oldest", rank=3),
    Column("state"),
    Column("served", rank=4),
)
MESSAGES = (
    Column("message"),
    Column("sequence", is_number=True, rank=1),
    Column("topic", cut_to=10),
    Column("aggregate", cut_to=10, rank=2),
    Column("written", rank=3),
)
DELIVERIES = (
    Column("endpoint", cut_to=10),
    Column("attempt", is_number=True),
    Column("outcome"),
    Column("status", is_number=True, rank=1),
    Column("ms", is_number=True, rank=3),
    Column("at", rank=2),
    Column("error", cut_to=20),
)


@click.group(cls=CommandGroup)
def outbox() -> None:
    """List, deliver and redrive messages of the outbox; add webhooks."""


for command in (add, remove, run_processor, test):
    outbox.add_command(command)


@outbox.command()
@common_options
def endpoints(*, database: str, as_json: bool) -> int:
    """List the endpoints, what each has yet to receive, and its dead letters."""

    async def read(store: Store) -> Any:
        return await store.outbox.endpoints(), await store.outbox.depth()

    known, depth = in_store(database, read)
    if as_json:
        print_json({"endpoints": known, "depth": depth})
        return Exit.OK
    by_name = {one.endpoint: one for one in depth.endpoints}
    rows = [
        (
            one.name,
            one.kind,
            ", ".join(subscription.topic for subscription in one.subscriptions),
            by_name[one.name].messages,
            by_name[one.name].dead,
            by_name[one.name].oldest_at,
            "disabled" if one.disabled_at else "failing" if one.failing_since_at else "ok",
            one.seen_at,
        )
        for one in known
        if one.name in by_name
    ]
    print_table(ENDPOINTS, rows) if rows else print_line("no endpoint is registered")
    if depth.unserved:
        unserved = counted(depth.unserved, "message")
        print_line(f"{unserved} that no endpoint subscribes to: tenure outbox ls --state unserved")
    return Exit.OK


@outbox.command()
@common_options
def subscriptions(*, database: str, as_json: bool) -> int:
    """List the topics and filters of the endpoints."""
    known = in_store(database, lambda store: store.outbox.endpoints())
    found = [subscription for one in known for subscription in one.subscriptions]
    if as_json:
        print_json({"subscriptions": found})
    elif not found:
        print_line("no endpoint is registered")
    else:
        columns = (Column("endpoint"), Column("topic"), Column("filters", rank=1), Column("block seconds", rank=2))
        print_table(columns, [(one.endpoint, one.topic, one.filters, one.block_seconds) for one in found])
    return Exit.OK


@outbox.command()
@common_options
@click.option("--endpoint", help="Only messages for this endpoint.")
@click.option("--topic", help="Only this topic, or topics that begin so: mail.*")
@click.option("--aggregate", help="Only messages of this aggregate.")
@click.option("--state", type=click.Choice(["pending", "dead", "unserved"]), help="Only messages in this state.")
@click.option("--after", default=0, show_default=True, help="Begin after this sequence.")
@click.option("--limit", default=100, show_default=True, help="How many to list.")
def ls(
    *,
    database: str,
    as_json: bool,
    endpoint: str | None,
    topic: str | None,
    aggregate: str | None,
    state: Any,
    after: int,
    limit: int,
) -> int:
    """List messages in the order of sequences, without their bodies."""
    wanted = MessageFilter(endpoint=endpoint, topic=topic, aggregate=aggregate, state=state)
    found = in_store(database, lambda store: store.outbox.messages(wanted, after=after, limit=limit))
    rows = [(str(one.id), one.sequence, one.topic, one.aggregate, _written(one)) for one in found]
    if as_json:
        names = ("id", "sequence", "topic", "aggregate", "at")
        print_json({"messages": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        print_table(MESSAGES, rows)
    else:
        print_line("no message matches")
    return Exit.OK


@outbox.command()
@common_options
@click.argument("message", type=click.UUID)
@click.option("--body", "with_body", is_flag=True, help="Also show the body, without the values of secret fields.")
@secret_options
def show(*, database: str, as_json: bool, message: UUID, with_body: bool, names: tuple[str, ...], reveal: bool) -> int:
    """Show one message, what is pending of it, and every attempt to deliver it. The body is shown on request.

    Values of fields like password, token and authorization, and of those that the declaration of its job calls secret,
    are hidden, in the body and the headers.
    """

    async def read(store: Store) -> Any:
        found = await store.outbox.message(message)
        if found is None:
            return None
        job = None if found.job_id is None else (await store.read([found.job_id])).get(found.job_id)
        hidden = Redaction(frozenset(names)) if job is None else Redaction.of(job, names)
        return found, hidden, await store.outbox.pending(found.sequence), await store.outbox.deliveries(found.sequence)

    if (read_back := in_store(database, read)) is None:
        print_error(f"message {message} is not in the outbox; list messages with: tenure outbox ls")
        return Exit.PROBLEMS
    found, hidden, pending, made = read_back
    facts = {name: getattr(found, name) for name in found.__struct_fields__ if with_body or name != "body"}
    facts["at"] = _written(found)
    for name in ("body", "headers"):
        if facts.get(name) is not None and not reveal:
            facts[name] = hidden.text(facts[name])
    if as_json:
        print_json({"message": facts, "pending": pending, "deliveries": made})
        return Exit.OK
    for name, value in facts.items():
        if value is not None:
            print_line(f"{name}: {value}")
    for one in pending:
        print_line(f"pending for {one.endpoint} since {one.head_at or _written(found)}, due {one.due_at}")
    if made:
        print_table(
            DELIVERIES,
            [(o.endpoint, o.attempt, o.outcome, o.status, o.duration_ms, o.at, o.error) for o in made],
        )
    return Exit.OK


def _resolving(name: str, how: Any, help_text: str) -> None:
    @outbox.command(name, help=help_text)
    @common_options
    @click.argument("endpoint")
    @click.argument("sequences", nargs=-1, type=int)
    def resolve(*, database: str, as_json: bool, endpoint: str, sequences: tuple[int, ...]) -> int:
        wanted = list(sequences) or None
        count = in_store(
            database, lambda store: store.outbox.resolve(endpoint, how=how, sequences=wanted, actor=operator())
        )
        if as_json:
            print_json({"endpoint": endpoint, how: count})
        elif count:
            print_line(f"{counted(count, 'dead letter')} of {endpoint!r} {how}")
        else:
            print_error(f"no open dead letter of an endpoint {endpoint!r} matches; see: tenure outbox ls --state dead")
        return Exit.OK if count else Exit.PROBLEMS


_resolving("redrive", "redriven", "Deliver dead letters of ENDPOINT again: all, or those of these SEQUENCES.")
_resolving("discard", "discarded", "Mark dead letters of ENDPOINT as handled: all, or those of these SEQUENCES.")


@outbox.command()
@common_options
@click.argument("endpoint")
@click.option("--since", required=True, type=time_or_age, help="A time like 2030-01-31T09:00, or an age like 2h.")
def replay(*, database: str, as_json: bool, endpoint: str, since: TimeOrAge) -> int:
    """Deliver to ENDPOINT again, in order, all messages since a time that it subscribes to."""

    async def again(store: Store) -> int | None:
        if endpoint not in {one.name for one in await store.outbox.endpoints()}:
            return None
        at = await resolve_time(store, since)
        assert at is not None, "--since is required"
        return await store.outbox.replay(endpoint, since=at, actor=operator())

    count = in_store(database, again)
    if count is None:
        print_error(f"endpoint {endpoint!r} is unknown; see: tenure outbox endpoints")
    elif as_json:
        print_json({"endpoint": endpoint, "replayed": count})
    elif count:
        print_line(f"{counted(count, 'message')} pending for {endpoint!r} again")
    else:
        print_error(f"endpoint {endpoint!r} subscribes to no message that was written since then")
    return Exit.OK if count else Exit.PROBLEMS


@outbox.command()
@common_options
@click.argument("endpoint")
@click.option("--because", default="disabled by an operator", show_default=True, help="The reason.")
def disable(*, database: str, as_json: bool, endpoint: str, because: str) -> int:
    """Deliver nothing more to ENDPOINT. What comes in stays pending."""
    done = in_store(database, lambda store: store.outbox.disable(endpoint, because=because, actor=operator()))
    return _changed(endpoint, "disabled", done=done, as_json=as_json)


@outbox.command()
@common_options
@click.argument("endpoint")
def enable(*, database: str, as_json: bool, endpoint: str) -> int:
    """Deliver to ENDPOINT again, beginning with what is pending."""
    done = in_store(database, lambda store: store.outbox.enable(endpoint, actor=operator()))
    return _changed(endpoint, "enabled", done=done, as_json=as_json)


def _written(message: StoredMessage) -> datetime | str:
    return "cannot be read" if message.unreadable else message.at


def _changed(endpoint: str, state: str, *, done: bool, as_json: bool) -> int:
    if as_json:
        print_json({"endpoint": endpoint, state: done})
    elif done:
        print_line(f"endpoint {endpoint!r} is {state}")
    else:
        print_error(f"endpoint {endpoint!r} is unknown, or {state} already; see: tenure outbox endpoints")
    return Exit.OK if done else Exit.PROBLEMS

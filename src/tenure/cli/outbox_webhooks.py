"""`tenure outbox add`, `remove` and `test`: the webhooks that an operator creates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tenure.cli.database import common_options, in_store, run
from tenure.cli.filters import operator
from tenure.cli.output import Exit, print_error, print_json, print_line
from tenure.seams import SYSTEM
from tenure.stores.contract.outbox import SubscriptionRecord

if TYPE_CHECKING:
    from tenure.outbox.sinks import Delivered, Undelivered
    from tenure.stores.contract.outbox import EndpointRecord

TEST_TOPIC = "tenure.test"


@click.command()
@common_options
@click.argument("name")
@click.argument("url")
@click.option("--topic", "topics", multiple=True, required=True, help="A topic, or topics that begin so: mail.*")
@click.option("--secret", "secrets", multiple=True, required=True, help="The variable that holds a key: env:NAME")
@click.option("--filters", help="Only messages whose body has these fields: a JSON object of dotted paths and values.")
@click.option("--timeout-seconds", type=float, help="How long one attempt may take.")
@click.option("--block-seconds", type=float, help="How long a message may hold up its aggregate.")
def add(
    *,
    database: str,
    as_json: bool,
    name: str,
    url: str,
    topics: tuple[str, ...],
    secrets: tuple[str, ...],
    filters: str | None,
    timeout_seconds: float | None,
    block_seconds: float | None,
) -> int:
    """Create the webhook NAME, or replace it. It receives what is committed from now on."""
    from tenure.outbox.sinks import TIMEOUT_SECONDS
    from tenure.outbox.webhook_config import WebhookConfig, parse_config

    timeout_seconds = TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    config = WebhookConfig(url=url, secrets=secrets, timeout_seconds=timeout_seconds)
    encoded = msgspec.json.encode(config)
    parse_config(encoded)
    subscriptions = [
        SubscriptionRecord(endpoint=name, topic=topic, filters=filters, block_seconds=block_seconds) for topic in topics
    ]

    endpoint = in_store(
        database,
        lambda store: store.outbox.put_endpoint(
            name, kind="webhook", config=encoded.decode(), subscriptions=subscriptions, actor=operator()
        ),
    )
    if as_json:
        print_json({"endpoint": endpoint})
    else:
        print_line(f"webhook {name!r} receives {', '.join(topics)}; try it with: tenure outbox test {name}")
    return Exit.OK


@click.command()
@common_options
@click.argument("name")
def remove(*, database: str, as_json: bool, name: str) -> int:
    """Remove an endpoint and what it has yet to receive. The record of its deliveries stays."""
    removed = in_store(database, lambda store: store.outbox.delete_endpoint(name, actor=operator()))
    if as_json:
        print_json({"endpoint": name, "removed": removed})
    elif removed:
        print_line(f"endpoint {name!r} is removed")
    else:
        print_error(f"endpoint {name!r} is unknown; see: tenure outbox endpoints")
    return Exit.OK if removed else Exit.PROBLEMS


@click.command()
@common_options
@click.argument("name")
def test(*, database: str, as_json: bool, name: str) -> int:
    """Send a test message to a webhook, once. Nothing of it is stored."""
    known = {one.name: one for one in in_store(database, lambda store: store.outbox.endpoints())}
    if name not in known or known[name].kind != "webhook":
        print_error(f"there is no webhook {name!r}; see: tenure outbox endpoints")
        return Exit.PROBLEMS
    outcome = run(_send(known[name]))
    reason = getattr(outcome, "reason", None)
    if as_json:
        print_json({"endpoint": name, "delivered": reason is None, "status": outcome.status, "reason": reason})
    elif reason is None:
        print_line(f"webhook {name!r} accepted a test message with status {outcome.status}")
    else:
        print_error(f"webhook {name!r} did not accept a test message: {reason}")
    return Exit.OK if reason is None else Exit.PROBLEMS


async def _send(endpoint: EndpointRecord) -> Delivered | Undelivered:
    from tenure.outbox.sinks import Delivery
    from tenure.outbox.webhook import open_webhook

    sink = open_webhook(endpoint.config or "{}")
    message_id = SYSTEM.random.job_id()
    try:
        return await sink.deliver(
            Delivery(
                id=message_id,
                topic=TEST_TOPIC,
                body='{"test": true}',
                at=SYSTEM.clock.now(),
                correlation_id=str(message_id),
                attempt=1,
            )
        )
    finally:
        await sink.close()

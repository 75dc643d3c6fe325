"""docs/guides/webhooks.md and examples/receive_webhooks.py work together: a message is applied once."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from standardwebhooks import Webhook

from tenure.outbox.addresses import AddressGuard
from tenure.outbox.cloud_events import cloud_event
from tenure.outbox.sinks import Delivered, Delivery, Undelivered
from tenure.outbox.webhook import WebhookSink
from tests.outbox.test_webhook import DELIVERY
from tests.support.pages import blocks, shell
from tests.support.server_process import wait_until
from tests.support.webhook_receiver import LOOPBACK, running_receiver
from tools.generated import ROOT

SEND, RECEIVE = blocks("webhooks.md")
OLD, NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_bmV3IGtleSBmb3IgdGVzdHMsIDMyIGJ5dGVzIGxvbmc="
PAYMENT = msgspec.structs.replace(DELIVERY, body='{"account":"ada","cents":1200}')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def receiving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The example, as a process that can be killed."""
    environment = {**os.environ, "WEBHOOK_SECRETS": f"{NEW} {OLD}"}
    script = ROOT / "examples" / "receive_webhooks.py"
    process = subprocess.Popen([sys.executable, str(script), str(port)], cwd=folder, env=environment)
    try:
        assert wait_until(lambda: is_listening(port), seconds=30)
        yield process
    finally:
        process.kill()
        process.wait(30)


async def deliver(port: int, delivery: Delivery = PAYMENT, *, key: str = OLD) -> Delivered | Undelivered:
    url = f"http://127.0.0.1:{port}/webhooks"
    sink = WebhookSink(url, ["env:KEY"], guard=AddressGuard(LOOPBACK), environment={"KEY": key})
    try:
        return await asyncio.wait_for(sink.deliver(delivery), 30)
    finally:
        await sink.close()


def balance(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "receiver.db")) as connection:
        cents: int = connection.execute("select cents from balances where account = 'ada'").fetchone()[0]
        return cents


@pytest.mark.requirement("WC-07")
async def test_the_example_applies_a_message_once_also_after_it_was_killed(tmp_path: Path) -> None:
    port = free_port()
    with receiving(tmp_path, port):
        assert await deliver(port) == Delivered(status=200)
        assert await deliver(port, msgspec.structs.replace(PAYMENT, attempt=2)) == Delivered(status=200)
        stranger = await deliver(port, key="whsec_" + "A" * 32)
        assert isinstance(stranger, Undelivered)
        assert stranger.status == 401
    assert isinstance(await deliver(port), Undelivered)
    with receiving(tmp_path, port):
        assert await deliver(port, msgspec.structs.replace(PAYMENT, attempt=3), key=NEW) == Delivered(status=200)
    assert balance(tmp_path) == 1200


def test_the_sender_of_the_guide_delivers_to_the_example(tmp_path: Path) -> None:
    port = free_port()
    with receiving(tmp_path, port):
        sent = subprocess.run(
            [sys.executable, "-c", SEND, f"http://127.0.0.1:{port}/webhooks"],
            env={**os.environ, "BILLING_KEY": OLD},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (sent.returncode, sent.stdout) == (0, "Delivered(status=200)\n" * 2), sent.stderr
    assert balance(tmp_path) == 1200


async def test_the_webhook_of_the_guide_is_created_and_tried(tmp_path: Path) -> None:
    """With a key as the guide makes one, and a receiver on this machine."""
    [add_and_test], [make_key] = blocks("webhooks.md", ""), blocks("webhooks.md", "bash")
    async with running_receiver() as receiver:
        add_and_test = add_and_test.replace("https://example.org/webhooks", receiver.url)
        written = f"{make_key}tenure migrate\n{add_and_test}echo $BILLING_KEY"
        place, networks = "sqlite:///jobs.db", "127.0.0.0/8"
        printed = await asyncio.to_thread(
            shell, written, folder=tmp_path, TENURE_DATABASE=place, TENURE_WEBHOOK_NETWORKS=networks
        )
    *_, accepted, key = printed.splitlines()
    assert accepted == "webhook 'billing' accepted a test message with status 204"
    [received] = receiver.received
    event = Webhook(key).verify(received.body, received.headers)
    assert event["type"] == "tenure.test"


def test_the_receiver_of_the_guide_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECEIVE], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_event_that_the_guide_shows_is_the_one_that_is_sent() -> None:
    [shown] = blocks("webhooks.md", "json")
    event = msgspec.json.decode(shown)
    assert (event["type"], event["subject"], event["sequence"]) == ("payment.booked", "ada", "7")
    assert set(event) < set(msgspec.json.decode(cloud_event(PAYMENT)))

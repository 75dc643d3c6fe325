"""The stored configuration of a webhook: what is refused, and what sink it makes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tenure.errors import InvalidInput
from tenure.outbox.sinks import Delivered, Undelivered
from tenure.outbox.webhook import open_webhook
from tenure.outbox.webhook_config import allowed_networks, parse_config
from tests.outbox.test_sinks import DELIVERY
from tests.support.webhook_receiver import running_receiver

URL, SECRET = "https://example.org/hook", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ("", "config"),
        ("[]", "config"),
        ({"url": URL}, "config"),
        ({"secrets": ["env:A"]}, "config"),
        ({"url": URL, "secrets": ["env:A"], "secret": SECRET}, "config"),
        ({"url": URL, "secrets": SECRET}, "config"),
        ({"url": URL, "secrets": []}, "secrets"),
        ({"url": URL, "secrets": [SECRET]}, "secrets"),
        ({"url": f"https://{SECRET}@example.org", "secrets": ["env:A"]}, "url"),
        ({"url": URL, "secrets": ["env:A"], "timeout_seconds": 0}, "timeout_seconds"),
        ({"url": URL, "secrets": ["env:A"], "timeout_seconds": 301}, "timeout_seconds"),
        ({"url": URL, "secrets": ["env:A"], "timeout_seconds": "15"}, "config"),
    ],
)
def test_an_invalid_configuration_is_refused_without_repeating_a_secret(config: object, where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_config(config if isinstance(config, str) else json.dumps(config))
    assert refused.value.where == where
    assert "MfKQ" not in str(refused.value)


async def test_the_networks_of_the_setting_decide_whether_a_stored_endpoint_is_reached() -> None:
    async with running_receiver() as receiver:
        config = json.dumps({"url": receiver.url, "secrets": ["env:A"]})
        environment = {"A": SECRET, "TENURE_WEBHOOK_NETWORKS": "127.0.0.0/8"}
        for given, reached in ((environment, True), ({"A": SECRET}, False)):
            sink = open_webhook(config, environment=given)
            outcome = await sink.deliver(DELIVERY)
            await sink.close()
            assert isinstance(outcome, Delivered if reached else Undelivered)
        assert len(receiver.received) == 1


@pytest.mark.parametrize("value", ["", " , "])
def test_no_network_is_allowed_by_default(value: str) -> None:
    assert allowed_networks({}) == allowed_networks({"TENURE_WEBHOOK_NETWORKS": value}) == ()


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="allowed_networks"):
        allowed_networks({"TENURE_WEBHOOK_NETWORKS": "10.0.0.0/8,everything"})


def test_without_aiohttp_a_configuration_is_validated_and_a_sink_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['aiohttp'] = None\n"
        "from tenure.outbox.webhook_config import parse_config\n"
        f"parse_config('{json.dumps({'url': URL, 'secrets': ['env:A']})}')\n"
        "try:\n"
        "    import tenure.outbox.webhook\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == (
        "webhooks: need the package aiohttp, which is not installed; pip install 'tenure[webhooks]'"
    ), done.stderr

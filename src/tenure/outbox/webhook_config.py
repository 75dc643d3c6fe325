"""The stored configuration of a webhook endpoint. It can be validated without aiohttp, and contains no secret."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_seconds
from tenure.outbox.addresses import Network, parse_networks, parse_url
from tenure.outbox.signing_keys import check_references
from tenure.outbox.sinks import TIMEOUT_SECONDS

NETWORKS_VARIABLE = "TENURE_WEBHOOK_NETWORKS"
TIMEOUT_SECONDS_MAX = 300.0


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a webhook is sent, what signs it, and how long one attempt may take."""

    url: str
    secrets: tuple[str, ...]
    timeout_seconds: float = TIMEOUT_SECONDS


def parse_config(text: str | bytes) -> WebhookConfig:
    """The configuration in a JSON object. An error names the field, and does not repeat its value.

    >>> parse_config('{"url": "https://example.org/hook", "secrets": ["env:HOOK_KEY"]}').secrets
    ('env:HOOK_KEY',)
    """
    try:
        config = msgspec.json.decode(text, type=WebhookConfig)
    except msgspec.MsgspecError as error:
        raise InvalidInput("config", f"{error}; a webhook has url, secrets and timeout_seconds") from None
    parse_url(config.url)
    check_references(config.secrets)
    check_seconds(config.timeout_seconds, "timeout_seconds", least=0.1, most=TIMEOUT_SECONDS_MAX)
    return config


def allowed_networks(environment: Mapping[str, str]) -> tuple[Network, ...]:
    """The networks that webhooks may connect to although they are not public: `TENURE_WEBHOOK_NETWORKS`, separated by
    commas.

    >>> allowed_networks({"TENURE_WEBHOOK_NETWORKS": "10.1.0.0/16, ::1"})
    (IPv4Network('10.1.0.0/16'), IPv6Network('::1/128'))
    """
    given = environment.get(NETWORKS_VARIABLE, "")
    return parse_networks(stripped for one in given.split(",") if (stripped := one.strip()))

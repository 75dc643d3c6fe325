"""What a receiver accepts: a signed and recent request, unchanged; and its error for any other."""

from __future__ import annotations

import ast
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tenure.inbox
from tenure.errors import InvalidInput, SignatureRefused
from tenure.inbox import ReceivedMessage, verify
from tenure.inbox.signatures import decode_secret, sign

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_bmV3IGtleSBmb3IgdGVzdHMsIDMyIGJ5dGVzIGxvbmc="
NOW = datetime(2030, 1, 1, tzinfo=UTC)
BODY = b'{"specversion":"1.0","id":"m1","type":"mail.sent","source":"/tenure","data":{"to":"ada"}}'


def signed(body: bytes = BODY, *, at: datetime = NOW, secret: str = SECRET) -> dict[str, str]:
    timestamp = int(at.timestamp())
    return {
        "Webhook-Id": "m1",
        "WEBHOOK-TIMESTAMP": str(timestamp),
        "webhook-signature": sign([decode_secret(secret)], id="m1", timestamp=timestamp, body=body),
    }


def test_a_signed_and_recent_request_is_a_message() -> None:
    message = verify(signed(), BODY, [OTHER, SECRET], now=NOW)
    assert message == ReceivedMessage(id="m1", topic="mail.sent", data={"to": "ada"})


def test_the_time_is_that_of_the_machine_by_default() -> None:
    now = datetime.now(UTC)
    assert verify(signed(at=now), BODY, [SECRET]).id == "m1"
    with pytest.raises(SignatureRefused, match="s old"):
        verify(signed(at=now - timedelta(days=2)), BODY, [SECRET])


@pytest.mark.parametrize("seconds", [-300, 0, 300])
def test_clocks_may_differ_by_five_minutes(seconds: int) -> None:
    assert verify(signed(at=NOW + timedelta(seconds=seconds)), BODY, [SECRET], now=NOW).id == "m1"


@pytest.mark.parametrize(("seconds", "problem"), [(-301, "301 s old"), (301, "301 s in the future")])
def test_a_request_beyond_the_tolerance_is_refused(seconds: int, problem: str) -> None:
    with pytest.raises(SignatureRefused, match=problem):
        verify(signed(at=NOW + timedelta(seconds=seconds)), BODY, [SECRET], now=NOW)


@pytest.mark.parametrize("name", ["Webhook-Id", "WEBHOOK-TIMESTAMP", "webhook-signature"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_request_without_a_header_is_refused(name: str, value: str | None) -> None:
    headers = {key: one for key, one in signed().items() if key != name} | ({} if value is None else {name: value})
    with pytest.raises(SignatureRefused, match=f"no header {name.lower()}"):
        verify(headers, BODY, [SECRET], now=NOW)


@pytest.mark.parametrize("timestamp", ["now", "-1", "1.5", "\u0661", "9" * 50, "0x10", " 1"])
def test_a_timestamp_that_is_no_number_is_refused(timestamp: str) -> None:
    with pytest.raises(SignatureRefused, match="webhook-timestamp"):
        verify(signed() | {"WEBHOOK-TIMESTAMP": timestamp}, BODY, [SECRET], now=NOW)


def test_what_was_changed_on_the_way_is_refused() -> None:
    headers = signed()
    later = str(int(NOW.timestamp()) + 1)
    for changed, body in (
        (headers, BODY + b" "),
        (headers | {"Webhook-Id": "m2"}, BODY),
        (headers | {"WEBHOOK-TIMESTAMP": later}, BODY),
        (signed(secret=OTHER), BODY),
    ):
        with pytest.raises(SignatureRefused, match="no signature of the request is valid"):
            verify(changed, body, [SECRET], now=NOW)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type":1}', b"\xff"])
def test_a_signed_body_that_is_no_cloud_event_is_refused(body: bytes) -> None:
    with pytest.raises(SignatureRefused, match="not a CloudEvent"):
        verify(signed(body), body, [SECRET], now=NOW)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SignatureRefused, match="secrets"):
        verify(signed(), BODY, [], now=NOW)
    with pytest.raises(SignatureRefused, match="list of secrets"):
        verify(signed(), BODY, SECRET, now=NOW)
    with pytest.raises(SignatureRefused, match="bytes of the request"):
        verify(signed(), BODY.decode(), [SECRET], now=NOW)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="secret") as refused:
        verify(signed(), BODY, ["whsec_tooshort"], now=NOW)
    assert "tooshort" not in str(refused.value)


def test_the_inbox_imports_the_standard_library_and_the_errors_only() -> None:
    """A receiver may be another program, which needs nothing else of tenure."""
    found = set()
    for path in Path(tenure.inbox.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    own = {"tenure.errors", *(name for name in found if name.startswith("tenure.inbox."))}
    # SQLAlchemy is imported only for a connection of SQLAlchemy.
    assert {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names} - own == {"sqlalchemy"}

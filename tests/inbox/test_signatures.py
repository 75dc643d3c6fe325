"""Signatures as Standard Webhooks define them, checked with the official libraries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tenure.inbox.signatures import decode_secret, is_signed, sign

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_bmV3IGtleSBmb3IgdGVzdHMsIDMyIGJ5dGVzIGxvbmc="
ID, TIMESTAMP = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
"""The vector of the standard's own test suites."""
VERIFY_IN_JAVASCRIPT = """
const { Webhook } = require("standardwebhooks");
const { secret, body, headers } = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(new Webhook(secret).verify(body, headers)));
"""


def headers_of(signature: str, timestamp: int) -> dict[str, str]:
    return {"webhook-id": ID, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def test_the_vector_of_the_standard_is_signed_as_it_says() -> None:
    assert sign([decode_secret(SECRET)], id=ID, timestamp=TIMESTAMP, body=BODY) == SIGNATURE
    assert is_signed(SIGNATURE, [decode_secret(SECRET)], id=ID, timestamp=str(TIMESTAMP), body=BODY)


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_"), f" {SECRET}\n", OTHER.rstrip("=")])
def test_a_secret_has_a_prefix_and_padding_or_not(secret: str) -> None:
    assert len(decode_secret(secret)) in {24, 32}


def test_the_official_python_library_accepts_our_signatures_and_we_accept_its() -> None:
    now = datetime.now(UTC)
    timestamp = int(now.timestamp())
    keys = [decode_secret(OTHER), decode_secret(SECRET)]
    for secret in (SECRET, OTHER):
        headers = headers_of(sign(keys, id=ID, timestamp=timestamp, body=BODY), timestamp)
        assert Webhook(secret).verify(BODY, headers) == {"test": 2432232314}
        theirs = Webhook(secret).sign(ID, now, BODY.decode())
        assert is_signed(theirs, keys, id=ID, timestamp=str(timestamp), body=BODY)


@pytest.mark.parametrize(
    ("header", "signed"),
    [
        (f"v1a,whatever {SIGNATURE} v2,x", True),
        (f"v1,{'A' * 44} {SIGNATURE}", True),
        (SIGNATURE.replace("v1,", "v1a,"), False),
        (SIGNATURE.removeprefix("v1,"), False),
        (SIGNATURE[:-2], False),
        ("", False),
        ("v1,", False),
        ("v1,ä", False),
        (" ".join(["v1,x"] * 50 + [SIGNATURE]), False),
    ],
)
def test_one_known_version_among_few_signatures_must_match(header: str, signed: bool) -> None:
    key = decode_secret(SECRET)
    assert is_signed(header, [key], id=ID, timestamp=str(TIMESTAMP), body=BODY) is signed


@pytest.mark.deep
def test_the_official_javascript_library_accepts_our_signatures(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs npm and node")
    environment = {**os.environ, "npm_config_cache": str(tmp_path / "cache")}
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "standardwebhooks@1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environment,
    )
    if installed.returncode != 0:
        pytest.skip("npm cannot install standardwebhooks: no package registry")
    timestamp = int(datetime.now(UTC).timestamp())
    header = sign([decode_secret(OTHER), decode_secret(SECRET)], id=ID, timestamp=timestamp, body=BODY)
    for secret in (SECRET, OTHER):
        request = {"secret": secret, "body": BODY.decode(), "headers": headers_of(header, timestamp)}
        verified = subprocess.run(
            [node, "-e", VERIFY_IN_JAVASCRIPT],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=tmp_path,
        )
        assert verified.returncode == 0, verified.stderr
        assert json.loads(verified.stdout) == {"test": 2432232314}

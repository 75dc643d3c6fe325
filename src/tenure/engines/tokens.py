"""Access tokens of engines. A gateway knows their digests, and never the tokens themselves."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable

import msgspec

from tenure.errors import InvalidInput
from tenure.seams import Seams

_NAME = r"[\w.-]{1,100}"
_LINE = re.compile(rf"(?P<name>{_NAME}) (?P<digest>[0-9a-f]{{64}})")


class EngineToken(msgspec.Struct, frozen=True):
    """The name of a token, and the SHA-256 digest of its text."""

    name: str
    digest: str

    @property
    def line(self) -> str:
        """Its line in a token file."""
        return f"{self.name} {self.digest}"


def new_token(name: str, seams: Seams) -> tuple[str, EngineToken]:
    """A random token and what a gateway keeps of it. InvalidInput: the name is not valid."""
    if re.fullmatch(_NAME, name) is None:
        raise InvalidInput("name", f"{name!r} must be up to 100 letters, digits, dots, hyphens and underscores")
    text = f"tnr_{seams.random.token().hex}{seams.random.token().hex}"
    return text, EngineToken(name, _digest(text))


def parse_tokens(lines: Iterable[str]) -> tuple[EngineToken, ...]:
    """The tokens of a token file: one line each, `name digest`. Empty lines and lines with # are left out."""
    found: list[EngineToken] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise InvalidInput(
                "tokens", f"line {number} is not `name digest`; make one with `tenure engines token NAME`"
            )
        found.append(EngineToken(match["name"], match["digest"]))
    return tuple(found)


class EngineTokens:
    """The tokens that a gateway accepts."""

    def __init__(self, tokens: Iterable[EngineToken]) -> None:
        self._tokens = tuple(tokens)
        if not self._tokens:
            raise InvalidInput(
                "tokens",
                "there are none: make one with `tenure engines token NAME`, and put its line into the token file",
            )

    def name_of(self, text: str | None) -> str | None:
        """The name of this token; None if it is not one of them. Takes the same time for every wrong token."""
        digest = _digest(text or "")
        names = [token.name for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        return names[0] if names else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

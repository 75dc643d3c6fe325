"""Strict JSON and text validation, the same for every store, and digests of content.

Refused: NaN and infinities, NUL, lone surrogates, duplicate keys, integers beyond ±2^53, more than 64 levels, more
bytes than the payload limit (`CONTENT_BYTES_MAX`). Content is stored once, as JSON text; the log has its digest.
"""

from __future__ import annotations

import json
import math
from binascii import b2a_base64
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX

DEPTH_MAX = 64
INTEGER_MAX = 2**53
NAME_LENGTH_MAX = 200
KEY_LENGTH_MAX = 500
BYTES_PER_CHARACTER = 2
"""On average, so that a kind and a key together fit into an index entry."""

KNOWN_MAX, KNOWN_LENGTH_MAX = 4096, 1000
SHORT_LENGTH_MAX = 32
UTF8_BYTES_MAX = 4
"""The largest size of one character."""

_encode = msgspec.json.encode
_known: set[str] = set()
"""Short texts that were validated lately, which need no second validation in the store."""


def encode(value: Any, *, where: str = "content", bytes_max: int = CONTENT_BYTES_MAX) -> str:
    """The JSON text of a value that every store can hold. A refusal names the place of the fault.

    >>> encode({"to": "ada", "tries": 3})
    '{"to":"ada","tries":3}'
    """
    if not _is_plain(value):
        value = _builtins(value, where)
    if not _is_sound(value, DEPTH_MAX):
        _check(value, where, DEPTH_MAX)
    text = _encode(value).decode()
    if len(text) > bytes_max or (not text.isascii() and len(text.encode()) > bytes_max):
        raise InvalidInput(where, f"is {len(text.encode())} bytes of JSON, and at most {bytes_max} are allowed")
    _remember(text)
    return text


def _remember(text: str) -> None:
    if len(text) <= KNOWN_LENGTH_MAX:
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known.add(text)


def load(text: str) -> Any:
    """The value of content that `encode` made."""
    return msgspec.json.decode(text)


def parse(text: str, *, where: str = "content", bytes_max: int = CONTENT_BYTES_MAX) -> Any:
    """The value of external JSON text, under the same rules as `encode`."""
    try:
        value = json.loads(text, object_pairs_hook=_unique(where), parse_constant=_no_constant(where))
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(where, f"is not JSON: {problem}") from None
    encode(value, where=where, bytes_max=bytes_max)
    return value


def check_content(text: Any, where: str, *, bytes_max: int = CONTENT_BYTES_MAX) -> str:
    """Validate JSON text in a store. Text made by `encode` needs no further check."""
    if not isinstance(text, str):
        raise InvalidInput(where, f"must be JSON text, not {type(text).__name__}")
    if len(text) <= min(KNOWN_LENGTH_MAX, bytes_max // UTF8_BYTES_MAX) and text in _known:
        return text
    _check_characters(text, where)
    if len(text) > bytes_max or (not text.isascii() and len(text.encode()) > bytes_max):
        raise InvalidInput(where, f"is {len(text.encode())} bytes of JSON, and at most {bytes_max} are allowed")
    try:
        value = msgspec.json.decode(text)
        as_encoded = _encode(value).decode() == text
    except (msgspec.DecodeError, RecursionError, UnicodeError) as problem:
        raise InvalidInput(where, f"is not JSON that can be stored: {problem}") from None
    if as_encoded:
        if not _is_sound(value, DEPTH_MAX):
            _check(value, where, DEPTH_MAX)
    else:
        # Not written by `encode`: it may contain what decoding hides, such as a duplicate key.
        parse(text, where=where, bytes_max=bytes_max)
    _remember(text)
    return text


def digest(text: str) -> str:
    """The digest of content: 128 bits of its SHA-256, as 22 characters of URL-safe base64."""
    return _digest_of_short(text) if len(text) <= SHORT_LENGTH_MAX else _digest(text)


def _digest(text: str) -> str:
    return b2a_base64(sha256(text.encode()).digest()[:16], newline=False)[:22].translate(_URL_SAFE).decode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


_digest_of_short = lru_cache(maxsize=4096)(_digest)
"""Cached, since most results are `null`, `true` or another short text."""


def clean_text(text: str) -> str:
    """The text with characters replaced that no store can hold, so that an error can always be recorded."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8", "replace")


def check_text(text: Any, where: str, *, length_max: int = KEY_LENGTH_MAX) -> str:
    """A key, name or message that every store can hold."""
    if type(text) is str and 0 < len(text) <= length_max and text.isascii() and "\x00" not in text:
        return text
    if not isinstance(text, str):
        raise InvalidInput(where, f"must be text, not {type(text).__name__}")
    if not text:
        raise InvalidInput(where, "must not be empty")
    if len(text) > length_max:
        raise InvalidInput(where, f"has {len(text)} characters, and at most {length_max} are allowed")
    _check_characters(text, where)
    if not text.isascii() and len(text.encode()) > BYTES_PER_CHARACTER * length_max:
        most = BYTES_PER_CHARACTER * length_max
        raise InvalidInput(where, f"has {len(text.encode())} bytes, and at most {most} are allowed")
    return text


def check_name(text: Any, where: str) -> str:
    """The name of a kind or a queue: short text without control characters or outer spaces."""
    if not isinstance(text, str) or not _is_sound_name(text):
        check_text(text, where, length_max=NAME_LENGTH_MAX)
        raise InvalidInput(where, f"{text!r} has control characters or outer spaces")
    return text


@lru_cache(maxsize=4096)
def _is_sound_name(text: str) -> bool:
    """Cached, since every job has the same few names."""
    try:
        check_text(text, "name", length_max=NAME_LENGTH_MAX)
    except InvalidInput:
        return False
    return text == text.strip() and not any(ord(character) < 32 for character in text)


def check_integer(value: Any, where: str, *, least: int, most: int) -> int:
    """An integer within bounds; a bool is refused."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(where, f"must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(where, f"is {value}, and must lie between {least} and {most}")
    return value


def check_datetime(value: Any, where: str) -> datetime:
    """A datetime with a time zone."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInput(where, f"must be a datetime with a time zone, not {value!r}")
    return value


def check_seconds(value: Any, where: str, *, least: float = 0.0, most: float = 366 * 86_400.0) -> float:
    """A duration in seconds within bounds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(where, f"must be a number of seconds, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(where, f"is {value} s, and must lie between {least} and {most}")
    return float(value)


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (dict, list, str, int, float, bool)


def _builtins(value: Any, where: str) -> Any:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInput(where, f"cannot be written as JSON: {problem}") from None


def _is_sound(value: Any, levels: int) -> bool:
    """Whether every store can certainly hold the value. Fast: it does not locate a fault."""
    kind = type(value)
    if kind is str:
        return value.isascii() and "\x00" not in value
    if kind is int:
        return -INTEGER_MAX <= value <= INTEGER_MAX  # type: ignore[no-any-return]
    if value is None or kind is bool:
        return True
    if levels == 0:
        return False
    if kind is dict:
        for key in value:
            if type(key) is not str or not key.isascii() or "\x00" in key:
                return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return False
    for item in value:  # noqa: SIM110 - a generator takes twice as long, and every job passes here
        if not _is_sound(item, levels - 1):
            return False
    return True


def _check(value: Any, where: str, levels: int) -> None:
    kind = type(value)
    if kind is str:
        _check_characters(value, where)
    elif kind is bool or value is None:
        return
    elif kind is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise InvalidInput(where, f"{value} is beyond ±2^53, so other readers of JSON would change it; use text")
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidInput(where, f"{value} is not a JSON number")
    elif levels == 0:
        raise InvalidInput(where, f"is nested more than {DEPTH_MAX} levels deep")
    elif kind is dict:
        for key, item in value.items():
            _check_key(key, where)
            _check(item, f"{where}.{key}", levels - 1)
    elif kind is list or kind is tuple:
        for number, item in enumerate(value):
            _check(item, f"{where}[{number}]", levels - 1)
    else:
        _check(_builtins(value, where), where, levels)


def _check_key(key: Any, where: str) -> None:
    if type(key) is not str:
        raise InvalidInput(where, f"has the key {key!r}, and keys must be text")
    _check_characters(key, where)


def check_choice(value: object, where: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInput(where, f"is {value!r}, and must be one of {', '.join(choices)}")


def _check_characters(text: str, where: str) -> None:
    if "\x00" in text:
        raise InvalidInput(where, "holds a NUL character, which PostgreSQL cannot store")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise InvalidInput(where, f"holds a lone surrogate at position {problem.start}") from None


def _unique(where: str) -> Any:
    def build(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InvalidInput(where, f"has the key {key!r} twice")
            found[key] = value
        return found

    return build


def _no_constant(where: str) -> Any:
    def refuse(name: str) -> Any:
        raise InvalidInput(where, f"{name} is not a JSON number")

    return refuse

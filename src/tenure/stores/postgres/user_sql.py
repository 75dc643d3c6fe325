"""Statements of the caller's own inside a transaction of ours: which of them are refused before they are sent.

They are sent one at a time in the extended protocol, which takes no second statement behind a semicolon; functions and
`do` blocks cannot end the transaction that they were called in. So the first word of a statement says enough.
"""

from __future__ import annotations

import re

from tenure.errors import InvalidInput

ENDING = frozenset(
    {"begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release", "prepare"},
)
LASTING = frozenset({"reset", "discard", "listen", "unlisten", "load", "deallocate"})
"""What would change the connection, which outlives the transaction."""
WRITER = "tenure.writer"

_BLANK = re.compile(r"[\s;]+|--[^\n\r]*")
_WORDS = re.compile(r"([a-z_]+)(?:\s+([a-z_]+))?", re.IGNORECASE)
_BRACKET = re.compile(r"/\*|\*/")


def check_statement(sql: str) -> str:
    """Refuse what would end the transaction, outlive it, or speak in tenure's name."""
    first, second = _first_words(sql)
    if first in ENDING:
        raise InvalidInput(
            "sql",
            f"{first.upper()} is refused: the transaction begins and ends with its block; "
            f"raise an error to roll it back",
        )
    if first in LASTING or (first == "set" and second not in ("local", "constraints")):
        raise InvalidInput(
            "sql",
            f"{first.upper()} is refused: it would outlive the transaction on its connection; "
            f"settings are set with SET LOCAL",
        )
    if WRITER in sql.lower():
        raise InvalidInput("sql", f"{WRITER} is refused: it is how tenure's guards know tenure")
    return sql


def _first_words(sql: str) -> tuple[str, str]:
    """The first two words in lower case, past blanks, semicolons and comments, which PostgreSQL nests."""
    place = 0
    while True:
        if blank := _BLANK.match(sql, place):
            place = blank.end()
        elif sql.startswith("/*", place):
            place = _behind_comment(sql, place)
        else:
            break
    words = _WORDS.match(sql, place)
    return (words[1].lower(), (words[2] or "").lower()) if words else ("", "")


def _behind_comment(sql: str, place: int) -> int:
    depth = 0
    for bracket in _BRACKET.finditer(sql, place):
        depth += 1 if bracket[0] == "/*" else -1
        if depth == 0:
            return bracket.end()
    return len(sql)

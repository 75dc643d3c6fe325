"""The requirements, word for word, and what is known to be missing of them.

`tools/requirements.toml` is a copy of the documents that state them. Where these lie beside the checkout, `python -m
tools.requirement_sentences` writes the copy anew, and a test compares.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.generated import ROOT

COPY = Path(__file__).with_name("requirements.toml")
GAPS = Path(__file__).with_name("requirements_gaps.toml")
SOURCE = ROOT.parent / "shared"
"""The folder of the documents, if there is one."""
HEADER = """\
# The requirements, word for word. Tests name them with @pytest.mark.requirement("LC-07").
# Written by `python -m tools.requirement_sentences` from the documents that state them.
"""
_CHAPTER = re.compile(r"^## ([A-Z]{2}) — (.+)$")
_REQUIREMENT = re.compile(r"^\| ([A-Z]{2}-\d\d) \| (.+) \|$")
_RULE = re.compile(r"^\| (WF-\d\d) \| (.+?) \| [^|]*\|$")


@dataclass(frozen=True, slots=True)
class Chapter:
    """The requirements of one prefix: number → sentence."""

    prefix: str
    title: str
    requirements: dict[str, str]


@cache
def chapters() -> tuple[Chapter, ...]:
    """All requirements, by chapter."""
    listed = tomllib.loads(COPY.read_text(encoding="utf-8"))
    return tuple(Chapter(prefix, chapter["title"], dict(chapter["requirements"])) for prefix, chapter in listed.items())


@cache
def known_numbers() -> frozenset[str]:
    return frozenset(number for chapter in chapters() for number in chapter.requirements)


def gaps() -> dict[str, str]:
    """What is missing, in words, by number. An entry for a chapter holds for each number that has none of its own."""
    listed: dict[str, str] = tomllib.loads(GAPS.read_text(encoding="utf-8"))["missing"]
    unknown = set(listed) - known_numbers() - {chapter.prefix for chapter in chapters()}
    if unknown:
        raise ValueError(f"{GAPS.name} has {', '.join(sorted(unknown))}, which requirements.toml does not have")
    found = {number: listed.get(number, listed.get(number.partition("-")[0])) for number in known_numbers()}
    return {number: missing for number, missing in sorted(found.items()) if missing is not None}


def stated_in(source: Path) -> list[Chapter]:
    """The chapters of the documents in this folder."""
    found: list[Chapter] = []
    for line in (source / "REQUIREMENTS.md").read_text(encoding="utf-8").splitlines():
        if title := _CHAPTER.match(line):
            found.append(Chapter(title[1], title[2], {}))
        elif found and (stated := _REQUIREMENT.match(line)):
            found[-1].requirements[stated[1]] = stated[2]
    rules = map(_RULE.match, (source / "WORKFLOWS.md").read_text(encoding="utf-8").splitlines())
    return [*found, Chapter("WF", "workflows", {rule[1]: rule[2] for rule in rules if rule})]


def toml(listed: list[Chapter]) -> str:
    """The text of the copy."""
    sections = [
        f"[{chapter.prefix}]\ntitle = {_quoted(chapter.title)}\n[{chapter.prefix}.requirements]\n"
        + "".join(f"{number} = {_quoted(sentence)}\n" for number, sentence in chapter.requirements.items())
        for chapter in listed
    ]
    return "\n".join([HEADER, *sections])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main() -> int:
    if not SOURCE.is_dir():
        sys.stderr.write(f"{SOURCE} does not exist; {COPY.name} stays as it is\n")
        return 1
    COPY.write_text(toml(stated_in(SOURCE)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

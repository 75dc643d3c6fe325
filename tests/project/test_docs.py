"""What the pages of docs/ and README.md name exists: linked files, paths in the repository, modules and their names."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tools.generated import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.])(?:src|tests|tools|docs|benchmarks|simulation|examples|deploy)/[\w./-]*\w/?")
"""A path in the repository, wherever it stands in the text."""
NAME = re.compile(r"`(tenure(?:\.\w+){2,})")
"""A module of tenure, or a name in one. `tenure.jobs` and the like may be tables, so two dots are asked for."""


def links(page: Path) -> list[str]:
    """The links of a page to other files and to headings."""
    return [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for link in links(page):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    without_links = LINK.sub("]", page.read_text(encoding="utf-8"))
    assert [path for path in PATH.findall(without_links) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    assert [name for name in NAME.findall(page.read_text(encoding="utf-8")) if not exists(name)] == []


def exists(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        import_module(name)
    except ImportError:
        return hasattr(import_module(module), attribute)
    return True


def test_every_page_is_reached_from_the_index() -> None:
    index = DOCS / "index.md"
    reached, unread = {index}, [index]
    while unread:
        page = unread.pop()
        found = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        pages = {path for path in found if path.suffix == ".md" and path.is_relative_to(DOCS)} - reached
        reached |= pages
        unread += pages
    assert set(DOCS.rglob("*.md")) == reached


DECISIONS = sorted((DOCS / "internals" / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem[:3])
def test_every_decision_has_a_title_a_status_and_its_three_parts_and_is_listed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title = re.match(r"# (\d{3}): (.+)\n\nStatus: (Accepted|Superseded by)\b", text)
    assert title is not None
    assert title[1] == page.stem[:3]
    assert [part in text for part in ("**Context.**", "**Choice.**", "**Cost.**")] == [True, True, True]
    listed = (page.parent / "index.md").read_text(encoding="utf-8")
    assert f"| [{title[1]}]({page.name}) | {title[2]} | {title[3]}" in listed


def test_every_function_listed_for_stores_exists() -> None:
    page = (DOCS / "internals" / "store_contract.md").read_text(encoding="utf-8")
    table = page.partition("| function | returns |")[2].partition("\n\n")[0]
    names = {
        name for cell in re.findall(r"`([^`]+)`", table) for name in re.findall(r"^(?:Change\.)?(\w+)(?=\(|$)", cell)
    }
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert len(names) >= 10
    assert [name for name in sorted(names) if not re.search(rf"\bdef {name}\(", source)] == []

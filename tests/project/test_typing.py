"""Jobs are typed by their functions' own signatures: checked by running mypy over samples in tests/typing/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from tools.generated import ROOT

SAMPLES = ROOT / "tests" / "typing"
EXPECTED = re.compile(r"\s*# type: ignore\[([a-z-]+)\]")
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)  \[(?P<code>[a-z-]+)\]$", re.MULTILINE)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[int, str]]]:
    """The lines and codes of mypy's errors in each sample, without the comments that expect them."""
    folder = tmp_path_factory.mktemp("samples")
    for sample in SAMPLES.glob("*.py"):
        text = EXPECTED.sub("", sample.read_text(encoding="utf-8"))
        (folder / sample.name).write_text(text, encoding="utf-8")
    names = [str(path) for path in sorted(folder.glob("*.py"))]
    options = ["--strict", "--no-pretty", "--hide-error-context", f"--config-file={ROOT / 'pyproject.toml'}"]
    output, problems, _ = api.run([*options, f"--cache-dir={ROOT / '.mypy_cache'}", *names])
    assert not problems, problems
    errors: dict[str, set[tuple[int, str]]] = {Path(name).name: set() for name in names}
    for error in ERROR.finditer(output):
        assert Path(error["file"]).name in errors, f"an error outside of the samples: {error[0]}"
        errors[Path(error["file"]).name].add((int(error["line"]), error["code"]))
    assert "errors in" in output, output
    return errors


def expected(name: str) -> set[tuple[int, str]]:
    """The lines of a sample with the error that each must have."""
    lines = (SAMPLES / name).read_text(encoding="utf-8").splitlines()
    return {(number, match[1]) for number, line in enumerate(lines, start=1) if (match := EXPECTED.search(line))}


def test_every_correct_use_has_the_declared_types(found: dict[str, set[tuple[int, str]]]) -> None:
    assert found["accepted.py"] == set()


def test_every_wrong_use_is_an_error_on_its_line(found: dict[str, set[tuple[int, str]]]) -> None:
    assert len(expected("refused.py")) >= 30
    assert found["refused.py"] == expected("refused.py")

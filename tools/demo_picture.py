"""Writes docs/demo.svg, a picture of a run of `tenure demo`: `python -m tools.demo_picture`."""

from __future__ import annotations

import io
import subprocess
import sys

from rich.console import Console
from rich.text import Text

from tools.generated import DOCS

PICTURE = DOCS / "demo.svg"
COLUMNS = 100


def captured() -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "tenure", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)  # noqa: TID251
    return f"$ tenure demo\n{done.stdout}"


def svg(text: str) -> str:
    """The text as a picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(text.rstrip("\n")))
    return console.export_svg(title="tenure demo", unique_id="demo")


if __name__ == "__main__":
    PICTURE.write_text(svg(captured()), encoding="utf-8")

"""What starting costs: `import tenure` and the command's help load nothing that they do not need.

No time is asserted; what takes the time is what is loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from tenure.cli.main import COMMANDS, tenure

HEAVY = (
    "asyncio",
    "asyncpg",
    "click",
    "concurrent.futures",
    "email",
    "http",
    "importlib.metadata",
    "inspect",
    "jsonschema_rs",
    "logging",
    "msgspec",
    "multiprocessing",
    "psycopg",
    "pydantic",
    "rich",
    "socket",
    "sqlalchemy",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "typing_extensions",
    "uuid_utils",
)
NEEDED_BY_CLICK = {"inspect", "typing_extensions", "logging"}
"""What click may load by itself, depending on its version."""


def loaded(code: str) -> set[str]:
    """What of the heavy modules, and which of our own, a fresh interpreter has loaded after this code."""
    report = f"""
import sys
found = [name for name in sys.modules if name in {HEAVY!r} or name.startswith("tenure")]
import json
print(json.dumps(found), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_tenure_loads_nothing_heavy_and_nothing_else_of_tenure() -> None:
    assert loaded("import tenure") == {"tenure"}


def test_a_public_name_is_loaded_when_it_is_used() -> None:
    assert "tenure.errors" not in loaded("import tenure")
    assert loaded("import tenure; tenure.TenureError") == {"tenure", "tenure.errors"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_loads_no_command_and_nothing_that_only_a_command_needs(arguments: list[str]) -> None:
    found = loaded(f"from tenure.cli.main import run_command\nrun_command({arguments!r})")
    assert found - NEEDED_BY_CLICK <= {"tenure", "tenure.cli", "tenure.cli.main", "tenure.errors", "click"}


def test_a_mistyped_command_loads_no_command() -> None:
    found = loaded("from tenure.cli.main import run_command\nrun_command(['wroker'])")
    assert not {f"tenure.cli.{name}" for name in COMMANDS} & found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_of_commands_has_each_commands_own_summary(name: str) -> None:
    command = tenure.get_command(click.Context(tenure), name)
    assert command is not None
    assert command.name == name
    first = (command.help or "").partition("\n\n")[0]
    assert " ".join(first.split()) == COMMANDS[name]


def test_a_command_that_is_not_in_the_list_does_not_exist() -> None:
    assert tenure.get_command(click.Context(tenure), "main") is None
    assert tenure.get_command(click.Context(tenure), "output") is None


def test_help_lists_every_command_on_a_line_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    listed = [line.split()[0] for line in done.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert listed == sorted(COMMANDS)

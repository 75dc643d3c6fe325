"""What a shell completes of `tenure` commands."""

from __future__ import annotations

import pytest

from tests.support.command import tenure


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_the_shell_is_printed(shell: str) -> None:
    answer = tenure(env={"_TENURE_COMPLETE": f"{shell}_source"})
    assert answer.code == 0
    assert f"_TENURE_COMPLETE={shell}_complete" in answer.out


@pytest.mark.parametrize(
    ("words", "completed"),
    [("tenure jo", "jobs"), ("tenure jobs en", "enqueue"), ("tenure jobs ls --status dead", "dead_lettered")],
)
def test_commands_and_values_are_completed(words: str, completed: str) -> None:
    number = str(len(words.split()) - 1)
    answer = tenure(env={"_TENURE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number})
    assert answer.out == f"plain,{completed}\n"

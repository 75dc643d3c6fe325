"""The management commands: those of the command `tenure`, for the project's app."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from django.core.management.base import BaseCommand, CommandError

from tenure.cli.main import run_command

TARGET = "tenure.contrib.django:app"
"""The project's app, as the command line names it."""


class TenureCommand(BaseCommand):  # type: ignore[misc]
    """Passes its arguments on to a command of `tenure`; `--help` lists them."""

    command: ClassVar[str]
    requires_system_checks: ClassVar[Sequence[str]] = ()

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        """Exit with the exit code of the command. Django itself has read --settings and --pythonpath."""
        sys.exit(run_command(self._arguments(_without_django_options(argv[2:]))))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it from `call_command("tenure_migrate")`."""
        code = run_command(self._arguments([]))
        if code:
            raise CommandError(f"tenure {self.command} ended with exit code {code}", returncode=code)

    def _arguments(self, given: Sequence[str]) -> list[str]:
        return (
            [self.command, *given, "--", TARGET]
            if self.command == "worker"
            else [self.command, "--app", TARGET, *given]
        )


def _without_django_options(arguments: Sequence[str]) -> list[str]:
    """The arguments without those that Django's `manage.py` takes for every command.

    >>> _without_django_options(["--settings", "shop.settings", "--concurrency=5"])
    ['--concurrency=5']
    """
    kept: list[str] = []
    remaining = iter(arguments)
    for one in remaining:
        name, equals, _ = one.partition("=")
        if name not in ("--settings", "--pythonpath"):
            kept.append(one)
        elif not equals:
            next(remaining, None)
    return kept

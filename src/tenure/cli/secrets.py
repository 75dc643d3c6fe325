"""The options of commands that show content: which fields are hidden, and whether any are."""

from __future__ import annotations

from collections.abc import Callable

import click

from tenure.lifecycle.records import Job
from tenure.views.redaction import Redaction

_names = click.option("--secret", "names", multiple=True, metavar="FIELD", help="Another field whose value is hidden.")
_reveal = click.option("--reveal", is_flag=True, help="Show the values of secret fields too.")


def secret_options(command: Callable[..., int]) -> Callable[..., int]:
    """--secret and --reveal. The command receives `names` and `reveal`."""
    return _names(_reveal(command))


def without_secrets(job: Job) -> Job:
    """The job for a list or a reply, without the values of its secret fields."""
    return Redaction.of(job).job(job)

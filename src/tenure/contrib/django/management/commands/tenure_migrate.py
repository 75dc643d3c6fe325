"""`manage.py tenure_migrate`: the command `tenure migrate` for the project's app."""

from __future__ import annotations

from tenure.contrib.django.command import TenureCommand


class MigrateCommand(TenureCommand):
    """Applies the pending migrations of tenure to the database of the project."""

    command = "migrate"


Command = MigrateCommand
"""The name that Django looks for."""

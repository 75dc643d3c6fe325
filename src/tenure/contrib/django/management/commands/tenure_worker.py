"""`manage.py tenure_worker`: the command `tenure worker` for the project's app."""

from __future__ import annotations

from tenure.contrib.django.command import TenureCommand


class WorkerCommand(TenureCommand):
    """Runs the jobs of the project until it is stopped."""

    command = "worker"


Command = WorkerCommand
"""The name that Django looks for."""

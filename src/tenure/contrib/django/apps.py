"""The Django app: it loads the modules `jobs` and `tasks` of the installed apps."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TenureConfig(AppConfig):  # type: ignore[misc]
    """For INSTALLED_APPS: "tenure.contrib.django"."""

    name = "tenure.contrib.django"
    label = "tenure"
    verbose_name = "tenure"

    def ready(self) -> None:
        """Import `jobs.py` and `tasks.py` of every installed app, which declare jobs, schedules and tasks."""
        autodiscover_modules("jobs", "tasks")

"""The Django app: it loads the `jobs` modules of the installed apps."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TenureConfig(AppConfig):  # type: ignore[misc]
    """For INSTALLED_APPS: "tenure.contrib.django"."""

    name = "tenure.contrib.django"
    label = "tenure"
    verbose_name = "tenure"

    def ready(self) -> None:
        """Import `jobs.py` of every installed app, so that their jobs and schedules are declared."""
        autodiscover_modules("jobs")

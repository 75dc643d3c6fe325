"""The app of a Django project, made from its settings.

Importing this module sets Django up, so that `tenure worker tenure.contrib.django:app` and the processes that a worker
starts need only DJANGO_SETTINGS_MODULE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from tenure.app import App
from tenure.client.load_job import load_job
from tenure.contrib.django.connections import DjangoConnections
from tenure.contrib.django.database import url_of
from tenure.errors import InvalidInput

if TYPE_CHECKING:
    from tenure.workers.execution.process.child import LoadedJob, LoadJob

_SETTINGS = {"ALIAS", "DATABASE", "OPTIONS"}


class DjangoApp(App):
    """An app whose worker processes set Django up before they import a job."""

    def job_loader(self) -> LoadJob:
        return load_django_job


def load_django_job(module: str, name: str) -> LoadedJob:
    """Load a job of a Django project."""
    set_up()
    return load_job(module, name)


def set_up() -> None:
    """Set Django up, unless that is done or under way."""
    if not (apps.ready or apps.app_configs):
        django.setup()


def project_settings() -> dict[str, Any]:
    """The setting TENURE: `ALIAS` of the database in DATABASES, or its URL as `DATABASE`; `OPTIONS` for `App`."""
    try:
        given = dict(getattr(settings, "TENURE", {}))
    except (ImproperlyConfigured, ImportError) as problem:
        set_it = "set DJANGO_SETTINGS_MODULE to the module of the project's settings, such as shop.settings"
        raise InvalidInput("app", f"of Django cannot read the settings ({problem}); {set_it}") from problem
    if unknown := sorted(set(given) - _SETTINGS):
        raise ImproperlyConfigured(f"TENURE has unknown keys: {', '.join(unknown)}; known: {', '.join(_SETTINGS)}")
    return {"ALIAS": "default", "DATABASE": None, "OPTIONS": {}, **given}


def make_app() -> DjangoApp:
    """The app by Django's settings, with `DjangoConnections` around its jobs."""
    given = project_settings()
    options = dict(given["OPTIONS"])
    middleware = [DjangoConnections(), *options.pop("middleware", ())]
    return DjangoApp(given["DATABASE"] or url_of(settings.DATABASES[given["ALIAS"]]), middleware=middleware, **options)


app = make_app()
set_up()

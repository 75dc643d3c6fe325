"""Django: the jobs of a project, connections that survive, management commands, and a backend for django.tasks.

    INSTALLED_APPS = [..., "tenure.contrib.django"]

    from tenure.contrib.django import app      # in shop/jobs.py

    @app.job
    def send(order_id: int) -> None: ...

`app` is the project's app, on the database of Django's settings. Names are imported at their first use, because Django
imports this package before its settings are ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.contrib.django.connections import DjangoConnections
    from tenure.contrib.django.project import DjangoApp, app
    from tenure.contrib.django.tasks import TenureBackend

__all__ = ["DjangoApp", "DjangoConnections", "TenureBackend", "app"]

_MODULE_OF = {
    "DjangoApp": "tenure.contrib.django.project",
    "DjangoConnections": "tenure.contrib.django.connections",
    "TenureBackend": "tenure.contrib.django.tasks",
    "app": "tenure.contrib.django.project",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

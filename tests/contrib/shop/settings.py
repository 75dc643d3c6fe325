"""The settings of the test project, on the database of TEST_DATABASE."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import django


def _database(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username or "",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port),
        "CONN_MAX_AGE": None,
    }


USE_TZ = True
SECRET_KEY = "test"
# Before Django 6 a package has the tasks.
INSTALLED_APPS = ["tenure.contrib.django", *(["django_tasks"] if django.VERSION < (6,) else []), "shop"]
DATABASES = {"default": _database(os.environ["TEST_DATABASE"])}
TASKS = {
    "default": {"BACKEND": "tenure.contrib.django.TenureBackend", "QUEUES": []},
    "once": {"BACKEND": "tenure.contrib.django.TenureBackend", "OPTIONS": {"max_attempts": 1}},
}

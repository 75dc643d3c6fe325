"""Packages of tenure's extras, which may not be installed."""

from __future__ import annotations

from tenure.errors import InvalidInput


def missing(what: str, module: str, extra: str) -> InvalidInput:
    """The error for a feature whose package is not installed.

    >>> str(missing("metrics", "prometheus_client", "metrics"))
    "metrics: need the package prometheus_client, which is not installed; pip install 'tenure[metrics]'"
    """
    return InvalidInput(what, f"need the package {module}, which is not installed; pip install 'tenure[{extra}]'")

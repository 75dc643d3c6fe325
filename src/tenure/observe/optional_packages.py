"""What is not installed with tenure itself, and how to get it."""

from __future__ import annotations

from tenure.errors import InvalidInput


def missing(what: str, module: str, extra: str) -> InvalidInput:
    """The refusal of something that needs a package which is not there.

    >>> str(missing("metrics", "prometheus_client", "metrics"))
    "metrics: need the package prometheus_client, which is not installed; pip install 'tenure[metrics]'"
    """
    return InvalidInput(what, f"need the package {module}, which is not installed; pip install 'tenure[{extra}]'")

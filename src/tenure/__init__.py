"""Durable jobs and workflows whose lifecycle is a proven state machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.context import Context
    from tenure.errors import TenureError
    from tenure.handles import Handle
    from tenure.lifecycle.backoff import Backoff
    from tenure.lifecycle.records import Job, Timeouts
    from tenure.lifecycle.statuses import Status

__version__ = "0.1.0"
__all__ = ["App", "Backoff", "Context", "Handle", "Job", "Status", "TenureError", "Timeouts"]

_HOMES = {
    "App": "tenure.app",
    "Backoff": "tenure.lifecycle.backoff",
    "Context": "tenure.context",
    "Handle": "tenure.handles",
    "Job": "tenure.lifecycle.records",
    "Status": "tenure.lifecycle.statuses",
    "TenureError": "tenure.errors",
    "Timeouts": "tenure.lifecycle.records",
}


def __getattr__(name: str) -> Any:
    """A public name is looked up when it is first used: `import tenure` and the command's help stay fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""Durable background jobs on SQLite and PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.handle import Handle
    from tenure.client.job_function import JobFunction
    from tenure.errors import (
        CancelRequested,
        DeadlinePassed,
        DependencyUnavailable,
        InvalidInput,
        JobCancelled,
        JobFailed,
        JobHalted,
        LeaseLost,
        PermanentError,
        PolicyViolation,
        Snooze,
        StoreUnavailable,
        TenureError,
        TransientError,
        ValidationError,
    )
    from tenure.jobs.context import Context
    from tenure.jobs.middleware import Middleware
    from tenure.lifecycle.backoff import Backoff
    from tenure.lifecycle.limits import Rate
    from tenure.lifecycle.records import Job, Timeouts
    from tenure.lifecycle.statuses import Status
    from tenure.stores.contract import JobFilter

__version__ = "0.1.0"
__all__ = [
    "App",
    "Backoff",
    "CancelRequested",
    "Context",
    "DeadlinePassed",
    "DependencyUnavailable",
    "Handle",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobFilter",
    "JobFunction",
    "JobHalted",
    "LeaseLost",
    "Middleware",
    "PermanentError",
    "PolicyViolation",
    "Rate",
    "Snooze",
    "Status",
    "StoreUnavailable",
    "TenureError",
    "Timeouts",
    "TransientError",
    "ValidationError",
]

_MODULE_OF = {
    "App": "tenure.app",
    "Backoff": "tenure.lifecycle.backoff",
    "CancelRequested": "tenure.errors",
    "Context": "tenure.jobs.context",
    "DeadlinePassed": "tenure.errors",
    "DependencyUnavailable": "tenure.errors",
    "Handle": "tenure.client.handle",
    "InvalidInput": "tenure.errors",
    "Job": "tenure.lifecycle.records",
    "JobCancelled": "tenure.errors",
    "JobFailed": "tenure.errors",
    "JobFilter": "tenure.stores.contract",
    "JobFunction": "tenure.client.job_function",
    "JobHalted": "tenure.errors",
    "LeaseLost": "tenure.errors",
    "Middleware": "tenure.jobs.middleware",
    "PermanentError": "tenure.errors",
    "PolicyViolation": "tenure.errors",
    "Rate": "tenure.lifecycle.limits",
    "Snooze": "tenure.errors",
    "Status": "tenure.lifecycle.statuses",
    "StoreUnavailable": "tenure.errors",
    "TenureError": "tenure.errors",
    "Timeouts": "tenure.lifecycle.records",
    "TransientError": "tenure.errors",
    "ValidationError": "tenure.errors",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use, which keeps `import tenure` and `tenure --help` fast."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'tenure' has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)

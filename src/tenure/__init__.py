"""Durable background jobs and workflows on SQLite and PostgreSQL."""

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
        DedupeKeyConflict,
        DependencyUnavailable,
        IllegalTransition,
        InvalidInput,
        JobCancelled,
        JobEnded,
        JobFailed,
        JobHalted,
        JobNotFound,
        KeyUsed,
        LeaseConflictError,
        LeaseLost,
        PermanentError,
        PolicyViolation,
        RequestIdReused,
        Snooze,
        StepCallRefused,
        StepFailed,
        StepUnreadable,
        StoreUnavailable,
        TenureError,
        TooManySignals,
        TransientError,
        ValidationError,
    )
    from tenure.jobs.context import Context
    from tenure.jobs.middleware import MessageAttempt, Middleware, RemoteAttempt, StepAttempt
    from tenure.jobs.profiles import STRICT
    from tenure.jobs.settings import ContentLimits
    from tenure.lifecycle.backoff import Backoff
    from tenure.lifecycle.budgets import Budget
    from tenure.lifecycle.queue_limits import Rate
    from tenure.lifecycle.records import Job
    from tenure.lifecycle.retention import Retention
    from tenure.lifecycle.statuses import Status
    from tenure.lifecycle.timeouts import Timeouts
    from tenure.stores.contract import JobFilter
    from tenure.workflow.branches import First
    from tenure.workflow.current_step import CurrentStep, current_step
    from tenure.workflow.policy import PolicyCall, PolicyDecision
    from tenure.workflow.run import Run
    from tenure.workflow.transaction import StepTransaction

__version__ = "0.1.0"
__all__ = [
    "STRICT",
    "App",
    "Backoff",
    "Budget",
    "CancelRequested",
    "ContentLimits",
    "Context",
    "CurrentStep",
    "DeadlinePassed",
    "DedupeKeyConflict",
    "DependencyUnavailable",
    "First",
    "Handle",
    "IllegalTransition",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobFilter",
    "JobFunction",
    "JobHalted",
    "JobNotFound",
    "KeyUsed",
    "LeaseConflictError",
    "LeaseLost",
    "MessageAttempt",
    "Middleware",
    "PermanentError",
    "PolicyCall",
    "PolicyDecision",
    "PolicyViolation",
    "Rate",
    "RemoteAttempt",
    "RequestIdReused",
    "Retention",
    "Run",
    "Snooze",
    "Status",
    "StepAttempt",
    "StepCallRefused",
    "StepFailed",
    "StepTransaction",
    "StepUnreadable",
    "StoreUnavailable",
    "TenureError",
    "Timeouts",
    "TooManySignals",
    "TransientError",
    "ValidationError",
    "current_step",
]

_MODULE_OF = {
    "STRICT": "tenure.jobs.profiles",
    "App": "tenure.app",
    "Backoff": "tenure.lifecycle.backoff",
    "CancelRequested": "tenure.errors",
    "Budget": "tenure.lifecycle.budgets",
    "ContentLimits": "tenure.jobs.settings",
    "Context": "tenure.jobs.context",
    "DeadlinePassed": "tenure.errors",
    "DependencyUnavailable": "tenure.errors",
    "Handle": "tenure.client.handle",
    "InvalidInput": "tenure.errors",
    "DedupeKeyConflict": "tenure.errors",
    "IllegalTransition": "tenure.errors",
    "JobEnded": "tenure.errors",
    "JobNotFound": "tenure.errors",
    "KeyUsed": "tenure.errors",
    "TooManySignals": "tenure.errors",
    "RequestIdReused": "tenure.errors",
    "Job": "tenure.lifecycle.records",
    "JobCancelled": "tenure.errors",
    "JobFailed": "tenure.errors",
    "JobFilter": "tenure.stores.contract",
    "JobFunction": "tenure.client.job_function",
    "JobHalted": "tenure.errors",
    "LeaseConflictError": "tenure.errors",
    "LeaseLost": "tenure.errors",
    "Middleware": "tenure.jobs.middleware",
    "MessageAttempt": "tenure.jobs.middleware",
    "RemoteAttempt": "tenure.jobs.middleware",
    "StepAttempt": "tenure.jobs.middleware",
    "PermanentError": "tenure.errors",
    "PolicyViolation": "tenure.errors",
    "PolicyCall": "tenure.workflow.policy",
    "PolicyDecision": "tenure.workflow.policy",
    "Rate": "tenure.lifecycle.queue_limits",
    "Retention": "tenure.lifecycle.retention",
    "Snooze": "tenure.errors",
    "Status": "tenure.lifecycle.statuses",
    "StoreUnavailable": "tenure.errors",
    "TenureError": "tenure.errors",
    "Timeouts": "tenure.lifecycle.timeouts",
    "TransientError": "tenure.errors",
    "ValidationError": "tenure.errors",
    "First": "tenure.workflow.branches",
    "Run": "tenure.workflow.run",
    "CurrentStep": "tenure.workflow.current_step",
    "StepTransaction": "tenure.workflow.transaction",
    "current_step": "tenure.workflow.current_step",
    "StepFailed": "tenure.errors",
    "StepCallRefused": "tenure.errors",
    "StepUnreadable": "tenure.errors",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use, which keeps `import tenure` and `tenure --help` fast."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'tenure' has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)

    def __dir__() -> list[str]:
        hidden = {"Any", "TYPE_CHECKING", "annotations", "import_module", "_MODULE_OF"}
        return sorted({*globals(), *__all__} - hidden)

"""What a worker's log shows at the start: version, database, queues, kinds, concurrency and lease."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from tenure import __version__
from tenure.client.declarations import ALL_QUEUES
from tenure.stores.database_url import shown_url

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.workers.worker import Worker

log = logging.getLogger("tenure.worker")


def worker_details(app: App, worker: Worker) -> dict[str, Any]:
    """The details of the log record that a worker starts with. No password is in them."""
    return {
        "version": f"tenure {__version__}",
        "database": shown_url(app.database),
        "queues": list(worker.queues),
        "kinds": sorted(app.local_kinds),
        "concurrency": worker.concurrency,
        "lease": lease_text({kind: one.options.policy.lease_seconds for kind, one in app.local_kinds.items()}),
    }


def warn_of_undeclared_queues(app: App, given: str) -> None:
    """Log the queues that no job of the app is declared in: a wrong name would claim nothing, silently.

    Beside `*` a queue is named on purpose, for calls that name it themselves.
    """
    names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in app.declared_queues]
    if unknown and ALL_QUEUES not in names:
        known = ", ".join(app.declared_queues)
        noun = "queue" if len(unknown) == 1 else "queues"
        log.warning("no job of the app is declared in the %s %s; its queues are: %s", noun, ", ".join(unknown), known)


def lease_text(leases: dict[str, float]) -> str:
    """The lease of most kinds, and the kinds that have another.

    >>> lease_text({"mail": 60.0, "pay": 30.0, "report": 60.0})
    '60 s; pay 30 s'
    """
    if not leases:
        return "none"
    [(usual, _)] = Counter(leases.values()).most_common(1)
    others = [f"{kind} {seconds:g} s" for kind, seconds in sorted(leases.items()) if seconds != usual]
    return "; ".join([f"{usual:g} s", *([", ".join(others)] if others else [])])

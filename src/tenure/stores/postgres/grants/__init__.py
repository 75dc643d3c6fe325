"""What a role needs that is not the owner of the schema: which grants, as SQL, and for which statement."""

from __future__ import annotations

import re
from importlib.resources import files

from tenure.errors import InvalidInput

OWNER = "owner"
KINDS = ("caller", "reader", "enqueuer", "outbox", "worker")
_FILES = {
    "caller": ("caller",),
    "reader": ("reader",),
    "enqueuer": ("reader", "enqueuer"),
    "outbox": ("outbox",),
    "worker": ("worker",),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,62}")
_READS = ("select", "count", "exists")
_ENQUEUES = frozenset(
    {
        "jobs/enqueue", "jobs/enqueue_homogeneous", "jobs/enqueue_one", "jobs/enqueue_one_now", "policies/insert",
    }
)  # fmt: skip

_WITH_TOKENS = frozenset(
    {"jobs/select_recoverable", "jobs/select_with_clock", "jobs/select_with_events", "jobs/select_with_token"}
)


def grants_sql(kind: str, role: str) -> str:
    """The SQL that gives this role the privileges of its kind, and takes all others that it had in the schema.

    >>> print(grants_sql("worker", "shop").splitlines()[3])
    grant usage on schema tenure to "shop";
    """
    if not _NAME.fullmatch(role):
        raise InvalidInput("role", f"{role!r} is not the name of a role: letters, digits and _ . @ - are")
    texts = [(files(__package__) / f"{name}.sql").read_text(encoding="utf-8") for name in _FILES[kind]]
    return "".join(texts).replace("{role}", f'"{role}"')


def grants_for(statement: str) -> str:
    """The least grants that include the privileges for a statement of the store, by its name.

    >>> grants_for("jobs/select_page"), grants_for("jobs/enqueue"), grants_for("jobs/apply")
    ('reader', 'enqueuer', 'worker')
    """
    if statement in _ENQUEUES:
        return "enqueuer"
    reads = statement.partition("/")[2].startswith(_READS) and statement not in _WITH_TOKENS
    return "reader" if reads else "worker"

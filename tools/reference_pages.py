"""Writes the reference pages that follow from the code: `python -m tools.reference_pages`.

Options, settings, errors, commands, metrics and the SQL schema. What the code does not state is not on these pages.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ForwardRef

import click
import msgspec

from tenure import errors
from tenure.app import App
from tenure.cli.main import tenure
from tenure.client.job_function import EnqueueOptions
from tenure.client.job_options import JobOptions
from tenure.jobs.definition import Options
from tenure.jobs.settings import DATABASE_DEFAULT, DATABASE_VARIABLE, ContentLimits
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import Policy
from tenure.lifecycle.retention import Retention
from tenure.lifecycle.timeouts import Timeouts
from tenure.observe.metrics import METRICS
from tenure.outbox.processor_options import ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.stores.sqlite.store import SqliteStore
from tenure.workers.worker import WorkerOptions
from tools.generated import ROOT, notice, table, write

TOOL = "tools.reference_pages"
HELP_WIDTH = 100
LITERALS = (bool, int, float, str, tuple, dict, Backoff, Timeouts, RetrySchedule)
MIGRATIONS = ROOT / "src" / "tenure" / "stores" / "postgres" / "migrations"
_TABLE = re.compile(r"create (?:unlogged )?table (?:if not exists )?(tenure\.\w+) \((.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^    ([a-z_]+) +([a-z]+(?:\[\]|\([0-9]+\))?)(.*?),?(?: *--.*)?$", re.MULTILINE)
_ADDED = re.compile(r"alter table (tenure\.\w+)\s+add column (\w+) +([a-z]+(?:\[\])?)([^;]*);")
_CONSTRAINTS = {"primary", "unique", "check", "foreign", "constraint", "exclude"}


def options_page() -> str:
    """The options of a job and of one enqueue."""
    return _page(
        "src/tenure/client/job_options.py and src/tenure/client/job_function.py",
        "# Options",
        "Options of a job and of a single enqueue, with their defaults. All are keyword arguments.",
        "## `@app.job(...)`",
        _summary(JobOptions, whole=True),
        _job_options(),
        "## `job.options(...)`",
        _summary(EnqueueOptions),
        _fields(EnqueueOptions),
        "## `Backoff`",
        _summary(Backoff),
        _fields(Backoff),
        "## `Timeouts`",
        _summary(Timeouts),
        _fields(Timeouts),
    )


def settings_page() -> str:
    """The settings of an app, a worker and retention."""
    environment = [
        [f"`{DATABASE_VARIABLE}`", f"the database of apps and commands that name none; else `{DATABASE_DEFAULT}`"],
        ["`NO_COLOR`", "no colours on a terminal"],
    ]
    return _page(
        "src/tenure/app.py, src/tenure/workers/worker.py, src/tenure/lifecycle/retention.py and "
        "src/tenure/outbox/processor_options.py",
        "# Settings",
        "Settings of an app, of its workers and of retention, and the environment. An argument comes before the\n"
        "environment, which comes before the default.",
        "## `App(...)`",
        _parameters(App.__init__),
        "## `app.worker(...)`",
        _summary(WorkerOptions),
        _parameters(App.worker),
        "## `ContentLimits`",
        _summary(ContentLimits),
        _fields(ContentLimits),
        "## `Retention`",
        _summary(Retention),
        _fields(Retention),
        "## `ProcessorOptions`",
        _summary(ProcessorOptions),
        _fields(ProcessorOptions, OUTBOX_MEANINGS),
        "## Environment",
        table(["variable", "meaning"], environment),
    )


def errors_page() -> str:
    """The tree of errors, and each of them."""
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    classes = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.TenureError) and one.__module__ == errors.__name__
    ]
    rows = [[f"`{one.__name__}`", f"`{one.__bases__[0].__name__}`", _summary(one, whole=True)] for one in classes]
    return _page(
        "src/tenure/errors.py",
        "# Errors",
        "Every error that tenure raises on purpose is a `TenureError`, importable from `tenure.errors`. Its facts are\n"
        "attributes, and its message states the remedy.",
        f"```\n{tree}\n```",
        table(["error", "base", "meaning"], rows),
    )


def commands_page() -> str:
    """The help of every command."""
    return _page(
        "src/tenure/cli/",
        "# Commands and their options",
        "The output of `tenure COMMAND --help`. [cli.md](cli.md) explains the commands, with examples.",
        *_help(tenure, "tenure"),
    )


def metrics_page() -> str:
    """Every metric."""
    rows = [
        [f"`{one.name}`", one.type, ", ".join(f"`{label}`" for label in one.labels) or "—", one.help] for one in METRICS
    ]
    return _page(
        "src/tenure/observe/metrics.py",
        "# Metrics",
        "What `tenure worker --metrics` serves. [observability.md](../guides/observability.md) explains their use.",
        table(["metric", "type", "labels", "meaning"], rows),
    )


def schema_page() -> str:
    """The tables of both databases."""
    return _page(
        "src/tenure/stores/sqlite/migrations/ and src/tenure/stores/postgres/migrations/",
        "# SQL schema",
        "The tables that `tenure migrate` creates, with their columns. Read them with any program; write only through\n"
        "tenure: guards in the database refuse other changes.",
        "## PostgreSQL",
        *_postgres_tables(),
        "## SQLite",
        "Times are microseconds since 1970 in UTC; ids are text.",
        *asyncio.run(_sqlite_tables()),
    )


MEANINGS = {
    "kind": "the name under which jobs are stored; the name of the function by default",
    "aliases": "other kinds whose jobs this function runs too, such as an earlier name",
    "queue": "the queue that jobs are enqueued to",
    "priority": "a higher number is claimed first within a queue",
    "max_attempts": "attempts until the job ends by its `on_exhausted`",
    "lease_seconds": "how long a claim lasts without a renewal; a lost worker's job is recovered after it",
    "heartbeat_seconds": "the interval of renewals; by default it follows from the lease",
    "backoff": "the delays between attempts",
    "timeouts": "limits on the time in a status",
    "on_lost": "what recovery does with a job whose worker is lost",
    "on_exhausted": "the end of a job after its last attempt",
    "on_timeout": "what follows an attempt that ran too long",
    "deadline_seconds": "the job ends so long after its enqueue, whatever it does; a run's children too",
    "secret": "names of fields that are stored and not shown",
    "retry_on": "errors that are retried, whatever their class implies",
    "fail_on": "errors that are not retried",
    "isolation": "`task`, `thread` or `process`; by default a task for coroutines and a thread for functions",
    "memory_bytes_max": 'a limit on the memory of the job\'s process; with `isolation="process"`',
    "signals_max": "how many signals a job takes, read or not; None: 10,000",
    "upgrade": "converts arguments that were stored by earlier code",
    "delay_seconds": "due this long after the enqueue",
    "at": "due at this time",
    "request_id": "repeating the enqueue under the same id returns the same job",
    "dedupe_key": "while a job with this key is live, another enqueue returns it",
    "correlation_id": "an id shared by related jobs; the first job's own id by default",
    "partition_key": "the key of limits per key, and of fairness",
    "submitted_by": "the user on whose behalf the job is enqueued",
    "tags": "names and values to find jobs by",
    "queues": "the queues to claim from; `*` is all that the app declares",
    "concurrency": "jobs at a time; by default 100, or 10 if any of the jobs runs in a thread or a process",
    "grace_seconds": "how long running jobs may continue after a stop",
    "poll_seconds": "how often an idle worker claims if it receives no wake-up",
    "scan_seconds": "how often recovery scans for lost jobs",
    "metrics": "count what `worker.metrics()` returns",
    "wait_for_database": "wait for a database that cannot be reached at the start",
    "database": "the URL of the database",
    "version": "the version of the program, recorded with each attempt",
    "name": "who enqueues and cancels, in the events of jobs",
    "middleware": "layers around each enqueue, attempt and delivery, the outermost first",
    "retention": "how long ended jobs are kept; for good by default",
    "limits": "the largest payloads and results",
    "outbox_options": "how messages of the outbox are delivered",
    "seams": "clock, randomness and threads, which the simulator replaces",
    "environment": "where the environment below is read",
    "outbox": "also deliver messages to the endpoints that the app declares",
    "budget": "limits on what a workflow may spend, in place of those of the declaration",
    "scope": '`"kind"`: the dedupe key is that of a kind; `"global"`: one for all kinds',
    "key": "names one job of the kind for as long as it is kept: a later enqueue returns that job",
    "if_used": 'what an enqueue does with a used `key`: `"return"` its job, or `"refuse"` with KeyUsed',
    "trace": "a W3C traceparent; the current span's by default, with the tracing middleware",
    "base_seconds": "the delay after the first failure",
    "factor": "how much longer each further delay is",
    "max_seconds": "the longest delay",
    "queued_seconds": "how long a due job may wait for a worker; then it is a dead letter",
    "claimed_seconds": "how long a claimed job may take to start; of use for remote engines",
    "running_seconds": "how long an attempt may run; then `on_timeout` decides",
    "payload_bytes_max": "of the arguments of a job",
    "result_bytes_max": "of the result of a job",
    "step_bytes_max": "of the result of a step",
    "finished_days": "ended jobs, but for dead letters",
    "succeeded_days": "succeeded jobs, in place of `finished_days`",
    "failed_days": "failed jobs, in place of `finished_days`",
    "cancelled_days": "cancelled jobs, in place of `finished_days`",
    "halted_days": "halted jobs, in place of `finished_days`",
    "dead_lettered_days": "dead letters; nothing else removes them",
    "kinds": "ended jobs of these kinds, in place of all of the above but `dead_lettered_days`",
    "verbose_days": "the details of progress events that a later event replaces",
    "delivered_days": "outbox messages that were delivered",
    "workers_days": "the rows of workers that stopped or vanished",
}
"""What an option means, where its name and type leave a question."""
OUTBOX_MEANINGS = {
    "concurrency": "how many messages one endpoint receives at a time",
    "lease_seconds": "how long a claim lasts; another processor delivers the messages of a killed one after it",
    "delivery_seconds_max": "how long one attempt may take",
    "messages_max": "how many messages of an aggregate one claim takes",
    "poll_seconds": "how often an idle processor claims if it receives no wake-up",
    "block_seconds": "how long a message may hold up its aggregate, unless the subscription sets another time",
    "disable_after_seconds": "an endpoint that has failed for so long is disabled; each fifth of it is a warning",
    "retry": "the delay before each further attempt; after the last one the message is a dead letter",
}

PAGES: dict[str, Callable[[], str]] = {
    "reference/options.md": options_page,
    "reference/settings.md": settings_page,
    "reference/errors.md": errors_page,
    "reference/commands.md": commands_page,
    "reference/metrics.md": metrics_page,
    "reference/schema.md": schema_page,
}


def _page(source: str, *parts: str) -> str:
    return "\n\n".join([notice(TOOL, source), *(part for part in parts if part)]) + "\n"


def _summary(documented: Any, *, whole: bool = False) -> str:
    """The docstring without its examples; by default its first paragraph."""
    docstring = vars(documented).get("__doc__") if isinstance(documented, type) else documented.__doc__
    text = inspect.cleandoc(docstring or "")
    paragraphs = [part for part in text.split("\n\n") if part and not part.startswith(">>>")]
    return " ".join(" ".join(paragraphs if whole else paragraphs[:1]).split())


def _parameters(function: Any) -> str:
    parameters = [one for name, one in inspect.signature(function).parameters.items() if name != "self"]
    rows = [
        [f"`{one.name}`", _type_text(one.annotation), _default(one.default), MEANINGS.get(one.name, "")]
        for one in parameters
    ]
    return table(["option", "type", "default", "meaning"], rows)


def _fields(struct: type[msgspec.Struct], meanings: Mapping[str, str] = MEANINGS) -> str:
    rows = []
    for field in msgspec.structs.fields(struct):
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
        if field.default is msgspec.NODEFAULT and callable(default):
            default = default()
        annotation = inspect.get_annotations(struct).get(field.name, field.type)
        rows.append([f"`{field.name}`", _type_text(annotation), _default(default), meanings.get(field.name, "")])
    return table(["option", "type", "default", "meaning"], rows)


def _job_options() -> str:
    """The options of a declaration, with the defaults of the records that keep them."""
    defaults = {"kind": None} | msgspec.structs.asdict(Options()) | msgspec.structs.asdict(Policy())
    rows = [
        [f"`{name}`", _type_text(annotation), _default(defaults[name]), MEANINGS[name]]
        for name, annotation in inspect.get_annotations(JobOptions).items()
    ]
    return table(["option", "type", "default", "meaning"], rows)


def _type_text(annotation: object) -> str:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return f"`{annotation if isinstance(annotation, str) else getattr(annotation, '__name__', annotation)}`"


def _default(value: object) -> str:
    if value is inspect.Parameter.empty or value is msgspec.NODEFAULT:
        return "required"
    # An object of the running process, such as its environment, must not get onto a page.
    return f"`{value!r}`" if value is None or isinstance(value, LITERALS) else f"the process's `{type(value).__name__}`"


def _help(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    # As the command line makes it: a command remembers the names of its help option from its first context.
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, max_content_width=HELP_WIDTH, terminal_width=HELP_WIDTH
    )
    yield f"## `{context.command_path}`\n\n```\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None, f"{child} is listed"
            yield from _help(found, child, context)


def _postgres_tables() -> Iterator[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(MIGRATIONS.glob("[0-9]*.sql")))
    added: dict[str, list[list[str]]] = {}
    for name, column, kind, rest in _ADDED.findall(text):
        added.setdefault(name, []).append(_column(column, kind, rest))
    for name, body in _TABLE.findall(text):
        columns = [_column(*match) for match in _COLUMN.findall(body) if match[0] not in _CONSTRAINTS]
        yield f"### `{name}`\n\n" + table(["column", "type", "null"], [*columns, *added.get(name, [])])


def _column(name: str, kind: str, rest: str) -> list[str]:
    return [f"`{name}`", kind, "no" if "not null" in rest or "primary key" in rest else "yes"]


async def _sqlite_tables() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.db")
        store = SqliteStore.from_url(f"sqlite:///{path}")
        await store.migrate()
        await store.close()
        connection = sqlite3.connect(path)
        try:
            names = [row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")]
            own = sorted(name for name in names if name.startswith("tenure_"))
            return [f"### `{name}`\n\n{_sqlite_columns(connection, name)}" for name in own]
        finally:
            connection.close()


def _sqlite_columns(connection: sqlite3.Connection, name: str) -> str:
    columns = connection.execute('select name, type, "notnull" or pk from pragma_table_info(?)', (name,))
    rows = [[f"`{column}`", kind.lower(), "no" if required else "yes"] for column, kind, required in columns]
    return table(["column", "type", "null"], rows)


if __name__ == "__main__":
    for page_name, page in PAGES.items():
        write(page_name, page())

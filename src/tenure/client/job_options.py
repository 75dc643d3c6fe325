"""The options of `@app.job(...)`: what they mean, and the declaration that they make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict, cast

import msgspec

from tenure.jobs.definition import ErrorClasses, Isolation, Options, Upgrade, error_classes
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import OnExhausted, OnLost, OnTimeout, Policy
from tenure.lifecycle.timeouts import Timeouts


class RemoteJobOptions(TypedDict, total=False):
    """Options of a job that a remote engine runs: those of `JobOptions` that do not concern a Python function.

    By default an engine has 10 seconds to acknowledge a job and 10 more to start it, and a gateway renews the lease
    every 5 seconds: a lost engine is detected after two missed renewals.
    """

    kind: str | None
    aliases: Iterable[str]
    queue: str
    priority: int
    max_attempts: int
    lease_seconds: float
    heartbeat_seconds: float | None
    backoff: Backoff | None
    timeouts: Timeouts | None
    on_lost: OnLost
    on_exhausted: OnExhausted
    on_timeout: OnTimeout
    deadline_seconds: float | None
    secret: Iterable[str] | None


class JobOptions(RemoteJobOptions, total=False):
    """Options of a declared job.

    `kind` is the name under which jobs are stored; the name of the function if it is not given. Jobs that were enqueued
    under one of the `aliases` run too; `upgrade` converts their arguments, and others that no longer validate.

    `queue` and `priority` (higher first) can be replaced per call, and so can `max_attempts`. A failed attempt is
    followed by the next one after `backoff`; after the last one `on_exhausted` decides the end of the job. Errors of
    `fail_on` are not retried, errors of `retry_on` are, whatever their class implies.

    A worker holds a job for `lease_seconds`, and renews the lease every `heartbeat_seconds` (a third of it by default).
    `on_lost` decides what follows when the worker is lost. `timeouts` limits how long the job may stay in a status, and
    `on_timeout` decides what follows then.

    A job that has not ended `deadline_seconds` after its enqueue fails then, or is dead-lettered if `on_timeout` asks
    for that. The deadline of a run is also that of its children. Fields whose names are in `secret` are stored, and not
    shown.

    A job is sent at most `signals_max` signals, 10,000 by default; further ones are refused.

    `isolation` is where the function runs: `task`, `thread` or `process`; `memory_bytes_max` limits a process.
    """

    retry_on: ErrorClasses
    fail_on: ErrorClasses
    isolation: Isolation | None
    memory_bytes_max: int | None
    signals_max: int | None
    upgrade: Upgrade | None


REMOTE_CLAIMED_SECONDS = 10.0
REMOTE_HEARTBEAT_SECONDS = 5.0
REMOTE_LEASE_SECONDS = 30.0

_KNOWN = frozenset(JobOptions.__annotations__)
_POLICY = frozenset(Policy.__struct_fields__)


def declaration(options: JobOptions) -> Options:
    """The options of a job definition. TypeError: an option is unknown."""
    given = {name: value for name, value in options.items() if name != "kind"}
    for name in given:
        if name not in _KNOWN:
            raise TypeError(f"job() got an unexpected keyword argument {name!r}")
    # None stands for the default of the policy.
    policy: dict[str, Any] = {name: value for name, value in given.items() if name in _POLICY and value is not None}
    rest = {name: value for name, value in given.items() if name not in _POLICY}
    for name in ("retry_on", "fail_on"):
        if name in rest:
            rest[name] = error_classes(cast(ErrorClasses, rest[name]), name)
    if "aliases" in rest:
        rest["aliases"] = tuple(cast(Iterable[str], rest["aliases"]))
    return Options(policy=Policy(**policy), **cast(dict[str, Any], rest))


def remote_declaration(options: RemoteJobOptions) -> Options:
    """The options of a job that a remote engine runs. TypeError: an option is unknown."""
    for name in options:
        if name not in RemoteJobOptions.__annotations__:
            raise TypeError(f"remote_job() got an unexpected keyword argument {name!r}")
    given: JobOptions = {
        "timeouts": Timeouts(claimed_seconds=REMOTE_CLAIMED_SECONDS),
        "lease_seconds": REMOTE_LEASE_SECONDS,
        **cast(JobOptions, options),
    }
    if given.get("heartbeat_seconds") is None:
        given["heartbeat_seconds"] = min(REMOTE_HEARTBEAT_SECONDS, given["lease_seconds"] / 3)
    return msgspec.structs.replace(declaration(given), remote=True)

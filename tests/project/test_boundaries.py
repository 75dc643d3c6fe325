"""What the lifecycle knows and must not know, and that docs/internals/boundaries.md states it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from inspect import getmembers, isclass
from pathlib import Path
from typing import Any, is_typeddict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.lifecycle.decide import decide
from tenure.lifecycle.operations import Claim
from tenure.lifecycle.records import Actor, Job, Origin, Policy, Role
from tenure.lifecycle.statuses import QUEUED
from tenure.stores import contract
from tenure.workers.execution import attempt
from tenure.workers.maintenance import lease_renewer, recovery, retention
from tools.generated import DOCS, ROOT

LIFECYCLE = ROOT / "src" / "tenure" / "lifecycle"
PURE = frozenset(
    {
        "__future__",
        "base64",
        "bisect",
        "collections",
        "collections.abc",
        "decimal",
        "datetime",
        "enum",
        "functools",
        "binascii",
        "hashlib",
        "itertools",
    }
    | {"json", "math", "operator", "re", "typing", "uuid", "msgspec"}
)
"""All that pure code needs of the world outside tenure. None of it reads a clock, draws a number or does I/O on import;
the few functions in it that could are looked for by name."""
IMPURE = frozenset({"now", "utcnow", "today", "uuid1", "uuid3", "uuid4", "uuid5", "getnode", "open", "input", "print"})
EXAMPLE = """
import tenure.stores.contract
"""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(LIFECYCLE.rglob("*.py")):
        yield path.name, ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.requirement("LC-14")
def test_the_import_contracts_hold() -> None:
    answer = lint_imports(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.requirement("LC-14")
def test_the_import_contracts_detect_a_lifecycle_that_imports_a_store(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", ".mypy_cache")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    with (tmp_path / "src" / "tenure" / "lifecycle" / "backoff.py").open("a", encoding="utf-8") as module:
        module.write(EXAMPLE)
    answer = lint_imports(tmp_path)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "tenure.lifecycle.backoff -> tenure.stores.contract" in answer.stdout


@pytest.mark.requirement("LC-14", "LC-13")
def test_the_lifecycle_imports_only_what_is_pure() -> None:
    for name, tree in sources():
        for module in imports(tree):
            own = module == "tenure.errors" or module.startswith("tenure.lifecycle.")
            assert own or module in PURE, f"{name} imports {module}"


@pytest.mark.requirement("LC-13")
def test_the_lifecycle_asks_neither_clock_nor_chance_nor_file() -> None:
    for name, tree in sources():
        assert not IMPURE & set(calls(tree)), f"{name} calls one of {sorted(IMPURE & set(calls(tree)))}"
        awaited = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
        assert not awaited, f"{name} waits for something"


@pytest.mark.requirement("LC-14", "LC-11")
def test_the_lifecycle_never_reads_a_dedupe_key() -> None:
    """It is declared as a field of the origin, and of the schedules that hand it on; no expression ever takes it from
    there."""
    declared = 0
    for name, tree in sources():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Attribute) and node.attr == "dedupe_key"), f"{name}:{node.lineno}"
            assert not (isinstance(node, ast.Constant) and node.value == "dedupe_key"), f"{name}:{node.lineno}"
            declared += isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "dedupe_key"
    assert declared == 2


AT = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job(
    origin=Origin(id=UUID(int=1), kind="mail", payload="{}", policy=Policy()),
    status=QUEUED,
    rev=1,
    created_at=AT,
    updated_at=AT,
    due_at=AT,
)
POOL = Actor(Role.POOL, "worker-1")


def with_origin(**facts: object) -> Job:
    return msgspec.structs.replace(JOB, origin=msgspec.structs.replace(JOB.origin, **facts))


@pytest.mark.requirement("LC-14", "LC-11")
@given(st.text(min_size=1))
def test_no_dedupe_key_changes_what_is_decided(key: str) -> None:
    claim = Claim(UUID(int=2))
    plain = decide(JOB, claim, POOL, request_id="r")
    keyed = decide(with_origin(dedupe_key=key), claim, POOL, request_id="r")
    assert keyed.planned == plain.planned
    assert keyed.events(AT) == plain.events(AT)
    assert keyed.after(AT).origin.dedupe_key == key


@pytest.mark.requirement("LC-14")
@given(st.integers(min_value=10, max_value=86_400_000))
def test_how_long_a_lease_runs_is_what_the_job_brought_and_nothing_else(lease_ms: int) -> None:
    job = with_origin(policy=Policy(lease_seconds=lease_ms / 1000))
    lease = decide(job, Claim(UUID(int=2)), POOL, request_id="r").after(AT).lease_expires_at
    assert lease is not None
    assert round((lease - AT).total_seconds() * 1000) == lease_ms


WRITES = frozenset(
    {
        "enqueue", "claim", "apply", "transaction", "save_steps", "register", "unregister",
        "prune", "erase", "resolve_dead_letters", "migrate",
    }
)  # fmt: skip


@pytest.mark.requirement("LC-14", "WC-01")
@pytest.mark.parametrize(
    ("part", "writes"),
    [
        (contract.EnqueueStore, {"enqueue"}),
        (contract.ClaimStore, {"claim"}),
        (contract.ApplyStore, {"apply"}),
        (contract.RecoverableStore, {"apply"}),
        (contract.ReadStore, set()),
        (contract.WakeupStore, set()),
        (contract.TransactionStore, {"transaction"}),
        (contract.RegistrationStore, {"register", "unregister"}),
        (contract.PruneStore, {"prune"}),
        (contract.RetentionStore, {"prune", "erase", "resolve_dead_letters"}),
        (contract.Subscription, set()),
        (contract.StepStore, {"save_steps"}),
        (attempt.RunnerStore, {"transaction"}),
        (attempt.RunStore, {"transaction", "enqueue", "apply", "save_steps"}),
        (lease_renewer.LeaseRenewerStore, {"apply"}),
        (recovery.RecoveryStore, {"apply"}),
        (retention.RetentionWorkerStore, {"prune"}),
    ],
    ids=lambda value: value.__name__ if isclass(value) else "",
)
def test_each_role_holds_only_its_part_of_the_store(part: type, writes: set[str]) -> None:
    assert WRITES & set(dir(part)) == writes


def protocols() -> list[str]:
    return [
        name
        for name, value in getmembers(contract, isclass)
        if value.__module__.startswith(contract.__name__)
        and getattr(value, "_is_protocol", False)
        and not is_typeddict(value)
    ]


def import_contracts() -> list[dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return found


@pytest.mark.requirement("LC-14")
def test_the_page_on_boundaries_names_every_import_contract_and_store_part() -> None:
    page = (DOCS / "internals" / "boundaries.md").read_text(encoding="utf-8")
    assert {"EnqueueStore", "ClaimStore", "QueueStore", "Store"} <= set(protocols())
    for named in [*(one["name"] for one in import_contracts()), *(f"`{name}`" for name in protocols())]:
        assert named in page, f"docs/internals/boundaries.md does not have {named}"


@pytest.mark.requirement("LC-14")
def test_the_page_on_boundaries_has_the_layers_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = [re.sub(r"[()]", "", layer).replace(" :", ",") for layer in contracts[0]["layers"]]
    page = (DOCS / "internals" / "boundaries.md").read_text(encoding="utf-8")
    assert "\n".join(["```", *layers, "```"]) in page


@pytest.mark.requirement("LC-15")
def test_one_command_runs_the_strict_type_check_and_the_tests() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert planned.index("bin/mypy") < planned.index("-m pytest")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["mypy"]["strict"] is True
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in run if line.startswith("make test")] == ["make test", "make test-deep"]

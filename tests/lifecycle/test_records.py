"""Policies that make no sense are refused where they are made, and two equal enqueues have the same digest."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.operations import Suspend
from tenure.lifecycle.records import Event, EventType, Origin, Policy, origin_digests
from tenure.lifecycle.size_limits import CHILDREN_MAX
from tenure.lifecycle.statuses import CLAIMED, QUEUED
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.clock import START

JOB = UUID("01890a5d-ac96-774b-bcce-b302099a8057")

# Digests of policies that differ only in how a number is written, one after the other in a process of their own: what
# is remembered of the first must not colour the second.
DIGESTS = """
import sys
from uuid import UUID
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import Origin, Policy
from tenure.lifecycle.timeouts import Timeouts

for policy in sys.argv[1:]:
    print(Origin(id=UUID(int=1), kind="mail", payload="{}", policy=eval(policy)).digest())
"""


@pytest.mark.parametrize(
    "facts",
    [
        {"on_lost": "bogus"},
        {"on_lost": None},
        {"on_exhausted": "x"},
        {"on_exhausted": "requeue"},
        {"backoff": None},
        {"backoff": {"base_seconds": 1}},
        {"timeouts": None},
        {"timeouts": {"running_seconds": 1}},
        {"max_attempts": 0},
        {"max_attempts": 2.0},
        {"lease_seconds": 0},
        {"lease_seconds": "45"},
        {"heartbeat_seconds": 0},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused_by_the_name_of_its_fault(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Policy(**facts)
    [name] = facts
    assert refusal.value.where == name


@pytest.mark.parametrize("facts", [{"queued_seconds": 0}, {"claimed_seconds": True}, {"running_seconds": "1"}], ids=str)
def test_a_timeout_that_makes_no_sense_is_refused_by_its_name(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Timeouts(**facts)
    [name] = facts
    assert refusal.value.where == f"timeouts.{name}"


@pytest.mark.requirement("LC-07")
@pytest.mark.parametrize(
    ("whole", "fraction"),
    [
        ("Policy(lease_seconds=45)", "Policy(lease_seconds=45.0)"),
        ("Policy(heartbeat_seconds=3)", "Policy(heartbeat_seconds=3.0)"),
        ("Policy(timeouts=Timeouts(running_seconds=60))", "Policy(timeouts=Timeouts(running_seconds=60.0))"),
        ("Policy(backoff=Backoff(base_seconds=1, factor=3))", "Policy(backoff=Backoff(base_seconds=1.0, factor=3.0))"),
    ],
)
def test_a_duration_is_the_same_however_it_is_written_and_in_whichever_order_it_is_met(
    whole: str, fraction: str
) -> None:
    digests = {digest for order in ((whole, fraction), (fraction, whole)) for digest in digests_of(*order)}
    assert len(digests) == 1


def digests_of(*policies: str) -> list[str]:
    """The digests as a process that knows of nothing else computes them."""
    ran = subprocess.run(
        [sys.executable, "-c", DIGESTS, *policies], capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout.split()


def test_different_policies_have_different_digests() -> None:
    policies = [
        Policy(),
        Policy(lease_seconds=45),
        Policy(lease_seconds=45.5),
        Policy(on_lost="fail"),
        Policy(on_exhausted="fail"),
        Policy(on_timeout="fail"),
        Policy(backoff=Backoff(factor=3)),
        Policy(timeouts=Timeouts(running_seconds=None)),
    ]
    assert len({Origin(id=JOB, kind="mail", payload="{}", policy=policy).digest() for policy in policies}) == 8


def test_a_digest_names_everything_but_the_id() -> None:
    origins = [
        Origin(id=UUID(int=number), kind="mail", payload=payload, policy=Policy())
        for number, payload in ((1, "{}"), (2, "{}"), (3, "[]"))
    ]
    assert origins[0].digest() == origins[1].digest() != origins[2].digest()


@pytest.mark.parametrize("name", ["worker-1", "host:77:abc", ":", "pool:x"])
def test_the_owner_of_a_lease_is_the_actors_whole_name(name: str) -> None:
    event = Event(
        job_id=JOB,
        rev=2,
        type=EventType.CLAIMED,
        from_status=QUEUED,
        to_status=CLAIMED,
        at=START,
        attempt=1,
        actor=f"pool:{name}",
        request_id="r",
    )
    assert event.owner == name


@pytest.mark.requirement("SM-19")
def test_an_origin_that_is_not_awaited_has_the_digest_of_the_first_version() -> None:
    """Otherwise a repeated enqueue of an earlier version would be refused."""
    facts: dict[str, Any] = {"id": JOB, "kind": "mail", "payload": "{}", "policy": Policy(), "parent_id": JOB}
    origin = Origin(**facts)
    assert origin.digest() == "S3qjl-JoMQWvdOLmqhfQ_g"
    assert origin_digests([origin, Origin(**facts)]) == ["S3qjl-JoMQWvdOLmqhfQ_g"] * 2
    assert Origin(**facts, awaited=True).digest() != origin.digest()


@pytest.mark.parametrize("facts", [{}, {"waiting_for": "signal"}, {"waiting_for": "code"}], ids=str)
def test_only_a_job_that_waits_for_children_has_a_number_of_them(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="waits for children") as refusal:
        Suspend(children_max=0, **facts)
    assert refusal.value.where == "suspend.children_max"


@pytest.mark.parametrize("children_max", [-1, True, 1.0, CHILDREN_MAX + 1])
def test_a_number_of_children_is_one_that_every_store_can_compare(children_max: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Suspend(waiting_for="children", children_max=children_max)
    assert refusal.value.where == "suspend.children_max"

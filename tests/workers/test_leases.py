"""When a lease's next heartbeat is due: always early enough to renew it before its local deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tenure.lifecycle.records import EndsAs, Job, Origin, Policy
from tenure.lifecycle.statuses import RUNNING
from tenure.lifecycle.timeouts import Timeouts
from tenure.workers.leases import Lease

TOKEN = UUID(int=7)
START = datetime(2030, 1, 1, tzinfo=UTC)


def lease_of(lease_seconds: float, heartbeat_seconds: float | None) -> Lease:
    """A job whose claim was sent at second 100."""
    policy = Policy(lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds)
    origin = Origin(id=UUID(int=1), kind="mail", payload="{}", policy=policy)
    job = Job(origin=origin, status=RUNNING, rev=3, created_at=START, updated_at=START, attempt=1, token=TOKEN)
    return Lease(job, worker="worker", token=TOKEN, sent_at_seconds=100.0)


@pytest.mark.requirement("SM-05")
def test_beats_come_at_the_policys_interval_where_that_is_in_time() -> None:
    lease = lease_of(60.0, None)
    assert lease.next_renewal_at_seconds == pytest.approx(120.0)
    lease.renewal_sent(120.0, renewed=False)
    assert lease.next_renewal_at_seconds == pytest.approx(140.0)
    lease.renewal_sent(140.0)
    assert lease.next_renewal_at_seconds == pytest.approx(160.0)
    assert lease.local_deadline_seconds == pytest.approx(200.0)


@pytest.mark.requirement("SM-05")
@pytest.mark.parametrize("heartbeat_seconds", [30.0, 45.0, 60.0, 600.0])
def test_a_beat_that_came_too_soon_to_renew_is_followed_by_one_that_does(heartbeat_seconds: float) -> None:
    """With an interval of half the lease, a heartbeat that is slightly early renews nothing, and the next one by the
    policy would come when the lease is over."""
    lease = lease_of(60.0, heartbeat_seconds)
    lease.renewal_sent(min(129.999, lease.next_renewal_at_seconds), renewed=False)
    assert 130.0 < lease.next_renewal_at_seconds <= 140.0
    assert lease.local_deadline_seconds == pytest.approx(160.0)


def test_a_beat_that_does_not_renew_late_in_the_lease_is_tried_again_after_a_pause() -> None:
    lease = lease_of(60.0, 30.0)
    lease.renewal_sent(150.0, renewed=False)
    assert 150.0 < lease.next_renewal_at_seconds < lease.local_deadline_seconds


@pytest.mark.requirement("WF-15")
def test_the_time_of_an_attempt_ends_at_the_deadline_of_its_job() -> None:
    def lease(after_seconds: float, *, ends_as: EndsAs | None = None, running_seconds: float | None = 86_400) -> Lease:
        """The deadline is a minute after the enqueue; the job is claimed so many seconds after it."""
        policy = Policy(deadline_seconds=60, timeouts=Timeouts(running_seconds=running_seconds))
        at = START + timedelta(seconds=after_seconds)
        because = None if ends_as is None else "timeout"
        job = Job(
            origin=Origin(id=UUID(int=1), kind="mail", payload="{}", policy=policy),
            status=RUNNING, rev=3, created_at=START, updated_at=at, attempt=1, token=TOKEN, ends_as=ends_as,
            ends_because=because,
        )  # fmt: skip
        return Lease(job, worker="worker", token=TOKEN, sent_at_seconds=100.0)

    early = lease(20)
    assert (early.overdue_at_seconds, early.at_deadline, early.past_deadline) == (140.0, True, False)
    unlimited = lease(20, running_seconds=None)
    assert (unlimited.overdue_at_seconds, unlimited.at_deadline) == (140.0, True)
    short = lease(20, running_seconds=10)
    assert (short.overdue_at_seconds, short.at_deadline) == (110.0, False)
    late = lease(60)
    assert (late.overdue_at_seconds, late.at_deadline, late.past_deadline) == (86_500.0, False, True)
    undoing = lease(60, ends_as="failed")
    assert (undoing.overdue_at_seconds, undoing.at_deadline, undoing.past_deadline) == (86_500.0, False, False)

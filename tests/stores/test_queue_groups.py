"""A claim of many queues reads them in rotating groups."""

from __future__ import annotations

from uuid import UUID

import pytest

from tenure.stores import queue_groups
from tenure.stores.contract import ClaimRequest
from tenure.stores.queue_groups import GROUP_QUEUES_MAX, QueueRotation


def request(count: int, *, kinds: tuple[str, ...] = ("mail",)) -> ClaimRequest:
    queues = tuple(f"queue-{number:03d}" for number in range(count))
    return ClaimRequest(queues=queues, kinds=kinds, limit=1, worker="w", token=UUID(int=1), request_id="claim")


@pytest.mark.parametrize("count", [0, 1, GROUP_QUEUES_MAX])
def test_few_queues_are_one_group(count: int) -> None:
    rotation = QueueRotation()
    for _ in range(3):
        assert list(rotation.groups(request(count))) == [request(count).queues]


@pytest.mark.parametrize("count", [GROUP_QUEUES_MAX + 1, 2 * GROUP_QUEUES_MAX, 100, 1000])
def test_a_claim_reads_every_queue_once_before_it_answers_that_nothing_is_due(count: int) -> None:
    rotation = QueueRotation()
    for _ in range(5):
        groups = list(rotation.groups(request(count)))
        assert all(0 < len(group) <= GROUP_QUEUES_MAX for group in groups)
        assert sorted(queue for group in groups for queue in group) == list(request(count).queues)


def test_as_many_claims_as_there_are_groups_begin_with_each_of_them_once() -> None:
    rotation = QueueRotation()
    for _ in range(3):
        first = [next(rotation.groups(request(100))) for _ in range(4)]
        assert sorted(queue for group in first for queue in group) == list(request(100).queues)


def test_alternating_claimers_do_not_skip_groups_of_each_other() -> None:
    rotation = QueueRotation()
    mail, report = request(64), request(64, kinds=("report",))
    first = [next(rotation.groups(claim)) for _ in range(2) for claim in (mail, report)]
    assert first[0] == first[1] == mail.queues[:32]
    assert first[2] == first[3] == mail.queues[32:]


def test_a_queue_that_is_named_twice_is_read_once() -> None:
    rotation = QueueRotation()
    twice = request(40)
    groups = list(
        rotation.groups(
            ClaimRequest(
                queues=twice.queues * 2, kinds=("mail",), limit=1, worker="w", token=UUID(int=1), request_id="claim"
            )
        )
    )
    assert [queue for group in groups for queue in group] == list(twice.queues)


def test_a_process_does_not_remember_claimers_without_end() -> None:
    rotation = QueueRotation()
    for number in range(3 * queue_groups.CLAIMERS_MAX):
        next(rotation.groups(request(40, kinds=(f"kind-{number}",))))
    assert len(rotation._first) <= queue_groups.CLAIMERS_MAX

"""Divides the queues of a claim into groups of at most 32.

A claim reads one group at a time: its cost grows with the queues that it reads. It does not choose jobs. PostgreSQL
claims use it. SQLite claims keep the exact order over any number of queues: its writer reads every lane in one process,
without a round trip for each and without other claimers' locked rows between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.stores.contract import ClaimRequest

GROUP_QUEUES_MAX = 32
CLAIMERS_MAX = 100


class QueueRotation:
    """Which group of queues each claim of one process reads first.

    A claimer is known by its queues and kinds. Its successive claims begin with successive groups, so that with n
    groups every group is the first one of every n-th claim. The order between groups is not promised.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}

    def groups(self, request: ClaimRequest) -> Iterator[tuple[str, ...]]:
        """All groups of the request's queues, each once. A claim goes on to the next while it has found nothing."""
        queues = request.queues
        if len(queues) <= GROUP_QUEUES_MAX:
            yield queues
            return
        queues = tuple(dict.fromkeys(queues))
        starts = range(0, len(queues), GROUP_QUEUES_MAX)
        first = self._advance(request)
        for number in range(len(starts)):
            start = starts[(first + number) % len(starts)]
            yield queues[start : start + GROUP_QUEUES_MAX]

    def _advance(self, request: ClaimRequest) -> int:
        claimer = request.queues, request.kinds
        if claimer not in self._first and len(self._first) >= CLAIMERS_MAX:
            self._first.clear()
        first = self._first.get(claimer, 0)
        self._first[claimer] = first + 1
        return first

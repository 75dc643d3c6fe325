"""Reproducible random streams: each depends on a seed and a name only.

Each random decision draws from its own stream, so that leaving one kind of fault out changes no other. That is what
makes a failing run shrink.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random  # noqa: TID251 - this is where seeded chance comes from
from uuid import UUID


class RandomStream:
    """A random stream. `of` returns an independent one for another name."""

    def __init__(self, seed: int, name: str = "") -> None:
        self._seed, self._name = seed, name
        digest = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self._random = Random(int.from_bytes(digest, "big"))

    def of(self, name: str) -> RandomStream:
        return RandomStream(self._seed, f"{self._name}/{name}")

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, least: float, most: float) -> float:
        return self._random.uniform(least, most)

    def whole(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def pick(self, choices: Sequence[str]) -> str:
        return self._random.choice(choices)

    def shuffle(self, items: list[object]) -> None:
        self._random.shuffle(items)

    # The interface of the seams, for ids, tokens, names and jitter.

    def job_id(self) -> UUID:
        """A UUIDv7 in its form: ordered by how many were made before it."""
        self._made = getattr(self, "_made", 0) + 1
        value = (self._made << 80) | (7 << 76) | (self._random.getrandbits(12) << 64) | (2 << 62)
        return UUID(int=value | self._random.getrandbits(62))

    def token(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def name(self) -> str:
        return f"{self._random.getrandbits(40):010x}"

    def fraction(self) -> float:
        return self._random.random()

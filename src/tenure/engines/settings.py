"""The settings of a gateway."""

from __future__ import annotations

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_name, check_seconds


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`silence_seconds` without a message end the connection of an engine. `grace_seconds` is how long engines may
    finish their jobs when the gateway stops."""

    queues: tuple[str, ...] = ("default",)
    heartbeat_seconds: float = 5.0
    silence_seconds: float = 15.0
    hello_seconds: float = 10.0
    poll_seconds: float = 1.0
    scan_seconds: float = 1.0
    grace_seconds: float = 30.0
    in_thread: bool = True
    """Whether maintenance runs in its own thread. Off only in a simulator, which controls time."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidInput("queues", "must name at least one queue")
        for queue in self.queues:
            check_name(queue, "queues")
        for name in ("heartbeat_seconds", "silence_seconds", "hello_seconds", "poll_seconds", "scan_seconds"):
            check_seconds(getattr(self, name), name, least=0.001)
        check_seconds(self.grace_seconds, "grace_seconds")
        if self.silence_seconds <= self.heartbeat_seconds:
            raise InvalidInput("silence_seconds", "must be longer than heartbeat_seconds")

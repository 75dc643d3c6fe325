"""What several signals in a row request, by a manual clock."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from tenure.cli.stop_signals import ABORT, EXIT, SAME_SECONDS, STOP, SignalLevels
from tenure.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("signals", "levels"),
    [
        pytest.param([(0, SIGTERM), (0, SIGTERM)], [STOP, STOP], id="timeout signals a process and its group"),
        pytest.param([(0, SIGTERM), (1.9, SIGINT)], [STOP, STOP], id="within two seconds"),
        pytest.param([(0, SIGTERM), (SAME_SECONDS, SIGTERM)], [STOP, ABORT], id="later"),
        pytest.param([(0, SIGINT), (1.5, SIGINT), (0.6, SIGINT)], [STOP, STOP, ABORT], id="counted from the stop"),
        pytest.param([(0, SIGINT), (3, SIGINT), (1, SIGINT)], [STOP, ABORT, ABORT], id="an abort repeated"),
        pytest.param([(0, SIGINT), (3, SIGINT), (3, SIGINT)], [STOP, ABORT, EXIT], id="each one later"),
        pytest.param([(0, SIGHUP), (9, SIGHUP), (9, SIGTERM), (1, SIGTERM)], [STOP] * 4, id="hangups only stop"),
    ],
)
def test_a_signal_within_two_seconds_of_the_one_before_is_the_same_request(
    signals: list[tuple[float, int]], levels: list[int]
) -> None:
    clock = ManualClock()
    requested = SignalLevels(clock)
    found = []
    for after_seconds, number in signals:
        clock.advance(after_seconds)
        found.append(requested.level_of(number))
    assert found == levels

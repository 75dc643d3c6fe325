"""The settings of retention: which of them applies to a finished job."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tenure import Retention
from tenure.errors import InvalidInput
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, SUCCEEDED, TERMINAL

DAY = 86_400.0


@pytest.mark.requirement("SM-12")
def test_without_settings_finished_jobs_are_kept_and_verbose_details_for_a_week() -> None:
    retention = Retention()
    assert all(retention.job_seconds(status, "mail") is None for status in TERMINAL)
    assert not retention.prunes_jobs
    assert retention.verbose_seconds == 7 * DAY


@pytest.mark.requirement("SM-12")
def test_the_kind_decides_before_the_status_and_the_status_before_the_default() -> None:
    retention = Retention(finished_days=30, failed_days=90, kinds={"audit": math.inf, "tick": 0.5})
    assert retention.job_seconds(SUCCEEDED, "mail") == 30 * DAY
    assert retention.job_seconds(FAILED, "mail") == 90 * DAY
    assert retention.job_seconds(FAILED, "tick") == 0.5 * DAY
    assert retention.job_seconds(SUCCEEDED, "audit") is None
    assert retention.prunes_jobs


@pytest.mark.requirement("SM-12")
def test_dead_letters_are_kept_until_a_time_is_set_for_them() -> None:
    assert Retention(finished_days=1, kinds={"mail": 1}).job_seconds(DEAD_LETTERED, "mail") is None
    assert Retention(dead_lettered_days=2).job_seconds(DEAD_LETTERED, "mail") == 2 * DAY


def test_a_status_can_be_kept_for_good_although_others_are_not() -> None:
    retention = Retention(finished_days=1, failed_days=math.inf)
    assert retention.job_seconds(FAILED, "mail") is None
    assert not Retention(failed_days=math.inf).prunes_jobs


@pytest.mark.parametrize("days", [-1, math.nan, -math.inf, "7", True, 1e9])
def test_days_that_are_no_number_of_days_are_refused(days: Any) -> None:
    for settings in ({"finished_days": days}, {"kinds": {"mail": days}}, {"verbose_days": days}):
        with pytest.raises(InvalidInput):
            Retention(**settings)

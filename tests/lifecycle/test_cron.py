"""When something is due: cron expressions and intervals, where clocks are changed, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given
from hypothesis import strategies as st

from tenure.errors import InvalidInput
from tenure.jobs.time_zones import time_zone
from tenure.lifecycle.cron import ALIASES, due_times, parse_cron

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
ZONES = (BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata", "UTC", "America/St_Johns", "America/Havana", "Pacific/Apia")


def timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def due(cron: str, zone: str, after: str, until: str) -> list[str]:
    """The due times from one time to another, on the zone's wall clock."""
    found = due_times(parse_cron(cron), time_zone(zone), after=timestamp(after), until=timestamp(until))
    return [one.astimezone(time_zone(zone)).strftime("%d %H:%M %z") for one in found]


# Where clocks are changed.


def test_in_spring_a_named_time_that_is_missing_is_due_at_the_end_of_the_gap() -> None:
    # In 2026 Berlin's clocks go from 02:00 to 03:00 on 29 March.
    assert due("30 2 * * *", BERLIN, "2026-03-28T00:00+01:00", "2026-03-31T00:00+02:00") == [
        "28 02:30 +0100",
        "29 03:00 +0200",
        "30 02:30 +0200",
    ]


def test_several_named_times_in_one_gap_are_due_once_at_its_end() -> None:
    assert due("0,15,30 2,3 29 3 *", BERLIN, "2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00") == [
        "29 03:00 +0200",
        "29 03:15 +0200",
        "29 03:30 +0200",
    ]


def test_in_autumn_a_named_time_that_comes_twice_is_due_the_first_time() -> None:
    # On 25 October they go from 03:00 back to 02:00.
    assert due("30 2 * * *", BERLIN, "2026-10-24T00:00+02:00", "2026-10-27T00:00+01:00") == [
        "24 02:30 +0200",
        "25 02:30 +0200",
        "26 02:30 +0100",
    ]


def test_between_the_two_times_the_next_one_is_tomorrow() -> None:
    between = timestamp("2026-10-25T02:15+01:00")
    assert parse_cron("30 2 * * *").next_after(between, time_zone(BERLIN)) == timestamp("2026-10-26T02:30+01:00")


def test_an_interval_stays_even_over_daylight_saving_changes() -> None:
    for after, until in (
        ("2026-03-29T00:00+01:00", "2026-03-29T06:00+02:00"),
        ("2026-10-25T00:00+02:00", "2026-10-25T06:00+01:00"),
    ):
        found = list(
            due_times(parse_cron("*/20 * * * *"), time_zone(BERLIN), after=timestamp(after), until=timestamp(until))
        )
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=20)}
        assert len(found) == 3 * (timestamp(until) - timestamp(after)) // timedelta(hours=1)


def test_a_repetition_in_an_hour_that_is_missing_is_not_due_and_twice_in_one_that_comes_twice() -> None:
    assert due("*/30 2 * * *", BERLIN, "2026-03-28T12:00+01:00", "2026-03-30T12:00+02:00") == [
        "30 02:00 +0200",
        "30 02:30 +0200",
    ]
    assert due("*/30 2 * * *", BERLIN, "2026-10-24T12:00+02:00", "2026-10-25T12:00+01:00") == [
        "25 02:00 +0200",
        "25 02:30 +0200",
        "25 02:00 +0100",
        "25 02:30 +0100",
    ]


def test_the_clocks_of_new_york() -> None:
    # Forward on 8 March, back on 1 November.
    assert due("15 2 * * *", NEW_YORK, "2026-03-07T12:00-05:00", "2026-03-09T12:00-04:00") == [
        "08 03:00 -0400",
        "09 02:15 -0400",
    ]
    assert due("15 1 * * *", NEW_YORK, "2026-10-31T12:00-04:00", "2026-11-02T12:00-05:00") == [
        "01 01:15 -0400",
        "02 01:15 -0500",
    ]


def test_half_an_hour_is_enough_to_be_missing_or_to_come_twice() -> None:
    # Lord Howe goes from 02:00 to 02:30 on 4 October 2026, and from 02:00 back to 01:30 on 5 April.
    assert due("15 2 * * *", LORD_HOWE, "2026-10-03T12:00+10:30", "2026-10-05T12:00+11:00") == [
        "04 02:30 +1100",
        "05 02:15 +1100",
    ]
    assert due("45 1 * * *", LORD_HOWE, "2026-04-04T12:00+11:00", "2026-04-06T12:00+10:30") == [
        "05 01:45 +1100",
        "06 01:45 +1030",
    ]


def test_an_hour_that_begins_within_a_half_hour_that_comes_twice_is_whole() -> None:
    assert due("0 */2 * * *", LORD_HOWE, "2026-04-04T23:00+11:00", "2026-04-05T05:00+10:30") == [
        "05 00:00 +1100",
        "05 02:00 +1030",
        "05 04:00 +1030",
    ]
    assert due("*/20 2 * * *", LORD_HOWE, "2026-04-05T00:00+11:00", "2026-04-05T12:00+10:30") == [
        "05 02:00 +1030",
        "05 02:20 +1030",
        "05 02:40 +1030",
    ]
    assert due("45 * * * *", LORD_HOWE, "2026-04-05T00:00+11:00", "2026-04-05T03:00+10:30") == [
        "05 00:45 +1100",
        "05 01:45 +1100",
        "05 01:45 +1030",
        "05 02:45 +1030",
    ]


def test_where_clocks_are_never_changed_every_day_has_its_time() -> None:
    found = due("30 2 * * *", "Asia/Kolkata", "2026-01-01T00:00+05:30", "2027-01-01T00:00+05:30")
    assert len(found) == 365
    assert {one.split(" ", 1)[1] for one in found} == {"02:30 +0530"}


def test_a_day_that_is_missing_has_its_time_when_the_next_one_begins() -> None:
    # Samoa had no 30 December in 2011.
    assert due("0 12 * 12 *", "Pacific/Apia", "2011-12-29T00:00-10:00", "2011-12-31T23:00+14:00") == [
        "29 12:00 -1000",
        "31 00:00 +1400",
        "31 12:00 +1400",
    ]


def test_a_clock_that_was_set_back_over_midnight_shows_both_ends_of_the_day_twice() -> None:
    # Newfoundland's clocks went from 00:01 back to 23:01 of the day before, on 7 November 2010.
    assert due("*/30 0,23 * * *", "America/St_Johns", "2010-11-06T22:45-02:30", "2010-11-07T00:45-03:30") == [
        "06 23:00 -0230",
        "06 23:30 -0230",
        "07 00:00 -0230",
        "06 23:30 -0330",
        "07 00:00 -0330",
        "07 00:30 -0330",
    ]


def test_midnight_that_is_missing_is_due_when_the_day_begins() -> None:
    # Havana's clocks go from 00:00 to 01:00.
    assert due("0 0 * * *", "America/Havana", "2026-03-07T12:00-05:00", "2026-03-09T12:00-04:00") == [
        "08 01:00 -0400",
        "09 00:00 -0400",
    ]


# What expressions mean.


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 9 * * 1-5", ["01-01 09:00", "01-02 09:00", "01-05 09:00"]),
        ("0 9 * * mon,WED", ["01-05 09:00", "01-07 09:00", "01-12 09:00"]),
        ("0 0 * * 7", ["01-04 00:00", "01-11 00:00", "01-18 00:00"]),
        ("0 0 * * 5-7", ["01-02 00:00", "01-03 00:00", "01-04 00:00"]),
        ("0 0 13 * 5", ["01-02 00:00", "01-09 00:00", "01-13 00:00"]),
        ("0 0 */10 * 1", ["05-11 00:00", "06-01 00:00", "08-31 00:00"]),
        ("5/20 0 1 jan-feb *", ["01-01 00:05", "01-01 00:25", "01-01 00:45"]),
        ("10-20/5 0 1 2,3 *", ["02-01 00:10", "02-01 00:15", "02-01 00:20"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
        ("0 0 LW * *", ["01-30 00:00", "02-27 00:00", "03-31 00:00"]),
        ("0 0 1,L * *", ["01-31 00:00", "02-01 00:00", "02-28 00:00"]),
        ("0 0 * * mon#2", ["01-12 00:00", "02-09 00:00", "03-09 00:00"]),
        ("0 0 * * 5L", ["01-30 00:00", "02-27 00:00", "03-27 00:00"]),
        ("@monthly", ["02-01 00:00", "03-01 00:00", "04-01 00:00"]),
        ("@hourly", ["01-01 01:00", "01-01 02:00", "01-01 03:00"]),
    ],
)
def test_an_expression_has_the_meaning_of_cron(cron: str, expected: list[str]) -> None:
    begin = timestamp("2026-01-01T00:00+00:00")
    found = islice(due_times(parse_cron(cron), UTC, after=begin, until=begin + timedelta(days=400)), 3)
    assert [one.strftime("%m-%d %H:%M") for one in found] == expected


def test_every_name_is_an_expression() -> None:
    for name, expression in ALIASES.items():
        assert parse_cron(name) == parse_cron(name.upper()) == parse_cron(expression)


def test_a_day_that_comes_every_28_years_is_found() -> None:
    assert parse_cron("0 0 29 2 *").next_after(timestamp("2096-03-01T00:00+00:00"), UTC) == timestamp(
        "2104-02-29T00:00Z"
    )
    assert parse_cron("0 0 * 2 mon#5").next_after(timestamp("2026-01-01T00:00+00:00"), UTC) == timestamp(
        "2044-02-29T00:00Z"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("every 1s", 1), ("every 90s", 90), ("Every 5 m", 300), ("every 2h", 7200)]
)
def test_an_interval_is_due_at_its_multiples(text: str, seconds: int) -> None:
    begin = timestamp("2026-01-01T00:00:00.5+00:00")
    found = list(
        islice(due_times(parse_cron(text), time_zone(BERLIN), after=begin, until=timestamp("2027-01-01T00:00Z")), 5)
    )
    assert all(one.timestamp() % seconds == 0 for one in found)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(seconds=seconds)}
    assert found[0] - begin <= timedelta(seconds=seconds)


# What is refused.


@pytest.mark.parametrize(
    ("cron", "expected_text"),
    [
        ("60 * * * *", "cron: minute: '60' must lie between 0 and 59"),
        ("* 24 * * *", "cron: hour: '24' must lie between 0 and 23"),
        ("* * 0 * *", "cron: day of month: '0' must lie between 1 and 31"),
        ("* * * 13 *", "cron: month: '13' must lie between 1 and 12"),
        ("* * * * 8", "cron: day of week: '8' must lie between 0 and 7"),
        ("* * * * mon#6", "cron: day of week: 'mon#6' must name one of the weeks 1 to 5"),
        ("* * * * xL", "cron: day of week: 'x' is not made of"),
        ("*/0 * * * *", "cron: minute: '*/0' a step must be at least 1"),
        ("* 5-3 * * *", "cron: hour: '5-3' a range must not go backwards"),
        ("* * * foo *", "cron: month: 'foo' is not made of *, numbers, jan-dec, ranges"),
        ("-1 * * * *", "cron: minute: '' is not made of"),
        ("1,,2 * * * *", "cron: minute: '' is not made of"),
        ("* * 31 feb,apr *", "cron: day of month: '31' comes in none of the months"),
        ("٣ * * * *", "cron: minute: '٣' is not made of"),
        ("* * * *", "'* * * *' has 4 fields, and needs 5: minute, hour, day of month, month, day of week"),
        ("0 * * * * *", "has 6 fields, and needs 5"),
        ("", "has 0 fields"),
        ("@sometimes", "'@sometimes' is not known; known are: @annually"),
        ("every day", "'every day' is no interval such as 'every 30s'"),
        ("every 0s", "must lie between 1 second and 366 days"),
        ("every 367d", "must lie between 1 second and 366 days"),
        (7, "must be text such as"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_wrong_with_it(cron: str, expected_text: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        parse_cron(cron)
    assert expected_text in str(refusal.value)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe", "europe/berlin\x00"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not an IANA name of a time zone; use one such as Europe/Berlin or UTC"):
        time_zone(name)


def test_a_machine_without_zone_data_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.jobs.time_zones._read", lambda name: None)
    time_zone.cache_clear()
    try:
        with pytest.raises(
            InvalidInput, match="no time zone data; install the system's package or `pip install tzdata`"
        ):
            time_zone(BERLIN)
        assert time_zone("UTC") is UTC
    finally:
        time_zone.cache_clear()


# What holds for all of them.


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    # A range of one number and a step, 3-3/5, means 3/5 to the other implementation, and 3 to cron.
    ranges = st.lists(number, min_size=2, max_size=2, unique=True).map(lambda ends: f"{min(ends)}-{max(ends)}")
    base = st.one_of(st.just("*"), ranges)
    steps = st.tuples(base, st.integers(1, 20)).map(lambda parts: f"{parts[0]}/{parts[1]}")
    lists = st.lists(number.map(str), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), st.just("*"), lists, ranges, steps)


CRONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7)).map(" ".join)
WHENS = st.one_of(CRONS, st.integers(1, 100_000).map(lambda seconds: f"every {seconds}s"))
YEARS = st.integers(0, 26 * 365 * 86_400).map(
    lambda seconds: timestamp("2009-01-01T00:00Z") + timedelta(seconds=seconds)
)
CHANGES = st.sampled_from(
    [
        "2026-03-29T01:00Z",
        "2026-10-25T01:00Z",
        "2026-03-08T07:00Z",
        "2026-11-01T06:00Z",
        "2026-10-03T15:30Z",
        "2026-04-04T15:00Z",
        "2010-11-07T02:31Z",
        "2011-12-30T10:00Z",
    ]
)
"""Times at which the clocks of some of the zones were changed."""
NEAR_CHANGES = st.one_of(
    YEARS,
    st.tuples(CHANGES, st.integers(-200_000, 200_000)).map(lambda one: timestamp(one[0]) + timedelta(seconds=one[1])),
)


@given(WHENS, st.sampled_from(ZONES), NEAR_CHANGES)
def test_the_next_due_time_is_after_and_there_is_none_in_between(text: str, zone: str, begin: datetime) -> None:
    when, where = parse_cron(text), time_zone(zone)
    found = when.next_after(begin, where)
    assert found is not None
    assert found > begin
    assert when.last_until(found, where) == found
    before = when.last_until(found - timedelta(microseconds=1), where)
    assert before is None or before <= begin
    assert when.next_after(found - timedelta(microseconds=1), where) == found


@given(WHENS, st.sampled_from(ZONES), NEAR_CHANGES, st.integers(0, 400_000), st.integers(0, 400_000))
def test_the_due_times_of_a_span_are_those_of_its_parts(text: str, zone: str, a: datetime, one: int, two: int) -> None:
    when, where = parse_cron(text), time_zone(zone)
    middle, end = a + timedelta(seconds=one), a + timedelta(seconds=one + two)

    def between(after: datetime, until: datetime) -> list[datetime]:
        return list(islice(due_times(when, where, after=after, until=until), 2000))

    whole = between(a, end)
    assume(len(whole) < 2000)
    assert whole == between(a, middle) + between(middle, end)
    assert whole == sorted(set(whole))


@given(CRONS, st.sampled_from(ZONES), NEAR_CHANGES)
def test_due_times_match_the_expression_on_the_wall_clock(text: str, zone: str, begin: datetime) -> None:
    when, where = parse_cron(text), time_zone(zone)
    minute, hour, *_ = text.split()
    for found in islice(due_times(when, where, after=begin, until=begin + timedelta(days=3)), 50):
        wall = found.astimezone(where)
        shown = parse_cron(f"{minute} {hour} * * *").last_until(found, where)
        assert shown == found
        assert (wall.second, wall.microsecond) == (0, 0)


def of_cronsim(text: str, zone: str, begin: datetime) -> Iterator[datetime]:
    """The due times by cronsim, which imitates Debian's cron. On a clock that is set back it may begin in the past."""
    tz = UTC if zone == "UTC" else ZoneInfo(zone)
    return (one for one in (found.astimezone(UTC) for found in CronSim(text, begin.astimezone(tz))) if one > begin)


@given(CRONS, st.sampled_from([BERLIN, NEW_YORK, "Asia/Kolkata", "UTC"]), NEAR_CHANGES)
def test_another_implementation_has_the_same_due_times(text: str, zone: str, begin: datetime) -> None:
    when = parse_cron(text)
    ours = islice(due_times(when, time_zone(zone), after=begin, until=begin + timedelta(days=20_000)), 8)
    assert list(ours) == list(islice(of_cronsim(text, zone, begin), 8))

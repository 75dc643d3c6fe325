"""Due times of cron expressions and intervals. Pure: the time zone is an argument.

A cron expression refers to local time, which daylight-saving changes skip or repeat. Debian's rule applies. A fixed
time of day (`30 2 * * *`) is due once a day: at the end of the gap if it is skipped, the first time if it is repeated.
Where minutes or hours begin with `*`, every matching local time is due, and a skipped one is not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Protocol

import msgspec

from tenure.errors import InvalidInput

WHERE = "cron"
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
WEEK = 7
WEEKS_IN_MONTH = 5
SATURDAY, SUNDAY = 6, 0
SEARCH_DAYS = 60 * 366
"""The search horizon: a 29 February on a Monday can be 40 years away."""
INTERVAL_SECONDS_MAX = 366 * 86_400

_EVERY = re.compile(r"every\s+(\d{1,9})\s*([smhd])", re.IGNORECASE)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


class DueTimes(Protocol):
    """The due times of an expression, in UTC."""

    def next_after(self, at: datetime, zone: tzinfo) -> datetime | None:
        """The first due time after `at`; None if there is none."""
        ...

    def last_until(self, at: datetime, zone: tzinfo) -> datetime | None:
        """The last due time at or before `at`; None if there is none."""
        ...


def due_times(when: DueTimes, zone: tzinfo, *, after: datetime, until: datetime) -> Iterator[datetime]:
    """The due times after `after`, up to and including `until`, in order."""
    at = when.next_after(after, zone)
    while at is not None and at <= until:
        yield at
        at = when.next_after(at, zone)


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> DueTimes:
    """The due times of an expression; a refusal names the field.

    >>> parse_cron("every 90s").next_after(datetime(2030, 1, 1, tzinfo=UTC), UTC).isoformat()
    '2030-01-01T00:01:30+00:00'
    """
    if not isinstance(text, str):
        raise InvalidInput(WHERE, f"must be text such as '0 9 * * 1-5' or 'every 30s', not {text!r}")
    stripped = text.strip()
    if stripped.lower().startswith("every"):
        return _interval(stripped)
    if stripped.startswith("@"):
        if stripped.lower() not in ALIASES:
            raise InvalidInput(WHERE, f"{stripped!r} is not known; known are: {', '.join(sorted(ALIASES))}")
        stripped = ALIASES[stripped.lower()]
    return _cron(stripped)


class Every(msgspec.Struct, frozen=True):
    """An interval. Its due times are its multiples since 1970 in UTC, so that its start needs no storage."""

    seconds: int

    def next_after(self, at: datetime, zone: tzinfo) -> datetime | None:
        return _EPOCH + ((at - _EPOCH) // self._step + 1) * self._step

    def last_until(self, at: datetime, zone: tzinfo) -> datetime | None:
        return _EPOCH + ((at - _EPOCH) // self._step) * self._step

    @property
    def _step(self) -> timedelta:
        return timedelta(seconds=self.seconds)


def _interval(text: str) -> Every:
    match = _EVERY.fullmatch(text)
    if match is None:
        raise InvalidInput(WHERE, f"{text!r} is no interval such as 'every 30s', 'every 5m', 'every 2h' or 'every 1d'")
    seconds = int(match[1]) * _UNIT_SECONDS[match[2].lower()]
    if not 1 <= seconds <= INTERVAL_SECONDS_MAX:
        raise InvalidInput(WHERE, f"{text!r} must lie between 1 second and 366 days")
    return Every(seconds)


class Cron(msgspec.Struct, frozen=True):
    """A cron expression. `minutes` are the due minutes of a matching day, counted from local midnight."""

    minutes: tuple[int, ...]
    days: frozenset[int]
    last_day: bool
    last_weekday: bool
    months: frozenset[int]
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]
    last_weekdays: frozenset[int]
    both_days: bool
    """Whether day of month and day of week must both match; where neither begins with `*`, one of them is enough."""
    named: bool
    """Whether it is a fixed time of day rather than a repetition."""

    def next_after(self, at: datetime, zone: tzinfo) -> datetime | None:
        found: datetime | None = None
        # The clock may be set back over midnight, so the neighbouring days count too.
        for day in self._days(_local_date(at, zone) - _DAY, 1):
            times = _due_on(self, zone, day)
            place = bisect_right(times, at)
            if place < len(times):
                if found is not None:
                    return min(found, times[place])
                found = times[place]
            elif found is not None:
                return found
        return found

    def last_until(self, at: datetime, zone: tzinfo) -> datetime | None:
        found: datetime | None = None
        for day in self._days(_local_date(at, zone) + _DAY, -1):
            times = _due_on(self, zone, day)
            place = bisect_right(times, at)
            if place > 0:
                if found is not None:
                    return max(found, times[place - 1])
                found = times[place - 1]
            elif found is not None:
                return found
        return found

    def _days(self, first: date, step: int) -> Iterator[date]:
        """The matching days, and the day after each: times of two days are compared."""
        matched = False
        for number in range(SEARCH_DAYS):
            day = first + step * number * _DAY
            before, matched = matched, self.matches(day)
            if matched or before:
                yield day

    def matches(self, day: date) -> bool:
        """Whether the expression is due on this day."""
        if day.month not in self.months:
            return False
        of_month, of_week = self._matches_day(day), self._matches_weekday(day)
        return (of_month and of_week) if self.both_days else (of_month or of_week)

    def _matches_day(self, day: date) -> bool:
        if day.day in self.days:
            return True
        if not (self.last_day or self.last_weekday):
            return False
        last = _last_day(day)
        weekday = last - _DAY * max(0, last.isoweekday() - 5)
        return (self.last_day and day == last) or (self.last_weekday and day == weekday)

    def _matches_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % WEEK
        if weekday in self.weekdays or (weekday, (day.day + WEEK - 1) // WEEK) in self.nth_weekdays:
            return True
        return weekday in self.last_weekdays and day.day + WEEK > _last_day(day).day


def _last_day(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1) - _DAY


def _local_date(at: datetime, zone: tzinfo) -> date:
    return at.astimezone(zone).date()


@lru_cache(maxsize=512)
def _due_on(cron: Cron, zone: tzinfo, day: date) -> tuple[datetime, ...]:
    """The due times of one local day, in order."""
    if not cron.matches(day):
        return ()
    midnight = datetime.combine(day, time())
    begin, end = _utc(midnight, zone), _utc((midnight + _DAY).replace(fold=1), zone)
    if end - begin == _DAY and _is_local_time(begin, midnight, zone):
        return tuple(begin + number * _MINUTE for number in cron.minutes)
    walls = (midnight + number * _MINUTE for number in cron.minutes)
    found = {at for wall in walls for at in (_named(wall, zone) if cron.named else _all(wall, zone))}
    return tuple(sorted(found))


def _all(wall: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Every UTC time of this local time: one, none in a gap, two where the clock is set back."""
    for fold in (0, 1):
        at = _utc(wall.replace(fold=fold), zone)
        if _is_local_time(at, wall, zone):
            yield at


def _named(wall: datetime, zone: tzinfo) -> Iterator[datetime]:
    """The first UTC time of this local time; in a gap, the end of the gap."""
    at = _utc(wall, zone)
    while not _is_local_time(at, wall, zone):
        wall += _MINUTE
        at = _utc(wall, zone)
    yield at


def _utc(wall: datetime, zone: tzinfo) -> datetime:
    return wall.replace(tzinfo=zone).astimezone(UTC)


def _is_local_time(at: datetime, wall: datetime, zone: tzinfo) -> bool:
    return at.astimezone(zone).replace(tzinfo=None, fold=0) == wall


# Reading an expression.


class _Field(msgspec.Struct, frozen=True):
    """One field: its name, its bounds, and the names of its numbers from the lower bound on."""

    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()

    def numbers(self, text: str) -> frozenset[int]:
        """The numbers of a list such as `1-5,10/2`."""
        return frozenset(number for term in text.split(",") for number in self._term(term))

    def _term(self, term: str) -> range:
        base, slash, step_text = term.partition("/")
        step = self._whole(step_text, term) if slash else 1
        if step == 0:
            raise self.refusal(term, "a step must be at least 1")
        if base == "*":
            first, last = self.least, self.most
        elif "-" in base:
            low, _, high = base.partition("-")
            first, last = self.number(low), self.number(high)
            if last < first:
                raise self.refusal(term, "a range must not go backwards")
        else:
            first = self.number(base)
            last = self.most if slash else first
        return range(first, last + 1, step)

    def number(self, text: str) -> int:
        if text.lower() in self.words:
            return self.least + self.words.index(text.lower())
        number = self._whole(text, text)
        if not self.least <= number <= self.most:
            raise self.refusal(text, f"must lie between {self.least} and {self.most}")
        return number

    def _whole(self, text: str, term: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise self.refusal(term, f"is not {self._said}")
        return int(text)

    @property
    def _said(self) -> str:
        words = f", {self.words[0]}-{self.words[-1]}" if self.words else ""
        return f"made of *, numbers{words}, ranges (1-5), lists (1,3) and steps (*/2)"

    def refusal(self, term: str, problem: str) -> InvalidInput:
        return InvalidInput(WHERE, f"{self.name}: {term!r} {problem}")


MINUTE = _Field("minute", 0, 59)
HOUR = _Field("hour", 0, 23)
DAY_OF_MONTH = _Field("day of month", 1, 31)
MONTH = _Field("month", 1, 12, MONTHS)
DAY_OF_WEEK = _Field("day of week", 0, WEEK, DAYS)


def _cron(text: str) -> Cron:
    fields = text.split()
    if len(fields) != 5:
        raise InvalidInput(
            WHERE,
            f"{text!r} has {len(fields)} fields, and needs 5: minute, hour, day of month, month, day of week; "
            "for seconds use 'every 30s'",
        )
    minute, hour, day, month, weekday = fields
    minutes, hours, months = MINUTE.numbers(minute), HOUR.numbers(hour), MONTH.numbers(month)
    days, last_day, last_weekday = _days_of_month(day)
    weekdays, nth, last = _days_of_week(weekday)
    cron = Cron(
        minutes=tuple(sorted(60 * one + other for one in hours for other in minutes)),
        days=days,
        last_day=last_day,
        last_weekday=last_weekday,
        months=months,
        weekdays=weekdays,
        nth_weekdays=nth,
        last_weekdays=last,
        both_days=day.startswith("*") or weekday.startswith("*"),
        named=not (minute.startswith("*") or hour.startswith("*")),
    )
    if cron.both_days and not (last_day or last_weekday) and min(days) > max(LONGEST_MONTH[one - 1] for one in months):
        raise DAY_OF_MONTH.refusal(day, "comes in none of the months")
    return cron


def _days_of_month(text: str) -> tuple[frozenset[int], bool, bool]:
    """The days, and whether the last day or the last weekday of the month (`L`, `LW`) is among them."""
    terms = [term.upper() for term in text.split(",")]
    plain = [term for term in terms if term not in ("L", "LW")]
    return DAY_OF_MONTH.numbers(",".join(plain)) if plain else frozenset(), "L" in terms, "LW" in terms


def _days_of_week(text: str) -> tuple[frozenset[int], frozenset[tuple[int, int]], frozenset[int]]:
    """The weekdays, those that mean the nth of the month (`mon#2`), and those that mean its last (`5L`)."""
    plain: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    for term in text.split(","):
        base, hash_, number = term.partition("#")
        if hash_:
            if number not in ("1", "2", "3", "4", "5"):
                raise DAY_OF_WEEK.refusal(term, f"must name one of the weeks 1 to {WEEKS_IN_MONTH} behind its #")
            nth.add((DAY_OF_WEEK.number(base) % WEEK, int(number)))
        elif len(term) > 1 and term[-1] in "lL" and term.lower() not in DAYS:
            last.add(DAY_OF_WEEK.number(term[:-1]) % WEEK)
        else:
            plain.update(number % WEEK for number in DAY_OF_WEEK.numbers(term))
    return frozenset(plain), frozenset(nth), frozenset(last)

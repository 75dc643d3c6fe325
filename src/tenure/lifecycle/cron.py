"""When something is due: cron expressions and plain intervals, as moments. Pure: the zone comes in from outside.

A cron expression speaks of a clock on a wall, and where clocks are changed a time of day can be missing or come twice.
What then holds is Debian's rule. A time that is named (`30 2 * * *`) is due once on each day: when it is missing, at
the end of the gap; when it comes twice, the first time. Where minutes or hours begin with `*`, what is meant is "again
and again": each moment whose wall clock matches is due, and a time that is missing is not.
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
"""A 29 February that is a Monday can be 40 years away; what does not come within this time never comes."""
INTERVAL_SECONDS_MAX = 366 * 86_400

_EVERY = re.compile(r"every\s+(\d{1,9})\s*([smhd])", re.IGNORECASE)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


class DueTimes(Protocol):
    """Due times in their order. All moments are in UTC."""

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """The first due time after the moment; None where none ever comes."""
        ...

    def last_until(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """The last due time that is not after the moment; None where there was none."""
        ...


def due_times(when: DueTimes, zone: tzinfo, *, after: datetime, until: datetime) -> Iterator[datetime]:
    """Each due time after the first moment, up to and including the second, in order."""
    moment = when.next_after(after, zone)
    while moment is not None and moment <= until:
        yield moment
        moment = when.next_after(moment, zone)


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> DueTimes:
    """What an expression means, or a refusal that names the field.

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
    """An interval. Its due times are its multiples since 1970 in UTC, so that nobody need remember where it began."""

    seconds: int

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        return _EPOCH + ((moment - _EPOCH) // self._step + 1) * self._step

    def last_until(self, moment: datetime, zone: tzinfo) -> datetime | None:
        return _EPOCH + ((moment - _EPOCH) // self._step) * self._step

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
    """A cron expression. `minutes` are those of a matching day, counted from its midnight on the wall clock."""

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
    """Whether a time of day is meant rather than a repetition."""

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        found: datetime | None = None
        # The clock may have been set back over midnight, so that the days before and after have a say.
        for day in self._days(_local_date(moment, zone) - _DAY, 1):
            times = _due_on(self, zone, day)
            place = bisect_right(times, moment)
            if place < len(times):
                if found is not None:
                    return min(found, times[place])
                found = times[place]
            elif found is not None:
                return found
        return found

    def last_until(self, moment: datetime, zone: tzinfo) -> datetime | None:
        found: datetime | None = None
        for day in self._days(_local_date(moment, zone) + _DAY, -1):
            times = _due_on(self, zone, day)
            place = bisect_right(times, moment)
            if place > 0:
                if found is not None:
                    return max(found, times[place - 1])
                found = times[place - 1]
            elif found is not None:
                return found
        return found

    def _days(self, first: date, step: int) -> Iterator[date]:
        """The days that match, and each day behind one: what was found on a day is compared with the next."""
        matched = False
        for number in range(SEARCH_DAYS):
            day = first + step * number * _DAY
            before, matched = matched, self.matches(day)
            if matched or before:
                yield day

    def matches(self, day: date) -> bool:
        """Whether there is a due time on this day of the calendar."""
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


def _local_date(moment: datetime, zone: tzinfo) -> date:
    return moment.astimezone(zone).date()


@lru_cache(maxsize=512)
def _due_on(cron: Cron, zone: tzinfo, day: date) -> tuple[datetime, ...]:
    """The due times that fall on one day of the calendar, in order."""
    if not cron.matches(day):
        return ()
    midnight = datetime.combine(day, time())
    begin, end = _moment(midnight, zone), _moment((midnight + _DAY).replace(fold=1), zone)
    if end - begin == _DAY and _is_wall_clock(begin, midnight, zone):
        return tuple(begin + number * _MINUTE for number in cron.minutes)
    walls = (midnight + number * _MINUTE for number in cron.minutes)
    found = {moment for wall in walls for moment in (_named(wall, zone) if cron.named else _all(wall, zone))}
    return tuple(sorted(found))


def _all(wall: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Every moment at which the wall clock shows this: one, or none in a gap, or two where it is set back."""
    for fold in (0, 1):
        moment = _moment(wall.replace(fold=fold), zone)
        if _is_wall_clock(moment, wall, zone):
            yield moment


def _named(wall: datetime, zone: tzinfo) -> Iterator[datetime]:
    """The first moment at which the wall clock shows this; in a gap, the moment at which the gap ends."""
    moment = _moment(wall, zone)
    while not _is_wall_clock(moment, wall, zone):
        wall += _MINUTE
        moment = _moment(wall, zone)
    yield moment


def _moment(wall: datetime, zone: tzinfo) -> datetime:
    return wall.replace(tzinfo=zone).astimezone(UTC)


def _is_wall_clock(moment: datetime, wall: datetime, zone: tzinfo) -> bool:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall


# Reading an expression.


class _Field(msgspec.Struct, frozen=True):
    """One field: its name, its bounds, and the words that stand for numbers from its lower bound on."""

    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()

    def numbers(self, text: str) -> frozenset[int]:
        """What a list such as `1-5,10/2` stands for."""
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
            f"{text!r} has {len(fields)} fields, and 5 are wanted: minute, hour, day of month, month, day of week; "
            "for seconds say 'every 30s'",
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

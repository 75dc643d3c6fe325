"""Budgets: limits on what a run may spend, and the decision whether a call may begin. Pure.

Amounts are integers in millionths of a unit, so that sums are exact and both stores decide the same. A reservation
counts in full until the step that made it has settled it. A reservation whose attempt ended before that is lost. It
stays charged, because the call may have been paid, unless the budget has `on_lost_spend="release"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from typing import Any, Literal, get_args
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput

OnLostSpend = Literal["charge", "release"]
"""How a lost reservation counts: in full, or no longer."""
Amounts = Mapping[str, int]
"""Millionths by unit."""

SCALE = 1_000_000
AMOUNT_MAX = 1_000_000_000
"""The largest amount of a unit. Up to it, six decimal places survive a JSON number."""
UNITS_MAX = 20
COST, ACTIVE_SECONDS, STEPS, TOKENS = "cost", "active_seconds", "steps", "tokens"
_NAMED = (COST, ACTIVE_SECONDS, STEPS, TOKENS)
_UNIT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")

Amount = float | int | Decimal


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a run and its children may spend together. `Budget(cost=2.0, steps=40, units={"pages": 100})`.

    `cost`, `tokens` and the named `units` count what the code reports with `run.spend`. `steps` counts executions of
    steps, transactions and spawns, retries included. `active_seconds` is the time that attempts have run, as of their
    last recorded step. Amounts have six decimal places. Beyond a limit the run is halted.
    """

    cost: float | None = None
    active_seconds: float | None = None
    steps: float | None = None
    tokens: float | None = None
    units: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    on_lost_spend: OnLostSpend = "charge"

    def __post_init__(self) -> None:
        for name in _NAMED:
            if (value := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, in_units(_limit(value, name)))
        given = dict(self.units)
        for unit in given:
            check_unit(unit)
            if unit in _NAMED:
                raise InvalidInput("units", f"{unit!r} has a parameter of its own: Budget({unit}=…)")
        pairs = tuple(sorted((unit, in_units(_limit(value, unit))) for unit, value in given.items()))
        msgspec.structs.force_setattr(self, "units", pairs)
        if self.on_lost_spend not in get_args(OnLostSpend):
            choices = ", ".join(get_args(OnLostSpend))
            raise InvalidInput("on_lost_spend", f"is {self.on_lost_spend!r}, and must be one of {choices}")
        if not self.limits:
            raise InvalidInput("budget", "has no limit; set one, for example Budget(cost=2.0)")
        if len(self.limits) > UNITS_MAX:
            raise InvalidInput("units", f"has more than {UNITS_MAX} units")

    @property
    def limits(self) -> dict[str, int]:
        """The limit of each limited unit, in millionths."""
        named = {name: value for name in _NAMED if (value := getattr(self, name)) is not None}
        return {unit: _limit(value, unit) for unit, value in {**named, **dict(self.units)}.items()}


def budget_of(limits: Mapping[str, Any]) -> Budget:
    """The budget with these limits, by unit.

    >>> budget_of({"cost": 2, "pages": 100})
    Budget(cost=2.0, active_seconds=None, steps=None, tokens=None, units=(('pages', 100.0),), on_lost_spend='charge')
    """
    named = {unit: limit for unit, limit in limits.items() if unit in _NAMED}
    return Budget(**named, units={unit: limit for unit, limit in limits.items() if unit not in _NAMED})


def check_unit(unit: Any) -> str:
    """The name of a unit."""
    if not isinstance(unit, str) or not _UNIT.fullmatch(unit):
        raise InvalidInput("unit", f"{unit!r} is no name of a unit: letters, digits and _, at most 50")
    return unit


def millionths(amount: Any, unit: str, *, rounding: str = ROUND_CEILING) -> int:
    """An amount in millionths. Smaller parts are rounded up, so that no spend is lost.

    >>> millionths(0.1, "cost") + millionths(0.2, "cost") == millionths(0.3, "cost")
    True
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float | Decimal):
        raise InvalidInput(unit, f"must be a number, not {amount!r}")
    try:
        exact = Decimal(repr(amount)) if isinstance(amount, float) else Decimal(amount)
        scaled = (exact * SCALE).to_integral_value(rounding=rounding) if exact.is_finite() else None
    except InvalidOperation:
        scaled = None
    if scaled is None or not 0 <= scaled <= AMOUNT_MAX * SCALE:
        raise InvalidInput(unit, f"is {amount!r}, and must be between 0 and {AMOUNT_MAX}")
    return int(scaled)


def _limit(amount: Any, unit: str) -> int:
    return millionths(amount, unit, rounding=ROUND_FLOOR)


def amounts_of(given: Mapping[str, Any]) -> dict[str, int]:
    """Amounts that a user gave, in millionths. Zero amounts are left out."""
    found = {check_unit(unit): millionths(amount, unit) for unit, amount in given.items()}
    return {unit: amount for unit, amount in found.items() if amount}


def in_units(amount: int) -> float:
    """An amount as a number of units."""
    return amount / SCALE


def sum_amounts(*amounts: Amounts) -> dict[str, int]:
    """The sum of amounts, by unit."""
    total: dict[str, int] = {}
    for one in amounts:
        for unit, amount in one.items():
            total[unit] = total.get(unit, 0) + amount
    return total


def encode_spend(amounts: Amounts) -> str | None:
    """The spend of a step as JSON text, for its record; None if nothing was spent."""
    spent = {unit: _number(amount) for unit, amount in sorted(amounts.items()) if amount}
    return msgspec.json.encode(spent).decode() if spent else None


def _number(amount: int) -> int | float:
    return amount // SCALE if amount % SCALE == 0 else in_units(amount)


def decode_spend(text: str | None) -> dict[str, int]:
    """The amounts of a recorded spend."""
    return {} if text is None else amounts_of(msgspec.json.decode(text, type=dict[str, float]))


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of a budget, in millionths. `reserved` counts the reservations of live attempts, `lost` those of lost
    attempts."""

    unit: str
    limit: int
    spent: int = 0
    reserved: int = 0
    lost: int = 0

    @property
    def used(self) -> int:
        """The amount that counts against the limit."""
        return self.spent + self.reserved + self.lost

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """An amount that a call may spend at most, reserved from before it begins until its step is recorded.

    `job_id` and `attempt` identify the attempt that reserved it. `is_live`: that attempt has not ended.
    """

    root_id: UUID
    unit: str
    job_id: UUID
    attempt: int
    key: str
    amount: int
    is_live: bool = True


def lines_of(
    limits: Amounts, spent: Amounts, reservations: Iterable[Reservation], *, on_lost_spend: OnLostSpend
) -> list[BudgetLine]:
    """The state of a budget, by unit."""
    reserved: dict[str, int] = {}
    lost: dict[str, int] = {}
    for one in reservations:
        if one.is_live:
            reserved[one.unit] = reserved.get(one.unit, 0) + one.amount
        elif on_lost_spend == "charge":
            lost[one.unit] = lost.get(one.unit, 0) + one.amount
    return [
        BudgetLine(
            unit=unit,
            limit=limit,
            spent=spent.get(unit, 0),
            reserved=reserved.get(unit, 0),
            lost=lost.get(unit, 0),
        )
        for unit, limit in sorted(limits.items())
    ]


class Exceeded(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a call would pass, or that was passed. `may_fit_later`: once live reservations are settled."""

    line: BudgetLine
    requested: int
    may_fit_later: bool

    @property
    def reason(self) -> str:
        """The reason of a halt."""
        line = self.line
        used = f"{amount_text(line.spent + line.lost)} of {amount_text(line.limit)} {line.unit} spent"
        if line.reserved:
            used += f", {amount_text(line.reserved)} reserved"
        requested = f"; the next call may need {amount_text(self.requested)}" if self.requested else ""
        return f"budget exceeded: {used}{requested}"


def amount_text(amount: int) -> str:
    """An amount as a decimal number without trailing zeros.

    >>> amount_text(2_000_000), amount_text(300_000)
    ('2', '0.3')
    """
    return f"{_number(amount)}"


def exceeded(lines: Iterable[BudgetLine], requested: Amounts) -> Exceeded | None:
    """Why a call that needs at most `requested` may not begin; None if it may. A limit may be reached, not passed."""
    found: Exceeded | None = None
    for line in lines:
        amount = requested.get(line.unit, 0)
        if line.used + amount <= line.limit:
            continue
        may_fit_later = line.spent + line.lost + amount <= line.limit
        if found is None or found.may_fit_later:
            found = Exceeded(line=line, requested=amount, may_fit_later=may_fit_later)
    return found

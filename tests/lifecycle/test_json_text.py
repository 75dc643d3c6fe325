"""What text and JSON may enter, and how it is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import (
    DEPTH_MAX,
    check_content,
    check_datetime,
    check_integer,
    check_name,
    check_seconds,
    check_text,
    clean_text,
    digest,
    encode,
    load,
    parse,
)
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX

sound_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | sound_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(sound_text, inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@given(values)
def test_encoded_values_decode_unchanged_and_are_valid_everywhere(value: Any) -> None:
    text = encode(value)
    assert load(text) == value == parse(text)
    assert check_content(text, "content") == text
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        "a\x00b",
        "\ud800",
        {"\x00": 1},
        {"\udfff": 1},
        {1: "number as a key"},
        2**53 + 1,
        -(2**53) - 1,
        nested(DEPTH_MAX + 1),
        {"deep": [math.nan]},
        pytest.param(object(), id="an object"),
        "x" * CONTENT_BYTES_MAX,
        "é" * (CONTENT_BYTES_MAX // 2),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_no_store_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        encode(value, where="payload")


def test_the_limits_themselves_are_allowed() -> None:
    assert load(encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    assert load(encode([2**53, -(2**53)])) == [2**53, -(2**53)]
    assert len(encode("x" * (CONTENT_BYTES_MAX - 2))) == CONTENT_BYTES_MAX


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(InvalidInput) as refusal:
        encode({"rows": [1, {"cost": math.inf}]}, where="payload")
    assert refusal.value.where == "payload.rows[1].cost"


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":2}', "NaN", "-Infinity", "[1,", "", '"\\u0000"', '"\\ud800"', "[" * 5000, "9007199254740993"]
)
def test_json_from_outside_is_read_strictly(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '[{"b":{"a":1,"a":1}}]',
        "9007199254740993",
        "1e999",
        "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1),
        "[" * 100_000 + "]" * 100_000,
        '{"a": 1, "a": 1}',
        '"\\u0000"',
        '"\\ud800"',
        '{"\\udc00":1}',
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_store_validates_content_by_the_rules_of_the_encoder(text: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_content(text, "payload")
    assert refusal.value.where.startswith("payload")


@pytest.mark.parametrize("text", ['{ "a" : 1 }', '{"b":1,"a":2}', '"\\u00e9"', "1.0", "1E2", "-0", " [1]\n"])
def test_content_need_not_be_spelt_as_we_would_spell_it(text: str) -> None:
    assert check_content(text, "payload") == text


@given(values)
def test_the_door_and_the_strict_reader_agree(value: Any) -> None:
    spelt = json.dumps(value, indent=1, ensure_ascii=True)
    assert check_content(spelt, "content") == spelt
    assert parse(spelt) == value


def test_a_digest_names_text_and_nothing_else() -> None:
    assert digest("[1]") == digest("[1]") != digest("[1] ")
    assert len(digest("")) == 22
    # Written down once: it is in databases.
    assert digest("null") == "dCNOmK_nSY-12vHzasLXig"


@given(st.text())
def test_cleaned_text_can_always_be_stored(text: str) -> None:
    if safe := clean_text(text):
        assert check_text(safe, "error", length_max=10**9) == safe
    assert load(encode(clean_text(text))) == clean_text(text)


@given(sound_text)
def test_cleaning_leaves_sound_text_alone(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize("text", ["", "a\x00", "\ud800", "x" * 501, None, 1, b"bytes"])
def test_keys_are_short_sound_text(text: Any) -> None:
    with pytest.raises(InvalidInput):
        check_text(text, "dedupe_key")


@pytest.mark.parametrize("text", [" a", "a ", "a\nb", "a\tb", "x" * 201, ""])
def test_names_are_shorter_and_without_control_characters(text: str) -> None:
    with pytest.raises(InvalidInput):
        check_name(text, "queue")


@pytest.mark.parametrize(("check", "length_max"), [(check_text, 500), (check_name, 200)])
def test_a_short_text_may_still_have_too_many_bytes(check: Callable[[Any, str], str], length_max: int) -> None:
    wide, half = "\U00020000", length_max // 2
    for sound in ("x" * length_max, "é" * length_max, wide * half):
        assert check(sound, "key") == sound
    for large in (wide * (half + 1), "é" * (length_max - 1) + wide, "€" * length_max):
        with pytest.raises(InvalidInput):
            check(large, "key")


@pytest.mark.parametrize("value", [datetime(2030, 1, 1), date(2030, 1, 1), "2030-01-01T00:00:00Z", 0, None])  # noqa: DTZ001
def test_a_timestamp_needs_a_time_zone(value: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_datetime(value, "since")
    assert refusal.value.where == "since"


def test_a_timestamp_of_any_time_zone_is_accepted() -> None:
    for zone in (UTC, timezone(timedelta(hours=-9, minutes=30))):
        assert check_datetime(datetime(2030, 1, 1, tzinfo=zone), "since").tzinfo is zone


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 11])
def test_a_whole_number_is_a_whole_number_within_bounds(value: Any) -> None:
    with pytest.raises(InvalidInput):
        check_integer(value, "n", least=0, most=10)


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, -0.1, 366 * 86_400 + 1])
def test_a_duration_is_a_finite_number_within_bounds(value: Any) -> None:
    with pytest.raises(InvalidInput):
        check_seconds(value, "delay_seconds")

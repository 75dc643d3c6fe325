"""A payload fits the function that will run, or is refused with the name of the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

import tenure
from tenure.errors import InvalidInput, PayloadRefused
from tenure.jobs.definition import JobDefinition, Options


class Address(msgspec.Struct):
    street: str
    number: int = 1


@dataclass
class Parcel:
    to: Address
    weight: float


class Model(pydantic.BaseModel):
    """A model of pydantic, which tenure itself does not need."""

    name: str
    born: datetime | None = None


class Crew(pydantic.BaseModel):
    members: list[Model]


def ship(ctx: tenure.Context, parcel: Parcel, at: datetime | None = None, *, fragile: bool = False) -> Address:
    return parcel.to


def greet(name: str, times: int = 2) -> str:
    return name * times


def model(who: Model) -> Model:
    return who


def crew(all_of: Crew, more: list[Model], by_name: dict[str, Model]) -> Crew:
    return all_of


def kind(function: Callable[..., Any]) -> JobDefinition[..., Any]:
    return JobDefinition(function, name=function.__name__, options=Options())


def test_positional_and_named_arguments_make_the_same_payload() -> None:
    assert kind(greet).payload("ada") == kind(greet).payload(name="ada") == '{"name":"ada"}'
    assert kind(greet).payload("ada", 3) == '{"name":"ada","times":3}'


def test_the_context_is_given_and_not_part_of_the_payload() -> None:
    shipping = kind(ship)
    assert shipping.wants_context
    payload = shipping.payload(Parcel(Address("Main"), 1.5), datetime(2030, 1, 1, tzinfo=UTC))
    assert payload == '{"parcel":{"to":{"street":"Main","number":1},"weight":1.5},"at":"2030-01-01T00:00:00Z"}'


def test_arguments_come_back_in_the_types_of_the_function() -> None:
    shipping = kind(ship)
    arguments = shipping.call_arguments('{"parcel":{"to":{"street":"Main"},"weight":2},"fragile":true}')
    assert arguments == {"parcel": Parcel(Address("Main"), 2.0), "fragile": True}
    assert shipping.result.decode(shipping.result.encode(Address("Main", 4))) == Address("Main", 4)


def test_models_of_pydantic_are_arguments_and_results() -> None:
    modelled = kind(model)
    payload = modelled.payload(Model(name="ada"))
    assert payload == '{"who":{"name":"ada","born":null}}'
    assert modelled.call_arguments(payload) == {"who": Model(name="ada")}
    born = datetime(1815, 12, 10, tzinfo=UTC)
    assert modelled.result.decode(modelled.result.encode(Model(name="ada", born=born))) == Model(name="ada", born=born)


def test_models_of_pydantic_may_be_inside_of_each_other_and_of_lists_and_dictionaries() -> None:
    ada = Model(name="ada")
    arguments = {"all_of": Crew(members=[ada]), "more": [ada], "by_name": {"first": ada}}
    crewed = kind(crew)
    assert crewed.call_arguments(crewed.payload(**arguments)) == arguments


def test_what_was_in_a_field_is_not_part_of_its_refusal() -> None:
    with pytest.raises(PayloadRefused) as refusal:
        kind(model).payload_from_json('{"who":{"name":["4111-secret"]}}')
    assert "name" in str(refusal.value)
    assert "4111" not in str(refusal.value)


def test_what_a_model_of_pydantic_refuses_is_refused_with_the_name_of_the_field() -> None:
    with pytest.raises(PayloadRefused, match="name"):
        kind(model).payload_from_json('{"who":{"name":1}}')
    with pytest.raises(PayloadRefused, match="more"):
        kind(crew).payload_from_json('{"all_of":{"members":[]},"more":[{}],"by_name":{}}')


@pytest.mark.requirement("EH-05")
@pytest.mark.parametrize(
    ("call", "expected_text"),
    [
        (lambda k: k.payload(), "name"),
        (lambda k: k.payload("ada", 2, 3), "too many"),
        (lambda k: k.payload("ada", tims=3), "tims"),
        (lambda k: k.payload(1), "`name`"),
        (lambda k: k.payload("ada", "2"), "`times`"),
        (lambda k: k.payload("ada", 2.5), "`times`"),
        (lambda k: k.payload("a\x00b"), "NUL"),
        (lambda k: k.payload("ada", 2**60), "2\\^53"),
        (lambda k: k.payload(object()), "JSON"),
        (lambda k: k.payload_from_json('{"name":"ada","times":2,"more":1}'), "more"),
        (lambda k: k.payload_from_json('{"times":2}'), "name"),
        (lambda k: k.payload_from_json('{"name":"ada","name":"bob"}'), "twice"),
        (lambda k: k.payload_from_json('["ada"]'), "object"),
        (lambda k: k.payload_from_json("{"), "not JSON"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_field(
    call: Callable[[JobDefinition[..., Any]], str], expected_text: str
) -> None:
    with pytest.raises(InvalidInput, match=expected_text) as refusal:
        call(kind(greet))
    assert "greet" in str(refusal.value)


def varargs(*names: str) -> None: ...
def keywords(**names: str) -> None: ...
def positional(name: str, /) -> None: ...
def late_context(name: str, ctx: tenure.Context) -> None: ...


@pytest.mark.parametrize("function", [varargs, keywords, positional, late_context])
def test_a_function_whose_arguments_cannot_come_from_a_payload_cannot_be_a_job(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match=function.__name__):
        kind(function)

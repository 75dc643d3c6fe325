"""docs/reference/asyncapi.yaml describes the messages that are really sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

import tenure
from tenure.engines.protocol import CancelJob, JobDispatch
from tests.support.engine_socket import connected, declare, opened_gateway
from tools.asyncapi_page import PAGE, text

DOCUMENT: dict[str, Any] = yaml.safe_load(PAGE.read_text(encoding="utf-8"))


def problems(value: Any, schema: dict[str, Any], where: str = "$") -> list[str]:
    """What is wrong with a value, by the parts of JSON Schema that the document uses. An unknown part is an error."""
    known = {
        *("$ref", "anyOf", "type", "enum", "const", "required", "properties", "items", "minLength", "maxLength"),
        *("minItems", "maxItems", "minimum", "maximum", "title", "description", "default", "format", "prefixItems"),
    }
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        return problems(value, DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], where)
    if "anyOf" in schema:
        found = [problems(value, one, where) for one in schema["anyOf"]]
        return [] if any(not one for one in found) else found[0]
    wrong = [f"{where} is not one of {schema['enum']}"] if value not in schema.get("enum", [value]) else []
    types: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "object": dict,
        "array": list,
        "boolean": bool,
    }
    expected = schema.get("type")
    if expected == "null":
        return wrong + ([] if value is None else [f"{where} is not null"])
    if expected is not None and not isinstance(value, types[expected]):
        return [*wrong, f"{where} is not {expected}"]
    if isinstance(value, dict):
        wrong += [f"{where}.{name} is missing" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            wrong += problems(item, schema.get("properties", {}).get(name, {}), f"{where}.{name}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            wrong += problems(item, schema.get("items") or {}, f"{where}[{index}]")
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        wrong.append(f"{where} has a wrong length")
    if isinstance(value, int | float) and not (schema.get("minimum", value) <= value <= schema.get("maximum", value)):
        wrong.append(f"{where} is out of range")
    return wrong


def schema_of(sender: str, type_: str) -> dict[str, Any]:
    operation = "fromEngine" if sender == "engine" else "fromGateway"
    names = [one["$ref"].rpartition("/")[2] for one in DOCUMENT["operations"][operation]["messages"]]
    [name] = [name for name in names if DOCUMENT["components"]["messages"][name]["name"] == type_]
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][name]
    return found


def test_the_document_is_generated_from_the_messages() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run `make docs`"


@pytest.mark.requirement("EH-01")
async def test_real_traffic_fits_the_document(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        messages: dict[str, dict[str, Any]] = {
            "job_ack": {},
            "job_started": {},
            "job_progress": {"percent": 5, "message": "begun"},
            "job_complete": {"result": {"not": "text"}},
        }
        for type_, fields in messages.items():
            await engine.acked(engine.about(dispatch, type_, **fields))
        handle = await render.enqueue("cancelled")
        dispatch = await engine.next(JobDispatch)
        await app.cancel(handle.id)
        await engine.next(CancelJob)
        error = {"type": "Cancelled", "message": "stopped"}
        await engine.acked(engine.about(dispatch, "job_failed", error=error, action="cancel"))
        await engine.acked(engine.say("heartbeat"))
        await engine.acked(engine.say("drain"))
        engine.say("nonsense")
        await engine.refused()
        traffic = [one for one in engine.socket.traffic if "nonsense" not in one[1]]
    assert len(traffic) > 15
    for sender, sent in traffic:
        message = msgspec.json.decode(sent)
        assert problems(message, schema_of(sender, message["type"])) == [], sent


def test_the_checker_of_this_file_finds_what_is_wrong() -> None:
    schema = schema_of("engine", "job_progress")
    good = {"type": "job_progress", "id": 1, "job_id": "x", "claim": 1, "percent": 5}
    assert problems(good, schema) == []
    bad: dict[str, dict[str, Any]] = {"range": {"percent": 101}, "integer": {"percent": "5"}, "one of": {"type": "x"}}
    for found, fields in bad.items():
        assert found in " ".join(problems({**good, **fields}, schema))
    del good["claim"]
    assert "claim is missing" in problems(good, schema)[0]

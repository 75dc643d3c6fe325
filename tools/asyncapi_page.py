"""Writes docs/reference/asyncapi.yaml from the messages in `tenure.engines.protocol`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from tenure.engines.protocol import MESSAGE_BYTES_MAX, SUBPROTOCOL, FromEngine, FromGateway

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "asyncapi.yaml"
REF = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    """The AsyncAPI document of `/engine`."""
    engine, gateway = get_args(FromEngine), get_args(FromGateway)
    _, schemas = msgspec.json.schema_components([*engine, *gateway], ref_template=REF)
    messages = {
        type_.__name__: {"name": type_.__struct_config__.tag, "payload": {"$ref": REF.format(name=type_.__name__)}}
        for type_ in (*engine, *gateway)
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "tenure engines",
            "version": SUBPROTOCOL.rpartition(".")[2],
            "description": (
                f"Messages between a remote engine and a gateway of tenure: JSON text frames of at most "
                f"{MESSAGE_BYTES_MAX} bytes, subprotocol {SUBPROTOCOL}. The first message is Hello, its reply Welcome."
                f" Each message of the engine with an id is answered by AckMessage. Unknown fields are ignored."
            ),
        },
        "channels": {
            "engine": {
                "address": "/engine",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "bindings": {
                    "ws": {"headers": {"type": "object", "properties": {"Authorization": {"type": "string"}}}}
                },
            }
        },
        "operations": {
            "fromEngine": _operation("receive", engine),
            "fromGateway": _operation("send", gateway),
        },
        "components": {"messages": messages, "schemas": schemas},
    }


def _operation(action: str, types: tuple[Any, ...]) -> dict[str, Any]:
    messages = [{"$ref": f"#/channels/engine/messages/{type_.__name__}"} for type_ in types]
    return {"action": action, "channel": {"$ref": "#/channels/engine"}, "messages": messages}


def text() -> str:
    return yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")

"""Models of pydantic, which need not be installed, as JSON values."""

from __future__ import annotations

from typing import Any


def encode_model(value: Any) -> Any:
    """Encode a model; TypeError for other objects."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON encoding")


def decode_model(wanted: Any, value: Any) -> Any:
    """Decode a value to a model; TypeError for other types."""
    if hasattr(wanted, "model_validate"):
        try:
            return wanted.model_validate(value)
        except ValueError as refusal:
            raise ValueError(_model_errors(refusal)) from None
    raise TypeError(f"{wanted!r} cannot be decoded from JSON")


def _model_errors(refusal: ValueError) -> str:
    """Describe the errors of a model by field, without the values, which may be secret."""
    if not hasattr(refusal, "errors"):
        return str(refusal)
    faults = refusal.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)

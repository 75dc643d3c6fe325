"""Results of a job's function: JSON text that fits its return annotation, checked before it is stored."""

from __future__ import annotations

from typing import Any, Generic, Never, NoReturn, TypeVar

import msgspec

from tenure.errors import InvalidInput, ResultRefused
from tenure.jobs.models import decode_model, encode_model
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX

R = TypeVar("R")


class ResultType(Generic[R]):
    """The return annotation of the function of one kind; `Any` if it has none."""

    def __init__(self, kind: str, returns: Any) -> None:
        self._where = f"result of {kind}"
        self._decoder = _decoder(kind, returns)
        self._may_be_none = _accepts(self._decoder, b"null")

    def encode(self, value: Any, *, bytes_max: int = CONTENT_BYTES_MAX) -> str:
        """Return the JSON text of a result. ResultRefused: it cannot be stored, or does not fit the annotation."""
        if value is None and self._may_be_none:
            return "null"
        try:
            builtins = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_model)
            text = encode(builtins, where=self._where, bytes_max=bytes_max)
        except InvalidInput as refusal:
            raise ResultRefused(refusal.where, refusal.problem) from None
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise ResultRefused(self._where, f"cannot be encoded as JSON: {problem}") from None
        self.decode(text)
        return text

    def decode(self, text: str) -> R:
        """Decode a result to the return type. ResultRefused: it does not fit the annotation of this code."""
        try:
            value: R = self._decoder.decode(text)
        except msgspec.ValidationError as problem:
            reason = str(problem).replace("`$.", "`").replace(" - at `$`", "")
            raise ResultRefused(
                self._where, f"does not fit the return annotation: {reason}; correct the function or its annotation"
            ) from None
        return value


def _decoder(kind: str, returns: Any) -> msgspec.json.Decoder[Any]:
    wanted = Any if returns in (NoReturn, Never, object) else returns
    try:
        return msgspec.json.Decoder(wanted, strict=True, dec_hook=decode_model)
    except TypeError as problem:
        raise InvalidInput(kind, f"its results cannot be read from JSON: {problem}; annotate another type") from None


def _accepts(decoder: msgspec.json.Decoder[Any], text: bytes) -> bool:
    try:
        decoder.decode(text)
    except msgspec.ValidationError:
        return False
    return True

"""The parameters of a request to Ollama, read. What is not understood stays where it was, and
travels along."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from anaphora.prompt import OutputSchema, Params, Reasoning
from anaphora.values import Extras
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS

from .carried import Put, carried


class _Options(msgspec.Struct, frozen=True):
    """The options that have a name here. A negative limit is none: it is carried along."""

    num_predict: Annotated[int, msgspec.Meta(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: tuple[str, ...] | None = None


class _Plain(_Options, frozen=True, forbid_unknown_fields=True):
    """Options that all have a name here."""


_plain = msgspec.json.Decoder(_Plain | None).decode

_Level = Literal["low", "medium", "high", "max"]


def plain_params(options: msgspec.Raw, stream: bool | None) -> Params | None:
    """The parameters when there are no others than options with a name here."""
    try:
        said = _plain(options) or _Plain()
    except DECODE_ERRORS:
        return None
    return _params(said, stream)


def read_params(fields: Fields, stream: bool | None) -> tuple[Params, Extras | None]:
    """The parameters, taken out one by one; and what is not understood, for the extras."""
    fields.drop_nulls()
    schema = fields.raw("format")
    # The bare word `json` is no schema: it travels along.
    other = b"" if schema is None or schema[:1] == b"{" else b'"format":' + schema
    options = fields.partly("options", _Options) or _Options()
    params = _params(
        options,
        stream,
        _reasoning(fields),
        None if schema is None or other else OutputSchema(schema.decode()),
    )
    return params, carried(b",".join(part for part in (other, fields.rest()) if part), Put())


def _params(
    said: _Options,
    stream: bool | None,
    reasoning: Reasoning | None = None,
    output: OutputSchema | None = None,
) -> Params:
    return Params(
        max_tokens=said.num_predict,
        temperature=said.temperature,
        top_p=said.top_p,
        top_k=said.top_k,
        seed=said.seed,
        frequency_penalty=said.frequency_penalty,
        presence_penalty=said.presence_penalty,
        stop=said.stop or (),
        reasoning=reasoning,
        output=output,
        stream=stream is not False,
    )


def _reasoning(fields: Fields) -> Reasoning | None:
    thinks = fields.known("think", bool)
    if thinks is not None:
        return Reasoning("enabled" if thinks else "disabled")
    level = fields.known("think", _Level)  # type: ignore[arg-type]
    return None if level is None else Reasoning(effort=str(level))

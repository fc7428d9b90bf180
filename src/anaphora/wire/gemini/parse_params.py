"""The parameters of a generateContent request, read. What is not understood stays where it was, and
travels along."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.prompt import OutputSchema, Params, Reasoning, ToolChoice
from anaphora.values import Extras
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS

from .naming import FORM, WIRE, nested
from .params import PLAIN, TIERS, labels_of
from .schemas import json_schema
from .thinking import Thinks, is_level, read_thinking

_KINDS: dict[str, Any] = {"top_k": int, "n": int, "seed": int}
_MODES = {"AUTO": "auto", "ANY": "required", "NONE": "none"}


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A generation config of plain values."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    candidate_count: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop_sequences: tuple[str, ...] | None = None


_plain = msgspec.json.Decoder(_Plain | None).decode


def plain_params(config: msgspec.Raw, stream: bool) -> Params | None:
    """The parameters when there are no others than those of a plain config."""
    try:
        said = _plain(config) or _Plain()
    except DECODE_ERRORS:
        return None
    return Params(
        max_tokens=said.max_output_tokens,
        temperature=said.temperature,
        top_p=said.top_p,
        top_k=said.top_k,
        n=said.candidate_count,
        seed=said.seed,
        presence_penalty=said.presence_penalty,
        frequency_penalty=said.frequency_penalty,
        stop=said.stop_sequences or (),
        stream=stream,
    )


def read_params(fields: Fields, stream: bool) -> tuple[Params, Extras | None]:
    """The parameters; what is left of the request; and in which form a schema came."""
    choice = _tool_choice(fields)
    tier = fields.known("serviceTier", str)
    labels = fields.known("labels", dict[str, str])
    found: dict[str, Any] = {}
    form: Extras = {}
    left: list[tuple[str, bytes]] = []
    if tier is not None and tier not in TIERS:
        left.append(("serviceTier", msgspec.json.encode(tier)))
        tier = None
    if labels is not None and labels_of(labels) != labels:
        left.append(("labels", msgspec.json.encode(labels)))
        labels = None
    if (config := nested(fields, "generationConfig")) is not None:
        found, form = _generation_config(config)
        if rest := config.rest():
            left.append(("generationConfig", b"{" + rest + b"}"))
    params = Params(
        tool_choice=choice,
        service_tier=tier,
        metadata=labels or None,
        store=fields.known("store", bool),
        stream=stream,
        **found,
    )
    fields.drop_nulls()
    members = [fields.rest(), *(b'"%b":%b' % (name.encode(), raw) for name, raw in left)]
    rest = b",".join(member for member in members if member)
    extras = {WIRE: (b"{" + rest + b"}").decode()} if rest else {}
    return params, {**extras, **form} or None


def _generation_config(config: Fields) -> tuple[dict[str, Any], Extras]:
    config.drop_nulls()
    found: dict[str, Any] = {"max_tokens": config.known("maxOutputTokens", int)}
    for ours, theirs in PLAIN.items():
        found[ours] = config.known(theirs, _KINDS.get(ours, float))
    found["stop"] = tuple(config.known("stopSequences", list[str]) or ())
    found["reasoning"] = _thinking(config)
    found["output"], form = _output(config)
    return found, form


def _thinking(config: Fields) -> Reasoning | None:
    said = nested(config, "thinkingConfig")
    if said is None:
        return None
    said.drop_nulls()
    level = said.known("thinkingLevel", str)
    left = b""
    if level is not None and not is_level(level):
        left, level = b'"thinkingLevel":' + msgspec.json.encode(level), None
    # A budget beside a level is refused by Gemini: it stays what it was.
    budget = said.known("thinkingBudget", int) if level is None and not left else None
    if budget is not None and budget < -1:
        left, budget = b'"thinkingBudget":%d' % budget, None
    told = Thinks(level, budget, said.known("includeThoughts", bool))
    rest = b",".join(member for member in (said.rest(), left) if member)
    if rest:
        config.put("thinkingConfig", b"{" + rest + b"}")
    return read_thinking(told)


def _output(config: Fields) -> tuple[OutputSchema | None, Extras]:
    """A schema for JSON, in either form. Other media types, or JSON without a schema, have no name
    here."""
    if config.known_text("responseMimeType") != "application/json":
        return None, {}
    for name in ("responseJsonSchema", "responseSchema"):
        if name in config:
            break
    else:
        return None, {}
    if "responseJsonSchema" in config and "responseSchema" in config:
        return None, {}
    config.raw("responseMimeType")
    raw = config.raw(name) or b"{}"
    if name == "responseJsonSchema":
        return OutputSchema(raw.decode()), {}
    form = {FORM: '{"responseSchema":' + raw.decode() + "}"}
    return OutputSchema(json_schema(raw, f"{config.path}.{name}")), form


def _tool_choice(fields: Fields) -> ToolChoice | None:
    config = nested(fields, "toolConfig")
    if config is None:
        return None
    config.drop_nulls()
    calling = nested(config, "functionCallingConfig")
    choice = None
    if calling is not None:
        calling.drop_nulls()
        choice = _choice(calling)
        if rest := calling.rest():
            config.put("functionCallingConfig", b"{" + rest + b"}")
    if rest := config.rest():
        fields.put("toolConfig", b"{" + rest + b"}")
    return choice


def _choice(calling: Fields) -> ToolChoice | None:
    """The choice, and what is left of it: a list of functions beyond one has no name here, and
    neither has a mode that checks calls without forcing them."""
    mode = calling.known_text("mode")
    names = "allowedFunctionNames" in calling
    if mode not in _MODES or (names and mode != "ANY"):
        return None
    calling.raw("mode")
    allowed = calling.known("allowedFunctionNames", tuple[str])
    if allowed is not None:
        return ToolChoice("tool", allowed[0])
    return ToolChoice(_MODES[mode])  # type: ignore[arg-type]

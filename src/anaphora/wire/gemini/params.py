"""The request without its prompt: the envelope around the runs, and the cache parameters."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Feature, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, Params, ToolChoice
from anaphora.rendered import Envelope
from anaphora.values import Notice
from anaphora.wire.enveloping import Envelopes
from anaphora.wire.fields import Fields
from anaphora.wire.params import (
    continuation_notices,
    foreign_comparison_notices,
    foreign_field_notices,
    params_key,
    schema_only_notices,
)
from anaphora.wire.reading import request_error

from .address import path_of, resource
from .naming import FORM, OWN, WIRE
from .schemas import json_schema
from .thinking import thinking_config

TIERS = ("standard", "flex", "priority")
#: Parameters of the generation config that are said as they are.
PLAIN = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "n": "candidateCount",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_NO_PLACE = ("user", "verbosity", "include", "truncation")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z"), re.compile(r"[a-z0-9_-]{0,63}\Z")

Knobs = tuple[tuple[str, bytes], ...]


_envelopes = Envelopes()


def envelope(call: Call, profile: Profile, last: Envelope | None) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed."""
    stands = (bool(call.ir.system_field_blocks()), bool(call.tools))
    source = (call.model, params_key(call), call.ir.system_fields_agree(), stands, profile)
    if (known := _envelopes.find(call, source, last)) is not None:
        return known
    refuse(call, profile)
    notices: list[Notice] = []
    fields = _fields(call, notices)
    _refuse_beside_a_handle(fields, stands)
    made = Envelope(
        source=source,
        path=path_of(call.model, stream=call.params.stream),
        headers=(("content-type", "application/json"),),
        head=b"{",
        tail=b"".join(b"," + string(name) + b":" + raw for name, raw in fields.items()) + b"}",
        cache_params=cache_params(call.model, fields),
        notices=(*notices, *_notices(call)),
    )
    return _envelopes.keep(call, made)


def frozen_with(envelope: Envelope) -> bytes:
    """What a handle freezes beside chunks: the model and the tool config, as members of the body
    that makes one."""
    turned = dict(envelope.cache_params)
    config = turned.get("tool_choice")
    return b'"model":' + turned["model"] + (tool_config(config) if config is not None else b"")


def tool_config(config: bytes) -> bytes:
    """As it stands in a body: first behind the runs."""
    return b',"toolConfig":' + config


def cache_params(model: str, fields: dict[str, bytes]) -> Knobs:
    """The parameters that affect the cache without being part of the prompt, as they are sent;
    named as the cache rules name them."""
    found: list[tuple[str, bytes | None]] = [
        ("model", string(resource(model) if model else "")),
        ("tool_choice", fields.get("toolConfig")),
        ("service_tier", fields.get("serviceTier")),
    ]
    if "generationConfig" in fields:
        config = Fields(fields["generationConfig"], "generationConfig", request_error)
        found.append(("thinking", config.raw("thinkingConfig")))
        schema = config.raw("responseJsonSchema") or config.raw("responseSchema")
        found.append(("output_format", schema or config.raw("responseFormat")))
    return tuple((name, raw) for name, raw in found if raw is not None and raw != b"null")


def refuse(call: Call, profile: Profile) -> None:
    """Says no to what the provider would answer with a 400, with the field and the reason."""
    params, reasoning = call.params, call.params.reasoning
    choice = params.tool_choice.mode if params.tool_choice is not None else "auto"
    mode = reasoning.mode if reasoning is not None else None
    budget = reasoning is not None and reasoning.effort is None and bool(reasoning.budget_tokens)
    sampling = [(name, getattr(params, name)) for name in ("temperature", "top_p", "top_k")]
    asked: tuple[tuple[bool, Feature, str, str], ...] = (
        (choice in ("required", "tool"), "forced_tools", "tool_choice", "a forced tool choice"),
        (mode == "disabled", "disabled_thinking", "reasoning.mode", "thinking turned off"),
        (budget, "budgeted_thinking", "reasoning.budget_tokens", "thinking with a budget"),
        *((value is not None, "sampling", name, f"a {name}") for name, value in sampling),
        *(
            (value not in (None, 1), "altered_sampling", name, f"any {name} but 1")
            for name, value in sampling[:2]
        ),
        (bool(params.stop), "stop", "stop", "stop sequences"),
    )
    for wanted, feature, field, what in asked:
        if wanted and profile.refuses(feature):
            raise InvalidRequest(f"{call.model} refuses {what}", path=f"params.{field}")


def _refuse_beside_a_handle(fields: dict[str, bytes], stands: tuple[bool, bool]) -> None:
    """What a handle froze may not be sent beside it."""
    if "cachedContent" not in fields:
        return
    for there, name in zip(
        (*stands, "toolConfig" in fields), ("system", "tools", "params.tool_choice"), strict=True
    ):
        if there:
            raise InvalidRequest(
                "may not stand beside cachedContent, which brings its own", path=name
            )


# ── The body after the last run ──────────────────────────────────────────────────────────────────


def _fields(call: Call, notices: list[Notice]) -> dict[str, bytes]:
    """What is said here, then what came along for this wire. The tool config stands first."""
    params = call.params
    said: dict[str, Any] = {}
    if params.tool_choice is not None:
        said["toolConfig"] = {"functionCallingConfig": _calling(params.tool_choice)}
    form = Fields((call.extras or {}).get(FORM, "{}"), f"extras.{FORM}", request_error)
    if config := _generation_config(params, form, notices):
        said["generationConfig"] = config
    if labels := labels_of(params.metadata or {}):
        said["labels"] = labels
    if params.service_tier in TIERS:
        said["serviceTier"] = params.service_tier
    if params.store is not None:
        said["store"] = params.store
    taken = ["contents", "tools", "model"]
    if call.ir.system_field_blocks():
        taken.append("systemInstruction")
    came = (call.extras or {}).get(WIRE)
    if came is not None:
        path = f"extras.{WIRE}"
        for name, value in _members(came, path).items():
            if name in taken:
                raise InvalidRequest("the call says this already", path=f"{path}.{name}")
            said[name] = _merged(said[name], value, f"{path}.{name}") if name in said else value
    if "toolConfig" in said:
        said = {"toolConfig": said.pop("toolConfig"), **said}
    return {name: _written(value, f"params.{name}") for name, value in said.items()}


def _generation_config(params: Params, form: Fields, notices: list[Notice]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if params.max_tokens is not None:
        config["maxOutputTokens"] = _whole_number(params.max_tokens)
    for ours, theirs in PLAIN.items():
        if (value := getattr(params, ours)) is not None:
            config[theirs] = msgspec.Raw(dumps(value, path=f"params.{ours}"))
    if params.stop:
        config["stopSequences"] = msgspec.Raw(dumps(params.stop, path="params.stop"))
    if params.output is not None:
        config["responseMimeType"] = "application/json"
        config |= _schema(params.output, form)
    if thinking := thinking_config(params.reasoning, notices):
        config["thinkingConfig"] = thinking
    return config


def _schema(output: OutputSchema, form: Fields) -> dict[str, msgspec.Raw]:
    """The schema, in the form that it came in."""
    came = form.raw("responseSchema")
    if came is not None and json_schema(came, f"extras.{FORM}") == output.schema:
        return {"responseSchema": msgspec.Raw(came)}
    schema = check_object(output.schema, path="params.output.schema").encode()
    return {"responseJsonSchema": msgspec.Raw(schema)}


def _calling(choice: ToolChoice) -> dict[str, Any]:
    if (choice.mode == "tool") != (choice.name is not None):
        raise InvalidRequest(
            "mode 'tool' needs the tool's name, and only that mode takes one",
            path="params.tool_choice.name",
        )
    if choice.name is not None:
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    return {"mode": {"auto": "AUTO", "required": "ANY", "none": "NONE"}[choice.mode]}


def labels_of(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata that can be labels: short words in small letters."""
    name, value = _LABEL
    return {k: v for k, v in metadata.items() if name.match(k) and value.match(v)}


def _members(text: str, path: str) -> dict[str, Any]:
    fields = Fields(text, path, request_error)
    return msgspec.json.decode(fields.whole(), type=dict[str, msgspec.Raw])


def _merged(said: Any, came: msgspec.Raw, path: str) -> Any:
    """An object may be said in part here and have come along in part."""
    if not isinstance(said, dict) or bytes(came)[:1] != b"{":
        raise InvalidRequest("a parameter of the call says this already", path=path)
    whole = dict(said)
    for name, value in _members(bytes(came).decode(), path).items():
        here = f"{path}.{name}"
        whole[name] = _merged(whole[name], value, here) if name in whole else value
    return whole


def _written(value: Any, path: str) -> bytes:
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    if isinstance(value, dict):
        members = [string(name) + b":" + _written(item, path) for name, item in value.items()]
        return b"{" + b",".join(members) + b"}"
    return dumps(value, path=path)


def _whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(
            f"must be a whole number, 0 or more, not {value!r}", path="params.max_tokens"
        )
    return value


# ── What has no place ────────────────────────────────────────────────────────────────────────────


def _notices(call: Call) -> list[Notice]:
    """What was asked for and Gemini has no place for."""
    told = []
    params, choice, cache = call.params, call.params.tool_choice, call.ir.cache
    if not call.ir.system_fields_agree():
        told.append(
            Notice(
                "system_blocks_sent",
                "system_text is not the system blocks joined by a blank line; the blocks are sent",
                "system",
            )
        )
    told += (
        continuation_notices(call)
        + foreign_field_notices(call, WIRE)
        + foreign_comparison_notices(call, OWN)
    )
    told += [
        _left_out(name, f"Gemini has no {name}")
        for name in _NO_PLACE
        if getattr(params, name) not in (None, ())
    ]
    if params.service_tier is not None and params.service_tier not in TIERS:
        told.append(_left_out("service_tier", f"Gemini's tiers are {', '.join(TIERS)}"))
    fitting = labels_of(params.metadata or {})
    told += [
        _left_out(f"metadata.{name}", "a label is a short word in small letters")
        for name in params.metadata or {}
        if name not in fitting
    ]
    if choice is not None and choice.parallel is not None:
        told.append(_left_out("tool_choice.parallel", "Gemini cannot be told to call one by one"))
    told += schema_only_notices(params.output)
    told += [
        Notice("cache_option_left_out", "Gemini has no such option; left out", f"cache.{name}")
        for name in ("key", "mode", "retention", "prewarm", "diagnose", "automatic")
        if getattr(cache, name)
    ]
    return told


def _left_out(field: str, why: str) -> Notice:
    return Notice("param_left_out", f"{why}; left out", f"params.{field}")

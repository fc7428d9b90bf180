"""The parts of a request other than the prompt: path, parameters, and envelope."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, Params, Reasoning, ToolChoice
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice
from anaphora.wire.params import (
    Param,
    ParamTable,
    check_features,
    closing_members,
    common_notices,
    joined_fields,
    schema_object,
    schema_only_notices,
    whole_number,
)
from anaphora.wire.parts import system_blocks_of
from anaphora.wire.reading import Members, decode_members, extras_of, object_members, request_error

from . import types
from .types import FORM, MEMO, NULL, OWN, WIRE, has_own_types, json_schema, read_form

# ── The path ─────────────────────────────────────────────────────────────────────────────────────

VERSION = "/v1beta/"
_ONCE, _STREAM = "generateContent", "streamGenerateContent"

#: Valid names of models: nothing that ends the path or changes its meaning.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@~-]*(?:/[A-Za-z0-9][A-Za-z0-9._@~-]*)*\Z")


def resource(model: str) -> str:
    """The model's resource name: `models/…`, or the given name of a tuned model."""
    if not _NAME.match(model):
        raise InvalidRequest(
            "Gemini's path names the model, e.g. gemini-2.5-flash" if not model else "no model id",
            path="model",
        )
    return model if "/" in model else f"models/{model}"


def path_of(model: str, *, stream: bool) -> str:
    """The path to send a request to, without the client's base URL."""
    method = f"{_STREAM}?alt=sse" if stream else _ONCE
    return f"{VERSION}{resource(model)}:{method}"


def read_path(path: str) -> tuple[str, bool]:
    """The model in a path, and whether the path requests a stream. An empty path has neither."""
    if not path:
        return "", False
    address, _, method = path.partition("?")[0].rpartition(":")
    if method not in (_ONCE, _STREAM):
        raise InvalidRequest(
            f"ends neither in :{_ONCE} nor in :{_STREAM}, so it is no request of this wire",
            path="path",
        )
    return model_id(address), method == _STREAM


def model_id(name: str) -> str:
    """The model without the common prefix. Tuned models and endpoints keep their collection."""
    *_, collection, model = ["", "models", *name.strip("/").split("/")][-2:]
    return model if collection == "models" else f"{collection}/{model}"


# ── Thinking ─────────────────────────────────────────────────────────────────────────────────────

_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_OFF, _AUTOMATIC = 0, -1


def _is_off(reasoning: Reasoning) -> bool:
    return reasoning.mode == "disabled" or reasoning.effort == "none"


def _thinking_config(reasoning: Reasoning) -> bytes | None:
    config: dict[str, Any] = {}
    level = _LEVELS.get(reasoning.effort or "")
    if _is_off(reasoning):
        config["thinkingBudget"] = _OFF
    elif level is not None:
        config["thinkingLevel"] = level
    elif reasoning.budget_tokens is not None:
        config["thinkingBudget"] = reasoning.budget_tokens
    elif reasoning.mode == "adaptive":
        config["thinkingBudget"] = _AUTOMATIC
    if reasoning.display is not None:
        config["includeThoughts"] = reasoning.display == "summarized"
    return dumps(config, path="params.reasoning") if config else None


def _thinking_notices(reasoning: Reasoning | None) -> list[Notice]:
    if reasoning is None:
        return []
    off, effort = _is_off(reasoning), reasoning.effort
    level = None if off or effort is None else _LEVELS.get(effort)
    reasons: list[tuple[str, str]] = []
    notices: list[Notice] = []
    if effort not in (None, "none") and level is None:
        reasons.append(("effort", "thinking is off" if off else f"Gemini has no level {effort!r}"))
    elif level is not None and level.lower() != effort:
        why = f"{effort} is {level} here"
        notices.append(Notice("effort_lowered", why, "params.reasoning.effort"))
    if reasoning.budget_tokens is not None and (off or level is not None):
        reasons.append(("budget_tokens", "a budget needs thinking that is on, without an effort"))
    if reasoning.mode == "between_tools":
        reasons.append(("mode", "Gemini has no setting for when to think"))
    if reasoning.mode == "enabled" and _thinking_config(reasoning) is None:
        reasons.append(("mode", "without an effort or a budget, Gemini decides"))
    if reasoning.summary is not None:
        reasons.append(("summary", "Gemini has no summary setting"))
    return notices + [_left_out(f"reasoning.{field}", reason) for field, reason in reasons]


def _read_thinking(config: types.ThinkingConfig) -> Reasoning | None:
    level, budget, shown = config.thinkingLevel, config.thinkingBudget, config.includeThoughts
    if level is None and budget is None and shown is None:
        return None
    display: Literal["summarized", "omitted"] | None = None
    if shown is not None:
        display = "summarized" if shown else "omitted"
    if level is not None:
        return Reasoning(effort=level.lower(), display=display)
    if budget is None:
        return Reasoning(display=display)
    if budget in (_OFF, _AUTOMATIC):
        return Reasoning("disabled" if budget == _OFF else "adaptive", display=display)
    return Reasoning("enabled", budget_tokens=budget, display=display)


# ── The table ────────────────────────────────────────────────────────────────────────────────────

_TIERS = ("standard", "flex", "priority")
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_READ_MODES = {mode: ours for ours, mode in _MODES.items()}
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z"), re.compile(r"[a-z0-9_-]{0,63}\Z")


def _function_calling(choice: ToolChoice) -> bytes:
    if choice.name is not None:
        return dumps({"mode": "ANY", "allowedFunctionNames": [choice.name]})
    return dumps({"mode": _MODES[choice.mode]})


def _read_function_calling(config: types.FunctionCallingConfig) -> ToolChoice:
    if config.allowedFunctionNames is not None:
        return ToolChoice("tool", config.allowedFunctionNames[0])
    return ToolChoice(_READ_MODES[config.mode or "AUTO"])  # type: ignore[arg-type]


def _labels(metadata: dict[str, str]) -> bytes | None:
    """The metadata that is valid as labels."""
    labels = {name: value for name, value in metadata.items() if _is_label(name, value)}
    return dumps(labels, path="params.metadata") if labels else None


def _is_label(name: str, value: str) -> bool:
    return bool(_LABEL[0].match(name) and _LABEL[1].match(value))


def _read_schema(raw: msgspec.Raw) -> OutputSchema | None:
    return None if raw == NULL else OutputSchema(bytes(raw).decode())


#: The fields of an output schema: as JSON Schema, and in Gemini's own form.
_JSON_SCHEMA, _OWN_SCHEMA = "responseJsonSchema", "responseSchema"
#: Parameters without a request field, and options of the cache plan.
_NO_FIELD = ("user", "verbosity", "include", "truncation")
_NO_OPTION = ("key", "mode", "retention", "prewarm", "diagnose", "automatic")

TABLE = ParamTable(
    Param(
        "tool_choice",
        "toolConfig.functionCallingConfig",
        encode=_function_calling,
        decode=_read_function_calling,
    ),
    Param("max_tokens", "generationConfig.maxOutputTokens", encode=whole_number, decode=int),
    Param("temperature", "generationConfig.temperature"),
    Param("top_p", "generationConfig.topP"),
    Param("top_k", "generationConfig.topK", decode=int),
    Param("n", "generationConfig.candidateCount", decode=int),
    Param("seed", "generationConfig.seed", decode=int),
    Param("presence_penalty", "generationConfig.presencePenalty"),
    Param("frequency_penalty", "generationConfig.frequencyPenalty"),
    Param("stop", "generationConfig.stopSequences"),
    Param(
        "output",
        "generationConfig.responseMimeType",
        encode=lambda _: b'"application/json"',
        decode=lambda _: "json",
    ),
    Param(
        "output",
        "generationConfig.responseJsonSchema",
        encode=lambda output: None if output == "json" else schema_object(output),
        decode=_read_schema,
    ),
    Param(
        "reasoning",
        "generationConfig.thinkingConfig",
        encode=_thinking_config,
        decode=_read_thinking,
    ),
    Param("metadata", "labels", encode=_labels, decode=lambda labels: labels or None),
    Param(
        "service_tier",
        "serviceTier",
        when=lambda call: call.params.service_tier in _TIERS,
        reason=f"Gemini's tiers are {', '.join(_TIERS)}",
    ),
    Param("store"),
    *(Param(name, None, reason=f"Gemini has no {name}") for name in _NO_FIELD),
    Param("tool_choice.parallel", None, reason="Gemini has no setting for parallel calls"),
    *(Param(f"cache.{name}", None, reason="Gemini has no such option") for name in _NO_OPTION),
    cache_params={},
)


def _left_out(field: str, reason: str) -> Notice:
    return Notice("param_left_out", f"{reason}; left out", f"params.{field}")


# ── The envelope ─────────────────────────────────────────────────────────────────────────────────


def envelope(call: Call, profile: Profile, last: Envelope | None) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed."""
    present = (bool(system_blocks_of(call, profile)), bool(call.tools))

    def make(source: object) -> Envelope:
        if not profile.as_sent:
            check_features(call, TABLE, profile.refuses)
        fields = _fields(call, profile)
        unnamed = profile.as_sent and not call.model  # it is in no path either
        path = "" if unnamed else path_of(call.model, stream=call.params.stream)
        headers = (("content-type", "application/json"),)
        return envelope_of(call.model, fields, path, headers, source, tuple(_notices(call)))

    return MEMO.envelope(call, (call.ir.system_fields_agree(), present, profile), last, make)


def envelope_of(
    model: str,
    fields: dict[str, bytes],
    path: str,
    headers: tuple[tuple[str, str], ...],
    source: object = None,
    notices: tuple[Notice, ...] = (),
) -> Envelope:
    """The envelope with these fields. The tool config comes first."""
    config = fields.pop("toolConfig", b"null")
    if config != b"null":
        fields = {"toolConfig": config, **fields}
    return Envelope(
        source=source,
        path=path,
        headers=headers,
        head=b"{",
        tail=closing_members(fields, None, WIRE, ()) + b"}",
        cache_params=_cache_params(model, fields),
        notices=notices,
    )


def _fields(call: Call, profile: Profile) -> dict[str, bytes]:
    """The parameters, then the extras of this wire."""
    tree: dict[str, Any] = dict(TABLE.encode(call))
    if (original := _original_schema(call)) is not None:
        field, schema = original
        own = {_JSON_SCHEMA: field}
        config = {own.get(name, name): raw for name, raw in tree["generationConfig"].items()}
        tree["generationConfig"] = config | {field: schema}
    fields = joined_fields(tree)
    taken = ["contents", "tools", "model"]
    if system_blocks_of(call, profile):
        taken.append("systemInstruction")
    closing_members(fields, call.extras, WIRE, tuple(taken))
    return fields


def _original_schema(call: Call) -> tuple[str, bytes] | None:
    """The output schema in Gemini's own form and its field, if it was read in it and is
    unchanged."""
    output, form = call.params.output, read_form(call.extras)
    for field in (_OWN_SCHEMA, _JSON_SCHEMA):
        if isinstance(output, OutputSchema) and field in form:
            raw = bytes(form[field])
            same = json_schema(raw, f"extras.{FORM}") == output.schema
            return (field, raw) if same else None
    return None


def _cache_params(model: str, fields: dict[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """The encoded parameters that affect the cache without being part of the prompt, by their names
    in the cache rules."""
    found: list[tuple[str, bytes | msgspec.Raw | None]] = [
        ("model", string(resource(model) if model else "")),
        ("tool_choice", fields.get("toolConfig")),
        ("service_tier", fields.get("serviceTier")),
    ]
    if "generationConfig" in fields:
        config = object_members(fields["generationConfig"], "generationConfig", request_error)
        found.append(("thinking", config.get("thinkingConfig")))
        schemas = ("responseJsonSchema", "responseSchema", "responseFormat")
        sent = next((config[name] for name in schemas if name in config), None)
        found.append(("output_format", sent))
    return tuple((name, bytes(raw)) for name, raw in found if raw is not None and raw != b"null")


def frozen_with(envelope: Envelope) -> bytes:
    """The members of a body that a handle freezes besides chunks: the model and the tool config."""
    return b'"model":' + dict(envelope.cache_params)["model"] + tool_config(envelope)


def tool_config(envelope: Envelope) -> bytes:
    """The tool config as a member of a body, where it is the first after the runs."""
    config = dict(envelope.cache_params).get("tool_choice")
    return b"" if config is None else b',"toolConfig":' + config


def _notices(call: Call) -> list[Notice]:
    params = call.params
    return [
        *_thinking_notices(params.reasoning),
        *common_notices(call, WIRE, OWN),
        *TABLE.notices(call),
        *(
            _left_out(f"metadata.{name}", "labels are short lowercase words")
            for name, value in (params.metadata or {}).items()
            if not _is_label(name, value)
        ),
        *schema_only_notices(params.output),
    ]


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def read_params(
    request: types.GenerateContentRequest, rest: Members, stream: bool
) -> tuple[Params, Extras | None]:
    """The parameters, and as extras the fields without one and the unknown members `rest`."""
    if request.safetySettings != NULL:
        rest["safetySettings"] = request.safetySettings
    if request.cachedContent != NULL:
        rest["cachedContent"] = request.cachedContent
    form: dict[str, str] = {}
    config, tools = request.generationConfig, request.toolConfig
    if config is not None:
        config = _read_output(_read_budget(config, rest), rest, form)
    if tools is not None:
        tools = _read_tool_config(tools, rest)
    if config is not request.generationConfig or tools is not request.toolConfig:
        request = msgspec.structs.replace(request, generationConfig=config, toolConfig=tools)
    params, _ = TABLE.decode(request)
    if stream:
        params = msgspec.structs.replace(params, stream=True)
    extras = extras_of(WIRE, rest) if rest else None
    return params, {**(extras or {}), **form} if form else extras


def _read_budget(config: types.GenerationConfig, rest: Members) -> types.GenerationConfig:
    """A budget beside a level, which Gemini rejects, is kept unchanged in `rest`."""
    thinking = config.thinkingConfig
    if thinking is None or thinking.thinkingBudget is None:
        return config
    place = ("generationConfig", "thinkingConfig")
    if thinking.thinkingLevel is None and "thinkingLevel" not in _kept(rest, *place):
        return config
    _keep(rest, thinking.thinkingBudget, *place, "thinkingBudget")
    thinking = msgspec.structs.replace(thinking, thinkingBudget=None)
    return msgspec.structs.replace(config, thinkingConfig=thinking)


def _read_output(
    config: types.GenerationConfig, rest: Members, form: dict[str, str]
) -> types.GenerationConfig:
    """The output schema as JSON Schema. One in Gemini's own form is added to `form`. Other media
    types have no parameter."""
    if config.responseMimeType is None and config.responseJsonSchema is config.responseSchema:
        return config  # neither is given
    schema, own = bytes(config.responseJsonSchema), bytes(config.responseSchema)
    is_json = config.responseMimeType == "application/json"
    if is_json and schema == own == b"null":
        return config
    if is_json and (schema == b"null") != (own == b"null"):
        if own == b"null" and not has_own_types(schema):
            return config
        field, raw = (_JSON_SCHEMA, schema) if own == b"null" else (_OWN_SCHEMA, own)
        form[FORM] = f'{{"{field}":{raw.decode()}}}'
        read = json_schema(raw, f"$.generationConfig.{field}").encode()
        return msgspec.structs.replace(config, responseJsonSchema=msgspec.Raw(read))
    for name in ("responseMimeType", "responseJsonSchema", "responseSchema"):
        value = getattr(config, name)
        if value is not None and value != NULL:
            _keep(rest, value, "generationConfig", name)
    return msgspec.structs.replace(config, responseMimeType=None, responseJsonSchema=NULL)


def _read_tool_config(config: types.ToolConfig, rest: Members) -> types.ToolConfig | None:
    """The tool config. A list of several functions has no parameter, nor has a mode that checks
    calls without forcing them."""
    calling = config.functionCallingConfig
    if calling is None:
        return None
    place = ("toolConfig", "functionCallingConfig")
    others = _kept(rest, *place)
    names = calling.allowedFunctionNames is not None or "allowedFunctionNames" in others
    if calling.mode is not None and (calling.mode == "ANY" or not names):
        return config
    others |= decode_members(msgspec.json.encode(calling))
    if others:
        _keep(rest, others, *place)
    return None


def _kept(rest: Members, *path: str) -> Members:
    """The members of an object inside `rest`; none if it is missing."""
    for name in path:
        rest = decode_members(rest.get(name, b"{}"))
    return rest


def _keep(rest: Members, value: object, name: str, *path: str) -> None:
    """Sets a value inside `rest`."""
    if path:
        members = _kept(rest, name)
        _keep(members, value, *path)
        value = members
    rest[name] = msgspec.Raw(msgspec.json.encode(value))

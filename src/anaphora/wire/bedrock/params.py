"""The parts of a request other than the prompt: path, parameters, envelope, and markers.

Parameters of a model's own are in `additionalModelRequestFields`, under names that differ by the
family of the model. For a model of an unknown family that object is kept unchanged.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw

from anaphora import catalog
from anaphora.canonical import dumps, string
from anaphora.catalog import Feature, Profile
from anaphora.catalog.values import Family
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice, Ttl
from anaphora.wire.lenient import Unknown
from anaphora.wire.params import (
    check_features,
    closing_members,
    common_notices,
    joined_fields,
)
from anaphora.wire.parts import following, system_blocks_of
from anaphora.wire.reading import (
    Members,
    decode_members,
    encode_members,
    extras_of,
    object_members,
    request_error,
)

from .families import FIELDS, MORE, TABLES, TIERS
from .types import (
    MEMO,
    NULL,
    WIRE,
    CachePoint,
    Choice,
    ConverseRequest,
    InferenceConfig,
    OutputConfig,
    ServiceTier,
    ToolConfig,
)

# ── The path ─────────────────────────────────────────────────────────────────────────────────────

_ONCE, _STREAM = "converse", "converse-stream"
_PATH = re.compile(r"/model/(.+)/(converse|converse-stream)\Z", re.DOTALL)
_UNSAFE = re.compile(rb"[^A-Za-z0-9._~-]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


def quoted_model(model: str) -> str:
    """The model as a step of a path. It may be an ARN with slashes, which are escaped."""
    if not model.strip():
        reason = "Bedrock's path names the model, e.g. us.anthropic.claude-sonnet-5"
        raise InvalidRequest(reason, path="model")
    try:
        name = model.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("no model id", path="model") from None
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], name).decode()


def unquoted(path: str) -> str:
    """A path without its query, with escapes decoded."""
    encoded = path.partition("?")[0].encode()
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), encoded).decode(errors="replace")


def path_of(model: str, *, stream: bool) -> str:
    """The path to send a request to."""
    return f"/model/{quoted_model(model)}/{_STREAM if stream else _ONCE}"


def read_path(path: str) -> tuple[str, bool]:
    """The model in a path, and whether the path requests a stream. An empty path has neither."""
    if not path:
        return "", False
    match = _PATH.search(unquoted(path))
    if match is None:
        reason = "is not /model/…/converse or /model/…/converse-stream: no request of this wire"
        raise InvalidRequest(reason, path="path")
    return match[1], match[2] == _STREAM


def family_of(profile: Profile) -> Family | None:
    return None if profile.converse_family is None else profile.converse_family.value


def takes_blank_text(profile: Profile) -> bool:
    """Whether texts of white space are sent: Claude takes them; of unknown models it is unknown."""
    return family_of(profile) == "claude" or profile.cache_points is None


def refusals_of(profile: Profile) -> frozenset[Feature]:
    """What the model refuses on Converse."""
    if profile.as_sent:
        return frozenset()
    own = profile.converse_refusals
    return frozenset((*profile.refusals.value, *(() if own is None else own.value)))


# ── The envelope ─────────────────────────────────────────────────────────────────────────────────


def envelope(call: Call, profile: Profile, last: Envelope | None, *, tools: bool) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed. `tools`: whether there
    is a run of them."""

    def make(source: object) -> Envelope:
        if not profile.as_sent:
            _check(call, profile)
        table = TABLES[family_of(profile)]
        tree: dict[str, Any] = dict(table.encode(call))
        notices = [*table.notices(call), *common_notices(call, WIRE, (WIRE,))]
        if not tools and tree.pop("toolConfig", None) is not None:
            why = "a tool choice needs tools; left out"
            notices.append(Notice("param_left_out", why, "params.tool_choice"))
        if getattr(call.params.output, "strict", None) is False:
            why = "an output schema is always strict here; left out"
            notices.append(Notice("param_left_out", why, "params.output.strict"))
        fields = joined_fields(tree)
        taken = ("messages", "modelId", *(("system",) if system_blocks_of(call, profile) else ()))
        closing_members(fields, call.extras, WIRE, taken)
        unnamed = profile.as_sent and not call.model  # it is in no path either
        path = "" if unnamed else path_of(call.model, stream=call.params.stream)
        headers = (("content-type", "application/json"),)
        return envelope_of(call.model, fields, path, headers, tools, source, tuple(notices))

    context = (call.ir.system_fields_agree(), bool(system_blocks_of(call, profile)), tools, profile)
    return MEMO.envelope(call, context, last, make)


def envelope_of(
    model: str,
    fields: dict[str, bytes],
    path: str,
    headers: tuple[tuple[str, str], ...],
    tools: bool,
    source: object = None,
    notices: tuple[Notice, ...] = (),
) -> Envelope:
    """The envelope with these fields. With tools, `toolConfig` comes first: their run ends it."""
    cached, head = _cache_params(model, fields), b"{"
    if tools:
        others = object_members(fields.pop("toolConfig", b"{}"), "toolConfig", request_error)
        if "tools" in others:
            raise InvalidRequest("the call already sets this; remove it", path="toolConfig.tools")
        head = b'{"toolConfig":{' + following(others)[1:] + (b"," if others else b"")
    return Envelope(
        source=source,
        path=path,
        headers=headers,
        head=head,
        tail=closing_members(fields, None, WIRE, ()) + b"}",
        cache_params=cached,
        notices=notices,
    )


#: Members of `additionalModelRequestFields`, and their names in the cache rules.
_CACHE_FIELDS = {
    "tool_choice": "tool_choice",
    "thinking": "thinking",
    "reasoning_config": "thinking",
    "reasoning": "effort",
    "reasoning_effort": "effort",
    "output_config": "effort",
    "anthropic_beta": "betas",
}


def _cache_params(model: str, fields: dict[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """The encoded parameters that affect the cache without being part of the prompt, by their names
    in the cache rules."""
    more, output = _object(fields.get(MORE)), _object(fields.get("outputConfig"))
    named = [
        ("tool_choice", fields.get("toolConfig", b"null")),
        *((rule, bytes(more[name])) for name, rule in _CACHE_FIELDS.items() if name in more),
        ("effort", bytes(output.get("effort", NULL))),
        ("output_format", bytes(output.get("textFormat", NULL))),
        ("service_tier", fields.get("serviceTier", b"null")),
    ]
    params = {"model": string(model)}
    for name, raw in named:
        if raw not in (b"null", b"{}"):
            params[name] = params.get(name, b"") + raw
    return tuple(params.items())


def _object(raw: bytes | None) -> Members:
    return decode_members(raw) if raw is not None and raw[:1] == b"{" else {}


def _check(call: Call, profile: Profile) -> None:
    """Raise for parameters that the model is known to answer with a 400."""
    check_features(call, TABLES[family_of(profile)], refusals_of(profile).__contains__)
    if call.params.max_tokens == 0 or call.ir.cache.prewarm:
        reason = "Converse takes no limit of 0, so no call can only write the cache"
        raise InvalidRequest(reason, path="params.max_tokens")


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


class _ParamFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that are parameters."""

    toolConfig: ToolConfig | None
    inferenceConfig: InferenceConfig | None
    additionalModelRequestFields: Any
    outputConfig: OutputConfig | None
    serviceTier: ServiceTier | None
    requestMetadata: dict[str, str] | None


def read_params(
    request: ConverseRequest, config: ToolConfig | None, rest: Members, model: str, stream: bool
) -> tuple[Params, Extras | None]:
    """The parameters, and as extras the fields without one and the unknown members `rest`."""
    family = family_of(catalog.profile(WIRE, model))
    fields, tier = None, request.serviceTier
    raw = request.additionalModelRequestFields
    if raw != NULL:
        kept: Raw | None = raw
        if bytes(raw)[:1] == b"{":
            fields, unknown = FIELDS[family].decode(raw, f"$.{MORE}", request_error)
            kept = _unknown_object(unknown)
        if kept is not None:
            rest[MORE] = kept
    if tier is not None and tier.type not in TIERS:
        rest["serviceTier"], tier = Raw(dumps({"type": tier.type})), None
    if config is not None and config.toolChoice is not None:
        config = _read_config(config, config.toolChoice, rest)
    output = request.outputConfig
    if output is not None and output.textFormat is not None:
        output = _read_output(output, rest)
    sent = _ParamFields(
        toolConfig=config,
        inferenceConfig=request.inferenceConfig,
        additionalModelRequestFields=fields,
        outputConfig=output,
        serviceTier=tier,
        requestMetadata=request.requestMetadata,
    )
    params, _ = TABLES[family].decode(sent)
    if stream:
        params = msgspec.structs.replace(params, stream=True)
    return params, extras_of(WIRE, rest)


def _unknown_object(unknown: Unknown | None) -> Raw | None:
    left = {} if unknown is None else unknown.remaining()
    return Raw(encode_members(left)) if left else None


def _read_config(config: ToolConfig, choice: Choice, rest: Members) -> ToolConfig:
    """The tool choice; one that is not exactly one of the known ones stays as it is."""
    given = [each for each in (choice.auto, choice.any, choice.tool) if each is not None]
    if len(given) == 1 and (choice.tool is not None or given == [{}]):
        return config
    known = _object(bytes(rest.get("toolConfig", b"{}")))
    known["toolChoice"] = Raw(msgspec.json.encode(choice))
    rest["toolConfig"] = Raw(encode_members(known))
    return msgspec.structs.replace(config, toolChoice=None)


def _read_output(output: OutputConfig, rest: Members) -> OutputConfig:
    """The output schema; one that is not JSON stays as it is."""
    assert output.textFormat is not None
    schema = output.textFormat.structure.jsonSchema
    try:
        object_members(schema.schema.encode(), "$", request_error)
    except InvalidRequest:
        known = _object(bytes(rest.get("outputConfig", b"{}")))
        known["textFormat"] = Raw(msgspec.json.encode(output.textFormat))
        rest["outputConfig"] = Raw(encode_members(known))
        return msgspec.structs.replace(output, textFormat=None)
    return output


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────

MARKERS: dict[Ttl, bytes] = {
    "1h": b',{"cachePoint":{"type":"default","ttl":"1h"}}',
    "5m": b',{"cachePoint":{"type":"default"}}',
}


def places_of(profile: Profile) -> frozenset[str] | None:
    """Where the model takes markers; None if that is not known."""
    return None if profile.cache_points is None else frozenset(profile.cache_points.value)


def markers_of(profile: Profile) -> dict[Ttl, bytes]:
    """The markers of a model, by TTL."""
    if profile.cache_points is None:
        return MARKERS
    if not profile.cache_points.value:
        return {}
    ttls = profile.cache_point_ttls
    return {ttl: raw for ttl, raw in MARKERS.items() if ttls is None or ttl in ttls.value}


def read_marker(point: CachePoint, unknown: Unknown | None) -> tuple[Ttl, Extras | None] | None:
    """The TTL of a marker, and its unknown members; None if it is of another kind."""
    if point.type not in (None, "default") or point.ttl not in (None, "5m", "1h"):
        return None
    inner = unknown.take("cachePoint") if unknown is not None else None
    return "1h" if point.ttl == "1h" else "5m", inner.extras(WIRE) if inner is not None else None

"""Anthropic's parameters as a table, the envelope around the prompt, and its cache markers: their
bytes, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice, Ttl
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.markers import with_members
from anaphora.wire.params import (
    Param,
    ParamTable,
    check_features,
    closing_members,
    common_notices,
    comparison_id,
    encode_only,
    joined_fields,
    schema_object,
    schema_only_notices,
    whole_number,
)
from anaphora.wire.reading import ErrorFactory, Members

from .types import WIRE, CacheControl, ContentBlock, MessagesRequest, OutputFormat, ToolDefinition

PATH = "/v1/messages"
TIERS = ("auto", "standard_only")

#: Key in the extras of a call: unknown members of the request's own marker.
AUTOMATIC_FIELDS = f"{WIRE}.cache_control"

_TAKEN = ("model", "max_tokens", "tools", "system", "messages")
_CHOICES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}
_MODES = {choice: mode for mode, choice in _CHOICES.items()}


def _has_mode(call: Call) -> bool:
    return call.params.reasoning is not None and call.params.reasoning.mode is not None


def _has_tools(call: Call) -> bool:
    return call.params.tool_choice is not None and call.params.tool_choice.mode != "none"


def _schema(output: OutputFormat) -> OutputSchema:
    return OutputSchema(bytes(output.schema).decode())


PARAMS = ParamTable(
    Param("max_tokens", when=lambda _: False),  # sent in the envelope's head
    Param("tool_choice.mode", "tool_choice.type", lambda m: string(_CHOICES[m]), _MODES.get),
    Param("tool_choice.name", "tool_choice.name"),
    Param(
        "tool_choice.parallel",
        "tool_choice.disable_parallel_tool_use",
        encode=lambda parallel: dumps(not parallel),
        decode=lambda disabled: not disabled,
        when=_has_tools,
        reason="the call has no tools",
    ),
    Param("reasoning.mode", "thinking.type"),
    Param(
        "reasoning.budget_tokens",
        "thinking.budget_tokens",
        when=_has_mode,
        reason="a budget needs a reasoning mode",
    ),
    Param(
        "reasoning.display",
        "thinking.display",
        when=_has_mode,
        reason="a display needs a reasoning mode",
    ),
    Param("reasoning.summary", None, reason="Anthropic has no summary setting"),
    Param("reasoning.effort", "output_config.effort"),
    Param("output", "output_format", decode=_schema, when=lambda _: False),
    Param(
        "output",
        "output_config.format",
        encode=lambda output: b'{"type":"json_schema","schema":' + schema_object(output) + b"}",
        decode=_schema,
        when=lambda call: call.params.output != "json",
        reason="Anthropic has no JSON mode; give a schema",
    ),
    Param("stop", "stop_sequences", decode=lambda stop: tuple(stop) or None),
    Param("temperature"),
    Param("top_p"),
    Param("top_k"),
    Param(
        "metadata",
        "metadata.user_id",
        encode=lambda metadata: dumps(metadata["user_id"], path="params.metadata"),
        decode=encode_only,
        when=lambda call: "user_id" in (call.params.metadata or {}),
    ),
    Param("user", "metadata.user_id"),
    Param(
        "service_tier",
        when=lambda call: call.params.service_tier in TIERS,
        reason=f"Anthropic's tiers are {' and '.join(TIERS)}",
    ),
    Param("stream", when=lambda call: call.params.stream),
    *(
        Param(name, None, reason=f"Anthropic has no {name}")
        for name in (
            "seed n frequency_penalty presence_penalty verbosity store include truncation".split()
        )
    ),
    *(
        Param(f"cache.{name}", None, reason="Anthropic has no such option")
        for name in ("key", "mode", "retention")
    ),
    cache_params={
        "tool_choice": "tool_choice",
        "thinking": "thinking",
        "speed": "speed",
        "effort": "output_config.effort",
        "output_format": "output_config.format output_format",
    },
)


def envelope_of(call: Call, profile: Profile, source: object, own: bool = True) -> Envelope:
    """The request without the runs. `own`: the provider places automatic breakpoints."""
    if not profile.as_sent:
        _check(call, profile)
    limit = 0 if call.ir.cache.prewarm else call.params.max_tokens
    if limit is None and not profile.as_sent:
        raise InvalidRequest(
            "Anthropic requires the maximum number of tokens of the reply, e.g. 4096",
            path="params.max_tokens",
        )
    tree = PARAMS.encode(call)
    fields = joined_fields(tree)
    if call.ir.cache.diagnose:
        earlier = comparison_id(call, (WIRE,))
        compared = b"null" if earlier is None else string(earlier)
        fields["diagnostics"] = b'{"previous_message_id":' + compared + b"}"
    if profile.as_sent and not own and (automatic := call.ir.cache.automatic) is not None:
        name, _, marker = request_markers(call, MARKERS)[automatic][1:].partition(b":")
        fields[name.decode().strip('"')] = marker
    head = b'{"model":%b,' % string(call.model)
    if limit is not None:
        head += b'"max_tokens":%b,' % whole_number(limit)
    tail = closing_members(fields, call.extras, WIRE, _TAKEN) + b"}"
    cache_params = PARAMS.cache_params(string(call.model), tree)
    if profile.as_sent:
        cache_params = PARAMS.sent_cache_params(b'{"model":' + string(call.model) + tail)
    version = profile.api_version
    return Envelope(
        source=source,
        path=PATH,
        headers=(
            ("content-type", "application/json"),
            *((("anthropic-version", version.value),) if version is not None else ()),
        ),
        head=head,
        tail=tail,
        cache_params=cache_params,
        notices=tuple(notices(call)),
        binds_thinking=profile.as_sent or profile.refuses("unbound_thinking"),
    )


def _check(call: Call, profile: Profile) -> None:
    """Raise for parameters that the provider would answer with a 400."""
    check_features(call, PARAMS, profile.refuses)
    reasoning = call.params.reasoning
    if (
        reasoning is not None
        and reasoning.mode == "enabled"
        and (reasoning.budget_tokens or 0) < 1024
    ):
        raise InvalidRequest(
            "thinking with a budget needs one of at least 1024 tokens",
            path="params.reasoning.budget_tokens",
        )


def notices(call: Call) -> list[Notice]:
    """Notices for parameters of the call that Anthropic has no field for."""
    found = []
    if call.params.metadata and set(call.params.metadata) != {"user_id"}:
        reason = "Anthropic's metadata is a user_id and nothing else; left out"
        found.append(Notice("param_left_out", reason, "params.metadata"))
    found += schema_only_notices(call.params.output) + PARAMS.notices(call)
    return found + common_notices(call, WIRE, (WIRE,))


# ── Markers ───────────────────────────────────────────────────────────────────────────────────────

MARKERS: dict[Ttl, bytes] = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}

#: The TTL used for each requested one: long enough, if there is one.
NEAREST: dict[Ttl, Ttl] = {"5m": "5m", "30m": "1h", "1h": "1h", "12h": "1h", "24h": "1h"}


def request_markers(call: Call, markers: Mapping[Ttl, bytes]) -> Mapping[Ttl, bytes]:
    """The bytes that request an automatic breakpoint, with the unknown members that the call's own
    has."""
    members = "" if call.extras is None else call.extras.get(AUTOMATIC_FIELDS, "")
    if not members:
        return markers
    return {ttl: with_members(raw, members.strip()[1:-1].encode()) for ttl, raw in markers.items()}


_CACHE_CONTROL = LenientDecoder[CacheControl | None](CacheControl | None)


def marker_of(
    holder: ContentBlock | ToolDefinition | MessagesRequest,
    unknown: Unknown | None,
    path: str,
    fail: ErrorFactory,
) -> tuple[Ttl, Extras | None] | None:
    """The TTL of an object's marker, and the marker's unknown members."""
    if holder.cache_control is None:
        return None
    inner = unknown.take("cache_control") if unknown is not None else None
    return _read(holder.cache_control, inner, f"{path}.cache_control", fail)


def take_marker(
    members: Members, path: str, fail: ErrorFactory
) -> tuple[Ttl, Extras | None] | None:
    """`marker_of` for an object that is not decoded; removes the marker from its members."""
    raw = members.pop("cache_control", None)
    return None if raw is None else read_marker(raw, path, fail)


def read_marker(raw: Raw, path: str, fail: ErrorFactory) -> tuple[Ttl, Extras | None] | None:
    """`marker_of` for a marker that was removed from the object at that path."""
    path = f"{path}.cache_control"
    marker, unknown = _CACHE_CONTROL.decode(raw, path, fail)
    return None if marker is None else _read(marker, unknown, path, fail)


def _read(
    marker: CacheControl, unknown: Unknown | None, path: str, fail: ErrorFactory
) -> tuple[Ttl, Extras | None]:
    extras = unknown.extras(WIRE) if unknown is not None else None
    if marker.type != "ephemeral":
        raise fail(f"{marker.type!r} is not a kind of marker; use ephemeral", f"{path}.type")
    if marker.ttl in (None, "5m"):
        return "5m", extras
    if marker.ttl == "1h":
        return "1h", extras
    raise fail(f"{marker.ttl!r} is not a TTL; use 5m or 1h", f"{path}.ttl")

"""The parameters and breakpoints of Chat Completions, and the envelope around the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.prompt import Call, OutputFormat, OutputSchema, Params
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice, Ttl
from anaphora.wire.lenient import Unknown
from anaphora.wire.markers import nearest_ttls
from anaphora.wire.marks import NEAREST, option_notices
from anaphora.wire.openai import (
    SystemRoles,
    decode_params,
    profile_value,
    schema_members,
    skip,
    system_roles,
    tool_choice_params,
)
from anaphora.wire.params import (
    Param,
    ParamTable,
    check_features,
    closing_members,
    continuation_notices,
    encode_only,
    foreign_tier_notices,
    joined_fields,
    system_text_notices,
    whole_number,
)
from anaphora.wire.parts import foreign_extras
from anaphora.wire.reading import Members, decode_members, encode_members, extras_of, request_error

from .types import (
    MARKERS,
    MEMO,
    NULL,
    OLD_LIMIT,
    PATH,
    USAGE_KEY,
    WIRE,
    ChatRequest,
    JsonFormat,
    SchemaFormat,
    has_form,
)

_SENT_APART = ("model", "messages", "tools")

#: The TTL of `prompt_cache_options` for each that may be requested.
REQUEST_TTL: dict[Ttl, Ttl] = dict.fromkeys(NEAREST, "30m")


class Traits(msgspec.Struct, frozen=True):
    """How a model's profile and its provider's dialect change requests."""

    max_tokens_field: str
    """max_completion_tokens or max_tokens."""
    system_roles: SystemRoles
    breakpoints: bool
    """Parts may be marked."""
    options: bool
    """Takes OpenAI's `prompt_cache_options`, and OpenAI sets a breakpoint by itself."""
    markers: Mapping[Ttl, bytes]
    nearest: Mapping[Ttl, Ttl]
    reasoning_field: str | None
    """The field for reasoning; None: its original one."""
    host: str
    """The provider: reasoning is sent back only to the host that sent it."""
    reasoning_needed: bool
    """Rejects an assistant message with tool calls and without reasoning."""
    only_strings: bool
    """Takes no lists of texts."""
    as_sent: bool = False
    """Messages stay as another program wrote them."""


def traits_of(profile: Profile, markers: Mapping[Ttl, bytes] | None = None) -> Traits:
    """`markers` are the dialect's, if they differ from OpenAI's; empty: it has none."""
    own = markers is None
    breakpoints = profile_value(profile, "explicit_breakpoints", False) if own else bool(markers)
    as_sent = profile.as_sent
    return Traits(
        max_tokens_field=profile_value(profile, "max_tokens_field", "max_completion_tokens"),
        system_roles=system_roles(profile),
        breakpoints=breakpoints,
        options=own and breakpoints,
        markers=(MARKERS if markers is None else markers) if breakpoints else {},
        nearest=NEAREST if not markers else nearest_ttls(markers),
        reasoning_field=None if as_sent else profile_value(profile, "reasoning_field", None),
        host=profile.provider,
        reasoning_needed=not as_sent and profile_value(profile, "reasoning_needed", False),
        only_strings=not as_sent and profile_value(profile, "only_strings", False),
        as_sent=as_sent,
    )


def _encode_output(output: OutputFormat) -> bytes:
    if output == "json":
        return b'{"type":"json_object"}'
    return b'{"type":"json_schema","json_schema":{' + schema_members(output) + b"}}"


def _decode_output(form: SchemaFormat | JsonFormat) -> OutputFormat:
    if isinstance(form, JsonFormat):
        return "json"
    inner = form.json_schema
    return OutputSchema(bytes(inner.schema).decode(), inner.name, inner.description, inner.strict)


def _decode_stop(stop: str | list[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


#: In the order of the request's fields.
PARAMS = ParamTable(
    Param("max_tokens", "max_tokens", encode=skip),
    Param("max_tokens", "max_completion_tokens", encode=whole_number),
    *tool_choice_params(
        b'{"type":"function","function":{"name":', b"}}", lambda forced: forced.function.name
    ),
    Param("reasoning.effort", "reasoning_effort"),
    Param("verbosity"),
    Param("output", "response_format", encode=_encode_output, decode=_decode_output),
    Param("service_tier", when=lambda call: not foreign_tier_notices(call)),
    Param("cache.key", "prompt_cache_key"),
    Param("temperature"),
    Param("top_p"),
    Param("n"),
    Param("seed"),
    Param("frequency_penalty"),
    Param("presence_penalty"),
    Param("store"),
    Param("stop", decode=_decode_stop),
    Param("metadata"),
    Param("user"),
    Param("cache.mode", "prompt_cache_options.mode"),
    Param(
        "cache.automatic", "prompt_cache_options.ttl", encode=lambda ttl: string(REQUEST_TTL[ttl])
    ),
    Param("cache.retention", "prompt_cache_retention"),
    Param("stream", encode=lambda stream: b"true" if stream else None),
    # Usage is reported only on request.
    Param(
        "stream",
        "stream_options",
        encode=lambda stream: b'{"include_usage":true}' if stream else None,
        decode=encode_only,
    ),
    *(
        Param(name, None, reason=f"Chat Completions has no {name}")
        for name in ("top_k", "include", "truncation")
    ),
    *(
        Param(f"reasoning.{name}", None, reason=f"Chat Completions has an effort and no {name}")
        for name in ("mode", "budget_tokens", "display", "summary")
    ),
    *(
        Param(f"cache.{name}", None, reason="there is no such option here")
        for name in ("prewarm", "diagnose", "compare_with")
    ),
    cache_params={
        "tool_choice": "tool_choice",
        "parallel_tools": "parallel_tool_calls",
        "effort": "reasoning_effort",
        "verbosity": "verbosity",
        "output_format": "response_format",
        "service_tier": "service_tier",
        "cache_key": "prompt_cache_key",
    },
)


def envelope(call: Call, profile: Profile, traits: Traits, last: Envelope | None) -> Envelope:
    """Everything but the runs; the last turn's if nothing in it changed."""
    context = (traits, call.ir.system_fields_agree(), profile)
    return MEMO.envelope(call, context, last, partial(_envelope, call, profile, traits))


def _envelope(call: Call, profile: Profile, traits: Traits, source: object) -> Envelope:
    model = string(call.model)
    if not traits.as_sent:
        check_features(call, PARAMS, profile.refuses)
    tree = PARAMS.encode(call)
    if not traits.options and not traits.as_sent:
        tree.pop("prompt_cache_options", None)
    cache_params = PARAMS.cache_params(model, tree)
    if traits.as_sent and USAGE_KEY in (call.extras or {}):
        tree.pop("stream_options")
    fields = joined_fields(tree)
    limit = fields.pop("max_completion_tokens", None)
    if limit is not None:
        name = traits.max_tokens_field
        if traits.as_sent:
            old = has_form(call.extras, OLD_LIMIT)
            name = "max_tokens" if old else "max_completion_tokens"
        fields = {name: limit, **fields}
    tail = closing_members(fields, call.extras, WIRE, _SENT_APART) + b"}"
    if traits.as_sent:
        cache_params = PARAMS.sent_cache_params(b'{"model":' + model + tail)
    return Envelope(
        source=source,
        path=PATH,
        headers=(("content-type", "application/json"),),
        head=b'{"model":' + model + b",",
        tail=tail,
        cache_params=cache_params,
        notices=tuple(_notices(call, traits)),
    )


def _notices(call: Call, traits: Traits) -> list[Notice]:
    """Notices for parameters of the call that Chat Completions has no field for."""
    options = ("mode", "automatic")
    return [
        *system_text_notices(call),
        *continuation_notices(call),
        *foreign_extras(call.extras, WIRE, "extras"),
        *foreign_tier_notices(call),
        *PARAMS.notices(call),
        *option_notices(call, options, REQUEST_TTL, explicit=traits.options or traits.as_sent),
    ]


def read_params(
    request: ChatRequest, unknown: Unknown | None
) -> tuple[Params, dict[str, Any], Extras | None]:
    """The parameters of a request, its cache options, and its unknown fields."""
    extras: Members = unknown.remaining() if unknown is not None else {}
    if request.stream_options is not NULL and (rest := _stream_options(request)) is not None:
        extras["stream_options"] = rest
    one, two = request.max_completion_tokens, request.max_tokens
    if two not in (None, two if one is None else one):
        raise request_error("differs from max_completion_tokens", "$.max_tokens")
    params, cache = decode_params(PARAMS, request, extras)
    kept = extras_of(WIRE, extras)
    if one is None and two is not None:
        kept = OLD_LIMIT if kept is None else {**kept, **OLD_LIMIT}
    if request.stream and not _asks_for_usage(request):
        kept = {**(kept or {}), USAGE_KEY: "false"}
    return params, cache, kept


def _asks_for_usage(request: ChatRequest) -> bool:
    raw = bytes(request.stream_options)
    return raw[:1] == b"{" and bytes(decode_members(raw).get("include_usage", b"")) == b"true"


def _stream_options(request: ChatRequest) -> msgspec.Raw | None:
    """The stream options that are not implied by `stream`."""
    raw = request.stream_options
    if bytes(raw) == b"null":
        return None
    if not request.stream or bytes(raw)[:1] != b"{":
        return raw
    members = decode_members(raw)
    rest = {
        name: value
        for name, value in members.items()
        if bytes(value) != b"null"
        and not (name == "include_usage" and bytes(value) in (b"true", b"false"))
    }
    return msgspec.Raw(encode_members(rest)) if rest else None

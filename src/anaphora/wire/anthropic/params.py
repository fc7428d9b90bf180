"""Anthropic's parameters as a table, and the envelope around the prompt."""

from __future__ import annotations

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema
from anaphora.rendered import Envelope
from anaphora.values import Notice
from anaphora.wire.markers import marker_field_notices
from anaphora.wire.params import (
    FORCED_TOOLS,
    Param,
    ParamTable,
    check_refused,
    check_tool_choice,
    closing_members,
    common_notices,
    comparison_id,
    encode_only,
    forces_tools,
    joined_fields,
    schema_object,
    schema_only_notices,
    whole_number,
)

from .types import WIRE

PATH = "/v1/messages"
TIERS = ("auto", "standard_only")

#: In the extras of a call: unknown members of the request's own marker.
AUTOMATIC_FIELDS = f"{WIRE}.cache_control"

_TAKEN = ("model", "max_tokens", "tools", "system", "messages")
_CHOICES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}
_MODES = {choice: mode for mode, choice in _CHOICES.items()}


def _has_mode(call: Call) -> bool:
    return call.params.reasoning is not None and call.params.reasoning.mode is not None


def _has_tools(call: Call) -> bool:
    return call.params.tool_choice is not None and call.params.tool_choice.mode != "none"


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
        reason="no tools, nothing parallel",
    ),
    Param("reasoning.mode", "thinking.type"),
    Param(
        "reasoning.budget_tokens",
        "thinking.budget_tokens",
        when=_has_mode,
        reason="a budget belongs to a mode",
    ),
    Param(
        "reasoning.display",
        "thinking.display",
        when=_has_mode,
        reason="a display belongs to a mode",
    ),
    Param("reasoning.summary", None, reason="Anthropic has no summary setting"),
    Param("reasoning.effort", "output_config.effort"),
    Param(
        "output",
        "output_config.format",
        encode=lambda output: b'{"type":"json_schema","schema":' + schema_object(output) + b"}",
        decode=lambda output: OutputSchema(bytes(output.schema).decode()),
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
        "output_format": "output_config.format",
    },
)


def envelope_of(call: Call, profile: Profile, source: object) -> Envelope:
    """The request without the runs."""
    _check(call, profile)
    limit = 0 if call.ir.cache.prewarm else call.params.max_tokens
    if limit is None:
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
    version = profile.api_version
    return Envelope(
        source=source,
        path=PATH,
        headers=(
            ("content-type", "application/json"),
            *((("anthropic-version", version.value),) if version is not None else ()),
        ),
        head=b'{"model":%b,"max_tokens":%b,' % (string(call.model), whole_number(limit)),
        tail=closing_members(fields, call.extras, WIRE, _TAKEN) + b"}",
        cache_params=PARAMS.cache_params(string(call.model), tree),
        notices=tuple(notices(call)),
        binds_thinking=profile.refuses("unbound_thinking"),
    )


def _check(call: Call, profile: Profile) -> None:
    """Raises for what the provider would answer with a 400, with the field and the reason."""
    params, reasoning = call.params, call.params.reasoning
    mode = reasoning.mode if reasoning is not None else None
    forced = forces_tools(params)
    check_refused(
        call,
        profile,
        (
            (forced, "forced_tools", "tool_choice", FORCED_TOOLS),
            (mode == "disabled", "disabled_thinking", "reasoning.mode", "thinking turned off"),
            (mode == "enabled", "budgeted_thinking", "reasoning.mode", "thinking with a budget"),
            (params.temperature is not None, "sampling", "temperature", "sampling parameters"),
            (params.top_p is not None, "sampling", "top_p", "sampling parameters"),
            (params.top_k is not None, "sampling", "top_k", "sampling parameters"),
        ),
    )
    if params.tool_choice is not None:
        check_tool_choice(params.tool_choice)
    if mode == "enabled" and reasoning is not None and (reasoning.budget_tokens or 0) < 1024:
        raise InvalidRequest(
            "thinking with a budget needs one of at least 1024 tokens",
            path="params.reasoning.budget_tokens",
        )
    if call.ir.cache.prewarm or params.max_tokens == 0:
        for wanted, field in (
            (params.stream, "stream"),
            (mode == "enabled", "reasoning.mode"),
            (params.output is not None, "output"),
            (forced, "tool_choice"),
        ):
            if wanted:
                raise InvalidRequest("a pre-warm call takes none", path=f"params.{field}")


def notices(call: Call) -> list[Notice]:
    """What the call sets and Anthropic has no field for."""
    found = []
    if call.extras is not None and AUTOMATIC_FIELDS in call.extras:
        fields = {AUTOMATIC_FIELDS: call.extras[AUTOMATIC_FIELDS]}
        found += marker_field_notices(fields, "cache.automatic")
    if call.params.metadata and set(call.params.metadata) != {"user_id"}:
        reason = "Anthropic's metadata is a user_id and nothing else; left out"
        found.append(Notice("param_left_out", reason, "params.metadata"))
    found += schema_only_notices(call.params.output) + PARAMS.notices(call)
    return found + common_notices(call, WIRE, (WIRE,))

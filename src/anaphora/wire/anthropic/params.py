"""The request without its prompt: the envelope around the runs, and the cache parameters."""

from __future__ import annotations

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Feature, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, Reasoning, ToolChoice
from anaphora.rendered import Envelope
from anaphora.values import Notice
from anaphora.wire.enveloping import Envelopes
from anaphora.wire.markers import marker_field_notices
from anaphora.wire.params import (
    closing_members,
    comparison_id,
    continuation_notices,
    foreign_comparison_notices,
    foreign_field_notices,
    params_key,
    schema_only_notices,
)

from .blocks import WIRE

TIERS = ("auto", "standard_only")
_NO_PLACE = (
    "seed",
    "n",
    "frequency_penalty",
    "presence_penalty",
    "verbosity",
    "store",
    "include",
    "truncation",
)
_TAKEN = ("model", "max_tokens", "tools", "system", "messages")
_CHOICES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}


_envelopes = Envelopes()


def envelope(call: Call, profile: Profile, last: Envelope | None) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed."""
    agree = call.ir.system_fields_agree()
    source = (call.model, params_key(call), agree, profile)
    if (known := _envelopes.find(call, source, last)) is not None:
        return known
    refuse(call, profile)
    turned = cache_params(call)
    made = Envelope(
        source=source,
        path="/v1/messages",
        headers=headers(profile),
        head=head(call),
        tail=tail(call, turned),
        cache_params=turned,
        notices=(
            *notices(call),
            *continuation_notices(call),
            *foreign_field_notices(call, WIRE),
        ),
    )
    return _envelopes.keep(call, made)


def refuse(call: Call, profile: Profile) -> None:
    """Says no to what the provider would answer with a 400, with the field and the reason."""
    params, reasoning = call.params, call.params.reasoning
    choice = params.tool_choice.mode if params.tool_choice is not None else "auto"
    mode = reasoning.mode if reasoning is not None else None
    asked: tuple[tuple[bool, Feature, str, str], ...] = (
        (choice in ("required", "tool"), "forced_tools", "tool_choice", "a forced tool choice"),
        (mode == "disabled", "disabled_thinking", "reasoning.mode", "thinking turned off"),
        (mode == "enabled", "budgeted_thinking", "reasoning.mode", "thinking with a budget"),
        (params.temperature is not None, "sampling", "temperature", "sampling parameters"),
        (params.top_p is not None, "sampling", "top_p", "sampling parameters"),
        (params.top_k is not None, "sampling", "top_k", "sampling parameters"),
    )
    for wanted, feature, field, what in asked:
        if wanted and profile.refuses(feature):
            raise InvalidRequest(f"{call.model} refuses {what}", path=f"params.{field}")
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
            (choice in ("required", "tool"), "tool_choice"),
        ):
            if wanted:
                raise InvalidRequest("a pre-warm call takes none", path=f"params.{field}")


def headers(profile: Profile) -> tuple[tuple[str, str], ...]:
    """What every request carries; the key is the client's to add."""
    version = profile.api_version
    versioned = (("anthropic-version", version.value),) if version is not None else ()
    return (("content-type", "application/json"), *versioned)


def head(call: Call) -> bytes:
    """The body up to the first run."""
    limit = 0 if call.ir.cache.prewarm else call.params.max_tokens
    if limit is None:
        raise InvalidRequest(
            "Anthropic needs the most tokens an answer may have, e.g. 4096",
            path="params.max_tokens",
        )
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidRequest(
            f"must be a whole number, 0 or more, not {limit!r}", path="params.max_tokens"
        )
    return b'{"model":' + string(call.model) + b',"max_tokens":%d,' % limit


def cache_params(call: Call) -> tuple[tuple[str, bytes], ...]:
    """The parameters that affect the cache without being part of the prompt, as they are sent;
    named as the cache rules name them."""
    found = [("model", string(call.model))]
    params = call.params
    if params.tool_choice is not None:
        found.append(("tool_choice", _tool_choice(params.tool_choice)))
    if (reasoning := params.reasoning) is not None:
        if reasoning.mode is not None:
            found.append(("thinking", _thinking(reasoning)))
        if reasoning.effort is not None:
            found.append(("effort", string(reasoning.effort)))
    if params.output is not None:
        schema = check_object(params.output.schema, path="params.output.schema").encode()
        found.append(("output_format", b'{"type":"json_schema","schema":' + schema + b"}"))
    return tuple(found)


def tail(call: Call, cache_params: tuple[tuple[str, bytes], ...]) -> bytes:
    """The body after the last run."""
    params, turned = call.params, dict(cache_params)
    fields: dict[str, bytes] = {}
    for name in ("tool_choice", "thinking"):
        if name in turned:
            fields[name] = turned[name]
    output = [
        b'"%b":%b' % (name, turned[param])
        for param, name in (("effort", b"effort"), ("output_format", b"format"))
        if param in turned
    ]
    if output:
        fields["output_config"] = b"{" + b",".join(output) + b"}"
    if params.stop:
        fields["stop_sequences"] = dumps(params.stop, path="params.stop")
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(params, name)) is not None:
            fields[name] = dumps(value, path=f"params.{name}")
    if metadata := _metadata(params):
        fields["metadata"] = dumps(metadata, path="params.metadata")
    if params.service_tier in TIERS:
        fields["service_tier"] = string(params.service_tier)
    if params.stream:
        fields["stream"] = b"true"
    if call.ir.cache.diagnose:
        earlier = comparison_id(call, (WIRE,))
        compared = b"null" if earlier is None else string(earlier)
        fields["diagnostics"] = b'{"previous_message_id":' + compared + b"}"
    return closing_members(fields, call.extras, WIRE, _TAKEN) + b"}"


#: Beside the extras of a call: fields of the request's own marker that have no name here.
AUTOMATIC_FIELDS = f"{WIRE}.cache_control"


def notices(call: Call) -> list[Notice]:
    """What was asked for and Anthropic has no place for."""
    told = []
    if call.extras is not None and AUTOMATIC_FIELDS in call.extras:
        fields = {AUTOMATIC_FIELDS: call.extras[AUTOMATIC_FIELDS]}
        told += marker_field_notices(fields, "cache.automatic")
    params, reasoning, choice = call.params, call.params.reasoning, call.params.tool_choice
    if not call.ir.system_fields_agree():
        told.append(
            Notice(
                "system_blocks_sent",
                "system_text is not the system blocks joined by a blank line; the blocks are sent",
                "system",
            )
        )
    if params.service_tier is not None and params.service_tier not in TIERS:
        told.append(_left_out("service_tier", f"Anthropic's tiers are {' and '.join(TIERS)}"))
    if params.metadata and set(params.metadata) != {"user_id"}:
        told.append(_left_out("metadata", "Anthropic's metadata is a user_id and nothing else"))
    if (
        reasoning is not None
        and reasoning.mode is None
        and (reasoning.budget_tokens is not None or reasoning.display is not None)
    ):
        told.append(_left_out("reasoning", "a budget or display belongs to a mode"))
    if reasoning is not None and reasoning.summary is not None:
        told.append(_left_out("reasoning.summary", "Anthropic has no summary setting"))
    if choice is not None and choice.mode == "none" and choice.parallel is not None:
        told.append(_left_out("tool_choice.parallel", "no tools, nothing parallel"))
    told += schema_only_notices(params.output)
    told += [
        _left_out(name, f"Anthropic has no {name}")
        for name in _NO_PLACE
        if getattr(params, name) not in (None, ())
    ]
    told += [
        Notice("cache_option_left_out", "Anthropic has no such option; left out", f"cache.{name}")
        for name in ("key", "mode", "retention")
        if getattr(call.ir.cache, name) is not None
    ]
    return told + foreign_comparison_notices(call, (WIRE,))


def _left_out(field: str, why: str) -> Notice:
    return Notice("param_left_out", f"{why}; left out", f"params.{field}")


def _thinking(reasoning: Reasoning) -> bytes:
    said: dict[str, object] = {"type": reasoning.mode}
    if reasoning.budget_tokens is not None:
        said["budget_tokens"] = reasoning.budget_tokens
    if reasoning.display is not None:
        said["display"] = reasoning.display
    return dumps(said, path="params.reasoning")


def _tool_choice(choice: ToolChoice) -> bytes:
    if (choice.mode == "tool") != (choice.name is not None):
        raise InvalidRequest(
            "mode 'tool' needs the tool's name, and only that mode takes one",
            path="params.tool_choice.name",
        )
    said: dict[str, object] = {"type": _CHOICES[choice.mode]}
    if choice.name is not None:
        said["name"] = choice.name
    if choice.parallel is not None and choice.mode != "none":
        said["disable_parallel_tool_use"] = not choice.parallel
    return dumps(said, path="params.tool_choice")


def _metadata(params: Params) -> dict[str, str]:
    user = params.user if params.user is not None else (params.metadata or {}).get("user_id")
    return {} if user is None else {"user_id": user}

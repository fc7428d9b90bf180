"""The request without its prompt: the envelope around the runs, and the cache parameters."""

from __future__ import annotations

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Feature, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, PromptCachePlan, ToolChoice
from anaphora.rendered import Envelope
from anaphora.values import Notice
from anaphora.wire.enveloping import Envelopes
from anaphora.wire.markers import supported_ttl
from anaphora.wire.params import (
    closing_members,
    continuation_notices,
    foreign_field_notices,
    foreign_tier_notices,
    params_key,
)

from .facts import REQUEST_TTL, Facts
from .parts import WIRE

PATH = "/v1/chat/completions"

#: Parameters that go by the same name and in the same form.
_PLAIN = ("temperature", "top_p", "n", "seed", "frequency_penalty", "presence_penalty", "store")
_TAKEN = ("model", "messages", "tools")
_NO_PLACE = ("top_k", "include", "truncation")

Knobs = tuple[tuple[str, bytes], ...]


_envelopes = Envelopes()


def envelope(call: Call, profile: Profile, facts: Facts, last: Envelope | None) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed."""
    ir = call.ir
    source = (facts, call.model, params_key(call), ir.system_fields_agree(), profile)
    if (known := _envelopes.find(call, source, last)) is not None:
        return known
    refuse(call, profile)
    turned = cache_params(call)
    made = Envelope(
        source=source,
        path=PATH,
        headers=(("content-type", "application/json"),),
        head=b'{"model":' + string(call.model) + b",",
        tail=tail(call, facts, turned),
        cache_params=turned,
        notices=tuple(notices(call, facts)),
    )
    return _envelopes.keep(call, made)


def refuse(call: Call, profile: Profile) -> None:
    """Says no to what the provider would answer with a 400, with the field and the reason."""
    params = call.params
    choice = params.tool_choice.mode if params.tool_choice is not None else "auto"
    sampling = [(name, getattr(params, name)) for name in ("temperature", "top_p")]
    asked: tuple[tuple[bool, Feature, str, str], ...] = (
        (choice in ("required", "tool"), "forced_tools", "tool_choice", "a forced tool choice"),
        *((value is not None, "sampling", name, f"a {name}") for name, value in sampling),
        *(
            (value not in (None, 1), "altered_sampling", name, f"any {name} but 1")
            for name, value in sampling
        ),
        (bool(params.stop), "stop", "stop", "stop sequences"),
    )
    for wanted, feature, field, what in asked:
        if wanted and profile.refuses(feature):
            raise InvalidRequest(f"{call.model} refuses {what}", path=f"params.{field}")


def cache_params(call: Call) -> Knobs:
    """The parameters that affect the cache without being part of the prompt, as they are sent;
    named as the cache rules name them."""
    params = call.params
    found = [("model", string(call.model))]
    if params.tool_choice is not None:
        found.append(("tool_choice", _tool_choice(params.tool_choice)))
        if params.tool_choice.parallel is not None:
            found.append(("parallel_tools", dumps(params.tool_choice.parallel)))
    if params.reasoning is not None and params.reasoning.effort is not None:
        found.append(("effort", string(params.reasoning.effort)))
    if params.verbosity is not None:
        found.append(("verbosity", string(params.verbosity)))
    if params.output is not None:
        found.append(("output_format", _output(params.output)))
    if params.service_tier is not None and not foreign_tier_notices(call):
        found.append(("service_tier", string(params.service_tier)))
    if call.ir.cache.key is not None:
        found.append(("cache_key", string(call.ir.cache.key)))
    return tuple(found)


_KNOB_FIELDS = {
    "tool_choice": "tool_choice",
    "parallel_tools": "parallel_tool_calls",
    "effort": "reasoning_effort",
    "verbosity": "verbosity",
    "output_format": "response_format",
    "service_tier": "service_tier",
    "cache_key": "prompt_cache_key",
}


def tail(call: Call, facts: Facts, cache_params: Knobs) -> bytes:
    """The body after the last run."""
    params = call.params
    fields: dict[str, bytes] = {}
    if params.max_tokens is not None:
        fields[facts.max_tokens_field] = _whole_number(params.max_tokens)
    fields |= {_KNOB_FIELDS[name]: value for name, value in cache_params if name in _KNOB_FIELDS}
    for name in _PLAIN:
        if (value := getattr(params, name)) is not None:
            fields[name] = dumps(value, path=f"params.{name}")
    if params.stop:
        fields["stop"] = dumps(params.stop, path="params.stop")
    if params.metadata is not None:
        fields["metadata"] = dumps(params.metadata, path="params.metadata")
    if params.user is not None:
        fields["user"] = string(params.user)
    if facts.options and (options := _cache_options(call.ir.cache)):
        fields["prompt_cache_options"] = dumps(options)
    if call.ir.cache.retention is not None:
        fields["prompt_cache_retention"] = string(call.ir.cache.retention)
    if params.stream:
        # Counts come only when asked for, and nobody wants to be without them.
        fields["stream"] = b"true"
        fields["stream_options"] = b'{"include_usage":true}'
    return closing_members(fields, call.extras, WIRE, _TAKEN) + b"}"


def notices(call: Call, facts: Facts) -> list[Notice]:
    """What was asked for and Chat Completions has no place for."""
    told: list[Notice] = []
    params, reasoning, cache = call.params, call.params.reasoning, call.ir.cache
    if not call.ir.system_fields_agree():
        told.append(
            Notice(
                "system_blocks_sent",
                "system_text is not the system blocks joined by a blank line; the blocks are sent",
                "system",
            )
        )
    told += continuation_notices(call)
    told += foreign_field_notices(call, WIRE) + foreign_tier_notices(call)
    told += [
        _left_out(name, f"Chat Completions has no {name}")
        for name in _NO_PLACE
        if getattr(params, name) not in (None, ())
    ]
    if reasoning is not None:
        told += [
            _left_out(f"reasoning.{name}", f"Chat Completions has an effort and no {name}")
            for name in ("mode", "budget_tokens", "display", "summary")
            if getattr(reasoning, name) is not None
        ]
    unheard = [name for name in ("prewarm", "diagnose", "compare_with") if getattr(cache, name)]
    if facts.options:
        if cache.automatic is not None:
            supported_ttl(cache.automatic, REQUEST_TTL, "cache.automatic", told)
    else:
        unheard += [name for name in ("mode", "automatic") if getattr(cache, name) is not None]
    told += [
        Notice("cache_option_left_out", "there is no such option here; left out", f"cache.{name}")
        for name in unheard
    ]
    return told


def _left_out(field: str, why: str) -> Notice:
    return Notice("param_left_out", f"{why}; left out", f"params.{field}")


def _whole_number(value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(
            f"must be a whole number, 0 or more, not {value!r}", path="params.max_tokens"
        )
    return b"%d" % value


def _cache_options(cache: PromptCachePlan) -> dict[str, str]:
    options: dict[str, str] = {}
    if cache.mode is not None:
        options["mode"] = cache.mode
    if cache.automatic is not None:
        options["ttl"] = REQUEST_TTL[cache.automatic]
    return options


def _tool_choice(choice: ToolChoice) -> bytes:
    if (choice.mode == "tool") != (choice.name is not None):
        raise InvalidRequest(
            "mode 'tool' needs the tool's name, and only that mode takes one",
            path="params.tool_choice.name",
        )
    if choice.name is None:
        return string(choice.mode)
    return b'{"type":"function","function":{"name":' + string(choice.name) + b"}}"


def _output(output: OutputSchema) -> bytes:
    schema = check_object(output.schema, path="params.output.schema").encode()
    described = b""
    if output.description is not None:
        described = b',"description":' + string(output.description)
    strict = b"" if output.strict is None else b',"strict":' + dumps(output.strict)
    return (
        b'{"type":"json_schema","json_schema":{"name":'
        + string(output.name)
        + described
        + b',"schema":'
        + schema
        + strict
        + b"}}"
    )

"""The request without its prompt: the envelope around the runs, and the cache parameters."""

from __future__ import annotations

from typing import Any

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, ToolChoice
from anaphora.rendered import Envelope
from anaphora.values import Notice, SegmentRole, Ttl
from anaphora.wire.enveloping import Envelopes
from anaphora.wire.openai_system import changed_role, place_of
from anaphora.wire.params import (
    closing_members,
    comparison_id,
    foreign_comparison_notices,
    foreign_field_notices,
    foreign_tier_notices,
    params_key,
)

from .content import OURS, WIRE
from .traits import Traits

_TAKEN = ("model", "input", "instructions", "tools")
_NO_PLACE = ("stop", "seed", "n", "top_k", "frequency_penalty", "presence_penalty")

#: How long a breakpoint may live here, for every TTL that one may ask for.
TTLS: dict[Ttl, Ttl] = {"5m": "30m", "30m": "30m", "1h": "30m", "12h": "12h", "24h": "12h"}


_envelopes = Envelopes()


def envelope(call: Call, profile: Profile, traits: Traits, last: Envelope | None) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed."""
    source = (
        traits,
        call.model,
        params_key(call),
        call.ir.system_fields_agree(),
        place_of(call.ir.system_field_blocks()),
        _stays_in_chain(call),
        profile,
    )
    if (known := _envelopes.find(call, source, last)) is not None:
        return known
    _refuse(call, profile)
    turned = cache_params(call)
    made = Envelope(
        source=source,
        path="/v1/responses",
        headers=(("content-type", "application/json"),),
        head=b'{"model":' + string(call.model),
        tail=tail(call, traits, dict(turned)),
        cache_params=turned,
        notices=tuple(notices(call, traits)),
    )
    return _envelopes.keep(call, made)


def continues(call: Call) -> bool:
    """Whether only what a stored response has not seen goes out."""
    return call.ir.continuation is not None and call.params.store is not False


def cache_params(call: Call) -> tuple[tuple[str, bytes], ...]:
    """The parameters that affect the cache without being part of the prompt, as they are sent;
    named as the cache rules name them."""
    params, reasoning, choice = call.params, call.params.reasoning, call.params.tool_choice
    found = [("model", string(call.model))]
    if choice is not None:
        found.append(("tool_choice", _tool_choice(choice)))
        if choice.parallel is not None:
            found.append(("parallel_tools", dumps(choice.parallel)))
    if reasoning is not None and reasoning.effort is not None:
        found.append(("effort", string(reasoning.effort)))
    if params.verbosity is not None:
        found.append(("verbosity", string(params.verbosity)))
    if params.output is not None:
        found.append(("output_format", _format(params.output)))
    if params.service_tier is not None and not foreign_tier_notices(call):
        found.append(("service_tier", string(params.service_tier)))
    if call.ir.cache.key is not None:
        found.append(("cache_key", string(call.ir.cache.key)))
    return tuple(found)


def tail(call: Call, traits: Traits, turned: dict[str, bytes]) -> bytes:
    """The body after the last run."""
    params, cache = call.params, call.ir.cache
    fields: dict[str, bytes] = {}

    def plain(name: str, value: object, path: str) -> None:
        if value is not None and value != ():
            fields[name] = dumps(value, path=path)

    def known(name: str, param: str) -> None:
        if param in turned:
            fields[name] = turned[param]

    if call.ir.continuation is not None and continues(call):
        fields["previous_response_id"] = string(call.ir.continuation.previous_response_id)
    plain("max_output_tokens", _limit(params.max_tokens), "params.max_tokens")
    plain("temperature", params.temperature, "params.temperature")
    plain("top_p", params.top_p, "params.top_p")
    known("tool_choice", "tool_choice")
    known("parallel_tool_calls", "parallel_tools")
    if reasoning := _reasoning(call, turned):
        fields["reasoning"] = reasoning
    if text := _object(format=turned.get("output_format"), verbosity=turned.get("verbosity")):
        fields["text"] = text
    plain("truncation", params.truncation, "params.truncation")
    plain("include", params.include, "params.include")
    plain("metadata", params.metadata, "params.metadata")
    plain("user", params.user, "params.user")
    known("service_tier", "service_tier")
    plain("store", params.store, "params.store")
    known("prompt_cache_key", "cache_key")
    if traits.explicit and (options := _cache_options(call)):
        fields["prompt_cache_options"] = dumps(options, path="cache")
    plain("prompt_cache_retention", cache.retention, "cache.retention")
    if params.stream:
        fields["stream"] = b"true"
    return closing_members(fields, call.extras, WIRE, _TAKEN) + b"}"


def notices(call: Call, traits: Traits) -> list[Notice]:
    """What was asked for and OpenAI has no place for."""
    told = [
        _left_out(name, f"Responses has no {name}")
        for name in _NO_PLACE
        if getattr(call.params, name) not in (None, ())
    ]
    reasoning = call.params.reasoning
    if reasoning is not None:
        told += [
            _left_out(f"reasoning.{name}", f"Responses has no such {name}")
            for name in ("mode", "budget_tokens", "display")
            if getattr(reasoning, name) is not None
        ]
    if traits.system_slot == "message" and not call.ir.system_fields_agree():
        told.append(
            Notice(
                "system_blocks_sent",
                "system_text is not the system blocks joined by a blank line; the blocks are sent",
                "system",
            )
        )
    told += _about_system(call, traits)
    told += _about_cache(call, traits) + _about_continuation(call)
    told += foreign_comparison_notices(call, OURS)
    return told + foreign_field_notices(call, WIRE) + foreign_tier_notices(call)


def _about_system(call: Call, traits: Traits) -> list[Notice]:
    place = place_of(call.ir.system_field_blocks())
    if traits.system_slot == "message":
        return changed_role(place, traits.system_role, "system")
    if not (traits.kept and traits.explicit):
        return []
    return [
        Notice(
            "system_in_instructions",
            "the system text stays in instructions, where it came from: no breakpoint can be set"
            " there, as it could in a developer message",
            "system",
        )
    ]


def _about_cache(call: Call, traits: Traits) -> list[Notice]:
    cache = call.ir.cache
    told = []
    if not traits.explicit:
        told += [
            _option_left_out(name, f"{call.model} has no such option")
            for name in ("mode", "prewarm", "automatic", "compare_with")
            if getattr(cache, name)
        ]
    elif cache.automatic is not None and TTLS[cache.automatic] != cache.automatic:
        told.append(_other_ttl(cache.automatic, "cache.automatic"))
    if cache.diagnose and cache.compare_with is None:
        told.append(_option_left_out("diagnose", "a diagnosis needs a response to compare with"))
    return told


def _about_continuation(call: Call) -> list[Notice]:
    if call.ir.continuation is None:
        return []
    if not continues(call):
        return [
            Notice(
                "continuation_not_stored",
                "a response that was not stored cannot be continued: the whole input is sent, and"
                " no previous_response_id",
                "continuation",
            )
        ]
    if not _stays_in_chain(call):
        return []
    return [
        Notice(
            "stays_in_chain",
            "what is dynamic or volatile in this call stays in the stored chain for all calls"
            " that continue it",
            "continuation",
        )
    ]


def _stays_in_chain(call: Call) -> bool:
    ir = call.ir
    passing = (SegmentRole.DYNAMIC_CONTEXT, SegmentRole.VOLATILE_TAIL)
    return ir.continuation is not None and any(len(ir.run(role)) for role in passing)


def other_ttl(asked: Ttl, path: str) -> Notice | None:
    """A remark where a TTL does not exist here and another one takes its place."""
    return None if TTLS[asked] == asked else _other_ttl(asked, path)


def _other_ttl(asked: Ttl, path: str) -> Notice:
    return Notice("ttl_changed", f"OpenAI has no {asked}; {TTLS[asked]} is asked for", path)


def _left_out(field: str, why: str) -> Notice:
    return Notice("param_left_out", f"{why}; left out", f"params.{field}")


def _option_left_out(field: str, why: str) -> Notice:
    return Notice("cache_option_left_out", f"{why}; left out", f"cache.{field}")


def _refuse(call: Call, profile: Profile) -> None:
    """Says no to what the provider would answer with a 400, with the field and the reason."""
    params, choice = call.params, call.params.tool_choice
    for name in ("temperature", "top_p"):
        value = getattr(params, name)
        refused = profile.refuses("sampling") or (
            value != 1 and profile.refuses("altered_sampling")
        )
        if value is not None and refused:
            raise InvalidRequest(f"{call.model} refuses {name} {value}", path=f"params.{name}")
    forced = choice is not None and choice.mode in ("required", "tool")
    if forced and profile.refuses("forced_tools"):
        raise InvalidRequest(
            f"{call.model} refuses a forced tool choice", path="params.tool_choice"
        )


def _limit(limit: Any) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidRequest(
            f"must be a whole number, 0 or more, not {limit!r}", path="params.max_tokens"
        )
    return limit


def _tool_choice(choice: ToolChoice) -> bytes:
    if (choice.mode == "tool") != (choice.name is not None):
        raise InvalidRequest(
            "mode 'tool' needs the tool's name, and only that mode takes one",
            path="params.tool_choice.name",
        )
    if choice.name is not None:
        return b'{"type":"function","name":' + string(choice.name) + b"}"
    return string(choice.mode)


def _reasoning(call: Call, turned: dict[str, bytes]) -> bytes:
    asked = call.params.reasoning
    if asked is None:
        return b""
    summary = None if asked.summary is None else string(asked.summary)
    return _object(effort=turned.get("effort"), summary=summary)


def _format(output: OutputSchema) -> bytes:
    described = None if output.description is None else string(output.description)
    return _object(
        type=b'"json_schema"',
        name=string(output.name),
        description=described,
        schema=check_object(output.schema, path="params.output.schema").encode(),
        strict=None if output.strict is None else dumps(output.strict),
    )


def _object(**fields: bytes | None) -> bytes:
    """An object of the fields that are there; empty when there is none."""
    said = [b'"' + name.encode() + b'":' + v for name, v in fields.items() if v is not None]
    return b"{" + b",".join(said) + b"}" if said else b""


def _cache_options(call: Call) -> dict[str, object]:
    cache = call.ir.cache
    options: dict[str, object] = {}
    if cache.mode is not None:
        options["mode"] = cache.mode
    if cache.automatic is not None:
        options["ttl"] = TTLS[cache.automatic]
    if cache.prewarm:
        options["prewarm"] = True
    if (earlier := comparison_id(call, OURS)) is not None:
        options["comparison_response_id"] = earlier
    return options

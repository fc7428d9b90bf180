"""The parameters and breakpoints of Responses, and the envelope around the prompt."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.prompt import Call, Earlier, OutputFormat, OutputSchema, Params
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice, SegmentRole, Ttl
from anaphora.wire.lenient import Unknown
from anaphora.wire.marks import NEAREST, option_notices
from anaphora.wire.openai import (
    OPENAI,
    SystemPlace,
    SystemRoles,
    decode_params,
    place_of,
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
    foreign_comparison_notices,
    foreign_tier_notices,
    joined_fields,
    system_text_notices,
    whole_number,
)
from anaphora.wire.parts import foreign_extras, own_members
from anaphora.wire.reading import Members, encode_members, extras_of

from .types import MEMO, PATH, WIRE, JsonFormat, ResponsesRequest, SchemaFormat

_SENT_APART = ("model", "input", "instructions", "tools")


class Traits(msgspec.Struct, frozen=True):
    """How a model's profile changes requests."""

    system_roles: SystemRoles = SystemRoles()
    system_slot: str = "instructions"
    """System text as `instructions`, or as the first `message`, which can carry breakpoints."""
    explicit: bool = False
    """Takes `prompt_cache_breakpoint` and `prompt_cache_options`."""
    as_sent: bool = False
    """Items stay as another program wrote them."""
    kept: bool = False
    """The slot is the original one of the system text, not the profile's."""


def traits_of(profile: Profile, slot: str | None = None) -> Traits:
    """The profile's traits. `slot` is the original one of the system text, if any."""
    default = Traits()
    traits = Traits(
        system_roles=system_roles(profile),
        system_slot=profile_value(profile, "system_slot", default.system_slot),
        explicit=profile_value(profile, "explicit_breakpoints", default.explicit),
        as_sent=profile.as_sent,
    )
    if profile.as_sent:
        return msgspec.structs.replace(traits, system_slot=slot or "message")
    if slot is None or slot == traits.system_slot:
        return traits
    return msgspec.structs.replace(traits, system_slot=slot, kept=True)


def _encode_format(output: OutputFormat) -> bytes:
    if output == "json":
        return b'{"type":"json_object"}'
    return b'{"type":"json_schema",' + schema_members(output) + b"}"


def _decode_format(form: SchemaFormat | JsonFormat) -> OutputFormat:
    if isinstance(form, JsonFormat):
        return "json"
    return OutputSchema(bytes(form.schema).decode(), form.name, form.description, form.strict)


def _encode_comparison(earlier: Earlier) -> bytes | None:
    return string(earlier.id) if earlier.provider in OPENAI else None


#: In the order of the request's fields.
PARAMS = ParamTable(
    Param("max_tokens", "max_output_tokens", encode=whole_number),
    Param("temperature"),
    Param("top_p"),
    *tool_choice_params(b'{"type":"function","name":', b"}", lambda forced: forced.name),
    Param("reasoning.effort"),
    Param("reasoning.summary"),
    Param("output", "text.format", encode=_encode_format, decode=_decode_format),
    Param("verbosity", "text.verbosity"),
    Param("truncation"),
    Param("include", decode=tuple),
    Param("metadata"),
    Param("user"),
    Param("service_tier", when=lambda call: not foreign_tier_notices(call)),
    Param("store"),
    Param("cache.key", "prompt_cache_key"),
    Param("cache.mode", "prompt_cache_options.mode"),
    Param("cache.automatic", "prompt_cache_options.ttl", encode=lambda ttl: string(NEAREST[ttl])),
    Param("cache.prewarm", "prompt_cache_options.prewarm"),
    Param(
        "cache.compare_with",
        "prompt_cache_options.comparison_response_id",
        encode=_encode_comparison,
        decode=lambda response: Earlier("openai", response),
    ),
    Param(
        "cache.diagnose",
        "prompt_cache_options.comparison_response_id",
        encode=skip,
        decode=lambda _: True,
    ),
    Param("cache.retention", "prompt_cache_retention"),
    Param("stream", encode=lambda stream: b"true" if stream else None),
    *(
        Param(name, None, reason=f"Responses has no {name}")
        for name in ("stop", "seed", "n", "top_k", "frequency_penalty", "presence_penalty")
    ),
    *(
        Param(f"reasoning.{name}", None, reason=f"Responses has no such {name}")
        for name in ("mode", "budget_tokens", "display")
    ),
    cache_params={
        "tool_choice": "tool_choice",
        "parallel_tools": "parallel_tool_calls",
        "effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        "output_format": "text.format",
        "service_tier": "service_tier",
        "cache_key": "prompt_cache_key",
    },
)


def envelope(
    call: Call, profile: Profile, traits: Traits, place: SystemPlace, last: Envelope | None
) -> Envelope:
    """Everything but the runs; the last turn's if nothing in it changed."""
    context = (traits, call.ir.system_fields_agree(), place, _stays_in_chain(call), profile)
    return MEMO.envelope(call, context, last, partial(_envelope, call, profile, traits))


def _envelope(call: Call, profile: Profile, traits: Traits, source: object) -> Envelope:
    if not traits.as_sent:
        check_features(call, PARAMS, profile.refuses)
    tree = PARAMS.encode(call)
    if not traits.explicit and not traits.as_sent:
        tree.pop("prompt_cache_options", None)
    fields = joined_fields(tree)
    if call.ir.continuation is not None and (traits.as_sent or continues(call)):
        previous = string(call.ir.continuation.previous_response_id)
        fields = {"previous_response_id": previous, **fields}
    head, extras = b'{"model":' + string(call.model), call.extras
    own = {} if call.model else own_members(extras, WIRE)
    if traits.as_sent and "prompt" in own:  # a stored prompt decides the model
        head = b'{"prompt":' + bytes(own.pop("prompt"))
        extras = {**(extras or {}), WIRE: encode_members(own).decode()}
    tail = closing_members(fields, extras, WIRE, _SENT_APART) + b"}"
    cache_params = PARAMS.cache_params(string(call.model), tree)
    if traits.as_sent:
        cache_params = PARAMS.sent_cache_params(b'{"model":' + string(call.model) + tail)
    return Envelope(
        source=source,
        path=PATH,
        headers=(("content-type", "application/json"),),
        head=head,
        tail=tail,
        cache_params=cache_params,
        notices=tuple(_notices(call, traits)),
    )


def continues(call: Call) -> bool:
    """Whether only the messages that a stored response does not hold are sent."""
    return call.ir.continuation is not None and call.params.store is not False


def _stays_in_chain(call: Call) -> bool:
    ir = call.ir
    passing = (SegmentRole.DYNAMIC_CONTEXT, SegmentRole.VOLATILE_TAIL)
    return ir.continuation is not None and any(len(ir.run(role)) for role in passing)


def _notices(call: Call, traits: Traits) -> list[Notice]:
    """Notices for parameters of the call that Responses has no field for."""
    cache = call.ir.cache
    notices = PARAMS.notices(call)
    if traits.system_slot == "message":
        notices += system_text_notices(call)
        place = place_of(call.ir.system_field_blocks())
        notices += traits.system_roles.notices(place, "system")
    elif traits.kept and traits.explicit:
        why = (
            "the system text stays in instructions, where it came from: no breakpoint can be set"
            " there, as it could in a developer message"
        )
        notices.append(Notice("system_in_instructions", why, "system"))
    options = ("mode", "prewarm", "automatic", "compare_with")
    notices += option_notices(call, options, NEAREST, explicit=traits.explicit or traits.as_sent)
    if cache.diagnose and cache.compare_with is None:
        why = "a diagnosis needs a response to compare with; left out"
        notices.append(Notice("cache_option_left_out", why, "cache.diagnose"))
    if call.ir.continuation is not None and not traits.as_sent:
        notices += _continuation_notices(call)
    return [
        *notices,
        *foreign_comparison_notices(call, OPENAI),
        *foreign_extras(call.extras, WIRE, "extras"),
        *foreign_tier_notices(call),
    ]


def _continuation_notices(call: Call) -> list[Notice]:
    if not continues(call):
        why = (
            "a response that was not stored cannot be continued: the whole input is sent, and no"
            " previous_response_id"
        )
        return [Notice("continuation_not_stored", why, "continuation")]
    if not _stays_in_chain(call):
        return []
    why = (
        "dynamic and volatile content of this call stays in the stored chain for all calls that"
        " continue it"
    )
    return [Notice("stays_in_chain", why, "continuation")]


def automatic_ttl(call: Call, traits: Traits) -> Ttl | None:
    """The TTL of the breakpoint that the provider sets by itself; None if it sets none."""
    explicit = traits.explicit or traits.as_sent
    if not explicit or call.ir.cache.mode == "explicit":
        return None
    return NEAREST[call.ir.cache.automatic or "30m"]


def read_params(
    request: ResponsesRequest, unknown: Unknown | None
) -> tuple[Params, dict[str, Any], Extras | None]:
    """The parameters of a request, its cache options, and its unknown fields."""
    extras: Members = unknown.remaining() if unknown is not None else {}
    params, cache = decode_params(PARAMS, request, extras)
    return params, cache, extras_of(WIRE, extras)

"""The request without its prompt: the envelope around the runs, and the cache parameters."""

from __future__ import annotations

from typing import Literal

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Feature, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, Reasoning
from anaphora.rendered import Envelope
from anaphora.values import Notice
from anaphora.wire.enveloping import Envelopes
from anaphora.wire.params import (
    closing_members,
    continuation_notices,
    foreign_field_notices,
    params_key,
    schema_only_notices,
)

from .carried import WIRE

PATH = "/api/chat"

#: Parameters that are options here, and what they are called there.
OPTIONS = {
    "max_tokens": "num_predict",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop": "stop",
}
#: What a call without messages says in their place: load the model, or unload it.
NO_MESSAGES = b'"messages":[]'

_TAKEN = ("model", "messages", "tools")
_NO_PLACE = (
    "metadata",
    "user",
    "service_tier",
    "verbosity",
    "store",
    "include",
    "truncation",
)
_NO_CACHE = ("automatic", "mode", "key", "retention", "prewarm", "diagnose", "compare_with")

Think = Literal["low", "medium", "high", "max"] | bool

#: What efforts of others come to, as Ollama itself takes them on its OpenAI surface.
_EFFORTS: dict[str, Think] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "ultra": "max",
    "max": "max",
}


_envelopes = Envelopes()


def envelope(call: Call, profile: Profile, last: Envelope | None, *, empty: bool) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed. `empty`: there is no
    run that holds messages."""
    source = (call.model, params_key(call), empty, profile)
    if (known := _envelopes.find(call, source, last)) is not None:
        return known
    refuse(call, profile)
    turned = cache_params(call)
    made = Envelope(
        source=source,
        path=PATH,
        headers=(("content-type", "application/json"),),
        head=b'{"model":' + string(call.model) + b",",
        tail=(NO_MESSAGES if empty else b"") + tail(call, turned),
        cache_params=turned,
        notices=(*notices(call), *continuation_notices(call), *foreign_field_notices(call, WIRE)),
    )
    return _envelopes.keep(call, made)


def refuse(call: Call, profile: Profile) -> None:
    """Says no to what the model would answer with an error, with the field and the reason."""
    params = call.params
    off = params.reasoning is not None and think(params.reasoning) is False
    sampling = [(name, getattr(params, name)) for name in ("temperature", "top_p")]
    asked: tuple[tuple[bool, Feature, str, str], ...] = (
        (off, "disabled_thinking", "reasoning", "thinking turned off"),
        *((value is not None, "sampling", name, f"a {name}") for name, value in sampling),
        (params.top_k is not None, "sampling", "top_k", "a top_k"),
        *(
            (value not in (None, 1), "altered_sampling", name, f"any {name} but 1")
            for name, value in sampling
        ),
        (bool(params.stop), "stop", "stop", "stop sequences"),
    )
    for wanted, feature, field, what in asked:
        if wanted and profile.refuses(feature):
            raise InvalidRequest(f"{call.model} refuses {what}", path=f"params.{field}")


def cache_params(call: Call) -> tuple[tuple[str, bytes], ...]:
    """The parameters that affect the cache without being part of the prompt, as they are sent;
    named as the cache rules name them."""
    params = call.params
    found = [("model", string(call.model))]
    thinks = think(params.reasoning) if params.reasoning is not None else None
    if thinks is not None:
        found.append(("thinking", dumps(thinks)))
    if params.output is not None:
        schema = check_object(params.output.schema, path="params.output.schema")
        found.append(("output_format", schema.encode()))
    return tuple(found)


def tail(call: Call, cache_params: tuple[tuple[str, bytes], ...]) -> bytes:
    """The body after the last run. A stream is the default here, so it is always said."""
    turned = dict(cache_params)
    fields = {"stream": b"true" if call.params.stream else b"false"}
    if "output_format" in turned:
        fields["format"] = turned["output_format"]
    if "thinking" in turned:
        fields["think"] = turned["thinking"]
    if chosen := options(call.params):
        said = (string(name) + b":" + value for name, value in chosen.items())
        fields["options"] = b"{" + b",".join(said) + b"}"
    return closing_members(fields, call.extras, WIRE, _TAKEN) + b"}"


def options(params: Params) -> dict[str, bytes]:
    limit = params.max_tokens
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidRequest(
            f"must be a whole number, 0 or more, not {limit!r}", path="params.max_tokens"
        )
    return {
        option: dumps(value, path=f"params.{name}")
        for name, option in OPTIONS.items()
        if (value := getattr(params, name)) not in (None, ())
    }


def think(reasoning: Reasoning) -> Think | None:
    """Whether to think, or how hard; None leaves it to the model."""
    if reasoning.mode == "disabled":
        return False
    if reasoning.effort is None:
        return None if reasoning.mode is None else True
    if reasoning.effort not in _EFFORTS:
        raise InvalidRequest(
            f"{reasoning.effort!r} is no level of thinking; use low, medium, high or max",
            path="params.reasoning.effort",
        )
    return _EFFORTS[reasoning.effort]


def notices(call: Call) -> list[Notice]:
    """What was asked for and Ollama has no place for."""
    params, cache = call.params, call.ir.cache
    told = _tool_choice(params) + schema_only_notices(params.output)
    if params.reasoning is not None:
        told += _reasoning(params.reasoning)
    if params.n not in (None, 1):
        told.append(_left_out("n", "Ollama gives one answer"))
    told += [
        _left_out(name, f"Ollama has no {name}")
        for name in _NO_PLACE
        if getattr(params, name) not in (None, ())
    ]
    told += [
        Notice("cache_option_left_out", "Ollama has no such option; left out", f"cache.{name}")
        for name in _NO_CACHE
        if getattr(cache, name) not in (None, False)
    ]
    return told


def _left_out(field: str, why: str) -> Notice:
    return Notice("param_left_out", f"{why}; left out", f"params.{field}")


def _tool_choice(params: Params) -> list[Notice]:
    """The model is free to choose; leaving tools out instead would change the prompt."""
    choice = params.tool_choice
    if choice is None:
        return []
    if (choice.mode == "tool") != (choice.name is not None):
        raise InvalidRequest(
            "mode 'tool' needs the tool's name, and only that mode takes one",
            path="params.tool_choice.name",
        )
    told = []
    if choice.mode != "auto":
        told.append(_left_out("tool_choice", "Ollama's models choose their tools themselves"))
    if choice.parallel is False:
        told.append(_left_out("tool_choice.parallel", "Ollama cannot forbid parallel calls"))
    return told


def _reasoning(reasoning: Reasoning) -> list[Notice]:
    told = [
        _left_out(f"reasoning.{name}", f"Ollama has no {name} of thinking")
        for name in ("budget_tokens", "display", "summary")
        if getattr(reasoning, name) is not None
    ]
    effort, said = reasoning.effort, think(reasoning)
    if reasoning.mode in ("adaptive", "between_tools"):
        why = f"thinking is on or off here, not {reasoning.mode}; it is on"
        told.append(Notice("reasoning_changed", why, "params.reasoning.mode"))
    if reasoning.mode == "disabled" and effort not in (None, "none"):
        told.append(_left_out("reasoning.effort", "thinking is turned off"))
    elif isinstance(said, str) and said != effort:
        why = f"no model thinks {effort} here; it is {said}"
        told.append(Notice("reasoning_changed", why, "params.reasoning.effort"))
    return told

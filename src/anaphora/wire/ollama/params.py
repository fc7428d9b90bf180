"""The parts of a request other than the prompt: parameters, and the envelope around the runs."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Feature, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputFormat, OutputSchema, Params, Reasoning
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.params import (
    Param,
    ParamTable,
    check_refused,
    check_tool_choice,
    closing_members,
    continuation_notices,
    joined_fields,
    sampling_checks,
    schema_object,
    schema_only_notices,
    whole_number,
)
from anaphora.wire.parts import foreign_extras
from anaphora.wire.reading import encode_members, extras_of, request_error

from .types import MEMO, NULL, WIRE, ChatRequest, ModelOptions

PATH = "/api/chat"
#: The messages of a call that has none: it loads or unloads the model.
NO_MESSAGES = b'"messages":[]'

_Think = Literal["low", "medium", "high", "max"] | bool
_JSON = msgspec.Raw(b'"json"')

#: The levels for the efforts of other providers, as on Ollama's OpenAI endpoint.
_EFFORTS: dict[str, _Think] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "ultra": "max",
    "max": "max",
}


def _think(reasoning: Reasoning) -> _Think | None:
    """Whether to think, or how much; None leaves it to the model."""
    if reasoning.mode == "disabled":
        return False
    if reasoning.effort is None:
        return None if reasoning.mode is None else True
    if reasoning.effort not in _EFFORTS:
        raise InvalidRequest(
            f"{reasoning.effort!r} is not a level of thinking; use low, medium, high or max",
            path="params.reasoning.effort",
        )
    return _EFFORTS[reasoning.effort]


def _encode_think(reasoning: Reasoning) -> bytes | None:
    think = _think(reasoning)
    return None if think is None else dumps(think)


def _read_think(think: _Think) -> Reasoning:
    if isinstance(think, bool):
        return Reasoning("enabled" if think else "disabled")
    return Reasoning(effort=think)


def _encode_format(output: OutputFormat) -> bytes:
    return b'"json"' if output == "json" else schema_object(output)


def _read_format(raw: msgspec.Raw) -> OutputFormat | None:
    if raw == _JSON:
        return "json"
    return OutputSchema(bytes(raw).decode()) if bytes(raw)[:1] == b"{" else None


#: Parameters without a request field, and options of the cache plan.
_NO_FIELD = ("metadata", "user", "service_tier", "verbosity", "store", "include", "truncation")
_NO_OPTION = ("automatic", "mode", "key", "retention", "prewarm", "diagnose", "compare_with")

TABLE = ParamTable(
    Param("stream"),
    Param("output", "format", encode=_encode_format, decode=_read_format),
    Param("reasoning", "think", encode=_encode_think, decode=_read_think),
    Param("max_tokens", "options.num_predict", encode=whole_number),
    Param("temperature", "options.temperature"),
    Param("top_p", "options.top_p"),
    Param("top_k", "options.top_k"),
    Param("seed", "options.seed"),
    Param("frequency_penalty", "options.frequency_penalty"),
    Param("presence_penalty", "options.presence_penalty"),
    Param("stop", "options.stop"),
    # The model always chooses; leaving tools out instead would change the prompt.
    Param(
        "tool_choice",
        None,
        when=lambda call: (
            call.params.tool_choice is not None and call.params.tool_choice.mode == "auto"
        ),
        reason="Ollama's models choose their tools themselves",
    ),
    Param(
        "tool_choice.parallel",
        None,
        when=lambda call: (
            call.params.tool_choice is not None and call.params.tool_choice.parallel is True
        ),
        reason="Ollama cannot forbid parallel calls",
    ),
    Param("n", None, when=lambda call: call.params.n == 1, reason="Ollama gives one answer"),
    *(Param(name, None, reason=f"Ollama has no {name}") for name in _NO_FIELD),
    *(
        Param(f"reasoning.{name}", None, reason=f"Ollama has no {name} of thinking")
        for name in ("budget_tokens", "display", "summary")
    ),
    *(Param(f"cache.{name}", None, reason="Ollama has no such option") for name in _NO_OPTION),
    cache_params={"thinking": "think", "output_format": "format"},
)


def envelope(call: Call, profile: Profile, last: Envelope | None, *, empty: bool) -> Envelope:
    """Everything but the runs; the last turn's while nothing in it changed. `empty`: there is no
    run of messages."""

    def make(source: object) -> Envelope:
        _check(call, profile)
        tree = TABLE.encode(call)
        taken = ("model", "messages", "tools")
        members = closing_members(joined_fields(tree), call.extras, WIRE, taken)
        return Envelope(
            source=source,
            path=PATH,
            headers=(("content-type", "application/json"),),
            head=b'{"model":' + string(call.model) + b",",
            tail=(NO_MESSAGES if empty else b"") + members + b"}",
            cache_params=TABLE.cache_params(string(call.model), tree),
            notices=(
                *schema_only_notices(call.params.output),
                *_reasoning_notices(call.params.reasoning),
                *TABLE.notices(call),
                *continuation_notices(call),
                *foreign_extras(call.extras, WIRE, "extras"),
            ),
        )

    return MEMO.envelope(call, (empty, profile), last, make)


def _check(call: Call, profile: Profile) -> None:
    params = call.params
    off = params.reasoning is not None and _think(params.reasoning) is False
    checks: list[tuple[bool, Feature, str, str]] = [
        (off, "disabled_thinking", "reasoning", "thinking turned off"),
        *sampling_checks(params, "temperature", "top_p"),
    ]
    check_refused(call, profile, checks)
    if params.tool_choice is not None:
        check_tool_choice(params.tool_choice)


def _reasoning_notices(reasoning: Reasoning | None) -> list[Notice]:
    if reasoning is None:
        return []
    notices = []
    path, effort, think = "params.reasoning", reasoning.effort, _think(reasoning)
    if reasoning.mode in ("adaptive", "between_tools"):
        why = f"thinking is on or off here, not {reasoning.mode}; it is on"
        notices.append(Notice("reasoning_changed", why, f"{path}.mode"))
    if reasoning.mode == "disabled" and effort not in (None, "none"):
        why = "thinking is turned off; left out"
        notices.append(Notice("param_left_out", why, f"{path}.effort"))
    elif isinstance(think, str) and think != effort:
        why = f"Ollama has no effort {effort}; sent as {think}"
        notices.append(Notice("reasoning_changed", why, f"{path}.effort"))
    return notices


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


_OPTIONS: LenientDecoder[ModelOptions] = LenientDecoder(ModelOptions)


class _ParamFields(msgspec.Struct, frozen=True):
    """The fields of a request that are parameters."""

    stream: bool
    format: msgspec.Raw | None
    think: _Think | None
    options: ModelOptions | None


def read_params(request: ChatRequest, unknown: Unknown | None) -> tuple[Params, Extras | None]:
    """The parameters, and as extras all fields without a parameter. Streaming is the default."""
    rest = unknown.remaining() if unknown is not None else {}
    options = output = None
    if request.options is not NULL:
        if bytes(request.options)[:1] == b"{":
            options, others = _OPTIONS.decode(request.options, "$.options", request_error)
            if others is not None and (left := others.remaining()):
                rest["options"] = msgspec.Raw(encode_members(left))
        elif request.options != NULL:
            rest["options"] = request.options
    if request.keep_alive != NULL:
        rest["keep_alive"] = request.keep_alive
    if request.format != NULL:
        output = request.format
        if bytes(output)[:1] != b"{" and output != _JSON:
            rest["format"] = output
    fields = _ParamFields(request.stream is not False, output, request.think, options)
    params, _ = TABLE.decode(fields)
    return params, extras_of(WIRE, rest)

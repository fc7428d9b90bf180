"""The parameters of a Chat Completions request, read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from anaphora.prompt import OutputSchema, Params, Reasoning, ToolChoice
from anaphora.wire.fields import Fields


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class _Forced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: _Named


_Choice = Literal["auto", "none", "required", "any"] | _Forced


class _Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    json_schema: _Schema


class _CacheOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class _StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters that have a name here."""

    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    tool_choice: _Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: _CacheOptions | None = None
    prompt_cache_retention: str | None = None

    def __post_init__(self) -> None:
        if (self.stream_options is not None and not self.stream) or _conflict(self):
            raise ValueError("unusual")  # to be read field by field


#: Fields whose other forms are carried along as they came.
_IF_KNOWN: dict[str, Any] = {
    "tool_choice": _Choice,
    "response_format": _Format,
    "metadata": dict[str, str],
}
_IN_PART = ("stream_options", "prompt_cache_options")
_OTHERS = {
    field.name: field.type
    for field in msgspec.structs.fields(Options)
    if field.name not in (*_IF_KNOWN, *_IN_PART, "parallel_tool_calls")
}
_CHOICES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}


def options_of(fields: Fields) -> Options:
    """The parameters, taken out one by one; what is not understood stays for the extras."""
    fields.drop_nulls()
    found: dict[str, Any] = {name: fields.maybe(name, kind) for name, kind in _OTHERS.items()}
    found |= {name: fields.known(name, kind) for name, kind in _IF_KNOWN.items()}
    found["prompt_cache_options"] = fields.partly("prompt_cache_options", _CacheOptions)
    if found["stream"]:
        found["stream_options"] = fields.partly("stream_options", _StreamOptions)
    if "tool_choice" not in fields:
        found["parallel_tool_calls"] = fields.maybe("parallel_tool_calls", bool)
    if (two := found["max_tokens"]) not in (None, found["max_completion_tokens"] or two):
        raise fields.fail("says something else than max_completion_tokens", "max_tokens")
    return Options(**found)


def params_of(options: Options) -> Params:
    stop, form, limit = options.stop, options.response_format, options.max_completion_tokens
    effort = options.reasoning_effort
    return Params(
        max_tokens=options.max_tokens if limit is None else limit,
        temperature=options.temperature,
        top_p=options.top_p,
        n=options.n,
        seed=options.seed,
        frequency_penalty=options.frequency_penalty,
        presence_penalty=options.presence_penalty,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        user=options.user,
        metadata=options.metadata,
        service_tier=options.service_tier,
        store=options.store,
        verbosity=options.verbosity,
        reasoning=None if effort is None else Reasoning(effort=effort),
        tool_choice=_tool_choice(options.tool_choice, options.parallel_tool_calls),
        output=None if form is None else _output(form.json_schema),
        stream=options.stream or False,
    )


def _conflict(options: Options) -> bool:
    one, two = options.max_completion_tokens, options.max_tokens
    return one is not None and two is not None and one != two


def _tool_choice(choice: str | _Forced | None, parallel: bool | None) -> ToolChoice | None:
    if isinstance(choice, _Forced):
        return ToolChoice("tool", choice.function.name, parallel)
    if choice is None and parallel is None:
        return None
    return ToolChoice(_CHOICES[choice or "auto"], None, parallel)


def _output(said: _Schema) -> OutputSchema:
    return OutputSchema(bytes(said.schema).decode(), said.name, said.description, said.strict)

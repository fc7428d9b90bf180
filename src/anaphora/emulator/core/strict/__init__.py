"""What a provider answers with an error before it answers at all.

Every check is a function of the request that gives the provider's error or None. Only what a source
says is refused is refused: the provider notes, the official SDKs' types and docstrings, or the
service's own error as people quote it (named beside the check). Providers that merely speak a wire
are held to what the catalog knows of their models, and to nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module

import msgspec

from anaphora import wire
from anaphora.catalog import CacheRules, Feature, Profile
from anaphora.emulator.core.asked import Asked, members
from anaphora.errors import Upstream
from anaphora.prompt import Call, Params
from anaphora.rendered import Rendered
from anaphora.tokens import Counts, for_model

from .case import Case, Check, first, rejected, too_long
from .known.anthropic import SAMPLING
from .reading import Talk, read

__all__ = ["check"]


def check(
    asked: Asked,
    wire_name: str,
    provider: str,
    call: Call | None,
    rendered: Rendered | None,
    rules: CacheRules,
    profile: Profile,
    prompt_tokens: int | None = None,
    *,
    counts: bool = False,
) -> Upstream | None:
    """The error that this request is answered with; None when it is in order.

    `call` and `rendered` are the request as `parse` and `split` read it, where they could; without
    them only its own bytes are looked at. `prompt_tokens` is what it is billed as; without it the
    prompt overflows only when the lowest estimate does. With `counts`
    nothing is to be answered, and the prompt only counted.
    """
    talk, checks = _of(wire_name)
    try:
        fields = asked.fields
        if counts and "generateContentRequest" in fields:
            # Gemini's whole request may stand inside.
            fields = members(fields["generateContentRequest"])
        body, said, unusual = read(fields, talk)
    except (msgspec.DecodeError, UnicodeDecodeError, Upstream):
        return _unreadable(wire_name)
    if not asked.body:
        return _unreadable(wire_name)
    if prompt_tokens is None:
        prompt_tokens = 0
        if rendered is not None:
            counted = Counts(for_model(rendered, profile))
            prompt_tokens, _ = counted.bounds(profile.token_error.value)
    case = Case(
        asked=asked,
        body=body,
        said=said,
        unusual=unusual,
        rules=rules,
        profile=profile,
        tokens=prompt_tokens,
        counts=counts,
    )
    if provider == wire.PROVIDERS[wire_name]:
        return first(checks, case)
    return _of_any_host(case, call, provider, wire_name)


@functools.cache
def _of(wire_name: str) -> tuple[Talk, tuple[Check, ...]]:
    """How a wire says what was said, and what its provider looks at."""
    module = import_module(f"{__name__}.{wire_name}")
    return module.TALK, module.CHECKS


def _of_any_host(case: Case, call: Call | None, provider: str, wire_name: str) -> Upstream | None:
    """What the catalog says of a model, whoever serves it."""
    if (error := too_long(case, provider, wire_name)) is not None:
        return error
    if (provider, wire_name) == ("deepseek", "openai_chat"):
        error = _without_content(case)
        if error is not None:
            return error
    if call is None or not case.profile.refusals.verified:
        return None
    for feature, asks in _FEATURES.items():
        param = asks(call.params)
        if param is not None and case.profile.refuses(feature):
            return rejected(f"{param} is not supported with this model", param=param)
    return None


def _without_content(case: Case) -> Upstream | None:
    """DeepSeek's answer to an assistant's message of reasoning alone, as its clients quote it."""
    for at, message in case.unusual:
        if message.get("role") != "assistant":
            continue
        says = any(message.get(name) is not None for name in _SAYS)
        if not says and any(message.get(name) for name in _REASONING):
            told = "Invalid assistant message: content or tool_calls must be set"
            return rejected(told, param=f"messages[{at}]")
    return None


#: The fields in which an assistant's message says something, and those of its reasoning.
_SAYS = ("content", "tool_calls", "function_call", "audio", "refusal")
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


def _sampling(params: Params) -> str | None:
    return next((name for name in SAMPLING if getattr(params, name) is not None), None)


def _altered_sampling(params: Params) -> str | None:
    altered = (name for name in SAMPLING[:2] if getattr(params, name) not in (None, 1))
    return next(altered, None)


def _stop(params: Params) -> str | None:
    return "stop" if params.stop else None


def _forced_tools(params: Params) -> str | None:
    choice = params.tool_choice
    return "tool_choice" if choice is not None and choice.mode in ("required", "tool") else None


def _disabled_thinking(params: Params) -> str | None:
    return "thinking" if params.reasoning and params.reasoning.mode == "disabled" else None


def _budgeted_thinking(params: Params) -> str | None:
    return "thinking" if params.reasoning and params.reasoning.budget_tokens else None


#: What asks for a feature that some models refuse: the parameter's name, or None.
_FEATURES: dict[Feature, Callable[[Params], str | None]] = {
    "sampling": _sampling,
    "altered_sampling": _altered_sampling,
    "stop": _stop,
    "forced_tools": _forced_tools,
    "disabled_thinking": _disabled_thinking,
    "budgeted_thinking": _budgeted_thinking,
}


#: What each calls a body that it cannot read.
_UNREADABLE: dict[str, tuple[str, str | None]] = {
    "anthropic": ("The request body is not valid JSON", "invalid_request_error"),
    "gemini": ("Invalid JSON payload received.", "INVALID_ARGUMENT"),
}


def _unreadable(wire_name: str) -> Upstream:
    message, code = _UNREADABLE.get(wire_name, ("The request body is not valid JSON", None))
    return rejected(message, code=code)

"""What OpenAI refuses on both of its wires. An error names the parameter, and has a code."""

from __future__ import annotations

from typing import Any

from anaphora.errors import Upstream

from .case import Case, inside, objects, rejected, word


def missing(param: str) -> Upstream:
    message = f"Missing required parameter: '{param}'."
    return rejected(message, param=param, code="missing_required_parameter")


def unknown_parameter(param: str) -> Upstream:
    """openai/codex#10834, bestruirui/octopus#31."""
    message = f"Unknown parameter: '{param}'."
    return rejected(message, param=param, code="unknown_parameter")


def unsupported(param: str, more: str = "") -> Upstream:
    """appatalks/eva-agent#83, microsoft/clarity-agent#59."""
    message = f"Unsupported parameter: '{param}' is not supported with this model.{more}"
    return rejected(message, param=param, code="unsupported_parameter")


def below(param: str, least: int, found: int) -> Upstream:
    reason = f"integer below minimum value. Expected a value >= {least}, but got {found} instead."
    return rejected(f"Invalid '{param}': {reason}", param=param, code="integer_below_min_value")


def above(param: str, most: int, found: int) -> Upstream:
    """thisisartium/continuous-alignment-testing#25."""
    reason = f"integer above maximum value. Expected a value <= {most}, but got {found} instead."
    return rejected(f"Invalid '{param}': {reason}", param=param, code="integer_above_max_value")


def model_named(case: Case) -> Upstream | None:
    if case.body.get("model"):
        return None
    return rejected("you must provide a model parameter")


def sampling(case: Case) -> Upstream | None:
    """Models that take only the default (the catalog's refusals): QwenLM/qwen-code#921."""
    if not case.profile.refuses("altered_sampling"):
        return None
    for field in ("temperature", "top_p"):
        value = case.body.get(field)
        if value is not None and value != 1:
            message = (
                f"Unsupported value: '{field}' does not support {value} with this model. Only the "
                "default (1) value is supported."
            )
            return rejected(message, param=field, code="unsupported_value")
    return None


def stream_options(case: Case) -> Upstream | None:
    """The SDK's docstring: only with `stream: true`."""
    if case.body.get("stream_options") is None or case.body.get("stream") is True:
        return None
    message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    return rejected(message, param="stream_options")


def tool_choice(case: Case) -> Upstream | None:
    """A choice needs tools (writer/writer-framework#1013), and a name one of them."""
    choice = case.body.get("tool_choice")
    if choice is None:
        return None
    tools = case.body.get("tools")
    if not tools:
        message = (
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified."
        )
        return rejected(message, param="tool_choice")
    named = inside(choice, "function", "name") or inside(choice, "name")
    if inside(choice, "type") != "function" or named is None or word(named) in _names(tools):
        return None
    return rejected(f"Tool choice '{named}' not found in 'tools' parameter.", param="tool_choice")


def _names(tools: Any) -> set[str]:
    """What functions are called: on Chat inside `function`, on Responses, and in its namespaces,
    at the tool itself."""
    found: set[str] = set()
    for _, tool in objects(tools):
        found |= {word(tool.get("name")), word(inside(tool, "function", "name"))}
        found |= _names(tool.get("tools"))
    return found

"""Parameters of Converse as tables, one for each family of models: they differ in the fields of
`additionalModelRequestFields`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from anaphora.canonical import string
from anaphora.catalog.values import Family
from anaphora.prompt import Call, OutputSchema, ToolChoice
from anaphora.wire.lenient import LenientDecoder, Partial, Whole
from anaphora.wire.params import Param, ParamTable, schema_object, whole_number

from .types import Choice, TextFormat

# ── Parameters by family ─────────────────────────────────────────────────────────────────────────

MORE = "additionalModelRequestFields"


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a family."""


class _Thinking(_Fields, frozen=True):
    type: Literal["adaptive", "enabled", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class _Effort(_Fields, frozen=True):
    effort: str | None = None


class _NoTools(_Fields, frozen=True):
    type: Literal["none"]


class _ClaudeFields(_Fields, frozen=True):
    thinking: Partial[_Thinking | None] = None
    output_config: Partial[_Effort | None] = None
    top_k: Whole[int | None] = None
    tool_choice: Whole[_NoTools | None] = None


class _TopK(_Fields, frozen=True):
    topK: Whole[int | None] = None


class _NovaFields(_Fields, frozen=True):
    inferenceConfig: Partial[_TopK | None] = None


class _OpenAIFields(_Fields, frozen=True):
    reasoning: Partial[_Effort | None] = None


class _OpenWeightFields(_Fields, frozen=True):
    reasoning_effort: Whole[str | None] = None


class _QwenFields(_Fields, frozen=True):
    reasoning_config: Whole[str | None] = None


FIELDS: dict[Family | None, LenientDecoder[Any]] = {
    "claude": LenientDecoder(_ClaudeFields),
    "nova": LenientDecoder(_NovaFields),
    "openai": LenientDecoder(_OpenAIFields),
    "gpt-oss": LenientDecoder(_OpenWeightFields),
    "qwen": LenientDecoder(_QwenFields),
    None: LenientDecoder(_Fields),
}


def _has_mode(call: Call) -> bool:
    return call.params.reasoning is not None and call.params.reasoning.mode is not None


def _is_none(choice: ToolChoice) -> bytes | None:
    return b'{"type":"none"}' if choice.mode == "none" else None


def _left_out(name: str, reason: str) -> Param:
    return Param(name, None, reason=reason)


_NO_BUDGET = (
    _left_out("reasoning.mode", "this model takes an effort, and no mode of thinking"),
    _left_out("reasoning.budget_tokens", "this model takes no budget for thinking"),
    _left_out("reasoning.display", "this model takes no display of thinking"),
)
_NO_THINKING = (
    _left_out("reasoning.effort", "no field for an effort is known for this model"),
    _left_out("reasoning.mode", "no field for thinking is known for this model"),
    _left_out("reasoning.budget_tokens", "no field for thinking is known for this model"),
    _left_out("reasoning.display", "no field for thinking is known for this model"),
)
_NO_TOP_K = _left_out("top_k", "no field for top_k is known for this model")
_ROWS: dict[Family | None, tuple[Param, ...]] = {
    "claude": (
        Param(
            "tool_choice",
            f"{MORE}.tool_choice",
            encode=_is_none,
            decode=lambda _: ToolChoice("none"),
        ),
        Param("top_k", f"{MORE}.top_k"),
        Param("reasoning.mode", f"{MORE}.thinking.type"),
        Param(
            "reasoning.budget_tokens",
            f"{MORE}.thinking.budget_tokens",
            when=_has_mode,
            reason="a budget needs a reasoning mode",
        ),
        Param(
            "reasoning.display",
            f"{MORE}.thinking.display",
            when=_has_mode,
            reason="a display needs a reasoning mode",
        ),
        Param("reasoning.effort", f"{MORE}.output_config.effort"),
    ),
    "nova": (Param("top_k", f"{MORE}.inferenceConfig.topK"), *_NO_THINKING),
    "openai": (Param("reasoning.effort", f"{MORE}.reasoning.effort"), _NO_TOP_K, *_NO_BUDGET),
    "gpt-oss": (Param("reasoning.effort", f"{MORE}.reasoning_effort"), _NO_TOP_K, *_NO_BUDGET),
    "qwen": (Param("reasoning.effort", f"{MORE}.reasoning_config"), _NO_TOP_K, *_NO_BUDGET),
    None: (_NO_TOP_K, *_NO_THINKING),
}

TIERS = ("priority", "default", "flex", "reserved")
_CHOICES = {"auto": b'{"auto":{}}', "required": b'{"any":{}}'}
_NO_FIELD = (
    "user seed n frequency_penalty presence_penalty verbosity store include truncation".split()
)
_NO_OPTION = ("key", "mode", "retention", "prewarm", "diagnose", "automatic")
_DEFAULT_NAME = OutputSchema("{}").name


def _choice(choice: ToolChoice) -> bytes | None:
    if choice.mode == "tool":
        return b'{"tool":{"name":' + string(choice.name or "") + b"}}"
    return _CHOICES.get(choice.mode)


def _read_choice(choice: Choice) -> ToolChoice | None:
    if choice.tool is not None:
        return ToolChoice("tool", choice.tool.name)
    return ToolChoice("auto" if choice.auto is not None else "required")


def _text_format(output: OutputSchema) -> bytes:
    """The schema is a text that holds JSON."""
    members = [b'"schema":' + string(schema_object(output).decode())]
    if output.name != _DEFAULT_NAME:
        members.append(b'"name":' + string(output.name))
    if output.description is not None:
        members.append(b'"description":' + string(output.description))
    schema = b",".join(members)
    return b'{"type":"json_schema","structure":{"jsonSchema":{' + schema + b"}}}"


def _read_format(format: TextFormat) -> OutputSchema:
    schema = format.structure.jsonSchema
    return OutputSchema(schema.schema, schema.name or _DEFAULT_NAME, schema.description)


def _table(family: Family | None) -> ParamTable:
    none = "the tools stay on offer: Converse has no tool choice 'none' for this model"
    return ParamTable(
        Param("tool_choice", "toolConfig.toolChoice", encode=_choice, decode=_read_choice),
        Param(
            "tool_choice",
            None,
            when=lambda call: (
                family == "claude"
                or call.params.tool_choice is None
                or call.params.tool_choice.mode != "none"
            ),
            reason=none,
        ),
        Param("max_tokens", "inferenceConfig.maxTokens", encode=whole_number),
        Param("temperature", "inferenceConfig.temperature"),
        Param("top_p", "inferenceConfig.topP"),
        Param("stop", "inferenceConfig.stopSequences", decode=lambda stop: stop or None),
        *_ROWS[family],
        Param("reasoning.summary", None, reason="Converse has no summary setting"),
        Param(
            "output",
            "outputConfig.textFormat",
            encode=_text_format,
            decode=_read_format,
            when=lambda call: call.params.output != "json",
            reason="Converse has no JSON mode; give a schema",
        ),
        Param(
            "service_tier",
            "serviceTier.type",
            when=lambda call: call.params.service_tier in TIERS,
            reason=f"Bedrock's tiers are {', '.join(TIERS)}",
        ),
        Param("metadata", "requestMetadata", decode=lambda found: found or None),
        *(Param(name, None, reason=f"Converse has no {name}") for name in _NO_FIELD),
        Param("tool_choice.parallel", None, reason="Converse has no setting for parallel calls"),
        *(
            Param(f"cache.{name}", None, reason="Converse has no such option")
            for name in _NO_OPTION
        ),
        cache_params={},
    )


TABLES = {family: _table(family) for family in _ROWS}

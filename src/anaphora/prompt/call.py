"""A call: the prompt, and everything else that a wire needs to say it.

`wire.render` takes one and `wire.parse` gives one back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.values import AnyTool, Extras

from .ir import PromptIR


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether the model may, must or must not call tools; `tool` forces the one in `name`."""

    mode: Literal["auto", "required", "none", "tool"] = "auto"
    name: str | None = None
    parallel: bool | None = None


class Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the model should think before it answers."""

    mode: Literal["adaptive", "enabled", "disabled", "between_tools"] | None = None
    effort: str | None = None
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None
    summary: str | None = None
    """How much of the reasoning to tell: auto, concise, detailed."""


class OutputSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The answer must be JSON of this form. `schema` is canonical JSON text."""

    schema: str
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None


class Params(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Everything about a call that is not prompt. `None` leaves it to the provider."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    reasoning: Reasoning | None = None
    output: OutputSchema | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    seed: int | None = None
    n: int | None = None
    """How many answers to make."""
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    verbosity: str | None = None
    store: bool | None = None
    """Whether the provider may keep the answer and let it be continued."""
    include: tuple[str, ...] = ()
    """More of the answer than is given by default."""
    truncation: str | None = None
    stream: bool = False


class Call(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """One request, before any provider's words for it."""

    ir: PromptIR
    model: str
    tools: tuple[AnyTool, ...] = ()
    params: Params = Params()
    extras: Extras | None = None
    """Request fields with no name here: wire name -> JSON object text."""

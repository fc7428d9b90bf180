"""A call: the prompt, model, tools and parameters; the input of `wire.render`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from anaphora.values import AnyTool, Extras, Value
from anaphora.values.fields import check_fields

from .ir import PromptIR

_TOOLS = frozenset(get_args(AnyTool))


class ToolChoice(Value, frozen=True):
    """Whether the model may, must or must not call tools; `tool` forces the one in `name`."""

    mode: Literal["auto", "required", "none", "tool"] = "auto"
    name: str | None = None
    parallel: bool | None = None


class Reasoning(Value, frozen=True):
    """Reasoning before the reply."""

    mode: Literal["adaptive", "enabled", "disabled", "between_tools"] | None = None
    effort: str | None = None
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None
    summary: str | None = None
    """How detailed the summary of the reasoning is: auto, concise, detailed."""


class OutputSchema(Value, frozen=True):
    """The reply must be JSON of this schema, which is canonical JSON text."""

    schema: str
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None


class Params(Value, frozen=True, kw_only=True):
    """The parameters of a call. `None`: the provider's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    reasoning: Reasoning | None = None
    output: OutputSchema | None = None
    metadata: Mapping[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    seed: int | None = None
    n: int | None = None
    """The number of replies."""
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    verbosity: str | None = None
    store: bool | None = None
    """Whether the provider may store the response, so that it can be continued."""
    include: tuple[str, ...] = ()
    """Additional parts of the response."""
    truncation: str | None = None
    stream: bool = False


class Call(Value, frozen=True, kw_only=True):
    """One request, independent of the provider."""

    ir: PromptIR
    model: str
    tools: tuple[AnyTool, ...] = ()
    params: Params = Params()
    extras: Extras | None = None
    """Request fields without a name here: wire name -> JSON object text."""

    def __post_init__(self) -> None:
        # Created at every turn, so the common case is checked here.
        tools = self.tools
        if (
            type(self.ir) is not PromptIR
            or type(self.params) is not Params
            or type(self.model) is not str
            or type(tools) is not tuple
            or not _TOOLS.issuperset(map(type, tools))
            or self.extras is not None
        ):
            check_fields(self)

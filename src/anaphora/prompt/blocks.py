"""The components of a call: system prompt blocks with their cache policies, the caller's cache
plan, continuations, and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from anaphora.values import CachePolicy, Extras, Message, Ttl
from anaphora.values.fields import Value


class PromptBlock(Value, frozen=True):
    """One contiguous slice of the system prompt.

    `label` and `kind` are for telemetry and diagnosis; they are not sent. Keep labels the same
    across requests, so that dashboards can group by them.
    """

    label: str
    text: str
    cache: CachePolicy = CachePolicy.NONE
    kind: str | None = None
    extras: Extras | None = None
    """Other fields of a provider's block: wire name -> JSON object text."""

    @classmethod
    def plain(cls, label: str, text: str, kind: str | None = None) -> PromptBlock:
        """Not cached: sender, current task, anything that changes from call to call."""
        return cls(label, text, CachePolicy.NONE, kind)

    @classmethod
    def cached_short(cls, label: str, text: str, kind: str | None = None) -> PromptBlock:
        """Cached for five minutes: content that changes every few turns."""
        return cls(label, text, CachePolicy.EPHEMERAL_5M, kind)

    @classmethod
    def cached_long(cls, label: str, text: str, kind: str | None = None) -> PromptBlock:
        """Cached for an hour: tools, identity, skills; content of a whole session."""
        return cls(label, text, CachePolicy.EPHEMERAL_1H, kind)


def flatten_blocks(blocks: Iterable[PromptBlock]) -> str:
    """The blocks as one text: empty ones dropped, the rest joined by a blank line."""
    return "\n\n".join(block.text for block in blocks if block.text)


class _Mark(Value, frozen=True, tag_field="on"):
    """Base of all marks. `extras` are other fields of a parsed marker: wire name -> JSON object
    text. They are not sent again; a notice names them."""


class ToolMark(_Mark, tag="tool", frozen=True):
    name: str
    ttl: Ttl = "5m"
    extras: Extras | None = None


class BlockMark(_Mark, tag="block", frozen=True):
    """On the system block at this index of `PromptIR.system_blocks`."""

    index: int
    ttl: Ttl = "5m"
    extras: Extras | None = None


class PartMark(_Mark, tag="part", frozen=True):
    """On a part of a message. `(2,)` is its third part, `(2, 0)` the first part inside that tool
    result; the empty path means the last part that can carry a mark."""

    message_id: str
    path: tuple[int, ...] = ()
    ttl: Ttl = "5m"
    extras: Extras | None = None


MarkRequest: TypeAlias = ToolMark | BlockMark | PartMark


class Earlier(Value, frozen=True):
    """An earlier response, by the provider's id."""

    provider: str
    id: str


class PromptCachePlan(Value, frozen=True, kw_only=True):
    """The caller's marks, and the planner's input for the others.

    A mark names a tool, a system block, or a part of a message by the message's id. It never names
    a message by index: rendering may merge messages, which changes the index.
    """

    marks: tuple[MarkRequest, ...] = ()
    frozen_through: str | None = None
    """The id of the last message that stays byte-stable until the next compaction."""
    messages: bool = True
    """False if no message may carry a marker, because the first one changes at every call."""
    message_ttl: Ttl | None = None
    """The TTL of breakpoints inside the history; None: the planner chooses."""
    automatic: Ttl | None = None
    """Request an automatic breakpoint (one slot) with this TTL."""
    mode: Literal["implicit", "explicit"] | None = None
    """Whether a provider with both modes may add breakpoints by itself."""
    key: str | None = None
    """The routing key: requests with the same key go where their prefix is likely cached."""
    retention: str | None = None
    """The older field for a longer lifetime, for models without TTLs."""
    prewarm: bool = False
    """Write the cache without a reply."""
    diagnose: bool = False
    """Request the provider's diagnosis of a missed prefix."""
    compare_with: Earlier | None = None
    """The response to compare with."""


class Continuation(Value, frozen=True):
    """Continue a response that the provider stored."""

    previous_response_id: str
    last_committed_assistant_id: str | None = None
    """The last assistant message of the stored response; None if there was none."""


class ResponsesRequestOptions(Value, frozen=True, kw_only=True):
    """Request options of the Responses API: the caller's, and those of the prompt."""

    store: bool | None = None
    text_verbosity: str | None = None
    reasoning_summary: str | None = None
    include: tuple[str, ...] | None = None
    truncation: str | None = None
    input_messages: tuple[Message, ...] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


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


OutputFormat: TypeAlias = OutputSchema | Literal["json"]
"""`json`: any JSON object, which the prompt describes."""


class Params(Value, frozen=True, kw_only=True):
    """The parameters of a call. `None`: the provider's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    reasoning: Reasoning | None = None
    output: OutputFormat | None = None
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

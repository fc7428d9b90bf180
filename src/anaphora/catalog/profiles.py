"""What one model is and takes: what rendering and estimating need to know about it."""

import datetime
from typing import Annotated, Literal, TypeAlias

import msgspec

from .figure import Figure

Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]

Feature: TypeAlias = Literal[
    "sampling",
    "forced_tools",
    "disabled_thinking",
    "budgeted_thinking",
    "assistant_documents",
    "user_text_citations",
    "altered_sampling",
    "stop",
]
"""Parts of a request that some model or API version answers with a 400: temperature, top_p and
top_k; tool choice any or a named tool; thinking turned off; thinking with a token budget;
documents in assistant messages; citations on user text; temperature or top_p other than 1, which
is their default; stop sequences."""

Capability: TypeAlias = Literal[
    "images",
    "documents",
    "audio",
    "video",
    "tools",
    "parallel_tools",
    "structured_output",
    "reasoning",
    "adaptive_thinking",
]
"""What a model takes besides text, and what may be asked of it: several tool calls in one answer,
answers that follow a schema, thinking, thinking as long as it sees fit."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How hard a model may be told to think."""

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
"""What Chat Completions calls the limit on output tokens."""

SystemRole: TypeAlias = Literal["developer", "system"]
"""Who speaks the system text when it is a message."""

SystemSlot: TypeAlias = Literal["message", "instructions"]
"""Where Responses takes the system text: as the first input message, or as `instructions`."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model. What no source states is `None`, or a figure that is not `verified`."""

    provider: str
    id: str
    """The catalog's id, without a date; for an unknown model the id that was asked for."""
    known: bool
    """False: nobody described this model; the figures are its provider's careful defaults."""

    tokenizer: Figure[str]
    bytes_per_token: Figure[Positive]
    """UTF-8 bytes of compact JSON blocks, which is what a chunk holds, per billed token."""
    token_error: Figure[Share]
    """How far off an estimate by `bytes_per_token` may be, as a share of the estimate."""
    context_tokens: Figure[Limit] | None = None
    """What may go in."""
    output_tokens: Figure[Limit] | None = None
    """What may come out."""
    capabilities: Figure[tuple[Capability, ...]] | None = None
    """What its source says that it can; of what is missing here, the source does not say so."""
    efforts: Figure[tuple[Effort, ...]] | None = None
    """Least first."""
    retires: Figure[datetime.date] | None = None
    """From that day on it does not answer."""

    mid_conversation_system: Figure[bool]
    """Takes `role: "system"` inside messages."""
    strips_thinking: Figure[bool]
    """Drops earlier thinking at a plain user turn, which voids the cached messages."""
    refusals: Figure[tuple[Feature, ...]]
    """What this model refuses whatever the API version."""

    # What a provider without the notion leaves out.
    max_tokens_field: Figure[MaxTokensField] | None = None
    system_role: Figure[SystemRole] | None = None
    system_slot: Figure[SystemSlot] | None = None
    reasoning_field: Figure[str] | None = None
    """The field of an assistant's message in which Chat hosts take reasoning back."""
    reasoning_needed: Figure[bool] | None = None
    """An assistant's message that calls tools is refused without its reasoning."""
    explicit_breakpoints: Figure[bool] | None = None
    """Takes `prompt_cache_breakpoint` on content, and `prompt_cache_options`."""

    api_version: Figure[str] | None = None
    """The version header to send unless the caller names another."""
    version_refusals: dict[str, Figure[tuple[Feature, ...]]] = {}
    """What each API version refuses, by version."""

    def can(self, capability: Capability) -> bool:
        """Whether it is known to; false also where nobody says."""
        return self.capabilities is not None and capability in self.capabilities.value

    def refuses(self, feature: Feature, *, api_version: str | None = None) -> bool:
        """Whether a request with that feature is known to be refused on that API version."""
        if feature in self.refusals.value:
            return True
        if api_version is None and self.api_version is not None:
            api_version = self.api_version.value
        by_version = self.version_refusals.get(api_version or "")
        return by_version is not None and feature in by_version.value

"""The keywords of every call, typed for mypy and editors; an error names a misspelled one.

    ParamOptions      parameters of the model: `max_tokens`, `temperature`, …
    SingleCallOptions `anaphora.complete` and `anaphora.acomplete`
    CallOptions       `complete`, `send` and `stream` of a client
    MapOptions        `map` of a client
    TurnOptions       `send` and `preview` of a session
    SummaryOptions    `summarize` of a session
    RunOptions        `run` of a session
    SessionOptions    `session` of a client
    ClientOptions     the constructors of a client

`output`, the form of the reply, is separate: it decides the type of the response.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypedDict

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    Params,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    RenderedContext,
    ToolChoice,
)
from anaphora.redaction import shown_name
from anaphora.tools import ToolRegistry
from anaphora.values import AnyTool, Conversation, Message, MessageLike, Usage
from anaphora.yaml_values import nearest

from .budget import Budget
from .conversations import Conversations
from .dispatch import OnToolError
from .observe import CallAudit, Watcher
from .transport import HttpTransport

if TYPE_CHECKING:
    import os

    from .preview import Preview

OnPrefixBreak: TypeAlias = Literal["warn", "raise", "off"]
"""What happens before sending when the prefix would break: a warning and a notice, an error
instead of the call, or nothing."""

WarmUp: TypeAlias = Literal["auto", "call", "prewarm", "off"]
"""How a cache is written before several calls read it: by the first of them, by a pre-warm, or not
at all. `auto` takes the faster of the two if either pays."""

Prompt: TypeAlias = PromptIR | RenderedContext
StateText: TypeAlias = str | Callable[[], str] | None
SystemPrompt: TypeAlias = str | Sequence[PromptBlock]
Tools: TypeAlias = (
    ToolRegistry | Iterable[Callable[..., Any] | AnyTool | ToolRegistry | Mapping[str, Any]]
)
"""Functions, described by their signature and docstring; `Tool`s; registries; dictionaries in the
format of the OpenAI and Anthropic SDKs."""


OnCold: TypeAlias = Literal["raise", "send"] | Callable[["Preview"], bool | Awaitable[bool]]
"""What happens before a call whose cached beginning is gone: `raise` raises `ColdCache` with the
cost, `send` sends it, a function of the `Preview` returns whether to send it."""


class ColdOptions(TypedDict, total=False):
    on_cold: OnCold
    """By default `send`."""
    cold_above_usd: Decimal | float | str
    """Dollars: the additional cost, by its lower end, from which a call is cold; default 0.50."""


class ParamOptions(TypedDict, total=False):
    """The fields of `Params`, where they are described. `stream` is not among them: a turn streams
    if it is iterated over."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: str | Sequence[str]
    tool_choice: ToolChoice | str | Mapping[str, Any] | None
    """Also a mode ("auto", "required", "any", "none"), or the name of a tool."""
    reasoning: Reasoning | str | Mapping[str, Any] | None
    """Also an effort: "low", "medium", "high", …"""
    metadata: dict[str, str] | None
    user: str | None
    service_tier: str | None
    seed: int | None
    n: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    verbosity: str | None
    store: bool | None
    """In a session, a provider of the Responses API that stores replies gets only new messages."""
    include: Sequence[str]
    truncation: str | None


class TimedOptions(ParamOptions, total=False):
    timeout: float | None
    """Seconds for the whole call: waits, retries and fallbacks included."""


class TurnOptions(TimedOptions, ColdOptions, total=False):
    """`on_cold` and `cold_above_usd` override those of the session."""


class SummaryOptions(TurnOptions, total=False):
    """Other parameters are those of the last call; `on_cold` is `raise`, at any additional cost."""

    instruction: str | Message | None
    """The last message of the call, in place of the default one."""
    output: Any
    """Another form of the summary than the last call's; None for a plain text."""


class SingleCallOptions(TimedOptions, total=False):
    system: SystemPrompt | None
    """The system prompt: a text, or blocks with a cache policy each."""
    tools: Tools | None
    """Tools that the model may call; `run` of a session runs the functions among them. A single
    call, and `send`, run none: see `Response.tool_calls`."""
    params: Params | None
    """Parameters as one value; keywords override its fields."""
    cache: PromptCachePlan | None
    extras: Mapping[str, str | Mapping[str, Any]] | None
    """Request fields that have no keyword: wire name -> the fields, or their JSON text."""
    budget: Budget | None
    """A budget that the calls count in, besides those of the blocks they are made in."""


class CallOptions(SingleCallOptions, ColdOptions, total=False):
    model: str | None
    """Overrides the call's own model and the provider's. `provider/model` names both."""
    conversation: bool
    """The app sends the whole history with each call: the conversation is recognised by its prompt,
    and the call gets markers and a verdict as in a session."""


class FanOutProgress(msgspec.Struct, kw_only=True):
    """The progress of a fan-out, and its cost so far."""

    total: int
    done: int = 0
    """Prompts with a response, those of earlier runs included."""
    failed: int = 0
    resumed: int = 0
    calls: int = 0
    """Answered and failed calls of this run, warm-ups included."""
    billed_usd: Decimal = Decimal(0)
    """All billed costs, as far as prices are known; warm-ups and earlier runs included."""
    in_flight: int = 0
    """Calls that were sent and have not ended; after a cancelled run, those that it abandoned."""
    in_flight_usd: Decimal = Decimal(0)
    """Their estimated cost, with as much output as the longest reply so far."""
    warmup_usd: Decimal = Decimal(0)
    """The cost of calls that only wrote the cache."""
    unpriced: int = 0
    """Calls whose cost is unknown."""
    read_tokens: int = 0
    input_tokens: int = 0
    batch: str = ""
    """The provider's batch that runs now."""

    @property
    def cost_usd(self) -> Decimal:
        """All billed costs, and the estimated cost of the calls in flight."""
        return self.billed_usd + self.in_flight_usd

    @property
    def read_share(self) -> float:
        """The share of all input tokens that was read from the cache."""
        return self.read_tokens / self.input_tokens if self.input_tokens else 0.0

    def add_usage(self, usage: Usage) -> None:
        self.read_tokens += usage.read or 0
        self.input_tokens += usage.input or 0

    def add_cost(self, cost_usd: Decimal | None) -> None:
        if cost_usd is None:
            self.unpriced += 1
        else:
            self.billed_usd += cost_usd


class MapOptions(SingleCallOptions, ColdOptions, total=False):
    model: str | None
    conversation: bool
    """Both as in `CallOptions`."""
    ordered: bool
    """Iterate over the items in the order of the prompts, not of their arrival."""
    concurrency: int
    """The most concurrent calls, 100 by default; rate limits may allow fewer."""
    max_cost_usd: Decimal | float | str | None
    """No call is sent that could exceed it, together with those in flight. Earlier runs with the
    same `results` count. Exact if `max_tokens` bounds the replies."""
    warm: WarmUp
    """How the cache is written before a group of calls is sent: `call` (one of them goes first),
    `prewarm`, `off` (all at once). `auto` chooses, and sends all at once if nothing is saved."""
    visibility_delay: float | None
    """Seconds to wait after a cache entry becomes readable; None: the provider's value in the
    catalog."""
    batch: bool
    """Use the provider's Batch API: half the price, within a day."""
    results: str | os.PathLike[str] | None
    """A file for the results. A run with the same file continues an earlier one."""
    on_progress: Callable[[FanOutProgress], None] | None
    """Called with the progress after each prompt."""


class SessionOptions(SingleCallOptions, ColdOptions, total=False):
    model: str | None
    """As in `CallOptions`."""
    id: str | None
    """Names the conversation: it continues what an earlier session with this id has stored."""
    messages: Conversation | Iterable[MessageLike]
    """A saved history to continue; messages may be dictionaries in OpenAI's format."""
    prompt: Prompt | Callable[[], Prompt] | None
    """Everything but the history: a value, or a function that returns one and is called once a
    turn. `system`, `messages`, `state` and `cache` are a short form of it."""
    state: StateText
    """Text at the end of every call, never kept in the history."""
    compact_at: int | float | None
    """Drops the oldest exchanges when a prompt exceeds this many tokens (an int), or this share of
    the model's context window (a float)."""
    on_prefix_break: OnPrefixBreak
    diagnose: bool
    """Also asks the provider why a prefix was missed."""
    save: Callable[[Message], None] | None
    """Gets every message that is added to the history."""
    history: str | os.PathLike[str] | None
    """A JSONL file that keeps the conversation, in place of `messages` and `save`: it is read if it
    exists, and every new message is appended to it."""


class RunOptions(TurnOptions, total=False):
    max_turns: int
    """The most calls of the model. No turn begins once a bound is reached."""
    max_seconds: float | None
    """Seconds for the run. A turn in flight at the end is cancelled, and another `run()` can make
    it again; the limit also applies to tools without their own timeout."""
    max_cost_usd: Decimal | float | str | None
    """The cost of a turn is only known afterwards, so the last one may exceed the bound."""
    parallel: bool
    """Whether the tools of one turn run concurrently."""
    tool_timeout: float | None
    """Seconds for each tool."""
    on_tool_error: OnToolError
    """When a tool fails: `report` (the default) gives the model the exception's type and message;
    `raise` ends the run with the exception, and the next `run()` calls the tool again; a function
    of the call and the exception returns the result for the model."""


class ClientOptions(ColdOptions, total=False):
    watchers: Iterable[Watcher]
    """Get a record of every call."""
    on_wait: Callable[[float], None] | None
    """Called with the seconds of a delay by rate limits, before the delay."""
    transport: HttpTransport | None
    """Replaces the default one."""
    conversations: Conversations | None
    """Keeps sessions with an id: a mapping or an async store; by default memory of this process."""
    audit: CallAudit | None
    """Keeps a row of every call: `anaphora.audit.AuditLog`."""


def _keywords(options: Any, *others: str) -> frozenset[str]:
    return frozenset({*options.__optional_keys__, *others})


PARAM_KEYWORDS = _keywords(ParamOptions)
TURN_KEYWORDS = _keywords(TurnOptions, "output")
CALL_KEYWORDS = _keywords(CallOptions, "provider", "output")
MAP_KEYWORDS = _keywords(MapOptions, "provider", "output")
SESSION_KEYWORDS = _keywords(SessionOptions, "provider")
RUN_KEYWORDS = _keywords(RunOptions, "output")
CLIENT_KEYWORDS = _keywords(ClientOptions, "environ")

#: Keywords of other libraries, and their names here.
_ELSEWHERE = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "stop_sequences": "stop",
    "reasoning_effort": "reasoning",
    "thinking": "reasoning",
    "response_format": "output",
    "response_model": "output",
    "output_type": "output",
    "instructions": "system",
    "system_prompt": "system",
    "system_message": "system",
    "functions": "tools",
    "function_call": "tool_choice",
    "extra_body": "extras",
    "max_steps": "max_turns",
    "max_iterations": "max_turns",
    "max_budget_usd": "max_cost_usd",
    "history": "messages",
    "session_id": "id",
    "conversation_id": "id",
    "thread_id": "id",
}

_KEYS = (
    "keys come from the environment (ANTHROPIC_API_KEY, …), or from a mapping:"
    ' Client.from_env({"ANTHROPIC_API_KEY": …})'
)
_URLS = "set it in llm.yaml (base_url), or in the environment (OPENAI_BASE_URL, …)"
_RETRIES = "set it in llm.yaml (retry)"
#: Keywords of other libraries that belong into the configuration here.
_CONFIGURED = {
    "api_key": _KEYS,
    "key": _KEYS,
    "auth_token": _KEYS,
    "base_url": _URLS,
    "api_base": _URLS,
    "max_retries": _RETRIES,
    "num_retries": _RETRIES,
    "retries": _RETRIES,
    "retry": _RETRIES,
    "fallbacks": "set it in llm.yaml (routes)",
}


def check_keywords(options: Mapping[str, object], known: frozenset[str]) -> None:
    if not known.issuperset(options):
        _unknown_keyword(next(name for name in options if name not in known), known)


def _unknown_keyword(name: str, known: frozenset[str]) -> NoReturn:
    near = _ELSEWHERE.get(name, "")
    if near not in known:
        near = nearest(name, known)
    if name == "stream":
        advice = "iterate over the turn to stream, or await it for the response"
        if known is CALL_KEYWORDS:
            advice = "client.send(…).text streams; complete waits for the whole response"
    elif name in _CONFIGURED:
        advice = _CONFIGURED[name]
    elif name in SESSION_KEYWORDS and name not in ("messages", "prompt"):
        advice = f"it belongs to a session: client.session(…, {name}=…)"
    elif name in RUN_KEYWORDS and name != "output":
        advice = f"it belongs to a run: chat.run(…, {name}=…)"
    elif name in ("messages", "message", "prompt", "content", "contents", "input"):
        advice = "the messages are the first argument"
    elif name in ("api_key", "key", "token"):
        advice = "a key is part of the client: it is read from the environment or from llm.yaml"
    elif name == "output":
        advice = "a session has none of its own; give it to send or run"
    elif near:
        advice = f"did you mean `{near}`?"
    else:
        advice = f"there are {', '.join(sorted(known))}"
    raise InvalidRequest(f"unknown keyword; {advice}", path=shown_name(name))


def refuse_both(options: Mapping[str, object], whole: str, places: Mapping[str, str]) -> None:
    """Raises if a keyword is combined with `whole`, which has a field for it."""
    for name, place in places.items():
        value = options.get(name)
        if value is not None and not (isinstance(value, Sized) and not len(value)):
            raise InvalidRequest(
                f"{whole} and {name} cannot be combined: {whole} has {place} for that", path=name
            )

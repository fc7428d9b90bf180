"""Compaction by a summary that the model writes in a continuation of the cached conversation.

    done = await chat.summarize(8_000)      the summary, and the newest units within 8,000 tokens
    done.response.verdict                   the conversation was read from the cache

Tools, tool choice, reasoning, output format and the whole history are those of the last call, and
the instruction is the last message: any change before it would be paid for as a new prompt.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from anaphora.client.cold_guard import ColdGuard, cold_guard_of
from anaphora.client.content import wrong_type
from anaphora.client.in_flight import TurnRequest
from anaphora.client.options import SummaryOptions
from anaphora.client.pending import Pending
from anaphora.client.response import Response
from anaphora.client.turn import Turn
from anaphora.errors import InvalidRequest, SummaryFailed, SummaryProblem
from anaphora.prompt import Compaction, compact
from anaphora.prompt.context import TokenCount, droppable
from anaphora.values import Conversation, Event, Message, Notice, ReplyEnd
from anaphora.wire.params import forces_tools

from .compaction import PromptSizes, budget_of
from .preview import preview_of
from .provider_state import ProviderState
from .run import declined
from .turn_prompt import TurnPrompt
from .turns import SessionTurns

INSTRUCTION = """\
Summarize this conversation so that it can be continued from the summary alone: the summary \
replaces the messages above. Keep the user's goals, requests and constraints; what was decided, \
and why; what was done and found, with the exact names, paths, values and identifiers that are \
still needed; errors and how they were solved; what is open, and what comes next. Leave \
out what no longer matters. Answer with the summary as plain text in at most {words} words. Call \
no tool. Begin with the line "Summary of the conversation so far:"."""

#: Parameters that a summary does not take from the last call: they bound an answer, and no cached
#: prefix depends on them.
_ANSWER_BOUNDS = ("max_tokens", "stop", "n")

_PROBLEMS: dict[SummaryProblem, str] = {
    "tool_call": "the model called a tool instead of writing a summary",
    "refusal": "the model declined to write a summary",
    "truncated": "the summary was cut off; allow a longer one: summarize(…, max_tokens=…)",
    "paused": "the provider paused the answer, which is not complete",
    "empty": "the answer has no text",
    "over_budget": "the summary alone exceeds the budget; ask for a shorter one, or raise it",
    "history_changed": "the history was replaced while the summary was written",
}


class SummaryResult(msgspec.Struct, frozen=True, eq=False):
    summary: Message | None = None
    """The first message of the history; None if that was within the budget: nothing was sent."""
    response: Response | None = None
    """The call that wrote the summary."""
    dropped: int = 0
    """The number of messages that it replaces."""
    notices: tuple[Notice, ...] = ()


class Summary(Pending[SummaryResult]):
    """A compaction by summary, which is made when it is awaited or iterated over, once."""

    _kind, _verb = "Summary", "summarize"

    def __init__(self, turns: SessionTurns, budget_tokens: int, options: SummaryOptions) -> None:
        self._cold = cold_guard_of(options, ColdGuard("raise", None)) or ColdGuard()
        self._turns = turns
        self._budget = budget_tokens
        self._request = summary_request(turns, budget_tokens, options)
        self.result: SummaryResult | None = None
        self._made()

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        self._consume()
        return self._make(stream=True)

    async def _complete(self) -> SummaryResult:
        if self.result is None:
            self._consume()
            async for _ in self._make(stream=False):
                pass
        assert self.result is not None
        return self.result

    async def _make(self, *, stream: bool) -> AsyncGenerator[Event, None]:
        turns = self._turns
        if turns.in_flight:
            await turns._settled()
        turns.check_idle()
        turns.running = True
        try:
            tokens = await self._before()
            if tokens is None:
                self.result = SummaryResult()
                return
            before, turn = turns.history.messages, Turn[None](turns, self._request)
            if stream:
                async with turn as events:
                    async for event in events:
                        yield event
            else:
                yield ReplyEnd((await turn).reply)
            assert turn.response is not None
            self.result = await self._replace(before, turn.response, tokens)
        finally:
            turns.running = False

    async def _before(self) -> TokenCount | None:
        """Checks what can be checked before a call is paid for. Returns the counter of tokens; None
        if the history is within the budget."""
        turns, request = self._turns, self._request
        await turns.load()
        prompt = turns.history.next_prompt()
        if not prompt.history:
            return None
        turns.history.check_turn(request)
        state = turns.state(turns.order(request, lambda: prompt)[0])
        if state.past is not None and turns.keeper is not None:
            call = turns.builder.call(state, prompt, request, whole=False)
            await turns.keeper.load_past(state, state.past, call)
        sizes = history_sizes(turns, state, prompt)
        if sum(sizes.messages()) <= self._budget:
            return None
        if droppable(prompt.history)[-1] == 0:
            reason = "no message can be replaced: the model has to answer all of them"
            raise InvalidRequest(reason, path="session")
        state, prepared = turns.prepared_now(prompt, request)
        if forces_tools(prepared.call.params):
            raise InvalidRequest(
                'the last call requires a tool call, and a summary is a text; give "auto", which'
                " some providers bill as a new prompt",
                path="tool_choice",
            )
        if self._cold.is_on:
            await self._cold.check(preview_of(state, prepared), of="input of the summary")
        return sizes.counter()

    async def _replace(
        self, before: Conversation, response: Response, tokens: TokenCount
    ) -> SummaryResult:
        """Replaces the history by the summary. Raises if the answer is none."""
        turns, history, reply = self._turns, self._turns.history, response.reply
        summary = Message.user(response.text.strip())
        problems: dict[SummaryProblem, bool] = {
            "tool_call": bool(reply.tool_calls),
            "refusal": reply.stop_reason == "refusal" or declined(reply),
            "truncated": reply.stop_reason in ("length", "context_overflow"),
            "paused": reply.stop_reason == "pause",
            "empty": not summary.text,
            "over_budget": tokens(summary) > self._budget,
            "history_changed": not history.messages.extends(before),
        }
        for problem in (name for name, found in problems.items() if found):
            reason = f"{_PROBLEMS[problem]}; the conversation is unchanged"
            raise SummaryFailed(reason, problem=problem, response=response)
        prompt, budget = history.next_prompt(), self._budget
        context = prompt.to_context()
        done = compact(context, budget=budget, tokens=tokens, summary=summary, all_summarized=True)
        take_compaction(turns, prompt, done)
        turns.last_turn = None  # its prefix is not to be kept warm
        if turns.keeper is not None:
            response = await turns._stored(response)
        first = history.messages[0] if done.dropped else None
        return SummaryResult(first, response, done.dropped, done.notices)


def summary_request(turns: SessionTurns, budget: Any, options: Any) -> TurnRequest:
    """The call that asks for a summary: as the last one, but for `options`."""
    tokens = budget_of(budget, "budget_tokens")
    instruction, changed = options.pop("instruction", None), "output" in options
    output = options.pop("output", None)
    if instruction is None:
        instruction = INSTRUCTION.format(words=max(50, tokens * 3 // 8))
    if isinstance(instruction, str) and instruction.strip():
        instruction = Message.user(instruction)
    if not isinstance(instruction, Message) or instruction.role != "user":
        raise wrong_type("a text or a message of the user", instruction, "instruction")
    last = TurnRequest() if turns.last_turn is None else turns.last_turn[1]
    # A thinking budget and the limit of the answer that contains it belong together.
    bounds = _ANSWER_BOUNDS[1:] if "reasoning" in last.params else _ANSWER_BOUNDS
    same = {name: value for name, value in last.params.items() if name not in bounds}
    request = turns.builder.request(None, output, options)
    return msgspec.structs.replace(
        request,
        instruction=instruction,
        params=same | request.params,
        output=request.output if changed else last.output,
        cold=None,
    )


def history_sizes(turns: SessionTurns, state: ProviderState, turn: TurnPrompt) -> PromptSizes:
    """The tokens of the history, also of a part that the provider has stored."""
    call = turns.builder.call(state, turn, TurnRequest())
    return PromptSizes(state.prepare(call, time.time()).rendered)


def take_compaction(turns: SessionTurns, turn: TurnPrompt, done: Compaction) -> None:
    """Continues with the history that is left."""
    if not done.dropped:
        return
    history, before = turns.history, turn.history
    history.take(turn.compacted(done))
    if turns.keeper is not None:
        history.note_compaction(before, history.messages)
    turns.expect_prefix_changes()

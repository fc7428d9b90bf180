"""Memory over a long run: what conversations held is let go with them. Prints the curve."""

from __future__ import annotations

import gc
import tracemalloc

from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Rendered
from anaphora.values import Conversation, Message, Tool, ToolCall
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = catalog.rules("anthropic", MODEL)


def converse(turns: int, tools: tuple[Tool, ...]) -> int:
    """A whole conversation; gives the size of its last body."""
    conversation = Conversation([Message.user("go")])
    previous: Rendered | None = None
    size = 0
    for turn in range(turns):
        tail = [Message.user(f"turn {turn}")]
        system = [PromptBlock.cached_long("identity", "You are terse. " * 40)]
        call = Call(
            ir=PromptIR.chat(conversation, system=system, tail=tail),
            model=MODEL,
            tools=tools,
            params=Params(max_tokens=64),
        )
        previous = anthropic.render(call, PROFILE, previous)
        request = anthropic.assemble(previous, plan_once(previous, RULES, reuse_expected=True))
        cache.fingerprint(previous)
        size = len(request.body)
        conversation = conversation.append(
            Message.assistant(ToolCall(f"t{turn}", "look", f'{{"at": {turn}}}')),
            Message.tool(f"t{turn}", f"result {turn} " * 30),
        )
    return size


def test_memory_is_flat_over_many_conversations() -> None:
    tools = tuple(Tool(f"tool{at}", "does something " * 20) for at in range(20))
    converse(200, tools)
    gc.collect()
    tracemalloc.start()
    curve = []
    for number in range(300):
        converse(200, tools)
        if number % 50 == 49:
            gc.collect()
            curve.append(tracemalloc.get_traced_memory()[0])
            print(f"after {number + 1:4} conversations: {curve[-1] / 1e3:8.1f} kB held")
    tracemalloc.stop()
    assert curve[-1] < curve[0] + 50_000


def test_memory_of_one_long_conversation_grows_with_its_bytes_alone() -> None:
    per_byte = []
    for turns in (1_000, 4_000, 8_000):
        gc.collect()
        tracemalloc.start()
        size = converse(turns, ())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        per_byte.append(peak / size)
        print(f"{turns:6} turns: body {size / 1e6:6.2f} MB, peak {peak / 1e6:7.2f} MB")
    assert per_byte[-1] < per_byte[0] * 1.5

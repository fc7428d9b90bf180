"""A real prefix cache confirms what our certificates promise.

The engine keeps the tokens of the last prompt it saw, and says how many of them the next one began
with. It knows nothing of our chunks; so when a certificate says that a turn extends the one before,
these counts are a second opinion.
"""

from __future__ import annotations

import json

import pytest
from support.llama import Llama
from support.llama_calls import LOOK, NOW, WIRES, ask, call, conversation, read, rendered, stream

from anaphora import cache
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Rendered
from anaphora.values import Conversation, Message, ReplyEnd, Usage

every_wire = pytest.mark.parametrize("name", WIRES)

SYSTEM = "You are a careful assistant, and you say one word at a time. " * 20


def forget(llama: Llama, name: str) -> None:
    """Another conversation takes the engine's only slot."""
    ask(llama, name, call("something else entirely"))


def counted(usage: Usage) -> tuple[int, int]:
    """All input, and what of it was read, held against the engine's own words: Anthropic's counts
    leave out of the input what was read, OpenAI's hold it."""
    raw = json.loads(usage.raw or "")
    if "cache_read_input_tokens" in raw:
        read = raw["cache_read_input_tokens"]
        total = raw["input_tokens"] + read
    else:
        total = raw.get("prompt_tokens", raw.get("input_tokens"))
        details = raw.get("prompt_tokens_details", raw.get("input_tokens_details"))
        read = details["cached_tokens"]
    assert (usage.input, usage.read, usage.uncached) == (total, read, total - read)
    assert not usage.written_total
    return total, read


@every_wire
def test_the_counts_are_a_partition(llama: Llama, name: str) -> None:
    forget(llama, name)
    made = call("hi", system=SYSTEM)
    cold, read_cold = counted(ask(llama, name, made).usage)
    warm, read_warm = counted(ask(llama, name, made).usage)
    assert cold == warm
    assert read_cold < 10 < len(SYSTEM) < read_warm
    # The last token is always computed: it is what the answer follows from.
    assert read_warm == warm - 1


@every_wire
def test_the_counts_of_a_stream_are_the_same_partition(llama: Llama, name: str) -> None:
    made = call("hi", system=SYSTEM)
    single = counted(ask(llama, name, made).usage)
    last = read(name, stream(llama, name, made))[-1]
    assert isinstance(last, ReplyEnd)
    total, cached = counted(last.reply.usage)
    assert (total, cached) == (single[0], total - 1)


@every_wire
def test_a_stable_prefix_is_read_from_the_cache(llama: Llama, name: str) -> None:
    """Five turns, tools and all. Each certificate extends the last, and each time the engine had
    read the whole turn before, and mostly also its own answer."""
    forget(llama, name)
    history, before, last = Conversation(), None, 0
    for turn in range(5):
        history = history.append(Message.user(f"Question {turn}: what would you say?"))
        made = rendered(name, conversation(history, system=SYSTEM, tools=(LOOK, NOW)), before)
        if before is not None:
            assert cache.fingerprint(made).extends(cache.fingerprint(before))
        reply = ask(llama, name, made)
        total, cached = counted(reply.usage)
        if before is not None:
            # All but the cue at its end, which is not part of the history.
            assert cached >= last - 1
        (called,) = reply.tool_calls
        history = history.append(reply.message, Message.tool(called.id, f"Result {turn}."))
        before, last = made, total
        made = rendered(name, conversation(history, system=SYSTEM, tools=(LOOK, NOW)), before)
        assert cache.fingerprint(made).extends(cache.fingerprint(before))
        reply = ask(llama, name, made)
        total, cached = counted(reply.usage)
        assert cached >= last - 1
        history = history.append(reply.message)
        before, last = made, total
    assert last > len(SYSTEM) + 5 * len("Question 0: what would you say?")


@every_wire
def test_an_answer_that_is_given_back_is_read_too(llama: Llama, name: str) -> None:
    """An answer is sent back byte for byte as the model wrote it, or else the engine
    would have to read it anew."""
    forget(llama, name)
    history = Conversation([Message.user("hi")])
    reply = ask(llama, name, conversation(history, system=SYSTEM))
    first, _ = counted(reply.usage)
    history = history.append(reply.message, Message.user("and now?"))
    _, cached = counted(ask(llama, name, conversation(history, system=SYSTEM)).usage)
    assert cached >= first + len(reply.text)


@every_wire
def test_a_volatile_tail_costs_only_itself(llama: Llama, name: str) -> None:
    """The state of a turn stands behind the history, so the history is read all the same."""
    forget(llama, name)
    history = Conversation([Message.user("hi")])
    before: Rendered | None = None
    last = 0
    for turn in range(4):
        tail = [Message.user(f"It is {turn} o'clock.")]
        ir = PromptIR.chat(history, system=SYSTEM, tail=tail)
        made = rendered(name, Call(ir=ir, model="tiny", params=Params(max_tokens=50)), before)
        reply = ask(llama, name, made)
        total, cached = counted(reply.usage)
        if before is not None:
            assert cache.fingerprint(made).extends(cache.fingerprint(before))
            # What the tail and the beginning of an answer took, and a turn's own four tokens.
            assert cached >= last - len("user" + tail[0].text + "assistant") - 8
        history = history.append(reply.message, Message.user("go on"))
        before, last = made, total


@every_wire
@pytest.mark.breaks_prefix(reason="the counts have to fall when the beginning changes")
def test_a_broken_beginning_is_not_read(llama: Llama, name: str) -> None:
    """The other half of the proof: where the certificate says no, the engine read nothing."""
    forget(llama, name)
    history = Conversation([Message.user("hi")])
    before = rendered(name, conversation(history, system="Monday. " + SYSTEM))
    first, _ = counted(ask(llama, name, before).usage)
    history = history.append(Message.assistant("What?"), Message.user("again"))
    made = rendered(name, conversation(history, system="Sunday. " + SYSTEM), before)
    assert not cache.fingerprint(made).extends(cache.fingerprint(before))
    _, cached = counted(ask(llama, name, made).usage)
    assert cached < 20 < first


@every_wire
@pytest.mark.breaks_prefix(reason="tools stand first, and one is added")
def test_another_tool_voids_everything_behind_it(llama: Llama, name: str) -> None:
    forget(llama, name)
    history = Conversation([Message.user("hi")])
    before = rendered(name, conversation(history, system=SYSTEM, tools=(LOOK,)))
    first, _ = counted(ask(llama, name, before).usage)
    made = rendered(name, conversation(history, system=SYSTEM, tools=(NOW, LOOK)), before)
    assert not cache.fingerprint(made).extends(cache.fingerprint(before))
    _, cached = counted(ask(llama, name, made).usage)
    assert cached < first / 4

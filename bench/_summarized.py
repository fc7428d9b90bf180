"""How much of the call that writes a summary is read from the cache: the ends of recorded
conversations, sent by the client to the emulator, and then summarised."""

from __future__ import annotations

import asyncio
import gzip
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from _engine import EngineTransport
from _recorded import QUICK, SLOW, message_of, tool_of

from anaphora import AsyncClient
from anaphora.analysis.trace.format import Trace, read_line
from anaphora.client.session import Session
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.replies.script import Script
from anaphora.errors import Upstream
from anaphora.values import Conversation, Message, Tool, ToolCall, ToolResult
from anaphora.values.conversation import unanswered

#: A model of each wire and of some dialects, and its path at the emulator.
MODELS = {
    "anthropic": ({"wire": "anthropic"}, "claude-sonnet-4-5", ""),
    "openai_chat": ({"wire": "openai_chat"}, "gpt-5.2", ""),
    "openai_responses": ({"wire": "openai_responses"}, "gpt-5.6", ""),
    "gemini": ({"wire": "gemini"}, "gemini-2.5-flash", ""),
    "deepseek": ({"dialect": "deepseek"}, "deepseek-v4-flash", "/deepseek"),
    "minimax": ({"dialect": "minimax/anthropic"}, "MiniMax-M2.7", "/minimax"),
    "bedrock": ({"wire": "bedrock"}, "us.anthropic.claude-sonnet-4-5-20250929-v1:0", ""),
}
#: The last calls of a conversation: the first of them writes all that is before.
CALLS = 3
#: Tokens that are left: enough for the summary, and less than every history.
BUDGET = 50
SCRIPT = """
replies:
  - match: {text: Summarize this conversation}
    reply: {text: "Summary of the conversation so far: the user asked, and was helped."}
  - reply: {text: Yes.}
"""


class Summarised(msgspec.Struct, frozen=True):
    shares: list[float]
    """Of each conversation whose cache was alive."""
    uncached: int
    """Conversations too short to be cached or summarised."""
    refused: int
    """Conversations that the emulator refuses as the provider would: too long, or incomplete."""

    @property
    def median(self) -> float:
        return statistics.median(self.shares)


def summarised(folder: Path, *, quick: bool) -> dict[str, Summarised]:
    """By wire; nothing if there are no recordings."""
    traces = list(_traces(folder, quick=quick))
    if not traces:
        return {}
    return {name: asyncio.run(_play(name, traces)) for name in MODELS}


def _traces(folder: Path, *, quick: bool) -> Iterator[Trace]:
    for file in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(file) as lines:
            for number, line in enumerate(lines):
                if quick and number == 5:
                    break
                yield read_line(line, f"{file}:{number + 1}")


async def _play(name: str, traces: list[Trace]) -> Summarised:
    settings, model, path = MODELS[name]
    provider: dict[str, Any] = {"base_url": f"http://emulator.invalid{path}", "model": model}
    config = {"providers": {name: settings | provider | {"key": {"env": "KEY"}}}}
    shares, uncached, refused = [], 0, 0
    now = 1.79e9
    for trace in traces:
        options = EmulatorOptions(script=Script.decode(SCRIPT, "script.yaml"))
        transport = EngineTransport(Engine(options))
        client = AsyncClient.from_config(config, environ={"KEY": "any"}, transport=transport)
        async with client:
            now += 1e6
            try:
                share = await _summarise(client, name, trace, now)
            except Upstream:
                refused += 1
                continue
        if share is None:
            uncached += 1
        else:
            shares.append(share)
    return Summarised(shares, uncached, refused)


async def _summarise(client: AsyncClient, name: str, trace: Trace, now: float) -> float | None:
    """The read share of the summarising call, after the recorded conversation has ended and before
    its cache has expired; None if it is too short for the cache or for a summary."""
    leading = sum(message.role == "system" for message in trace.messages[:1])
    messages = [message_of(each, at) for at, each in enumerate(trace.messages[leading:])]
    ends = [call.messages - leading for call in trace.calls if call.messages > leading]
    ends = [end for end in ends if messages[end - 1].role != "assistant"][-CALLS:]
    chat = client.session(
        name,
        system=str(trace.messages[0].content) if leading else None,
        tools=_tools(trace) or _called(messages),
        max_tokens=1000,
        on_prefix_break="off",
    )
    last = None
    for end in ends:
        chat.conversation = _continued(chat, _completed(messages[:end]))
        with mock.patch("time.time", return_value=now):
            last = await chat.send()
        now += QUICK if messages[end - 1].role == "tool" else SLOW
    minimum = chat.turns.route.current.rules.minimum_tokens.value
    if last is None or (last.usage.input or 0) < minimum:
        return None
    recorded = messages[: ends[-1] + 1]
    if recorded[-1].role == "assistant" and not unanswered(Conversation(recorded)):
        chat.conversation = _continued(chat, _completed(recorded))
    with mock.patch("time.time", return_value=now):
        done = await chat.summarize(BUDGET)
    if done.response is None:
        return None
    usage = done.response.usage
    return (usage.read or 0) / (usage.input or 1)


def _tools(trace: Trace) -> list[Tool]:
    """The recorded functions; tools that a provider runs itself have no name of their own."""
    tools = trace.tools or ()
    return [tool_of(tool) for tool in tools if "name" in tool.get("function", tool)]


def _called(messages: list[Message]) -> list[Tool]:
    """The tools that a recording only shows by their calls."""
    parts = (part for message in messages for part in message.parts)
    names = dict.fromkeys(part.name for part in parts if isinstance(part, ToolCall))
    return [Tool(name, "", '{"type":"object","properties":{}}') for name in names]


def _completed(messages: list[Message]) -> list[Message]:
    """As providers accept it: from the first message of the user on, each tool call with a result.
    Recordings lack the results of calls that the user interrupted."""
    first = next((at for at, each in enumerate(messages) if each.role == "user"), len(messages))
    complete: list[Message] = []
    for at, message in enumerate(messages[first:], first):
        complete.append(message)
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if not calls or at + 1 == len(messages):
            continue
        given = set[str]()
        for later in messages[at + 1 :]:
            if later.role != "tool":
                break
            given |= {part.call_id for part in later.parts if isinstance(part, ToolResult)}
        missing = [ToolResult(call.id, "interrupted") for call in calls if call.id not in given]
        if missing:
            complete.append(Message(role="tool", parts=tuple(missing)))
    return complete


def _continued(chat: Session, messages: list[Message]) -> Conversation:
    """The recorded conversation, in the same object as far as it was sent: the replies are the
    recorded ones, not the emulator's."""
    known = chat.conversation
    sent = known.prefix(max(0, len(known) - 1))
    return sent.append(*messages[len(sent) :])

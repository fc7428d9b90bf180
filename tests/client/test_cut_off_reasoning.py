"""An answer that is cut off inside its reasoning does not end the conversation.

The reasoning stays in the conversation and is left out of the requests, since providers refuse it
without what follows it; every response has a notice about it.
"""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
from support.emulated_client import LONG, MODELS, connected

from anaphora.client.response import Response
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.prompt import Reasoning
from anaphora.tools import ToolRegistry
from anaphora.values import Message, Text, Thinking, ToolCall, from_json, to_json

THOUGHT = "Consider this. " * 2000
#: The user message after a cut-off reply forms one turn with the question before it, so the later
#: texts come first.
SCRIPT = f"""
replies:
  - match: {{text: thanks}}
    reply: {{text: You are welcome.}}
  - match: {{text: ponder}}
    reply: {{thinking: "{THOUGHT}", text: Never sent.}}
  - match: {{text: muse}}
    reply: {{thinking: A whole thought., stop: length}}
  - match: {{text: conclude}}
    reply: {{thinking: Of course., text: So it is.}}
  - match: {{tool: look, text: look}}
    reply: {{thinking: I shall look., tool_calls: [{{name: look, arguments: {{}}}}]}}
  - match: {{result: found}}
    reply: {{thinking: "{THOUGHT}"}}
"""
#: The reasoning settings of each wire.
THINKING: dict[str, Reasoning] = {
    "anthropic": Reasoning(mode="enabled", budget_tokens=1024),
    "openai_chat": Reasoning(effort="low"),
    "openai_responses": Reasoning(effort="low", summary="auto"),
    "gemini": Reasoning(budget_tokens=512, display="summarized"),
    "ollama": Reasoning(effort="low"),
    "deepseek": Reasoning(mode="enabled"),
    "minimax/anthropic": Reasoning(mode="enabled", budget_tokens=1024),
    "openrouter": Reasoning(effort="low"),
}
#: These bill reasoning and do not show it: a cut off answer is empty.
HIDDEN = ("openai_chat", "openrouter")
LIMIT = 1200
#: Where breakpoints go depends on what earlier calls of a session have written.
MARKER = re.compile(rb',"prompt_cache_breakpoint":{[^}]*}')

every = pytest.mark.parametrize("name", MODELS)
both = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])


async def send(chat: Session, text: str, *, stream: bool) -> Response:
    turn = chat.send(text)
    if not stream:
        return await turn
    async for _ in turn:
        pass
    assert turn.response is not None
    return turn.response


def codes(answered: Response) -> set[str]:
    return {notice.code for notice in answered.notices}


@pytest.mark.parametrize("question", ["ponder", "muse"], ids=["at max_tokens", "signed"])
@both
@every
@pytest.mark.long
def test_conversation_continues_after_cut_off_reasoning(
    scripted: Emulator, name: str, stream: bool, question: str
) -> None:
    notice = "empty_message" if name in HIDDEN else "unfinished_thinking"

    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(
                name, system=LONG, max_tokens=LIMIT, reasoning=THINKING[name]
            )
            cut = await send(chat, question, stream=stream)
            assert (cut.reply.stop_reason, cut.text) == ("length", "")
            assert all(isinstance(part, Thinking) for part in cut.reply.message.parts)
            assert bool(cut.reply.message.parts) == (name not in HIDDEN)
            for text, expected in (("thanks", "You are welcome."), ("conclude", "So it is.")):
                answered = await send(chat, text, stream=stream)
                assert answered.text == expected
                assert notice in codes(answered)
                assert answered.verdict is not None
                assert answered.verdict.result != "miss"
            assert chat.messages[1].parts == cut.reply.message.parts
            assert THOUGHT[:30].encode() not in emulated.transport.bodies[-1]
            # Saved and read again, the conversation renders to the same bytes.
            saved = [from_json(to_json(message), Message) for message in chat.messages]
            again = emulated.client.session(
                name, system=LONG, messages=saved, max_tokens=LIMIT, reasoning=THINKING[name]
            )
            for session in (chat, again):
                await send(session, "thanks", stream=stream)
            first, second = (MARKER.sub(b"", body) for body in emulated.transport.bodies[-2:])
            assert first == second

    asyncio.run(main())


@both
def test_white_space_after_reasoning_is_omitted_with_it(scripted: Emulator, stream: bool) -> None:
    """Cut off right after the reasoning: Anthropic takes no text block of white space there."""

    async def main() -> None:
        async with connected(scripted, ["anthropic"]) as emulated:
            thought = Thinking("A whole thought.", signature="c2lnbmVk", provider="anthropic")
            saved = [Message.user("muse"), Message.assistant(thought, Text("\n\n"))]
            chat = emulated.client.session("anthropic", messages=saved)
            answered = await send(chat, "thanks", stream=stream)
            assert "unfinished_thinking" in codes(answered)
            assert [m["role"] for m in json.loads(emulated.transport.bodies[-1])["messages"]] == [
                "user"
            ]
            assert len(chat.messages) == 4

    asyncio.run(main())


def test_emulator_rejects_white_space_after_reasoning(scripted: Emulator) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
    messages = [
        {"role": "user", "content": "muse"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "\n"}]},
        {"role": "user", "content": "thanks"},
    ]
    body = {"model": MODELS["anthropic"], "max_tokens": 9, "messages": messages}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    answer = httpx.post(f"{scripted.url}/v1/messages", json=body, headers=headers)
    assert answer.status_code == 400
    assert "non-whitespace" in answer.json()["error"]["message"]


@both
@every
def test_cut_off_run_can_be_continued(scripted: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        tools = ToolRegistry()

        @tools.tool
        def look() -> str:
            """Looks."""
            return "found"

        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(
                name, tools=tools, max_tokens=LIMIT, reasoning=THINKING[name], state="It is noon."
            )
            for content in ("look", None):  # without a message the tool's result is answered again
                run = chat.run(content)
                if stream:
                    async for _ in run:
                        pass
                ran = await run
                assert (ran.stop_reason, ran.text) == ("length", "")
            ran = await chat.run("thanks")
            assert (ran.stop_reason, ran.text) == ("done", "You are welcome.")
            calls = [p for m in chat.messages for p in m.parts if isinstance(p, ToolCall)]
            assert len(calls) == 1

    asyncio.run(main())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HIDDEN])
def test_reasoning_with_content_after_it_is_sent_back(scripted: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(name, max_tokens=LIMIT, reasoning=THINKING[name])
            await chat.send("conclude")
            answered = await chat.send("thanks")
            assert b"Of course." in emulated.transport.bodies[-1]
            assert "unfinished_thinking" not in codes(answered)

    asyncio.run(main())


def test_stored_responses_continue_from_a_cut_off_reply(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, ["openai_responses"]) as emulated:
            chat = emulated.client.session("openai_responses", max_tokens=LIMIT, store=True)
            assert (await chat.send("ponder")).reply.stop_reason == "length"
            assert (await chat.send("thanks")).text == "You are welcome."
            assert b"previous_response_id" in emulated.transport.bodies[-1]

    asyncio.run(main())

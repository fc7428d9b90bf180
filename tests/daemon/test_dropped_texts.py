"""Conversations whose text the daemon no longer holds are continued, judged and audited like
others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import running_daemon
from support.emulated_client import LONG, MODELS
from support.rpc_calls import audit_rows

from anaphora.daemon.calls import conversations
from anaphora.emulator.server import Emulator

GRANT: dict[str, Any] = {
    "capabilities_grant": ["llm_complete", "llm_stream"],
    "llm": {
        "providers": ["anthropic"],
        "models": [MODELS["anthropic"]],
        "usd_per_day": "unlimited",
    },
}
CONVERSATIONS, TURNS = 6, 4
#: The tokens behind the edited message that the call before had cached.
LOST = 2929


def said(conversation: int, turn: int) -> str:
    return f"{conversation}, {turn}: " + f"All of what {conversation} says in {turn}. " * 60


def body(conversation: int, turns: int) -> dict[str, Any]:
    messages = [
        {"role": ("user", "assistant")[turn % 2], "content": said(conversation, turn)}
        for turn in range(2 * turns - 1)
    ]
    return {"model": MODELS["anthropic"], "max_tokens": 20, "system": LONG, "messages": messages}


def verdict(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/messages", json=request)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = json.loads(answer.headers["anaphora-verdict"])
    return found


@pytest.mark.parametrize(
    ("most_text", "changed"),
    [
        (40_000, "the block changed in messages[2].content[0] (conversation m2), which begins at"),
        (conversations._MOST_TEXT, "edited at character 6 of messages[2].content[0].text"),
    ],
)
def test_conversations_in_turn(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_text: int, changed: str
) -> None:
    monkeypatch.setattr(conversations, "_MOST_TEXT", most_text)
    with running_daemon(tmp_path, emu, extensions={"app": GRANT}) as daemon:
        with daemon.client("app") as client:
            results = [
                [verdict(client, body(each, turn + 1))["result"] for each in range(CONVERSATIONS)]
                for turn in range(TURNS)
            ]
            assert results[2:] == [["hit"] * CONVERSATIONS] * (TURNS - 2)
            edited = body(0, TURNS + 1)
            edited["messages"][2]["content"] = edited["messages"][2]["content"].replace(
                "All", "Most"
            )
            found = verdict(client, edited)
            # The row is made after the answer: its digest is that of the whole prompt.
            verdict(client, body(1, TURNS))
            hashes = [row.prompt_hash for row in audit_rows(daemon)]
        assert hashes[-1] == hashes[(TURNS - 1) * CONVERSATIONS + 1]
        assert len(set(hashes)) == len(hashes) - 1
        assert (found["result"], found["cause"]) == ("partial", "history_edited")
        assert found["lost_tokens"] == LOST
        assert changed in found["text"]


def test_calls_with_changing_tools_are_answered(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the system prompt, which is after the tools."""
    monkeypatch.setattr(conversations, "_MOST_TEXT", 10_000)
    tools = [
        {"name": name, "description": "It helps. " * 200, "input_schema": {"type": "object"}}
        for name in ("ask", "say")
    ]
    grant = {**GRANT, "llm": {**GRANT["llm"], "tools": ["*"]}}
    with (
        running_daemon(tmp_path, emu, extensions={"app": grant}) as daemon,
        daemon.client("app") as client,
    ):
        for turn in range(TURNS):
            for each in range(CONVERSATIONS):
                own = tools[:1] if (turn + each) % 2 else tools[1:]
                found = verdict(client, {**body(each, turn + 1), "tools": own})
                if turn == 1:
                    assert found["cause"] == "tools_changed"
                    assert "a tool was removed" in found["text"]

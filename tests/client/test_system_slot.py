"""The system prompt goes back into the slot and the role that it came in: a stored response keeps
messages and no instructions, so a prompt that moves is lost or doubled in the next turn."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.emulated_client import KEY, LONG, connected
from support.roundtrip import RecordedExchange
from support.roundtrip.rules import check
from support.tables import each_row

from anaphora import wire
from anaphora.cli import translate
from anaphora.emulator.server import Emulator
from anaphora.prompt import Params
from anaphora.values import Reply
from anaphora.wire.openai_responses import read_reply

MODELS = ("gpt-5.6", "gpt-5.2", "gpt-4o")
SLOTS = ("instructions", "developer", "system", "both")


def message(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": role, "content": content}


def request(model: str, slot: str, text: str, previous: str | None = None) -> dict[str, Any]:
    """One turn of a chained conversation, as an application sends it. Instructions are sent with
    every turn, a message with the first only."""
    body: dict[str, Any] = {"model": model, "input": [message("user", text)]}
    if slot in ("instructions", "both"):
        body["instructions"] = LONG
    if slot != "instructions" and previous is None:
        role = "developer" if slot == "both" else slot
        body["input"].insert(0, message(role, "Answer in French. " + LONG))
    if previous is not None:
        body["previous_response_id"] = previous
    return body | {"store": True, "max_output_tokens": 50}


def as_sent(emu: Emulator, body: dict[str, Any]) -> Reply:
    """The answer to the request as it is."""
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(
        f"{emu.url}/v1/responses", json.dumps(body).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        return read_reply(answer.read())


@pytest.mark.parametrize("model, slot", [(model, slot) for model in MODELS for slot in SLOTS])
def test_stored_conversation_is_priced_as_sent(emu: Emulator, model: str, slot: str) -> None:
    first = as_sent(emu, request(model, slot, "Good morning"))
    second = as_sent(emu, request(model, slot, "And now?", first.id))
    emu.reset()

    async def main() -> None:
        async with connected(emu, ["openai_responses"]) as emulated:

            async def through(body: dict[str, Any]) -> Reply:
                call = wire.get("openai_responses").parse(json.dumps(body).encode())
                return (await emulated.client.complete(call, "openai_responses")).reply

            one = await through(request(model, slot, "Good morning"))
            two = await through(request(model, slot, "And now?", one.id))
            assert one.usage.input == first.usage.input
            assert two.usage.input == second.usage.input
            assert (second.usage.input or 0) > 1000  # the prompt is in it

    asyncio.run(main())


@pytest.mark.parametrize("slot", ["instructions", "developer", "system"])
@pytest.mark.parametrize("model", ["gpt-5.6", "gpt-5.2"])
def test_session_keeps_the_slot_of_a_prompt_that_was_read(
    emu: Emulator, model: str, slot: str
) -> None:
    first = as_sent(emu, request(model, slot, "Good morning"))
    second = as_sent(emu, request(model, slot, "And now?", first.id))
    emu.reset()
    read = wire.get("openai_responses").parse(
        json.dumps(request(model, slot, "Good morning")).encode()
    )

    async def main() -> None:
        async with connected(emu, ["openai_responses"]) as emulated:
            chat = emulated.client.session(
                "openai_responses",
                model=model,
                system=read.ir.system_blocks,
                store=True,
                params=Params(max_tokens=50),
            )
            one, two = await chat.send("Good morning"), await chat.send("And now?")
            assert "previous_response_id" in json.loads(emulated.transport.bodies[1])
            assert one.usage.input == first.usage.input
            # The first answer, which is in it, may be longer or shorter than the other one.
            assert abs((two.usage.input or 0) - (second.usage.input or 0)) < len(LONG) // 50

    asyncio.run(main())


# ── The command ──────────────────────────────────────────────────────────────────────────────────


def translated(path: Path, body: dict[str, Any], to: str, *options: str) -> tuple[Any, str]:
    """The request on a wire, and the notices."""
    file = path / "request.json"
    file.write_text(json.dumps(body))
    run = CliRunner().invoke(translate.command, [str(file), "--to", to, *options])
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout), run.stderr


@each_row("slot", SLOTS)
@each_row("model", MODELS)
def test_translate_keeps_the_slot(tmp_path: Path, model: str, slot: str) -> None:
    body = request(model, slot, "Good morning")
    again, notices = translated(tmp_path, body, "openai_responses")
    assert again.get("instructions") == body.get("instructions")
    roles = [item["role"] for item in again["input"]]
    assert roles == [item["role"] for item in body["input"]]
    assert "[role_changed]" not in notices
    unmarked = model == "gpt-5.6" and "instructions" in body
    assert ("[system_in_instructions]" in notices) is unmarked


def test_instructions_keep_every_character(tmp_path: Path) -> None:
    body = request("gpt-5.2", "instructions", "Hi") | {"instructions": "\n  Be terse.\n\n"}
    again, _ = translated(tmp_path, body, "openai_responses")
    assert again["instructions"] == "\n  Be terse.\n\n"


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("place", [0, 1])
def test_chat_keeps_the_role(tmp_path: Path, role: str, place: int) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": "there"}]
    messages.insert(place, {"role": role, "content": "Be terse."})
    body = {"model": "gpt-5.2", "messages": messages}
    again, notices = translated(tmp_path, body, "openai_chat", "--from", "openai_chat")
    assert [message["role"] for message in again["messages"]] == [m["role"] for m in messages]
    assert not notices
    there, notices = translated(
        tmp_path, body, "deepseek", "--from", "openai_chat", "--model", "deepseek-v4-flash"
    )
    assert there["messages"][place]["role"] == "system"
    assert ("[role_changed]" in notices) is (role == "developer")


@pytest.mark.parametrize(
    "to, model",
    [
        ("openai_chat", "gpt-4o"),
        ("openai_chat", "gpt-3.5-turbo"),
        ("openai_chat", "gpt-4.1"),
        ("groq", "openai/gpt-oss-120b"),
        ("openrouter", "anthropic/claude-sonnet-4.6"),
        ("azure", "gpt-4o"),
    ],
)
def test_developer_messages_are_kept_where_the_catalog_lists_the_role(
    tmp_path: Path, to: str, model: str
) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    again, notices = translated(
        tmp_path, {"model": model, "messages": messages}, to, "--from", "openai_chat"
    )
    assert [message["role"] for message in again["messages"]] == ["developer", "user"]
    assert not notices


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_text_is_the_users_where_a_model_has_no_role_for_it(
    tmp_path: Path, role: str
) -> None:
    messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "hi"}]
    again, notices = translated(
        tmp_path, {"model": "o1-mini", "messages": messages}, "openai_chat", "--from", "openai_chat"
    )
    assert [message["role"] for message in again["messages"]] == ["user", "user"]
    assert f"{role} is not a role of this model: user" in notices


#: A request with its system text in one of the wire's slots, and where it stands.
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("anthropic", {"system": "Be terse."}, "system"),
    ("anthropic", {"system": [{"type": "text", "text": "Be terse."}]}, "system"),
    (
        "anthropic",
        {
            "model": "claude-opus-5-5",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "system", "content": "Be terse."},
            ],
        },
        "messages[1]",
    ),
    ("gemini", {"systemInstruction": {"parts": [{"text": "Be terse."}]}}, "systemInstruction"),
    ("gemini", {"system_instruction": {"parts": [{"text": "Be terse."}]}}, "systemInstruction"),
]
_BASE: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
    },
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}


@each_row("name, fields, where", OTHERS)
def test_other_wires_keep_the_slot(
    tmp_path: Path, name: str, fields: dict[str, Any], where: str
) -> None:
    body = _BASE[name] | fields
    more = ["--model", "gemini-2.5-flash"] if name == "gemini" else []
    again, notices = translated(tmp_path, body, name, "--from", name, *more)
    assert not notices
    found = {"system": again.get("system"), "systemInstruction": again.get("systemInstruction")} | {
        f"messages[{at}]": message for at, message in enumerate(again.get("messages", []))
    }
    assert [place for place, value in found.items() if "Be terse." in json.dumps(value)] == [where]
    if where.startswith("messages"):
        assert found[where]["role"] == "system"


def test_roundtrip_detects_a_moved_prompt() -> None:
    for model in MODELS:
        for slot in SLOTS:
            outcome = check(
                RecordedExchange(
                    id=f"{model} {slot}",
                    wire="openai_responses",
                    request=json.dumps(request(model, slot, "Good morning")),
                    response="{}",
                    status=400,
                )
            )
            assert not outcome.changed
            codes = {notice.code for notice in outcome.notices}
            moved = [name for name in outcome.overlooked if "system" in name]
            assert not moved or "role_changed" in codes

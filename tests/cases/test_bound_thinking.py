"""Thinking that is bound to its prompt: predicted at the first replay behind a change, and rejected
by the emulator as by the provider (Anthropic's pages on preserved thinking)."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.emulated_client import LONG, connected
from support.planted import PLACES, body, spec, split

from anaphora import catalog
from anaphora.cache.verdict import preflight
from anaphora.emulator.server import Emulator
from anaphora.errors import RequestRejected
from anaphora.tools import ToolRegistry
from anaphora.values import Notice, Tool

Json = dict[str, Any]

BETA = "thinking-binding-controls-2026-08-01"
HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": BETA}
BINDING = ["claude-opus-5-5", "claude-fable-5-1", "claude-sonnet-5-5", "claude-haiku-5-5"]
TOOL = {"name": "look", "input_schema": {"type": "object"}}
#: A changed system prompt, tool list or first message.
EDITS: dict[str, Callable[[Json], Any]] = {
    "system": lambda request: request.update(system="Be brief. It is Tuesday."),
    "tools": lambda request: request["tools"].append({**TOOL, "name": "other"}),
    "first message": lambda request: request["messages"][0].update(content="another question"),
}


class TestPreflight:
    """By the bytes of two requests."""

    thought = {"type": "thinking", "thinking": "The cat is grey.", "signature": "c2lnbmVk"}  # noqa: RUF012

    def pair(self, edit: Callable[[Json], Any] | None) -> tuple[Json, Json]:
        """A request, and the next with the reply to it, which is the first with thinking."""
        before = spec()
        after = copy.deepcopy(before)
        after["messages"] += [("assistant", [self.thought, "It is grey."]), ("user", ["Why?"])]
        if edit is not None:
            edit(after)
        return before, after

    def notices(self, edit: Callable[[Json], Any] | None) -> tuple[Notice, ...]:
        place = PLACES["anthropic"]
        before, after = self.pair(edit)
        return preflight(split(place, body(place, before)), split(place, body(place, after)))

    @pytest.mark.parametrize(
        "edit",
        [
            lambda prompt: prompt["system"].__setitem__(0, "You are another assistant."),
            lambda prompt: prompt["tools"].pop(),
            lambda prompt: prompt["messages"].__setitem__(0, ("user", ["What was it?"])),
            lambda prompt: prompt["messages"].pop(0) and prompt["messages"].pop(0),
        ],
        ids=["system", "tools", "first message", "dropped messages"],
    )
    def test_first_replay_behind_a_change_is_reported(self, edit: Callable[[Json], Any]) -> None:
        bound = self.notices(edit)[0]
        assert bound.code == "thinking_bound"
        assert "is only valid after an unchanged prompt" in bound.message

    def test_unchanged_prompt_is_not(self) -> None:
        assert self.notices(None) == ()


class TestEmulator:
    def post(self, emu: Emulator, request: Json) -> httpx.Response:
        return httpx.post(f"{emu.url}/v1/messages", json=request, headers=HEADERS)

    def turn(self, emu: Emulator, model: str, **more: Any) -> tuple[Json, Json]:
        """A request that is answered with thinking, and the next one."""
        request: Json = {
            "model": model,
            "max_tokens": 2000,
            "thinking": {"type": "adaptive"},
            "system": "Be brief. It is Monday.",
            "tools": [TOOL],
            "tool_choice": {"type": "none"},
            "messages": [{"role": "user", "content": "a question"}],
            **more,
        }
        response = self.post(emu, request)
        assert response.status_code == 200, response.text
        content = response.json()["content"]
        assert content[0]["type"] == "thinking"
        after = copy.deepcopy(request)
        after["messages"] += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": "another one"},
        ]
        return request, after

    @pytest.mark.parametrize("model", BINDING)
    @pytest.mark.parametrize("edit", EDITS)
    def test_changed_prefix_is_rejected(self, emu: Emulator, model: str, edit: str) -> None:
        _, after = self.turn(emu, model)
        EDITS[edit](after)
        response = self.post(emu, after)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(
            "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to"
            " a different conversation."
        )
        assert ("The `system` prompt differs" in error["message"]) == (edit == "system")

    @pytest.mark.parametrize("model", BINDING)
    def test_unchanged_prefix_is_accepted_with_a_moved_marker(
        self, emu: Emulator, model: str
    ) -> None:
        _, after = self.turn(emu, model)
        marker = {"type": "ephemeral"}
        after["system"] = [{"type": "text", "text": after["system"], "cache_control": marker}]
        text = [{"type": "text", "text": "a question", "cache_control": marker}]
        after["messages"][0]["content"] = text
        assert self.post(emu, after).status_code == 200

    def test_thinking_of_several_turns(self, emu: Emulator) -> None:
        """What was written before a change is rejected, what was written behind it is not."""
        _, request = self.turn(emu, BINDING[0])
        for question in ("two", "three"):
            response = self.post(emu, request)
            assert response.status_code == 200, response.text
            request["messages"] += [
                {"role": "assistant", "content": response.json()["content"]},
                {"role": "user", "content": question},
            ]
        assert self.post(emu, request).status_code == 200
        request["messages"][2]["content"] = "edited"
        error = self.post(emu, request).json()["error"]["message"]
        assert error.startswith("messages.3.content.0: ")  # the first is older than the edit

    def test_thinking_that_was_left_out_is_no_change(self, emu: Emulator) -> None:
        _, request = self.turn(emu, BINDING[0])
        content = self.post(emu, request).json()["content"]
        request["messages"] += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": "more"},
        ]
        del request["messages"][1]["content"][0]
        assert self.post(emu, request).status_code == 200

    @pytest.mark.parametrize("stream", [False, True])
    def test_drop_block_drops_it(self, emu: Emulator, stream: bool) -> None:
        binding = {"prefix_mismatch_behavior": "drop_block"}
        thinking = {"type": "adaptive", "block_binding": binding}
        _, after = self.turn(emu, BINDING[0], thinking=thinking)
        EDITS["system"](after)
        bare = copy.deepcopy(after)
        del bare["messages"][1]["content"][0]
        response = self.post(emu, {**after, "stream": stream})
        assert response.status_code == 200
        dropped = {
            "path": "messages.1.content.0",
            "reason": "prefix_binding_mismatch",
            "type": "thinking_dropped",
        }
        if stream:
            events = [line[6:] for line in response.text.splitlines() if line[:6] == "data: "]
            last = [each for each in map(json.loads, events) if each["type"] == "message_delta"]
            assert last[0]["input_transformations"] == [dropped]
            return
        reply = response.json()
        assert reply["input_transformations"] == [dropped]
        # It is not shown to the model, so it is not billed.
        without = self.post(emu, bare).json()
        assert reply["usage"]["input_tokens"] == without["usage"]["input_tokens"]
        assert without["input_transformations"] == []

    def test_other_models_do_not_check(self, emu: Emulator) -> None:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        _, after = self.turn(emu, "claude-sonnet-4-5", thinking=thinking)
        EDITS["system"](after)
        assert self.post(emu, after).status_code == 200

    def test_thinking_of_another_origin_is_taken(self, emu: Emulator) -> None:
        _, after = self.turn(emu, BINDING[0])
        after["messages"][1]["content"][0]["signature"] = "c2lnbmVk"
        EDITS["system"](after)
        assert self.post(emu, after).status_code == 200


class TestSession:
    @pytest.mark.breaks_prefix(reason="a changed tool list is the point")
    @pytest.mark.parametrize("model, bound", [(BINDING[0], True), ("claude-opus-4-8", False)])
    def test_preview_says_what_the_provider_will_reject(
        self, emu: Emulator, model: str, bound: bool
    ) -> None:
        async def main() -> None:
            registry = ToolRegistry()
            registry.add(Tool("look", "Looks."))
            options: Json = {"tool_choice": "none", "reasoning": {"mode": "adaptive"}}
            async with connected(emu, ["anthropic"]) as emulated:
                chat = emulated.client.session(
                    "anthropic", model=model, system=LONG, tools=registry, on_prefix_break="off"
                )
                await chat.send("one", **options)
                codes = [one.code for one in chat.preview("two", **options).notices]
                assert "thinking_bound" not in codes
                registry.add(Tool("other", "Does something else."))
                codes = [one.code for one in chat.preview("two", **options).notices]
                assert ("thinking_bound" in codes) == bound
                if bound:
                    with pytest.raises(RequestRejected, match="bound to a different conversation"):
                        await chat.send("two", **options)
                else:
                    await chat.send("two", **options)

        asyncio.run(main())


def test_rows_name_the_models_that_check() -> None:
    refusing = {
        profile.id for profile in catalog.models("anthropic") if profile.refuses("unbound_thinking")
    }
    assert set(BINDING) <= refusing
    assert not refusing & {"claude-mythos-5-1", "claude-opus-5", "claude-sonnet-5"}

"""Anaphora's client: a session for each conversation, as docs/client.md shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import virtual_clock

virtual_clock.install(Path(os.environ["CACHEBENCH_CLOCK"]))

import anaphora  # noqa: E402 - the clock is set first
from anaphora import Conversation, Message, PromptIR, Tool, ToolCall, ToolRegistry  # noqa: E402
from anaphora.values import Text, ToolResult  # noqa: E402

Json = dict[str, Any]
_DIALECTS = {"openai-breakpoints": "openai", "gemini": "google"}
_PATHS = {"deepseek": "/deepseek"}


class Ours:
    def __init__(self, provider: str, model: str, url: str) -> None:
        name = _DIALECTS.get(provider, provider)
        row: Json = {
            "dialect": name,
            "base_url": url + _PATHS.get(provider, ""),
            "model": model,
        }
        if name == "bedrock":
            row["region"] = "us-east-1"
        else:
            row["key"] = {"env": "KEY"}
        self._config = {"providers": {"peer": row}}
        self._client: Any = None
        self._sessions: dict[int, tuple[Any, Any, _Prompt]] = {}

    def begin(self) -> None:
        environ = {**os.environ, "KEY": "k"}
        self._client = anaphora.AsyncClient.from_config(self._config, environ=environ)
        self._sessions = {}

    def message(self, given: Json) -> Any:
        if given["role"] == "user":
            return Message.user(given["text"])
        if given["role"] == "tool":
            results = tuple(ToolResult(each["id"], each["text"]) for each in given["results"])
            return Message(role="tool", parts=results)
        parts: list[Any] = [Text(given["text"])] if given["text"] else []
        for call in given["calls"]:
            parts.append(ToolCall(call["id"], call["name"], json.dumps(call["arguments"])))
        return Message(role="assistant", parts=tuple(parts))

    def tools(self, given: list[Json]) -> Any:
        registry = ToolRegistry()
        for tool in given:
            registry.add(Tool(tool["name"], tool["about"], json.dumps(tool["schema"])))
        return registry

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        count = len(request["tail"])
        history, tail = (messages[:-count], messages[-count:]) if count else (messages, [])
        prompt = _Prompt(request["system"], tail)
        if request["single"]:
            answer = await self._client.send(
                history, "peer", system=prompt.system, tools=tools, max_tokens=4096
            )
        else:
            session = self._session(request["conversation"], tools, prompt)
            known = session.conversation
            same = request["keep"] + (1 if request["new"] and request["new"][0].get("reply") else 0)
            if len(known) != same:
                session.conversation = Conversation(history[: request["keep"]])
                same = request["keep"]
            answer = await session.send(history[same:])
        return answer.message, [call.id for call in answer.tool_calls]

    def _session(self, name: int, tools: Any, prompt: _Prompt) -> Any:
        """Other tools need another session; one with the same id continues the conversation."""
        found = self._sessions.get(name)
        if found is None or found[1] is not tools:
            current = prompt
            history = () if found is None else found[0].conversation
            session = self._client.session(
                "peer",
                id=str(name),
                prompt=lambda: current.ir(),
                messages=history,
                tools=tools,
                max_tokens=4096,
                on_prefix_break="off",
            )
            found = self._sessions[name] = session, tools, current
        found[2].system, found[2].tail = prompt.system, prompt.tail
        return found[0]


class _Prompt:
    """What a session's function returns for every turn."""

    def __init__(self, system: str, tail: list[Any]) -> None:
        self.system, self.tail = system, tail

    def ir(self) -> Any:
        return PromptIR.chat((), system=self.system, tail=self.tail)


contestant = Ours

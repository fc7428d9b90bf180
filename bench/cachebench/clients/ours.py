"""Anaphora's client: a session for each conversation, as docs/client.md shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cachebench.clients import virtual_clock

virtual_clock.install(Path(os.environ["CACHEBENCH_CLOCK"]))

import anaphora  # noqa: E402 - the clock is set first
from anaphora import Conversation, Message, Tool, ToolCall, ToolRegistry  # noqa: E402
from anaphora.values import Text, ToolResult  # noqa: E402

Json = dict[str, Any]
_DIALECTS = {"openai-breakpoints": "openai", "gemini": "google"}
_PATHS = {"deepseek": "/deepseek"}


class Ours:
    """With `clock_as_state` the time is the state at the end, not in the system prompt."""

    def __init__(
        self, provider: str, model: str, url: str, *, clock_as_state: bool = False
    ) -> None:
        self._clock_as_state = clock_as_state
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
        self._sessions: dict[int, tuple[Any, Any, str]] = {}

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
        parts += [
            ToolCall(call["id"], call["name"], json.dumps(call["arguments"]))
            for call in given["calls"]
        ]
        return Message(role="assistant", parts=tuple(parts))

    def tools(self, given: list[Json]) -> Any:
        registry = ToolRegistry()
        for tool in given:
            registry.add(Tool(tool["name"], tool["about"], json.dumps(tool["schema"])))
        return registry

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        count = len(request["tail"])
        history, tail = (messages[:-count], messages[-count:]) if count else (messages, [])
        texts = [message.text for message in tail]
        if self._clock_as_state and request["clock"]:
            system = request["system"].removeprefix(f"{request['clock']}\n\n")
            request = {**request, "system": system}
            texts.append(request["clock"])
        if request["single"]:
            # A single call has no state: its last message.
            content = [*history, Message.user("\n".join(texts))] if texts else history
            answer = await self._client.send(
                content, "peer", system=request["system"], tools=tools, max_tokens=4096
            )
        else:
            replied = bool(request["new"] and request["new"][0].get("reply"))
            same = request["keep"] + replied
            session = self._session(request, tools, history[:same])
            session.state = "\n".join(texts) or None
            if len(session.conversation) != same:
                session.conversation = Conversation(history[:same])
            answer = await session.send(history[same:])
        return answer.reply.message, [call.id for call in answer.tool_calls]

    def _session(self, request: Json, tools: Any, history: list[Any]) -> Any:
        """Another system prompt or other tools need another session, which continues the
        conversation by its id."""
        name, system = request["conversation"], request["system"]
        found = self._sessions.get(name)
        if found is None or found[1] is not tools or found[2] != system:
            session = self._client.session(
                "peer",
                id=str(name),
                system=system,
                messages=history,
                tools=tools,
                max_tokens=4096,
                on_prefix_break="off",
            )
            found = self._sessions[name] = session, tools, system
        return found[0]


contestant = Ours

"""What a request says, as a script asks about it."""

from __future__ import annotations

import functools

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import Call
from anaphora.values import Message, Text, Tool, ToolCall, ToolResult


class Heard(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    call: Call
    wire: str
    provider: str
    profile: Profile
    path: str = ""
    seed: bytes = b""
    """What ids depend on, so that the same request is answered with the same ones."""

    @functools.cached_property
    def last(self) -> tuple[Message, ...]:
        """The messages after the assistant's last one."""
        return since_assistant(self.call)

    @functools.cached_property
    def text(self) -> str:
        """What the user said last."""
        return "\n".join(message.text for message in self.last if message.role == "user")

    @functools.cached_property
    def system(self) -> str:
        """The system text, wherever in the request it stands."""
        said = [message.text for message in self.call.ir.body_chat() if message.role == "system"]
        return "\n\n".join((self.call.ir.system_field(), *said))

    @functools.cached_property
    def tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.call.tools if isinstance(tool, Tool))

    @functools.cached_property
    def results(self) -> tuple[tuple[str | None, str], ...]:
        """The results that came last: the tool's name, and the text."""
        names = {
            part.id: part.name
            for message in self.call.ir.body_chat()
            for part in message.parts
            if isinstance(part, ToolCall)
        }
        return tuple(
            (part.name or names.get(part.call_id), _text(part))
            for message in self.last
            for part in message.parts
            if isinstance(part, ToolResult)
        )


def since_assistant(call: Call) -> tuple[Message, ...]:
    """The messages after the assistant's last one: the turn to answer. Reads from the end."""
    turn: list[Message] = []
    for segment in reversed(call.ir.body_runs()):
        messages = segment.messages
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.role == "assistant":
                return tuple(reversed(turn))
            turn.append(message)
    return tuple(reversed(turn))


def _text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    return "".join(part.text for part in result.content if isinstance(part, Text))

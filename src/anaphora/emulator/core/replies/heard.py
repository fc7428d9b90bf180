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
        """What came behind the assistant's last message."""
        messages = self.call.ir.body_chat()
        spoken = [at for at, message in enumerate(messages) if message.role == "assistant"]
        return tuple(messages[spoken[-1] + 1 if spoken else 0 :])

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


def _text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    return "".join(part.text for part in result.content if isinstance(part, Text))

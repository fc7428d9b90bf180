"""Scripted replies: match, then reply.

    script = Script.decode(text, file)          checked when loaded; errors name file and line
    player = script.player()                    counts requests
    reply = player.next(input)                  the first rule that matches, or None

    replies:
      - match:
          model: claude-*                 # provider, wire, model, path: patterns
          text: refund                    # in the user's last message; or regex: order \\d+
          tool: lookup_order              # is offered; a pattern, such as * for any
        reply:
          thinking: The order has to be looked up first.
          tool_calls:
            - name: lookup_order
              arguments: {order: 17}
      - match: {schema: true}             # an output schema is given
        reply: {text: '{"answer": 42}'}
      - match: {result_of: lookup_order}  # the last turn holds that tool's result; result: its text
        reply:
          text: It is on its way.
          pace: 20ms                      # between two chunks of a stream
      - match: {system: strict, nth: 2}   # the second request that matches otherwise
        reply:
          refusal: I cannot help with that.

A rule without `match` answers every request.
"""

from __future__ import annotations

import functools
import re
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import msgspec

from anaphora import wire as wires
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.faults import Counts, check_provider, counts
from anaphora.emulator.hosts.host import Host
from anaphora.prompt import Call, OutputSchema
from anaphora.values import Message, Part, Refusal, Text, Tool, ToolCall, ToolResult
from anaphora.yaml_values import read_yaml, seconds_in

from . import GeneratedReply, last_turn
from .text import SeededRandom, join_seed

ScriptStop: TypeAlias = Literal[
    "end", "length", "stop_sequence", "tool_calls", "pause", "refusal", "context_overflow"
]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the structs in a file."""


class ScriptInput(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request as the rules of a script see it."""

    call: Call
    host: Host
    provider: str
    profile: Profile
    path: str = ""
    seed: bytes = b""
    """Seeds the ids, so that the same request gets the same ones."""

    @functools.cached_property
    def turn(self) -> tuple[Message, ...]:
        return last_turn(self.call)

    @functools.cached_property
    def text(self) -> str:
        """The user's text in the last turn."""
        return "\n".join(message.text for message in self.turn if message.role == "user")

    @functools.cached_property
    def system(self) -> str:
        """The system text: the field and all system messages."""
        texts = [message.text for message in self.call.ir.body_chat() if message.role == "system"]
        return "\n\n".join((self.call.ir.system_field(), *texts))

    @functools.cached_property
    def tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.call.tools if isinstance(tool, Tool))

    @functools.cached_property
    def results(self) -> tuple[tuple[str | None, str], ...]:
        """Tool name and text of the results in the last turn."""
        names = {
            part.id: part.name
            for message in self.call.ir.body_chat()
            for part in message.parts
            if isinstance(part, ToolCall)
        }
        return tuple(
            (part.name or names.get(part.call_id), _result_text(part))
            for message in self.turn
            for part in message.parts
            if isinstance(part, ToolResult)
        )


def _result_text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    return "".join(part.text for part in result.content if isinstance(part, Text))


class ScriptMatch(_Table, frozen=True):
    """The requests that a rule answers; a default matches every request."""

    provider: str = "*"
    wire: str = "*"
    model: str = "*"
    path: str = "*"
    text: str = ""
    regex: str | None = None
    system: str = ""
    tool: str | None = None
    schema: bool | None = None
    result: str | None = None
    result_of: str | None = None
    nth: Counts | None = None

    def __post_init__(self) -> None:
        check_provider(self.provider)
        if not any(fnmatchcase(name, self.wire) for name in wires.WIRES):
            known = ", ".join(wires.WIRES)
            raise ValueError(f"wire: {self.wire!r} is none of the wires {known}")
        try:
            re.compile(self.regex or "")
        except re.error as problem:
            raise ValueError(f"regex: not a regular expression: {problem}") from None

    def matches(self, request: ScriptInput) -> bool:
        """Compares all fields but `nth`, which needs a count."""
        return (
            fnmatchcase(request.provider, self.provider)
            and fnmatchcase(request.host.wire, self.wire)
            and fnmatchcase(request.call.model, self.model)
            and fnmatchcase(request.path, self.path)
            and self.text in request.text
            and self.system in request.system
            and (self.regex is None or re.search(self.regex, request.text) is not None)
            and (self.tool is None or any(fnmatchcase(name, self.tool) for name in request.tools))
            and self.schema in (None, isinstance(request.call.params.output, OutputSchema))
            and (self.result is None or any(self.result in text for _, text in request.results))
            and (
                self.result_of is None
                or any(fnmatchcase(name or "", self.result_of) for name, _ in request.results)
            )
        )


class ScriptToolCall(_Table, frozen=True):
    name: str
    arguments: dict[str, Any] = {}
    id: str | None = None


class ScriptReply(_Table, frozen=True):
    """A scripted reply, its parts in the order of the fields."""

    thinking: str | None = None
    text: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ScriptToolCall, ...] = ()
    stop: ScriptStop | None = None
    """None: the stop that follows from the parts."""
    stop_sequence: str | None = None
    pace: float | str | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) not in (None, ())]
        if not set(given) - {"pace"}:
            raise ValueError(
                "the reply is empty; give it a text, thinking, a refusal, tool_calls or a stop"
            )
        if self.stop_sequence is not None and self.stop not in (None, "stop_sequence"):
            raise ValueError(f"stop_sequence: needs the stop stop_sequence, not {self.stop}")
        if self.pace is not None:
            seconds_in(self.pace, "pace")

    def generate(self, request: ScriptInput) -> GeneratedReply:
        """The reply, cut at the request's limits unless the script sets `stop`."""
        host, profile, params = request.host, request.profile, request.call.params
        random = SeededRandom(join_seed(b"script") + request.seed)
        parts: list[Part] = []
        hidden = 0
        if self.thinking is not None:
            thinking, hidden = host.script_thinking(self.thinking, profile, random)
            parts += [] if thinking is None else [thinking]
        if self.text is not None:
            parts.append(Text(self.text))
        if self.refusal is not None:
            parts.append(Refusal(self.refusal))
        for call in self.tool_calls:
            call_id = call.id or host.script_call_id_prefix + random.id()
            parts.append(ToolCall(call_id, call.name, dumps(call.arguments).decode()))
        usual = host.refusal_stop if self.refusal is not None else "end"
        stop = self.stop or (None if self.stop_sequence is None else "stop_sequence")
        reply = GeneratedReply(
            parts=tuple(parts),
            stop_reason=stop or ("tool_calls" if self.tool_calls else usual),
            stop_sequence=self.stop_sequence,
            hidden=hidden,
            pace=None if self.pace is None else seconds_in(self.pace, "pace"),
        )
        if stop is not None:
            return reply
        return reply.limited(params.max_tokens, params.stop, profile)


class ScriptRule(_Table, frozen=True):
    reply: ScriptReply
    match: ScriptMatch = ScriptMatch()


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[ScriptRule, ...] = msgspec.field(default=(), name="replies")

    @classmethod
    def decode(cls, text: str, file: str) -> Script:
        """Reads a YAML file; errors name file and line."""
        return read_yaml(text, file, cls)[0]

    def player(self) -> ScriptPlayer:
        return ScriptPlayer(self)


class ScriptPlayer:
    """Answers one request after the other, and counts them."""

    def __init__(self, script: Script) -> None:
        self._rules = script.rules
        self._counts = [0] * len(script.rules)

    def next(self, request: ScriptInput) -> GeneratedReply | None:
        """The reply of the first rule that matches; None if none does."""
        for index, rule in enumerate(self._rules):
            if not rule.match.matches(request):
                continue
            self._counts[index] += 1
            if counts(rule.match.nth, self._counts[index]):
                return rule.reply.generate(request)
        return None

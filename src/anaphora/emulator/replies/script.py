"""Scripted replies: match, then reply.

    script = Script.decode(text, file)          checked when loaded; errors name file and line
    player = script.player()                    counts requests
    reply = player.next(input)                  the first rule that matches, or None

    replies:
      - match:
          model: claude-*                 # provider, wire, model, path: patterns
          text: refund                    # in the user's last message; or regex: order \\d+
          tool: lookup_order              # is offered
        reply:
          thinking: The order has to be looked up first.
          tool_calls:
            - name: lookup_order
              arguments: {order: 17}
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
from typing import cast

import msgspec

from anaphora import wire as wires
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.faults import provider_pattern
from anaphora.emulator.hosts.host import Host
from anaphora.prompt import Call
from anaphora.values import Message, Part, Refusal, StopReason, Text, Tool, ToolCall, ToolResult
from anaphora.yaml_values import YamlValue

from . import GeneratedReply
from .generated import last_turn
from .text import SeededRandom, join_seed

_STOPS: tuple[StopReason, ...] = (
    "end", "length", "stop_sequence", "tool_calls", "pause", "refusal", "context_overflow"
)  # fmt: skip


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
        """The messages after the assistant's last one."""
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


class ScriptMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that a rule answers; a default matches every request."""

    provider: str = "*"
    wire: str = "*"
    model: str = "*"
    path: str = "*"
    text: str = ""
    regex: re.Pattern[str] | None = None
    system: str = ""
    tool: str | None = None
    result: str | None = None
    result_of: str | None = None
    nth: tuple[int, ...] = ()

    def matches(self, request: ScriptInput) -> bool:
        """Compares all but `nth`, which needs a count."""
        return (
            fnmatchcase(request.provider, self.provider)
            and fnmatchcase(request.host.wire, self.wire)
            and fnmatchcase(request.call.model, self.model)
            and fnmatchcase(request.path, self.path)
            and self.text in request.text
            and self.system in request.system
            and (self.regex is None or self.regex.search(request.text) is not None)
            and (self.tool is None or self.tool in request.tools)
            and (self.result is None or any(self.result in text for _, text in request.results))
            and (self.result_of is None or any(n == self.result_of for n, _ in request.results))
        )


class ScriptToolCall(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str = "{}"
    id: str | None = None


class ScriptReply(msgspec.Struct, frozen=True, kw_only=True):
    """A scripted reply, its parts in the order of the fields."""

    thinking: str | None = None
    text: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ScriptToolCall, ...] = ()
    stop: StopReason | None = None
    """None: the stop that follows from the parts."""
    stop_sequence: str | None = None
    pace: float | None = None

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
            parts.append(ToolCall(call_id, call.name, call.arguments))
        usual = host.refusal_stop if self.refusal is not None else "end"
        reply = GeneratedReply(
            parts=tuple(parts),
            stop_reason=self.stop or ("tool_calls" if self.tool_calls else usual),
            stop_sequence=self.stop_sequence,
            hidden=hidden,
            pace=self.pace,
        )
        if self.stop is not None:
            return reply
        return reply.limited(params.max_tokens, params.stop, profile)


class ScriptRule(msgspec.Struct, frozen=True, kw_only=True):
    match: ScriptMatch
    reply: ScriptReply


class Script(msgspec.Struct, frozen=True):
    """The rules of a file, in its order."""

    rules: tuple[ScriptRule, ...] = ()

    @classmethod
    def decode(cls, text: str, file: str) -> Script:
        """Reads a YAML file; errors name file and line."""
        root = YamlValue.read(text, file)
        if root is None:
            return cls()
        rows = root.fields(("replies",), ("replies",))["replies"].items()
        return cls(tuple(_rule(row) for row in rows))

    def player(self) -> ScriptPlayer:
        return ScriptPlayer(self)


class ScriptPlayer:
    """Answers one request after the other, and counts them."""

    def __init__(self, script: Script) -> None:
        self._rules = script.rules
        self._counts = [0] * len(script.rules)

    def next(self, request: ScriptInput) -> GeneratedReply | None:
        """The reply of the first rule that matches; None where none does."""
        for index, rule in enumerate(self._rules):
            if not rule.match.matches(request):
                continue
            self._counts[index] += 1
            if not rule.match.nth or self._counts[index] in rule.match.nth:
                return rule.reply.generate(request)
        return None


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def _rule(row: YamlValue) -> ScriptRule:
    fields = row.fields(("match", "reply"), ("reply",))
    match = _match(fields["match"]) if "match" in fields else ScriptMatch()
    return ScriptRule(match=match, reply=_reply(fields["reply"]))


def _match(row: YamlValue) -> ScriptMatch:
    fields = row.fields(ScriptMatch.__struct_fields__)
    special = ("provider", "regex", "nth")
    texts = {name: value.text() for name, value in fields.items() if name not in special}
    if "wire" in fields and not any(fnmatchcase(name, texts["wire"]) for name in wires.WIRES):
        fields["wire"].wrong(f"{texts['wire']!r} is none of the wires {', '.join(wires.WIRES)}")
    return ScriptMatch(
        **texts,
        provider=provider_pattern(fields["provider"]) if "provider" in fields else "*",
        regex=_regex(fields["regex"]) if "regex" in fields else None,
        nth=fields["nth"].numbers() if "nth" in fields else (),
    )


def _regex(value: YamlValue) -> re.Pattern[str]:
    try:
        return re.compile(value.text())
    except re.error as problem:
        value.wrong(f"not a regular expression: {problem}")


def _reply(row: YamlValue) -> ScriptReply:
    fields = row.fields(ScriptReply.__struct_fields__)
    if not fields.keys() - {"pace"}:
        row.wrong("the reply is empty; give it a text, thinking, a refusal, tool_calls or a stop")
    names = ("text", "thinking", "refusal", "stop_sequence")
    texts = {name: fields[name].text() for name in names if name in fields}
    stop = cast(StopReason, fields["stop"].choice(_STOPS)) if "stop" in fields else None
    if "stop_sequence" in fields and stop not in (None, "stop_sequence"):
        fields["stop_sequence"].wrong(f"stop_sequence needs the stop stop_sequence, not {stop}")
    calls = fields["tool_calls"].items() if "tool_calls" in fields else ()
    return ScriptReply(
        **texts,
        tool_calls=tuple(map(_tool_call, calls)),
        stop="stop_sequence" if "stop_sequence" in fields else stop,
        pace=fields["pace"].seconds() if "pace" in fields else None,
    )


def _tool_call(row: YamlValue) -> ScriptToolCall:
    fields = row.fields(ScriptToolCall.__struct_fields__, ("name",))
    arguments = "{}"
    if "arguments" in fields:
        value = fields["arguments"].plain()
        if not isinstance(value, dict):
            kind = fields["arguments"].kind
            fields["arguments"].wrong(f"arguments must be a mapping, not {kind}")
        arguments = dumps(value).decode()
    return ScriptToolCall(
        name=fields["name"].text(),
        arguments=arguments,
        id=fields["id"].text() if "id" in fields else None,
    )

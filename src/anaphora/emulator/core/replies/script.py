"""Answers that somebody wrote: match, then reply.

    script = Script.decode(text, file)          checked when it is loaded, with file and line
    player = script.begin()                     counts requests
    said = player.next(heard)                   the first rule that matches, or None

    replies:
      - match:
          model: claude-*                 # provider, wire, model, path: patterns
          text: refund                    # in what the user said last; or regex: order \\d+
          tool: lookup_order              # is offered
        reply:
          thinking: The order has to be looked up first.
          tool_calls:
            - name: lookup_order
              arguments: {order: 17}
      - match: {result_of: lookup_order}  # that tool's result came last; result: text in it
        reply:
          text: It is on its way.
          pace: 20ms                      # between two pieces of a stream
      - match: {system: strict, nth: 2}   # the second request that matches otherwise
        reply:
          refusal: I cannot help with that.

A rule without `match` answers everything.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import msgspec

from anaphora import wire as wires
from anaphora.canonical import dumps
from anaphora.emulator.core.patterns import provider_pattern
from anaphora.values import StopReason
from anaphora.yaml_values import YamlValue

from .heard import Heard
from .said import Said
from .scripted import Called, Written, said_as

_STOPS: dict[str, StopReason] = {
    "end": "end",
    "length": "length",
    "stop_sequence": "stop_sequence",
    "tool_calls": "tool_calls",
    "pause": "pause",
    "refusal": "refusal",
    "context_overflow": "context_overflow",
}


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must be like; what is not said does not matter."""

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

    def fits(self, heard: Heard) -> bool:
        """All but `nth`, which needs a count."""
        if not (
            fnmatchcase(heard.provider, self.provider)
            and fnmatchcase(heard.wire, self.wire)
            and fnmatchcase(heard.call.model, self.model)
            and fnmatchcase(heard.path, self.path)
        ):
            return False
        if self.text not in heard.text or self.system not in heard.system:
            return False
        if self.regex is not None and self.regex.search(heard.text) is None:
            return False
        if self.tool is not None and self.tool not in heard.tools:
            return False
        if self.result is not None and not any(self.result in each for _, each in heard.results):
            return False
        return self.result_of is None or any(name == self.result_of for name, _ in heard.results)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    match: Match
    reply: Written


class Script(msgspec.Struct, frozen=True):
    """The rules of a file, in its order."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def decode(cls, text: str, file: str) -> Script:
        """What a file says; anything that it should not is an error with file and line."""
        whole = YamlValue.read(text, file)
        if whole is None:
            return cls()
        rows = whole.fields(("replies",), ("replies",))["replies"].items()
        return cls(tuple(_rule(row) for row in rows))

    def begin(self) -> Player:
        return Player(self)


class Player:
    """Answers one request after the other."""

    def __init__(self, script: Script) -> None:
        self._rules = script.rules
        self._counts = [0] * len(script.rules)

    def next(self, heard: Heard) -> Said | None:
        """What the first rule that matches says; None where none does."""
        for index, rule in enumerate(self._rules):
            if not rule.match.fits(heard):
                continue
            self._counts[index] += 1
            if not rule.match.nth or self._counts[index] in rule.match.nth:
                return said_as(rule.reply, heard)
        return None


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def _rule(row: YamlValue) -> Rule:
    found = row.fields(("match", "reply"), ("reply",))
    match = _match(found["match"]) if "match" in found else Match()
    return Rule(match=match, reply=_reply(found["reply"]))


def _match(row: YamlValue) -> Match:
    found = row.fields(Match.__struct_fields__)
    told = {name: value.text() for name, value in found.items() if name not in _SPECIAL}
    if "wire" in found and not any(fnmatchcase(name, told["wire"]) for name in wires.WIRES):
        found["wire"].wrong(f"{told['wire']!r} is none of the wires {', '.join(wires.WIRES)}")
    return Match(
        **told,
        provider=provider_pattern(found["provider"]) if "provider" in found else "*",
        regex=_regex(found["regex"]) if "regex" in found else None,
        nth=found["nth"].numbers() if "nth" in found else (),
    )


_SPECIAL = ("provider", "regex", "nth")


def _regex(value: YamlValue) -> re.Pattern[str]:
    try:
        return re.compile(value.text())
    except re.error as problem:
        value.wrong(f"no regular expression: {problem}")


def _reply(row: YamlValue) -> Written:
    found = row.fields(Written.__struct_fields__)
    if not found.keys() - {"pace"}:
        row.wrong("says nothing; give it a text, thinking, a refusal, tool_calls or a stop")
    told = {
        name: found[name].text()
        for name in ("text", "thinking", "refusal", "stop_sequence")
        if name in found
    }
    stop = _STOPS[found["stop"].choice(_STOPS)] if "stop" in found else None
    if "stop_sequence" in found and stop not in (None, "stop_sequence"):
        found["stop_sequence"].wrong(f"stop_sequence goes with the stop of that name, not {stop}")
    return Written(
        **told,
        tool_calls=tuple(map(_call, found["tool_calls"].items())) if "tool_calls" in found else (),
        stop="stop_sequence" if "stop_sequence" in found else stop,
        pace=found["pace"].seconds() if "pace" in found else None,
    )


def _call(row: YamlValue) -> Called:
    found = row.fields(Called.__struct_fields__, ("name",))
    arguments = "{}"
    if "arguments" in found:
        value = found["arguments"].plain()
        if not isinstance(value, dict):
            found["arguments"].wrong(f"arguments are a mapping, not {found['arguments'].kind}")
        arguments = dumps(value).decode()
    return Called(
        name=found["name"].text(),
        arguments=arguments,
        id=found["id"].text() if "id" in found else None,
    )

"""Conversations with the emulator in which one cause is planted, and what `watch` and `explain` say
about each call.

    for place, name in every_script():
        for call in planted_run(place, name).calls: call.planted, call.lost, call.watched, call.explained

No socket and no waiting: the emulator's engine answers, and its clock is an argument.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from anaphora import catalog, wire
from anaphora.analysis.trace.log_lines import LogLine
from anaphora.cache.sent_call import ttl_seconds
from anaphora.cache.verdict import Verdict
from anaphora.catalog import CacheRules
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.traffic.calls import ProxyRoute, RelayedCall, ResponsePiece
from anaphora.traffic.judging import CallJudge
from anaphora.traffic.matching import judge_request, paired
from anaphora.traffic.request_log import read_request
from anaphora.traffic.sent_requests import RequestDefaults
from anaphora.values import Usage

from .planted import Json, Place, body, spec

START = 1_790_000_000.0
#: How long a response takes to begin, and to end.
BEGINS, ENDS = 0.4, 1.0

#: The wires on which causes are planted, the path of each, and a second model.
PLACES: dict[str, tuple[Place, str, str]] = {
    "anthropic": (
        Place("anthropic", "anthropic", "claude-sonnet-4-5"),
        "/v1/messages",
        "claude-opus-4-5",
    ),
    "openai_responses": (
        Place("openai_responses", "openai", "gpt-5.2"),
        "/v1/responses",
        "gpt-5.1",
    ),
    "openai_chat": (Place("openai_chat", "openai", "gpt-4.1"), "/v1/chat/completions", "gpt-5.2"),
    "deepseek": (
        Place("deepseek", "deepseek", "deepseek-v4-pro"),
        "/deepseek/chat/completions",
        "deepseek-v4-flash",
    ),
}


class Exchange(NamedTuple):
    """One call as it went over the wire."""

    path: str
    body: bytes
    answer: bytes
    at: float

    def relayed(self, number: int, provider: str) -> RelayedCall:
        return RelayedCall(
            number=number,
            started=self.at,
            method="POST",
            route=ProxyRoute(prefix="", provider=provider, upstream="http://emulator.invalid"),
            path=self.path,
            query="",
            request_headers=(),
            request_body=self.body,
            status=200,
            response_headers=(("content-type", "application/json"),),
            pieces=[ResponsePiece(ENDS, self.answer)],
            began=BEGINS,
            ended=ENDS,
        )

    def line(self, provider: str) -> bytes:
        """The call in a request log."""
        fields: dict[str, Any] = {
            "request": msgspec.Raw(self.body),
            "response": msgspec.Raw(self.answer),
            "path": self.path,
            "provider": provider,
            "time": self.at,
            "duration": ENDS,
        }
        return msgspec.json.encode(fields)


class PlantedCall(NamedTuple):
    planted: frozenset[str]
    """The causes that may be named; empty: nothing was planted."""
    lost: bool
    """Whether less was read than the call before had left."""
    usage: Usage
    watched: Verdict
    explained: Verdict


class PlantedRun(NamedTuple):
    name: str
    place: str
    calls: tuple[PlantedCall, ...]
    exchanges: tuple[Exchange, ...]


class Conversation:
    """A conversation with the emulator."""

    def __init__(self, place: str, prompt: Json | None = None) -> None:
        self.place, self.path, self.other_model = PLACES[place]
        self.rules: CacheRules = catalog.rules(self.place.provider, self.place.model)
        self.engine = Engine(EmulatorOptions(tool_calls=False))
        self.prompt = spec() if prompt is None else prompt
        self.at = START
        self.exchanges: list[Exchange] = []
        self.usages: list[Usage] = []
        self.planted: list[frozenset[str]] = []
        self.losses: list[bool] = []
        self.reply = ""
        self._left = 0

    @property
    def lifetime(self) -> float:
        return ttl_seconds(self.rules)

    def send(
        self, *causes: str, prompt: Json | None = None, model: str | None = None, wait: float = 20.0
    ) -> None:
        """Sends the prompt; `causes` are those that were planted in it. With a `prompt` of its own
        the call is beside the conversation."""
        self.at += wait
        data = body(self.place, prompt or self.prompt, model)
        data = _with_ttl(data, self.prompt.get("ttl"), -1)
        data = _with_ttl(data, self.prompt.get("system_ttl"), 1)
        headers = {"authorization": "Bearer k", "x-api-key": "k", "anthropic-version": "2023-06-01"}
        request = EmulatorRequest(
            method="POST", path=self.path, headers=headers, body=data, now=self.at
        )
        response = self.engine.respond(request)
        assert response.status == 200, response.body
        assert response.call is not None
        response.call.begin(self.at + BEGINS)
        response.call.end(self.at + ENDS)
        self.exchanges.append(Exchange(self.path, data, response.body, self.at))
        reply = wire.get(self.place.wire).read_reply(response.body)
        usage = reply.usage
        self.usages.append(usage)
        self.planted.append(frozenset(causes))
        # A granule and what the reply adds are within the estimate.
        least = self._left - self.rules.granule_tokens.value
        self.losses.append(prompt is None and (usage.read or 0) < least)
        if prompt is None:
            self.reply = reply.text
            self.prompt["messages"].append(("assistant", [reply.text]))
            self._left = (usage.read or 0) + (usage.written_total or 0)
            if not self.rules.needs_marks:
                self._left = self.rules.whole_granules(usage.input or 0)

    def turn(self, *causes: str, text: str = "Thank you. And the mat?", **options: Any) -> None:
        self.prompt["messages"].append(("user", [text]))
        self.send(*causes, **options)

    def lose(self) -> None:
        """The provider does not find the next prefix."""
        for simulator in self.engine._billing._simulators.values():
            simulator._loss = 1.0

    def run(self, name: str) -> PlantedRun:
        """The verdicts on all calls."""
        provider, judge = self.place.provider, CallJudge()
        watched = [
            judge.judge(each.relayed(number, provider)).verdict
            for number, each in enumerate(self.exchanges, 1)
        ]
        calls = []
        for index, explained in enumerate(explain(self.exchanges, provider)):
            found = watched[index]
            assert found is not None
            calls.append(
                PlantedCall(
                    self.planted[index], self.losses[index], self.usages[index], found, explained
                )
            )
        place = next(name for name, (place, *_) in PLACES.items() if place is self.place)
        return PlantedRun(name, place, tuple(calls), tuple(self.exchanges))


def explain(exchanges: list[Exchange], provider: str) -> list[Verdict]:
    """The verdicts of `anaphora explain` on a log of the calls."""
    lines = (LogLine(f"log:{at}", each.line(provider)) for at, each in enumerate(exchanges, 1))
    requests = (read_request(line, RequestDefaults()) for line in lines)
    return [judge_request(earlier, request, None)[1] for earlier, request in paired(requests)]


def _with_ttl(data: bytes, ttl: str | None, count: int) -> bytes:
    """With that TTL for the first markers, or for all; the system prompt's is the first."""
    if ttl is None:
        return data
    marker = b'"cache_control":{"type":"ephemeral"'
    return data.replace(marker, marker + b',"ttl":"%b"' % ttl.encode(), count)

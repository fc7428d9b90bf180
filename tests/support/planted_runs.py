"""Conversations with the emulator in which one cause is planted, and what `watch` and `explain` say
about each call.

    for place, name in every_script():
        for call in planted_run(place, name).calls: call.planted, call.lost, call.watched, call.explained

No socket and no waiting: the emulator's engine answers, and its clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from anaphora import catalog, wire
from anaphora.analysis.sent_requests import RequestDefaults, judge_request, paired, read_request
from anaphora.analysis.trace.log_lines import LogLine
from anaphora.cache.lifetime import ttl_seconds
from anaphora.cache.verdict import Verdict
from anaphora.catalog import CacheRules
from anaphora.emulator.engine import EmulatorOptions, Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.proxy.exchange import Piece, ProxyRoute, RelayedCall
from anaphora.proxy.judging import CallJudge
from anaphora.values import Usage

from .planted import PNG, Json, Place, body, spec

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
            pieces=[Piece(ENDS, self.answer)],
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


# ── What is planted ──────────────────────────────────────────────────────────────────────────────


def growing(talk: Conversation) -> None:
    talk.send()
    for _ in range(5):
        talk.turn()


def tool_loop(talk: Conversation) -> None:
    """Only Anthropic's blocks are written here."""
    talk.send()
    for at in range(4):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": "read", "input": {"path": "a"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "Some lines."}
        talk.prompt["messages"][-1:] = [("assistant", [call])]
        talk.prompt["messages"].append(("user", [result]))
        talk.send()


def under_the_ttl(talk: Conversation) -> None:
    talk.send()
    talk.turn(wait=talk.lifetime - 2)
    talk.turn()


def refreshed_by_reads(talk: Conversation) -> None:
    talk.send()
    for _ in range(4):
        talk.turn(wait=talk.lifetime * 0.7)


def marked_for_an_hour(talk: Conversation) -> None:
    talk.prompt["ttl"] = "1h"
    talk.send()
    talk.turn(wait=1800)
    talk.turn(wait=3500)
    talk.turn("expired", wait=3700)


def expired_in_part(talk: Conversation) -> None:
    """The system prompt is cached for an hour, the rest for five minutes."""
    talk.prompt["system_ttl"] = "1h"
    talk.send()
    talk.turn()
    talk.turn("expired", wait=600)
    talk.turn()


def expired(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    talk.turn("expired", wait=talk.lifetime + 60)
    talk.turn()


def resumed(talk: Conversation) -> None:
    """The whole history again, a day later."""
    talk.send()
    talk.turn()
    talk.turn("expired", "resumed", wait=max(86_400.0, talk.lifetime) + 3600)
    talk.turn()


def changed(plant: Callable[[Json], None], *causes: str) -> Callable[[Conversation], None]:
    def script(talk: Conversation) -> None:
        talk.send()
        talk.turn()
        plant(talk.prompt)
        talk.turn(*causes)
        talk.turn()

    return script


def edit_system(prompt: Json) -> None:
    prompt["system"][0] = prompt["system"][0].replace("2026-11-15", "2026-11-16")


def edit_tool(prompt: Json) -> None:
    prompt["tools"][1] = {**prompt["tools"][1], "description": "Looks for something."}


def move_tool(prompt: Json) -> None:
    prompt["tools"].append(prompt["tools"].pop(0))


def add_tool(prompt: Json) -> None:
    prompt["tools"].insert(0, {**prompt["tools"][0], "name": "ask"})


def edit_message(prompt: Json) -> None:
    prompt["messages"][1] = ("assistant", ["It holds nothing at all."])


def drop_messages(prompt: Json) -> None:
    del prompt["messages"][2:4]


def add_image(prompt: Json) -> None:
    prompt["messages"].append(("user", ["Look at this.", {"image": PNG}]))
    prompt["messages"].append(("assistant", ["I see it."]))


def rewind(talk: Conversation) -> None:
    """The last two exchanges are taken back, and something else is asked: all that is sent again is
    read."""
    talk.send()
    talk.turn(text="Tell me all about it. " * 60)
    talk.turn(text="And about the other one. " * 60)
    del talk.prompt["messages"][-5:]
    talk.turn(text="No, something else.")
    talk.losses[-1] = False


def other_model(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    talk.turn("model_changed", model=talk.other_model)


def other_effort(talk: Conversation) -> None:
    params: dict[str, Json] = {
        "anthropic": {"tool_choice": {"type": "any"}},
        "openai_responses": {"reasoning": {"effort": "high"}},
        "openai_chat": {"tool_choice": "required"},
        "deepseek": {"thinking": {"type": "disabled"}},
    }
    talk.send()
    talk.turn()
    talk.prompt["params"] = params[talk.place.wire]
    talk.turn("parameter_changed")


def beyond_the_look_back(talk: Conversation) -> None:
    talk.send()
    talk.prompt["messages"].append(("user", [f"result {at}" for at in range(45)]))
    talk.send("lookback_exceeded")


def short(talk: Conversation) -> None:
    talk.prompt["system"] = ["You are terse."]
    talk.prompt["tools"] = talk.prompt["tools"][:1]
    talk.prompt["messages"] = [("user", ["What is in the file?"])]
    talk.send()
    talk.turn("below_minimum")
    talk.turn("below_minimum")


def unmarked(talk: Conversation) -> None:
    talk.prompt["marked"] = False
    talk.send()
    talk.turn("no_marker")


def compacted(talk: Conversation) -> None:
    """The whole history is replaced by the summary that the call before was asked for."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    talk.turn(text="Summarise this conversation, with every file and decision in it.")
    summary = f"This session is continued from another one.\nSummary:\n{talk.reply}"
    talk.prompt["messages"] = []
    talk.turn("compaction", text=summary)
    talk.turn()


def compacted_in_part(talk: Conversation) -> None:
    """A summary replaces the oldest messages, and the newest stay."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    talk.prompt["messages"][:6] = [("user", ["Earlier: a file and a picture were looked at."])]
    talk.turn("compaction")
    talk.turn()


def compacted_around_questions(talk: Conversation) -> None:
    """As Codex does: the user's messages stay, and the summary follows them."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    talk.turn(text="Write a handover of this conversation for another model.")
    asked = [message for message in talk.prompt["messages"] if message[0] == "user"][:-1]
    talk.prompt["messages"] = asked
    talk.turn("compaction", text=f"Another model wrote this summary:\n{talk.reply}")
    talk.turn()


def oldest_left_out(talk: Conversation) -> None:
    """A window of the newest messages."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    del talk.prompt["messages"][:4]
    talk.turn("compaction")
    talk.turn()


def reminded(talk: Conversation) -> None:
    """As aider does: a reminder ends the newest message, and is gone at the next turn."""
    talk.send()
    for at in range(3):
        talk.prompt["messages"].append(("user", [f"Question {at}. " * 30, "Reminder: be brief."]))
        talk.send(*(("history_edited", "marker_on_volatile") if at else ()))
        talk.prompt["messages"][-2] = ("user", [f"Question {at}. " * 30])


def pruned(talk: Conversation) -> None:
    """An old result makes room for a note."""
    talk.send()
    talk.turn(text="Here is the file: " + "line after line, " * 300)
    talk.turn()
    place = next(
        at for at, (_, parts) in enumerate(talk.prompt["messages"]) if "Here is" in str(parts[0])
    )
    talk.prompt["messages"][place] = ("user", ["[an old file was here]"])
    talk.turn("history_edited")
    talk.turn()


def two_conversations(talk: Conversation) -> None:
    """In turns, with the same tools and system prompt: neither takes anything from the other."""
    other = {**spec(), "messages": [("user", ["Something quite different, please."])]}
    talk.send()
    for at in range(3):
        talk.send(prompt=other)
        other["messages"] += [("assistant", [f"Yes, {at}."]), ("user", [f"More of {at}?"])]
        talk.turn()


def changed_and_back(talk: Conversation) -> None:
    """Another system prompt for one call: the older entry is read again."""
    talk.send()
    talk.turn()
    before = talk.prompt["system"][0]
    edit_system(talk.prompt)
    talk.turn("changed")
    talk.prompt["system"][0] = before
    talk.turn()
    talk.losses[-1] = False  # all that was cached of this prompt is read
    talk.turn()


def expired_and_changed(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    edit_system(talk.prompt)
    talk.turn("changed", "expired", wait=talk.lifetime + 60)
    talk.turn()


def beside(talk: Conversation) -> None:
    """A title is asked for with other instructions; the conversation goes on."""
    talk.send()
    talk.turn()
    side = {
        "system": ["Give this a title of five words."],
        "tools": [],
        "messages": [("user", ["What is in the file?"])],
        "params": {},
    }
    talk.send(prompt=side)
    talk.turn()


def another_conversation(talk: Conversation) -> None:
    """With the same tools and system prompt: it reads those, and loses nothing."""
    talk.send()
    talk.turn()
    other = {**spec(), "messages": [("user", ["Something quite different, please."])]}
    talk.send(prompt=other)
    talk.turn()


def lost_by_the_provider(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    talk.lose()
    talk.turn("provider_side")


SCRIPTS: dict[str, Callable[[Conversation], None]] = {
    "a growing conversation": growing,
    "a tool loop": tool_loop,
    "a pause just under the TTL": under_the_ttl,
    "reads that refresh": refreshed_by_reads,
    "markers for an hour": marked_for_an_hour,
    "an expired entry": expired,
    "an entry that expired in part": expired_in_part,
    "a session resumed after a day": resumed,
    "a changed byte in the system prompt": changed(edit_system, "changed"),
    "a changed tool": changed(edit_tool, "changed"),
    "tools in another order": changed(move_tool, "changed"),
    "a tool more": changed(add_tool, "changed"),
    "another model": other_model,
    "another parameter": other_effort,
    "beyond the look-back": beyond_the_look_back,
    "below the minimum": short,
    "no marker": unmarked,
    "a compaction": compacted,
    "a compaction that keeps the newest": compacted_in_part,
    "a compaction that keeps the questions": compacted_around_questions,
    "the oldest messages left out": oldest_left_out,
    "a reminder in the newest message": reminded,
    "an old result cut": pruned,
    "two conversations in turns": two_conversations,
    "a system prompt changed and back": changed_and_back,
    "a changed byte after the TTL": expired_and_changed,
    "an edited message": changed(edit_message, "history_edited"),
    "dropped messages": changed(drop_messages, "history_edited"),
    "messages taken back": rewind,
    "the first image": changed(add_image, "images_changed"),
    "a side call": beside,
    "another conversation": another_conversation,
    "a loss at the provider": lost_by_the_provider,
}
#: Scripts that only Anthropic's wire has.
_ANTHROPIC = {
    "a tool loop",
    "markers for an hour",
    "an entry that expired in part",
    "beyond the look-back",
    "no marker",
}


def every_script() -> Iterator[tuple[str, str]]:
    """Wires, and the names of scripts."""
    for place in PLACES:
        for name in SCRIPTS:
            if place == "anthropic" or name not in _ANTHROPIC:
                yield place, name


def planted_run(place: str, name: str) -> PlantedRun:
    prompt = spec()
    if name == "the first image":
        prompt["messages"][2] = ("user", ["And in the picture?"])
    talk = Conversation(place, prompt)
    SCRIPTS[name](talk)
    return talk.run(name)

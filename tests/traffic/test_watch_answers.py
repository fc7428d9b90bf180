"""What the judge makes of answers: whole and streamed on every wire, cut off, compressed, chained.

The answers are the emulator's, without a socket.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from support.planted import GUIDE, PLACES, Place, body, grown, spec

from anaphora.cli.watch_output import call_lines
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.traffic.calls import ProxyRoute, RelayedCall, ResponsePiece
from anaphora.traffic.judging import Judge
from anaphora.traffic.sums import JudgedCall

KEY = "sk-canary-9aF3xLq8ZpQ"
Json = dict[str, Any]

_PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "deepseek": "/chat/completions",
    "minimax": "/anthropic/v1/messages",
    "ollama": "/v1/chat/completions",
}
OLLAMA = Place("openai_chat", "ollama", "llama3.2")


class Relay:
    """Relays requests to an engine and has them judged, a minute apart."""

    def __init__(self, judge: Judge | None = None, **options: Any) -> None:
        self.engine = Engine(EmulatorOptions(**options))
        self.judge = judge or Judge()
        self.now = 1_790_000_000.0
        self.number = 0

    def send(self, name: str, place: Place, data: bytes, **changes: Any) -> JudgedCall:
        """`changes` are fields of the relayed call; `stream` asks for a stream."""
        stream = changes.pop("stream", False)
        path, query = _PATHS.get(name, ""), ""
        if name == "gemini":
            verb = "streamGenerateContent" if stream else "generateContent"
            path = f"/v1beta/models/{place.model}:{verb}"
        elif stream:
            fields = {**json.loads(data), "stream": True}
            data = json.dumps(fields, separators=(",", ":")).encode()
        if stream == "sse":
            query = "alt=sse"
        headers = {"authorization": f"Bearer {KEY}", "x-goog-api-key": KEY, "x-api-key": KEY}
        headers |= {"anthropic-version": "2023-06-01", "content-type": "application/json"}
        headers["anthropic-beta"] = "message-threads-2026-08-12"
        request = EmulatorRequest(
            method="POST",
            path=f"/{place.provider}{path}",
            query=dict([query.split("=")]) if query else {},
            headers=headers,
            body=data,
            now=self.now,
        )
        answer = self.engine.respond(request)
        self.number += 1
        fields = {
            "number": self.number,
            "started": self.now,
            "method": "POST",
            "route": ProxyRoute(prefix="", provider=place.provider, upstream="https://api.example"),
            "path": path,
            "query": query,
            "request_headers": tuple(headers.items()),
            "request_body": data,
            "status": answer.status,
            "response_headers": tuple(answer.headers.items()),
            "pieces": [ResponsePiece(0.1, chunk.data) for chunk in answer.chunks],
            "began": 0.1,
            "ended": 0.2,
        }
        self.judge.call_ended(RelayedCall(**{**fields, **changes}))
        self.now += 60
        return self.judge.calls[-1]


def request(name: str, prompt: Json) -> tuple[Place, bytes]:
    place = OLLAMA if name == "ollama" else PLACES[name]
    return place, body(place, prompt)


@pytest.mark.parametrize("stream", [False, "sse", "list"])
@pytest.mark.parametrize("name", [*PLACES, "ollama"])
def test_bill_is_read_from_whole_answers_and_streams(name: str, stream: Any) -> None:
    """`list` is what Gemini streams without alt=sse; the others have one form of streams."""
    relay = Relay()
    first = spec()
    if stream and name in ("openai_chat", "deepseek", "ollama"):
        first["params"]["stream_options"] = {"include_usage": True}
    calls = [
        relay.send(name, *request(name, prompt), stream=stream) for prompt in (first, grown(first))
    ]
    billed = relay.engine.journal.entries()[0]
    assert [call.kind for call in calls] == ["judged", "judged"], calls[0].reason
    last = calls[1]
    assert last.usage is not None
    assert (last.usage.read or 0) + (last.usage.uncached or 0) + sum(
        (last.usage.written or {}).values()
    ) == billed["read"] + billed["uncached"] + sum(billed["written"].values())
    assert last.usage.output == billed["output"]
    assert (last.conversation, last.turn, last.broke) == (1, 2, False)


# ── Answers that are not complete ────────────────────────────────────────────────────────────────


def stream_pieces(relay: Relay) -> list[ResponsePiece]:
    """The pieces of a stream of Anthropic's."""
    kept: list[RelayedCall] = []

    class Keep(Judge):
        def call_ended(self, call: RelayedCall) -> None:
            kept.append(call)
            super().call_ended(call)

    other = Relay(Keep())
    place = PLACES["anthropic"]
    other.send("anthropic", place, body(place, spec()), stream=True)
    assert kept[0].pieces is not None
    return kept[0].pieces


def test_program_that_closes_after_the_last_event_has_its_answer() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    call = relay.send("anthropic", place, body(place, spec()), stream=True, outcome="cancelled")
    assert (call.kind, call.reason) == ("judged", "")
    assert call.usage is not None


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("cancelled", "the program did not wait for the answer"),
        ("failed", "the connection was cut"),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_half_an_answer_is_counted_and_not_judged(outcome: str, reason: str, count: int) -> None:
    relay, place = Relay(), PLACES["anthropic"]
    pieces = stream_pieces(relay)[:count]
    data = body(place, spec())
    half = relay.send(
        "anthropic",
        place,
        data,
        stream=True,
        outcome=outcome,
        pieces=pieces,
        error="the connection was cut" if outcome == "failed" else "",
    )
    assert (half.kind, half.reason, half.verdict) == (outcome, reason, None)
    # An aborted call writes too: the retry reads it, and the line says so.
    retried = relay.send("anthropic", place, data)
    assert retried.sentence.startswith("First call seen: ")
    assert relay.judge.summary().kinds == {outcome: 1, "judged": 1}


@pytest.mark.parametrize("pieces", [[], [ResponsePiece(0.1, b'{"type":"error","err')]])
def test_error_whose_text_was_not_waited_for_is_an_error(pieces: list[ResponsePiece]) -> None:
    relay, place = Relay(), PLACES["anthropic"]
    call = relay.send(
        "anthropic", place, body(place, spec()), status=529, pieces=pieces, outcome="cancelled"
    )
    assert (call.kind, call.status) == ("error", 529)
    assert call.reason


def test_error_in_a_stream_is_an_error() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    event = (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"%s"}}'
    )
    pieces = [stream_pieces(relay)[0], ResponsePiece(0.2, event % f"busy {KEY}".encode() + b"\n\n")]
    call = relay.send("anthropic", place, body(place, spec()), stream=True, pieces=pieces)
    assert call.kind == "error"
    assert "busy <secret>" in call.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"request_body": None}, "too large to keep"),
        ({"pieces": None}, "too large to keep"),
        ({"request_body": b"[1]"}, "not a JSON object"),
        ({"request_body": b'{"model":"m","messages":7}'}, "$.messages"),
    ],
)
def test_what_cannot_be_judged_says_why(changes: Json, reason: str) -> None:
    relay, place = Relay(), PLACES["anthropic"]
    call = relay.send("anthropic", place, body(place, spec()), **changes)
    assert call.kind == "not_judged"
    assert reason in call.reason


def test_compressed_requests_are_read() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    data = body(place, spec())
    headers = (("content-encoding", "gzip"), ("x-api-key", KEY))
    call = relay.send(
        "anthropic", place, data, request_body=gzip.compress(data), request_headers=headers
    )
    assert (call.kind, call.model) == ("judged", place.model)


def test_key_in_a_prompt_is_not_shown() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    for word in ("one", "two"):
        prompt = spec()
        prompt["system"][0] = f"The key {KEY} is {word}. Today is 2026-11-15."
        call = relay.send("anthropic", place, body(place, prompt))
    assert call.broke
    assert "two" in str(call.change)
    assert "canary" not in json.dumps(call.fields())


# ── Conversations ────────────────────────────────────────────────────────────────────────────────


def chained(text: str, previous: str | None, **fields: Any) -> bytes:
    more = {} if previous is None else {"previous_response_id": previous}
    return json.dumps({"model": "gpt-5", "input": text, **more, **fields}).encode()


def test_stored_responses_are_judged_with_their_whole_chain() -> None:
    relay, place = Relay(), PLACES["openai_responses"]
    previous = None
    for text in (GUIDE, "And then?", "And after that?"):
        call = relay.send("openai_responses", place, chained(text, previous))
        previous = call_id(relay)
    assert (call.conversation, call.turn) == (1, 3)
    assert call.verdict is not None
    assert call.verdict.result == "hit"
    assert relay.judge.last_sent is not None
    assert relay.judge.last_sent.complete


@pytest.mark.parametrize("stream", [False, "sse"])
def test_message_threads_are_judged_with_their_history(stream: Any) -> None:
    relay, place = Relay(), PLACES["anthropic"]
    system = [{"type": "text", "text": GUIDE, "cache_control": {"type": "ephemeral"}}]
    thread: Json = {"type": "create"}
    for text in ("Hello", "And then?", "And after that?"):
        fields: Json = {"model": place.model, "max_tokens": 64, "thread": thread}
        if thread["type"] == "create":
            fields["system"] = system
        fields["messages"] = [{"role": "user", "content": text}]
        call = relay.send("anthropic", place, json.dumps(fields).encode(), stream=stream)
        thread = {"type": "continue", "previous_message_id": call_id(relay)}
    assert (call.conversation, call.turn, call.broke) == (1, 3, False)
    assert call.verdict is not None
    assert call.verdict.result == "hit"
    sent = relay.judge.last_sent
    assert sent is not None
    assert sent.complete
    assert sent.rendered.runs[0].section == "system"


def call_id(relay: Relay) -> str:
    return str(relay.engine.journal.entries()[0]["reply_id"])


def sessions(relay: Relay, names: Sequence[str]) -> list[JudgedCall]:
    """Anthropic calls of sessions: `a1` is session a with one message, and so on."""
    place = PLACES["anthropic"]
    calls = []
    for name in names:
        prompt = spec()
        prompt["messages"] = prompt["messages"][: 2 * int(name[1]) - 1]
        prompt["system"][0] += f" Session {name[0]}."
        headers = (("x-claude-code-session-id", name[0]), ("x-api-key", KEY))
        calls.append(relay.send("anthropic", place, body(place, prompt), request_headers=headers))
    return calls


def test_sessions_are_conversations_of_their_own() -> None:
    calls = sessions(Relay(), ("a1", "b1", "a2", "b2", "a3"))
    assert [(call.conversation, call.turn) for call in calls] == [
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
        (1, 3),
    ]
    assert not any(call.broke for call in calls)


def test_side_call_is_found_out_by_a_later_call() -> None:
    """The title comes first, and no later call is like it."""
    relay, place = Relay(), PLACES["anthropic"]
    title = {**spec(), "system": ["Write a title."], "tools": [], "messages": [("user", ["Hi"])]}
    first = relay.send("anthropic", place, body(place, title))
    assert not first.side_call
    second, third = (
        relay.send("anthropic", place, body(place, prompt)) for prompt in (spec(), grown(spec()))
    )
    assert (first.side_call, second.side_call, third.side_call) == (True, False, False)
    summary = relay.judge.summary()
    assert (summary.conversations, summary.side_calls.calls, summary.judged.calls) == (1, 1, 2)
    assert summary.share_read == summary.judged.read / summary.judged.input


def test_conversation_with_most_tools_is_no_side_call_of_its_helpers() -> None:
    """A program asks once, and its helper, which has fewer tools, calls twice."""
    relay, place = Relay(), PLACES["anthropic"]
    helper = {**spec(), "system": ["Extract memories."], "tools": spec()["tools"][1:2]}
    helper["messages"] = [("user", ["Remember what was said."])]
    title = {**spec(), "system": ["Write a title."], "tools": [], "messages": [("user", ["Hi"])]}
    prompts = (title, spec(), helper, grown(helper))
    calls = [relay.send("anthropic", place, body(place, prompt)) for prompt in prompts]
    assert [call.side_call for call in calls] == [True, False, False, False]
    summary = relay.judge.summary()
    assert (summary.conversations, summary.side_calls.calls, summary.judged.calls) == (2, 1, 3)
    assert [(one.conversation, one.side_calls, one.sums.calls) for one in summary.groups] == [
        (2, False, 1),
        (3, False, 2),
        (0, True, 1),
    ]
    relay.send("anthropic", place, body(place, grown(spec())))
    assert [call.side_call for call in calls] == [True, False, False, False]


def test_side_call_with_tools_is_found_out_by_a_longer_conversation_with_more() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    search = {**spec(), "system": ["Search."], "tools": spec()["tools"][1:2]}
    search["messages"] = [("user", ["The weather"])]
    chat = {**spec(), "system": ["Talk."], "tools": [], "messages": [("user", ["Hello?"])]}
    prompts = (search, chat, grown(chat))
    calls = [relay.send("anthropic", place, body(place, prompt)) for prompt in prompts]
    assert not calls[0].side_call
    for prompt in (spec(), grown(spec())):
        relay.send("anthropic", place, body(place, prompt))
    assert calls[0].side_call


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_avoidable_comes_first_and_is_summed(marked: bool) -> None:
    """A UUID in front of the prompt, with markers or without: nothing else would have saved."""
    relay, place, prompt = Relay(), PLACES["anthropic"], {**spec(), "marked": marked}
    for turn in range(4):
        id = f"{turn:08x}-6d2f-4f0e-9a51-0c3e8b7d1d1c"
        timed = {**prompt, "system": [f"{id}. {prompt['system'][0]}", *prompt["system"][1:]]}
        relay.send("anthropic", place, body(place, timed))
        prompt = grown(prompt)
    summary = relay.judge.summary()
    (one,) = summary.avoidable
    assert (one.kind, one.conversations, summary.share_read) == ("move_to_end", 1, 0)
    assert summary.spent_usd is not None
    assert one.usd is not None
    assert 0.4 < one.usd / summary.spent_usd < 0.95
    more = "" if marked else ", and let Anaphora place the markers"
    ending = f"%): move the UUID in system[0] into the newest message{more}."
    assert summary.advice[0].startswith("You could save $")
    assert summary.advice[0].endswith(ending)


def test_one_line_if_there_is_nothing_to_improve() -> None:
    relay, place, prompt = Relay(), PLACES["anthropic"], spec()
    for _ in range(3):
        relay.send("anthropic", place, body(place, prompt))
        prompt = grown(prompt)
    (line,) = relay.judge.summary().advice
    assert re.fullmatch(r"Nothing to improve: \d+% read, \$0\.\d+ saved by the cache", line)


@pytest.mark.parametrize("share", ["whole", "beginning"])
def test_parallel_calls_are_not_blamed_on_the_provider(share: str) -> None:
    """Calls of one moment, of which the last that was sent ends first: none can read its write."""
    relay, place = Relay(), PLACES["anthropic"]
    calls, now = [], relay.now
    for later in (0.03, 0.02, 0.04, 0.0):
        prompt = spec()
        if share == "beginning":
            prompt["messages"] = [("user", [f"Question {later}"])]
        relay.engine, relay.now = Engine(EmulatorOptions()), now  # nothing is cached yet
        calls.append(relay.send("anthropic", place, body(place, prompt), started=now + later))
    first, *others = calls
    assert first.verdict is not None
    assert first.verdict.result == "first"
    for call in others:
        assert call.verdict is not None
        assert [cause.kind for cause in call.verdict.causes] == ["not_yet_visible"]
        assert call.lost > 0
    assert "it was sent at the same time as the call it is compared with" in calls[1].sentence


def test_time_since_the_compared_call_is_that_of_the_call_that_is_named() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    for question in ("a", "b", "c"):
        prompt = {**spec(), "messages": [("user", [question])]}
        call = relay.send("anthropic", place, body(place, prompt))
    assert (call.number, call.compared_with, call.gap) == (3, 1, 120.0)


def test_reads_that_no_bill_reports_are_predicted_and_in_no_share() -> None:
    relay, place = Relay(), PLACES["anthropic"]
    prompt = spec()
    for each in (prompt, grown(prompt)):
        relay.send("anthropic", place, body(place, each))
        call = relay.send("ollama", *request("ollama", each))
    assert call.usage is not None
    assert call.usage.read is None
    assert call.predicted is not None
    assert call.predicted.read == call.verdict.predicted > 0  # type: ignore[union-attr,operator]
    assert ", predicted: the bill has no reads" in str(next(call_lines(call)))
    summary = relay.judge.summary()
    reported = [each.usage for each in relay.judge.calls if each.provider == "anthropic"]
    total, read = (
        sum(getattr(usage, name) or 0 for usage in reported) for name in ("input", "read")
    )
    assert summary.judged.reported == total < summary.judged.input
    assert summary.share_read == read / total


# ── What it costs ────────────────────────────────────────────────────────────────────────────────


def test_prompts_are_kept_up_to_a_limit() -> None:
    judge = Judge(most_bytes=100_000)
    relay, place = Relay(judge), PLACES["anthropic"]
    for number in range(20):
        prompt = spec()
        prompt["system"][0] = f"Conversation {number}."
        relay.send("anthropic", place, body(place, prompt))
    assert 0 < judge.kept_bytes <= 100_000
    assert len(judge.calls) == 20


def test_iterations_of_an_answer_are_part_of_its_cost() -> None:
    """An advisor at the price of its own model."""
    counts = {"input_tokens": 1000, "output_tokens": 500}
    own = {"type": "message", **counts}
    advice = {"type": "advisor_message", "model": "claude-opus-4-5", **counts}
    place = Place("anthropic", "anthropic", "claude-sonnet-4-5")
    costs = []
    for iterations in ([own], [own, advice]):
        usage = {**counts, "iterations": iterations}
        answer = {"type": "message", "content": [{"type": "text", "text": "Hi."}], "usage": usage}
        pieces = [ResponsePiece(0.1, json.dumps(answer).encode())]
        costs.append(Relay().send("anthropic", place, body(place, spec()), pieces=pieces).cost_usd)
    assert costs == [Decimal("0.0105"), Decimal("0.028")]

"""Faults: their effect on every wire, and which requests get them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import errors, wire
from anaphora.emulator.exchange import JSON, EmulatorRequest, EmulatorResponse, ResponseChunk
from anaphora.emulator.fault_effects import KINDS, Fault
from anaphora.emulator.faults import HEADER, Faults
from anaphora.emulator.hosts import HOSTS
from anaphora.emulator.journal import Billing
from anaphora.emulator.replies.text import IdGenerator
from anaphora.errors import InvalidConfig, InvalidRequest, Upstream
from anaphora.values import (
    Message,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    TextDelta,
    Usage,
)
from anaphora.wire import Wire

#: By wire; InvokeModel is a dialect with a host of its own.
WIRES = {name: name for name in wire.WIRES} | {"bedrock/anthropic/invoke": "invoke"}
NOW = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)
TEXT = "One two three four."
REPLY = Reply(
    id="r1",
    model="m",
    message=Message.assistant(Text(TEXT)),
    stop_reason="end",
    usage=Usage(uncached=5, read=0, output=4),
)
#: The two forms of an answer, as the engine gives them.
every_wire = each_row("name", list(WIRES))


def named(name: str) -> dict[str, Any]:
    return {"wire": wire.base_of(name), "dialect": "" if name in wire.WIRES else name}


def codec_of(answer: EmulatorResponse) -> Wire:
    return wire.get(answer.dialect or answer.wire)


def whole(name: str) -> EmulatorResponse:
    body = wire.get(name).write_reply(REPLY)
    return EmulatorResponse(
        headers={"content-type": JSON}, chunks=[ResponseChunk(0.0, body)], **named(name)
    )


def stream(name: str) -> EmulatorResponse:
    writer = wire.get(name).writer()
    events: list[Any] = [ReplyStart("r1", "m"), PartStart(0, "text")]
    events += [TextDelta(0, f"{word} ") for word in TEXT.split()]
    events += [PartEnd(0, Text(TEXT)), ReplyEnd(REPLY)]
    data = b"".join(writer.write(event) for event in events)
    host = HOSTS[WIRES[name]](Billing(), IdGenerator(0))
    chunks = [ResponseChunk(0.0, piece) for piece in host.split_stream(data)]
    headers = {"content-type": host.stream_type}
    return EmulatorResponse(headers=headers, chunks=chunks, stream=True, **named(name))


def array() -> EmulatorResponse:
    """Gemini's stream without `alt=sse`: a JSON array."""
    objects = [chunk.data.removeprefix(b"data: ").strip() for chunk in stream("gemini").chunks]
    chunks = [
        ResponseChunk(0.0, (b",\n" if at else b"[") + data) for at, data in enumerate(objects)
    ]
    chunks.append(ResponseChunk(0.0, b"]"))
    return EmulatorResponse(
        headers={"content-type": JSON}, chunks=chunks, stream=True, wire="gemini"
    )


def fault(name: str, **more: Any) -> Fault:
    settings = {"seconds": KINDS[name].seconds or 0.0, **more}
    return Fault(name=name, **settings)


def error_in(answer: EmulatorResponse) -> Upstream:
    read = codec_of(answer).read_error
    return read(answer.status, answer.headers, answer.body, NOW)


def read(answer: EmulatorResponse) -> list[Any]:
    reader = codec_of(answer).reader()
    return [event for chunk in answer.chunks for event in reader.feed(chunk.data)] + reader.close()


def text_of(answer: EmulatorResponse) -> str:
    events = read(answer)
    assert isinstance(events[-1], ReplyEnd)
    return events[-1].reply.text


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

ERRORS: list[tuple[str, int, type[Upstream], float | None]] = [
    ("rate-limit", 429, errors.RateLimited, 1.0),
    ("rate-limit-bare", 429, errors.RateLimited, None),
    ("500", 500, errors.Overloaded, None),
    ("529", 529, errors.Overloaded, None),
]


@every_wire
@each_row("kind, status, error, wait", ERRORS)
@each_row("made", [whole, stream])
def test_error_has_the_format_of_the_wire(
    name: str,
    kind: str,
    status: int,
    error: type[Upstream],
    wait: float | None,
    made: Callable[[str], EmulatorResponse],
) -> None:
    answer = fault(kind).apply(made(name))
    assert (answer.status, answer.stream) == (status, False)
    assert answer.headers["content-type"].startswith("application/json")
    found = error_in(answer)
    assert (type(found), found.retry_after) == (error, wait)


@every_wire
def test_spend_cap_is_not_a_rate_limit(name: str) -> None:
    answer = fault("spend-cap").apply(whole(name))
    error = error_in(answer)
    assert (type(error), error.retry_after, error.retryable) == (errors.QuotaExhausted, None, False)
    statuses = {"bedrock": 400, "bedrock/anthropic/invoke": 400}
    assert answer.status == statuses.get(name, 429)


def test_google_sends_the_retry_delay_in_the_body() -> None:
    answer = fault("rate-limit", seconds=45.8379).apply(whole("gemini"))
    assert "retry-after" not in answer.headers
    details = json.loads(answer.body)["error"]["details"]
    assert [detail.get("retryDelay") for detail in details] == ["45.8379s"]


@every_wire
def test_error_with_status_200(name: str) -> None:
    answer = fault("ok-error").apply(stream(name))
    assert answer.status == 200
    assert ("message" if "bedrock" in name else "error") in json.loads(answer.body)


# ── The connection ───────────────────────────────────────────────────────────────────────────────


@every_wire
@each_row("made", [whole, stream])
def test_slow_responses_change_no_byte(name: str, made: Callable[[str], EmulatorResponse]) -> None:
    answer = made(name)
    late = fault("slow-first-byte", seconds=3).apply(answer)
    assert late.body == answer.body
    assert [chunk.delay for chunk in late.chunks] == [3, *[0] * (len(answer.chunks) - 1)]


@every_wire
@each_row("made", [whole, stream])
@each_row("after", [None, 0, 1, 1000])
def test_cut_always_removes_something(
    name: str, made: Callable[[str], EmulatorResponse], after: int | None
) -> None:
    answer = fault("cut", after=after).apply(made(name))
    assert answer.body == made(name).body
    assert answer.cut_after is not None
    assert answer.cut_after < len(answer.chunks)
    if answer.stream:
        reader = wire.get(name).reader()
        for chunk in answer.chunks[: answer.cut_after]:
            reader.feed(chunk.data)
        if after != 1000:
            assert isinstance(reader.close()[-1], ReplyFail)


@every_wire
def test_resets_and_timeouts(name: str) -> None:
    answer = stream(name)
    assert fault("timeout").apply(answer).hang
    dropped = fault("reset").apply(answer)
    assert (dropped.reset, dropped.cut_after) == (True, None)
    dropped = fault("reset", after=1).apply(answer)
    assert (dropped.reset, dropped.cut_after) == (True, 1)


# ── The content ──────────────────────────────────────────────────────────────────────────────────


@every_wire
def test_error_in_the_middle_of_a_stream(name: str) -> None:
    answer = fault("stream-error").apply(stream(name))
    assert answer.status == 200
    last = read(answer)[-1]
    assert isinstance(last, ReplyFail)
    assert (last.error, last.message) == ("Overloaded", "Overloaded")
    assert last.partial is not None
    # A whole response has no middle.
    assert fault("stream-error").apply(whole(name)).status == 500


@every_wire
def test_broken_content_cannot_be_read(name: str) -> None:
    single = fault("broken-json").apply(whole(name))
    with pytest.raises(ValueError, match=r"."):
        json.loads(single.body.decode())
    with pytest.raises(errors.Parse):
        wire.get(name).read_reply(single.body)
    broken = fault("broken-json").apply(stream(name))
    changed = [
        at
        for at, (a, b) in enumerate(zip(broken.chunks, stream(name).chunks, strict=True))
        if a != b
    ]
    assert len(changed) == 1
    assert isinstance(read(broken)[-1], ReplyFail)


@each_row("after", [None, 0, 1])
def test_array_stream_stays_an_array(after: int | None) -> None:
    broken = fault("stream-error", after=after).apply(array())
    before, now = json.loads(array().body), json.loads(broken.body)
    assert isinstance(now, list)
    assert now != before


@each_row("kind", KINDS)
@every_wire
def test_every_fault_changes_the_response(kind: str, name: str) -> None:
    assert fault(kind).apply(stream(name)) != stream(name)


# ── Which requests ───────────────────────────────────────────────────────────────────────────────


def request(path: str = "/v1/messages", header: str | None = None) -> EmulatorRequest:
    headers = {} if header is None else {HEADER: header}
    return EmulatorRequest(method="POST", path=path, headers=headers)


def hit(text: str, count: int, seed: int = 0, path: str = "/v1/messages") -> list[int]:
    chooser = Faults.decode(text, "faults.yaml").selector(seed)
    found = [chooser.next(request(path), "anthropic") for _ in range(count)]
    return [at for at, fault in enumerate(found, 1) if fault is not None]


@each_row(
    "which, expected",
    [
        ("nth: 2", [2]),
        ("nth: [1, 4]", [1, 4]),
        ("every: 3", [3, 6]),
        ("rate: 1", [1, 2, 3, 4, 5, 6]),
        ("rate: 0", []),
        ("path: /v1/*", [1, 2, 3, 4, 5, 6]),
        ("path: /api/*", []),
        ("provider: anthropic", [1, 2, 3, 4, 5, 6]),
        ("provider: openai", []),
        ("provider: '*ro*'", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_rules_select_requests(which: str, expected: list[int]) -> None:
    assert hit(f"faults:\n- fault: 500\n  {which}\n", 6) == expected


def test_requests_are_counted_by_rule() -> None:
    text = "faults:\n- {fault: 500, nth: 1, path: /a}\n- {fault: 529, nth: 1}\n"
    chooser = Faults.decode(text, "f").selector()
    found = [chooser.next(request(path)) for path in ("/b", "/a", "/a")]
    assert [fault.name if fault else None for fault in found] == ["529", "500", None]


@given(st.integers(0, 1000), st.floats(0.05, 0.95))
def test_rate_is_kept_and_depends_on_the_seed(seed: int, rate: float) -> None:
    text = f"faults:\n- {{fault: 500, rate: {rate:.3f}}}\n"
    first = hit(text, 1000, seed)
    assert [number for number in first if number <= 100] == hit(text, 100, seed)
    assert abs(len(first) / 1000 - rate) < 0.1


def test_seeds_differ() -> None:
    text = "faults:\n- {fault: 500, rate: 0.5}\n"
    assert hit(text, 100, seed=1) != hit(text, 100, seed=2)


@pytest.mark.parametrize(
    "header, expected",
    [
        ("rate-limit", Fault(name="rate-limit", seconds=1)),
        ("rate-limit; seconds=2.5", Fault(name="rate-limit", seconds=2.5)),
        ("cut; after=3", Fault(name="cut", after=3)),
    ],
)
def test_header_selects_the_fault(header: str, expected: Fault) -> None:
    assert Faults().selector().next(request(header=header)) == expected
    # The header takes precedence over the rules.
    always = Faults.decode("faults: [{fault: 500}]", "f").selector()
    assert always.next(request(header=header)) == expected


@each_row(
    "header",
    [
        "",
        "nonsense",
        "500; seconds=1",
        "cut; after=x",
        "cut; after=-1",
        "slow-first-byte; seconds=inf",
        "cut; 3",
    ],
)
def test_invalid_header_is_rejected(header: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Faults().selector().next(request(header=header))
    assert caught.value.path == HEADER


def test_empty_file_has_no_faults() -> None:
    assert Faults.decode("# nothing yet\n", "f") == Faults()


@each_row(
    "text, line, reason",
    [
        ("faults:\n- fault: nonsense\n", 2, "'nonsense' is none of"),
        ("faults:\n- nth: 1\n", 2, "fault is missing"),
        ("faults:\n- fault: 500\n  often: 1\n", 3, "unknown field 'often'"),
        ("faults:\n- fault: 500\n  nth: 1\n  rate: 0.5\n", 4, "not both"),
        ("faults:\n- fault: 500\n  rate: 2\n", 3, "expected a number <= 1, found 2"),
        ("faults:\n- fault: 500\n  nth: 0\n", 3, "expected a whole number >= 1, found 0"),
        ("faults:\n- fault: 500\n  nth: 1.5\n", 3, "expected a whole number or a list, found 1.5"),
        ("faults:\n- fault: 500\n  nth: []\n", 3, "expected a non-empty list"),
        ("faults:\n- fault: 500\n  seconds: 1\n", 3, "500 has no seconds"),
        ("faults:\n- fault: cut\n  after: soon\n", 3, "expected a whole number"),
        ("faults:\n- fault: slow-first-byte\n  seconds: 3x\n", 3, "'3x' is not a time"),
        ("faults:\n- fault: 500\n  path: 3\n", 3, "expected a text"),
        ("faults:\n- fault: 500\n  provider: antropic\n", 3, "none of the providers"),
        ("faults:\n- fault: 500\n  path: a\n  path: b\n", 4, "path is given twice"),
        ("faults: 3\n", 1, "expected a list, found a number"),
        ("- 1\n", 1, "expected a mapping, found a list"),
        ("faults:\n- [\n", 3, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("faults: []\n---\nfaults: []\n", 2, "not YAML"),
    ],
)
def test_errors_in_a_file_name_the_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^faults\.yaml:{line}: .*") as caught:
        Faults.decode(text, "faults.yaml")
    assert reason in str(caught.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_decoder(text: str) -> None:
    """Whatever it is: rules, or our own error."""
    with suppress(InvalidConfig):
        assert isinstance(Faults.decode(text, "f"), Faults)


def test_durations_have_units() -> None:
    text = "faults:\n- {fault: slow-first-byte, seconds: 20ms}\n- {fault: slow-first-byte, seconds: 1.5s}\n"
    assert [rule.to_fault().seconds for rule in Faults.decode(text, "f").rules] == [0.02, 1.5]

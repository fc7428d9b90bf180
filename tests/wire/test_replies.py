"""Replies, streams and errors of every wire, from the tables in `support.replies`."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.replies import anthropic, gemini, openai_chat, openai_responses
from support.replies.case import ReplyCase
from support.tables import Check, each_row

from anaphora import errors
from anaphora.errors import Parse, Upstream
from anaphora.values import PartEnd, PartStart, ReplyEnd, ReplyFail, ReplyStart, TextDelta

MODULES = (anthropic, openai_chat, openai_responses, gemini)
CASES: list[ReplyCase] = [module.CASE for module in MODULES]
BY_NAME = {case.name: case for case in CASES}

PROVIDER_ERRORS = [kind for kind in Upstream.__subclasses__() if kind is not errors.Denied]

#: The count of output tokens, in a stream.
_COUNT = re.compile(
    rb'("(?:output_tokens|completion_tokens|candidatesTokenCount|eval_count)": ?)\d+'
)

every_wire = each_row("wire", BY_NAME)


def rows(table: str, *names: str) -> Callable[[Check], Check]:
    """A test of the rows of a table of each wire."""
    values = [
        pytest.param(case.name, *row, id=f"{case.name}-{index}")
        for case in CASES
        for index, row in enumerate(getattr(case, table))
    ]
    return each_row(["wire", *names], values)


# ── Single replies ───────────────────────────────────────────────────────────────────────────────


@rows("stop_reasons", "body", "stop", "raw")
def test_stop_reason_is_read_and_written(
    wire: str, body: bytes, stop: str, raw: str | None
) -> None:
    codec = BY_NAME[wire].codec
    reply = codec.read_reply(body)
    assert (reply.stop_reason, reply.stop_reason_raw) == (stop, raw)
    if raw is None and wire == "anthropic":
        return  # a reply without a reason is written as one that ended
    again = codec.read_reply(codec.write_reply(reply))
    assert again.stop_reason == stop
    assert again.stop_reason_raw == raw or raw is None


@rows("malformed", "body", "path")
def test_malformed_reply_names_the_field(wire: str, body: bytes, path: str) -> None:
    with pytest.raises(Parse) as caught:
        BY_NAME[wire].codec.read_reply(body)
    assert caught.value.path.startswith(path)


@rows("unreadable_usage", "body", "path")
def test_reply_is_kept_where_its_usage_cannot_be_read(wire: str, body: bytes, path: str) -> None:
    reply = BY_NAME[wire].codec.read_reply(body)
    assert reply.usage.input is reply.usage.output is None
    assert [(notice.code, notice.path) for notice in reply.notices] == [("usage_unreadable", path)]


@pytest.mark.parametrize("wire", [case.name for case in CASES if case.error_reply])
def test_error_object_with_status_200_is_raised(wire: str) -> None:
    case = BY_NAME[wire]
    assert case.error_reply is not None
    body, kind = case.error_reply
    with pytest.raises(kind, match="why"):
        case.codec.read_reply(body)


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "wire, stream",
    [
        pytest.param(case.name, stream, id=f"{case.name}-{name}")
        for case in CASES
        for name, stream in {"as documented": case.whole, **case.unusual}.items()
    ],
)
def test_unusual_stream_is_read(wire: str, stream: bytes) -> None:
    case = BY_NAME[wire]
    found = case.events(stream)
    assert isinstance(found[0], ReplyStart)
    assert [event for event in found if isinstance(event, TextDelta)] == [TextDelta(0, "Hi")]
    for kind in (ReplyStart, PartStart, PartEnd, ReplyEnd):
        assert sum(isinstance(event, kind) for event in found) == 1
    assert isinstance(found[-1], ReplyEnd)
    assert found[-1].reply.text == "Hi"
    start, *_, end = case.events(case.whole)
    assert found[-1].reply.usage.output == end.reply.usage.output
    if found[0] == start:
        assert found[-1].reply.usage == end.reply.usage


@each_row("count", [b'"many"', b'"\xff"'], ids=["text", "not UTF-8"])
@every_wire
def test_stream_is_kept_where_its_usage_cannot_be_read(wire: str, count: bytes) -> None:
    case = BY_NAME[wire]
    stream = _COUNT.sub(rb"\1" + count, case.whole)
    end = case.events(stream)[-1]
    assert isinstance(end, ReplyEnd)
    assert (end.reply.text, end.reply.usage.output) == ("Hi", None)
    if stream != case.whole:
        assert [notice.code for notice in end.reply.notices] == ["usage_unreadable"]


@rows("broken", "stream", "error")
def test_broken_stream_fails_with_the_parts_so_far(wire: str, stream: bytes, error: str) -> None:
    case = BY_NAME[wire]
    goes_on = error != "Transport" and stream.endswith(b"\n")
    for whole in (stream, stream + case.whole if goes_on else stream):
        found = case.events(whole)
        assert isinstance(found[0], ReplyStart)
        ends = [event for event in found if isinstance(event, ReplyFail | ReplyEnd)]
        assert ends == [found[-1]]
        assert isinstance(found[-1], ReplyFail)
        assert found[-1].error == error
        assert found[-1].partial is not None
        assert found[-1].partial.text == ("Hi" if stream.startswith(case.text) else "")


@every_wire
def test_nothing_is_read_after_the_end(wire: str) -> None:
    case = BY_NAME[wire]
    reader = case.codec.reader()
    assert isinstance((reader.feed(case.whole) + reader.close())[-1], ReplyEnd)
    assert reader.feed(case.whole) + reader.close() == []


RECORDED = [
    (name, file)
    for name in BY_NAME
    for pattern in ("*.chunks.txt", "*.reply.ndjson")
    for file in sorted((Path(__file__).parent / name / "fixtures").glob(pattern))
]


@pytest.mark.parametrize("wire, file", RECORDED, ids=lambda value: getattr(value, "name", value))
def test_stream_events_do_not_depend_on_chunking(wire: str, file: Path) -> None:
    case, stream = BY_NAME[wire], file.read_bytes()
    expected = case.events(stream)
    assert isinstance(expected[-1], ReplyEnd | ReplyFail)
    for size in (1, 2, 3, 7, 1000):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert case.events(*pieces) == expected
    # In two pieces, around every end of a line.
    ends = [match.end() for match in re.finditer(rb"\r?\n", stream)]
    for cut in {end + beside for end in ends for beside in (-2, -1, 0, 1)}:
        assert case.events(stream[:cut], stream[cut:]) == expected


@rows("endless", "beginning", "piece")
def test_endless_reply_is_rejected(wire: str, beginning: bytes, piece: bytes) -> None:
    reader = BY_NAME[wire].codec.reader()
    events: list[Any] = reader.feed(beginning)
    for _ in range(40):
        if events and isinstance(events[-1], ReplyFail):
            break
        events += reader.feed(piece)
    assert isinstance(events[-1], ReplyFail)
    assert events[-1].error == "Parse"
    assert "more than" in events[-1].message


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


@rows("errors", "status", "body", "kind")
def test_error_by_status_and_code(
    wire: str, status: int, body: bytes, kind: type[Upstream]
) -> None:
    codec = BY_NAME[wire].codec
    error = codec.read_error(status, {"request-id": "r", "x-request-id": "r"}, body)
    assert type(error) is kind
    assert error.retryable is kind.retryable
    assert (error.status, error.request_id) == (status, "r")
    if b'"why"' in body:
        assert str(error) == "why"
    again = codec.read_error(*codec.write_error(error))
    assert type(again) is kind
    assert (str(again), again.param) == (str(error), error.param)


@each_row("status, kind", [(429, errors.RateLimited), (503, errors.Overloaded)])
@every_wire
def test_error_without_an_object_is_classified_by_status(
    wire: str, status: int, kind: type[Upstream]
) -> None:
    case = BY_NAME[wire]
    for body in case.bare_errors:
        error = case.codec.read_error(status, {"retry-after": "2"}, body)
        assert type(error) is kind
        assert error.retry_after == 2


@each_row(
    "headers, seconds",
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
@every_wire
def test_retry_after_forms(wire: str, headers: dict[str, str], seconds: float | None) -> None:
    now = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)
    assert BY_NAME[wire].codec.read_error(429, headers, b"{}", now).retry_after == seconds


@each_row("kind", PROVIDER_ERRORS)
@every_wire
def test_every_error_class_survives_a_round_trip(wire: str, kind: type[Upstream]) -> None:
    """As a reply and in a stream; also an error of another wire, with its own status and code."""
    case = BY_NAME[wire]
    expected = errors.RequestRejected if kind in case.unnamed else kind
    for error in (
        kind("m"),
        kind("m", code="overloaded_error"),
        kind("m", status=200, retry_after=1.5, request_id="i"),
    ):
        status, headers, body = case.codec.write_error(error)
        again = case.codec.read_error(status, headers, body)
        assert type(again) is expected
        assert (str(again), again.retry_after) == ("m", error.retry_after)
        assert again.request_id == error.request_id
    if case.names_failures or kind is errors.Overloaded:
        writer = case.codec.writer()
        stream = b"".join(writer.write(event) for event in case.events(case.text)[:2])
        (*_, last) = case.events(stream + writer.write(ReplyFail(kind.__name__, "m")))
        assert isinstance(last, ReplyFail)
        assert (last.error, last.message) == (expected.__name__, "m")


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────


def test_anthropic_error_has_the_code_of_its_details_and_two_request_ids() -> None:
    codec = anthropic.CASE.codec
    body = json.loads(anthropic.error_body("rate_limit_error", "ramp_limit_exceeded"))
    encoded = json.dumps({**body, "request_id": "req_body"}).encode()
    error = codec.read_error(429, {"request-id": "req_1"}, encoded)
    assert (error.code, error.request_id) == ("ramp_limit_exceeded", "req_1")
    assert codec.read_error(429, {}, encoded).request_id == "req_body"
    plain = codec.read_error(400, {}, anthropic.error_body("invalid_request_error"))
    assert plain.code == "invalid_request_error"

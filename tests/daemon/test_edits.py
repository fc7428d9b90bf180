"""Changes to the bytes that pass: fields of a request, and the usage of a chat stream."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.daemon.calls.translation import with_members
from anaphora.daemon.faces.framing import UsageFilter
from anaphora.wire.reading import decode_members

BODIES = (
    b"{}",
    b'{"model":"a","n":1}',
    b' { "model" : "a" ,\n "n" : [1, {"x": "}"}] } ',
    b'{"\\u006dodel":"a"}',
)


@each_row("body", BODIES)
@each_row("names", [(), ("model",), ("user",), ("n", "user", "model")])
def test_only_the_named_fields_change(body: bytes, names: tuple[str, ...]) -> None:
    changes = {name: json.dumps(f"new {name}").encode() for name in names}
    changed = with_members(body, decode_members(body), changes)
    assert json.loads(changed) == json.loads(body) | {name: f"new {name}" for name in names}
    if not names:
        assert changed is body


def chunk(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode()


CHOICE = {"index": 0, "delta": {"content": 'say "usage" and "choices": []'}}
EVENTS = (
    chunk(id="1", choices=[CHOICE], usage=None),
    chunk(id="1", choices=[CHOICE]),
    b": comment",
    chunk(id="1", choices=[], prompt_filter_results=[]),
    chunk(id="1", choices=[CHOICE], usage={"total_tokens": 3}),
)
USAGE = chunk(id="1", choices=[], usage={"total_tokens": 3})
DONE = b"data: [DONE]"


@given(st.lists(st.integers(0, 800), max_size=8), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_usage_is_removed_wherever_the_stream_is_cut(cuts: list[int], end: bytes) -> None:
    stream = end.join([*EVENTS, USAGE, DONE, b""])
    passed, filtered, start = b"", UsageFilter(), 0
    for cut in sorted(cuts):
        passed += filtered.feed(stream[start:cut])
        start = max(start, cut)
    passed += filtered.feed(stream[start:]) + filtered.close()
    assert passed == end.join([*EVENTS, DONE, b""])


def test_unfinished_stream_passes_as_it_is() -> None:
    filtered = UsageFilter()
    assert filtered.feed(b'data: {"choices"') == b""
    assert filtered.close() == b'data: {"choices"'

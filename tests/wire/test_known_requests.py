"""A request whose first messages are known is read as if it were the first one."""

from __future__ import annotations

import gc
import gzip
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from support import traces
from support.exchanges import FILE, needs_exchanges, records
from support.growing_bodies import PATHS, Body, attempt, conversations
from support.hostile import BODIES, mutated
from support.mutations import RICH

from anaphora import catalog, errors, wire
from anaphora.prompt import Call
from anaphora.rendered import Mark, Plan
from anaphora.wire.known_requests import KnownRequests
from anaphora.wire.reading import DECODE_ERRORS, decode_elements, decode_members

LISTS = {"openai_responses": "input", "gemini": "contents"}
#: White space of 1 KB: shorter bodies are not kept.
PAD = b" " * 1100


def shown(call: Call | None) -> Any:
    if call is None:
        return None
    return repr(call), list(map(repr, call.ir.segments[0].messages))


def known(
    requests: KnownRequests, body: bytes, name: str, path: str = "", scope: str = "app"
) -> int:
    """Reads a body, which gives what `parse` gives; how many of its messages were known."""
    reading, refused = attempt(lambda: requests.read(body, name, path, scope))
    cold, problem = attempt(lambda: wire.get(name).parse(body, path))
    assert refused == problem
    if reading is None:
        return 0
    assert shown(reading.call) == shown(cold)
    members = reading.members()
    assert {key: bytes(raw) for key, raw in members.items()} == {
        key: bytes(raw) for key, raw in decode_members(body).items()
    }
    return reading.known


def padded(body: bytes) -> bytes:
    start = body.index(b"{") + 1
    return body[:start] + PAD + body[start:]


def turns(body: bytes, name: str) -> Iterator[bytes]:
    """The bodies of a conversation that ends with this one: its first messages, and so on."""
    data = padded(body)
    members = decode_members(body)
    raw = bytes(members.get(LISTS.get(name, "messages"), b""))
    if raw[:1] != b"[":
        return
    start = data.index(raw)
    elements = [bytes(each) for each in decode_elements(raw)]
    at = start + 1
    for count, each in enumerate(elements, 1):
        at = data.index(each, at) + len(each)
        if count > len(elements) - 8 or count % 16 == 0:
            yield data[:at] + b"]" + data[start + len(raw) :]


# ── The same as parse ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PATHS)
@given(conversation=conversations())
def test_body_is_read_as_if_it_were_the_first(name: str, conversation: list[Body]) -> None:
    requests = KnownRequests(1 << 20)
    for each in conversation:
        known(requests, padded(each.write(name)), name, PATHS[name])


@pytest.mark.parametrize("name", sorted(wire.WIRES))
@needs_exchanges
def test_recorded_requests_are_read_as_if_each_were_the_first(name: str) -> None:
    """Each turn of each conversation, also in the dialect of its host."""
    requests, found = KnownRequests(1 << 24), 0
    for record in [*records(name), *clouds(name)]:
        row = catalog.dialects().at_host(record["host"], name, record["path"])
        for one in {name} if row is None else {name, row.name}:
            for body in turns(record["request"].encode(), name):
                found += known(requests, body, one, record["path"]) > 0
    assert found > 100, found


def clouds(name: str) -> list[dict[str, Any]]:
    with gzip.open(FILE.with_name("clouds.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row["wire"] in (name, f"{name}_converse")]


@pytest.mark.parametrize("file", ["claude_code", "gemini_cli", "inspect_openai", "pi_claude"])
@pytest.mark.skipif(traces.missing() is not None, reason=str(traces.missing()))
def test_traces_are_read_as_if_each_request_were_the_first(file: str) -> None:
    """Turn by turn, with a marker at the end that moves."""
    requests, found = KnownRequests(1 << 26), 0
    for trace in traces.traces(file)[:8]:
        for sent in (*trace.sent[:12], *trace.sent[12:][-4:]):
            rendered = sent.rendered
            marks = tuple(Mark(rendered.cacheable - 1, ttl) for ttl in list(rendered.markers)[:1])
            body = b"".join(wire.get(rendered.wire).assemble(rendered, Plan(marks=marks)).body)
            found += known(requests, body, rendered.wire, PATHS[rendered.wire]) > 0
    assert found > 3, found


# ── Hostile bodies ────────────────────────────────────────────────────────────────────────────────

HOSTILE = {
    "anthropic": ("/v1/messages", "/minimax/anthropic/v1/messages"),
    "openai_chat": ("/v1/chat/completions", "/deepseek/v1/chat/completions"),
    "openai_responses": ("/v1/responses",),
    "gemini": ("/v1beta/models/gemini-2.5-flash:generateContent",),
    "bedrock": ("/model/m/converse",),
}
_BODIES = {path: body for method, path, body in BODIES if method == "POST"}
_NAMES = {"/minimax/anthropic/v1/messages": "minimax/anthropic"}
_NAMES |= {"/deepseek/v1/chat/completions": "deepseek"}
#: Members at the end of a body: most are given twice, or belong to another wire.
_MORE = (
    '"messages":[]', '"input":[]', '"contents":[]', '"input":"x"', '"contents":{"parts":[]}',
    '"model":"m"', '"mod\\u0065l":"m"', '"instructions":"x"', '"instructions":null', '"system":"x"',
    '"previous_response_id":"r"', '"tools":[]', '"system_instruction":{"parts":[{"text":"x"}]}',
    '"prompt_cache_options":{"mode":"explicit","ttl":"12h"}', '"x":{"a":1,"a":2}', '"":-0', '"n":1E400',
    '"cache_control":{"type":"ephemeral"}', '"x":"\\ud800"', '"\\ud800":1', '"x":' + "[" * 2000 + "]" * 2000,
)  # fmt: skip
#: Messages, which only some of the wires take.
_MESSAGES = (
    '{"role":"function","name":"f","content":"x"}', '{"role":"system","content":"x"}', '{"role":"user"}',
    '{"role":"user","content":"a","content":"b"}', '{"role":"user","role":"assistant","content":"x"}',
    '{"role":"user","parts":[{"functionResponse":{"name":"look","response":{"output":"x"}}}]}',
    '{"role":"model","parts":[{"functionCall":{"name":"look","args":{}}}]}', '{"role":"user","parts":{}}',
    '{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}',
    '{"role":"user","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}]}',
    '{"role":"user","content":[{"cachePoint":{"type":"default"}},{"text":"x"},{"cachePoint":{"type":"default"}}]}',
    '{"role":"user","content":[{"type":"input_text","text":"x","prompt_cache_breakpoint":{"mode":"explicit"}}]}',
    '{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"tool_result","tool_use_id":"b"}]}]}',
    '{"type":"reasoning","summary":[]}', '{"type":"message","role":"assistant","content":"x"}', '{"id":"x"}', '7', '',
    '{"type":"function_call_output","call_id":"c","output":[]}', '{"role":"assistant","content":[{"text":"x"}]}',
)  # fmt: skip


@pytest.mark.parametrize("path", [path for paths in HOSTILE.values() for path in paths])
def test_hostile_bodies_are_read_as_if_each_were_the_first(path: str) -> None:
    """A conversation goes on with messages and fields that are wrong in some way."""
    base = next(name for name, paths in HOSTILE.items() if path in paths)
    name, field = _NAMES.get(path, base), LISTS.get(base, "messages")
    drawn, found, refused = random.Random(path), 0, 0
    for _ in range(120):
        requests = KnownRequests(1 << 24)
        valid = drawn.choice([RICH[base], *(_BODIES[each] for each in {path} & _BODIES.keys())])
        messages = [json.dumps(each) for each in valid[field] * drawn.choice((1, 2))]
        members = [f'"{key}":{json.dumps(each)}' for key, each in valid.items() if key != field]
        split = drawn.randrange(len(members) + 1)
        head, tail = members[:split], members[split:]
        for turn in range(5):
            more, last = ([], tail) if turn == 0 else _wrong(drawn, valid, field, tail)
            listed = f'"{field}":[{", ".join(messages + more)}]'
            data = padded(f"{{{','.join([*head, listed, *last])}}}".encode())
            was_known = requests.find(data, name, "app").known
            count = known(requests, data, name, path)
            found += was_known > 0
            refused += count < was_known
            if count:
                messages += more
    assert found > 300, found
    assert refused > 20, refused


def _wrong(
    drawn: random.Random, valid: dict[str, Any], field: str, tail: list[str]
) -> tuple[list[str], list[str]]:
    """More messages, and the members after them."""
    more = drawn.choices(_MESSAGES, k=drawn.choice((0, 1, 1, 2)))
    try:
        wrong = {
            key: bytes(raw).decode() for key, raw in decode_members(mutated(drawn, valid)).items()
        }
    except DECODE_ERRORS:
        return more, tail
    listed = wrong.pop(field, "")
    if listed[:1] == "[" and drawn.random() < 0.5:
        more.append(listed[1:-1])
    if drawn.random() < 0.3:
        tail = [f'"{key}":{raw}' for key, raw in wrong.items()]
    if drawn.random() < 0.4:
        tail = [*tail, drawn.choice(_MORE)]
    return more, tail


# ── What is known, and what is kept ───────────────────────────────────────────────────────────────


def chat(*texts: str, at: int = -1, **fields: Any) -> bytes:
    """Messages of the user and the assistant in turn, each of a thousand texts; one is marked."""
    messages: list[dict[str, Any]] = [
        {
            "role": ("user", "assistant")[each % 2],
            "content": [{"type": "text", "text": text * 1000}],
        }
        for each, text in enumerate(texts)
    ]
    if at >= 0:
        messages[at]["content"][0]["cache_control"] = {"type": "ephemeral"}
    return json.dumps({"model": "m", "max_tokens": 9, "messages": messages, **fields}).encode()


def test_messages_of_the_turn_before_are_known() -> None:
    requests = KnownRequests(1 << 24)

    def count(body: bytes, scope: str = "app") -> int:
        return known(requests, body, "anthropic", scope=scope)

    assert count(chat("a", "b", "c")) == 0
    assert count(chat("a", "b", "c", "d", "e")) == 3
    assert count(chat("a", "b", "c", "d", "e"), "other") == 0, "another scope"
    assert known(requests, chat("a", "b", "c", "d", "e"), "minimax/anthropic") == 0, "another wire"
    assert count(chat("a", "b", "c", "d", "e")) == 5, "sent again"
    assert count(chat("a", "b", "c", "d", "e", top_k=1, system="s")) == 5, (
        "other members at the end"
    )
    assert count(chat("a", "b", "c", "d", "f", "g", "h")) == 3, "another branch"
    assert count(chat("a", "b", "c", "d", "e", "f", "g")) == 3, "the branch before"
    assert count(chat("a", "b", "c", "d")) == 3, "the assistant's message is read again"
    assert count(chat("x", "b", "c", "d", "e")) == 0


def test_programs_move_their_markers() -> None:
    requests, texts = KnownRequests(1 << 24), list("abc")
    known(requests, chat(*texts, at=2), "anthropic")
    for count in range(3, 30, 2):
        texts += "de"
        assert known(requests, chat(*texts, at=count + 1), "anthropic") == count - 2
        assert len(requests) == 1


def test_known_messages_are_the_same_objects() -> None:
    """A render log goes on with them."""
    requests, codec = KnownRequests(1 << 24), wire.get("anthropic")
    profile = catalog.profile("anthropic", "claude-sonnet-4-5")
    first = requests.read(chat("a", "b", "c"), "anthropic").call
    second = requests.read(chat("a", "b", "c", "d", "e"), "anthropic").call
    before, after = (call.ir.segments[0].messages for call in (first, second))
    assert all(one is other for one, other in zip(before, after, strict=False))
    logs = [codec.render(first, profile)]
    logs.append(codec.render(second, profile, logs[0]))
    assert logs[1].runs[-1].log is logs[0].runs[-1].log


def test_check_sees_the_body_without_known_messages() -> None:
    requests, seen = KnownRequests(1 << 24), list[bytes]()
    for texts in ("abc", "abcde"):
        requests.read(chat(*texts, system="s"), "anthropic", check=seen.append)
    whole, rest = map(json.loads, seen)
    assert len(whole["messages"]) == 3
    assert [each["role"] for each in rest["messages"]] == ["assistant", "user"]
    assert {**whole, "messages": rest["messages"]} == rest
    # What is refused of the rest is refused for the whole body.
    body = chat(*"abcdefg").replace(b'"role": "user"', b'"role": "user", "role": "user"')

    def refuse(data: bytes) -> None:
        seen.append(data)
        if data.count(b'"role": "user", "role"'):
            raise errors.InvalidRequest("twice", path="$")

    with pytest.raises(errors.InvalidRequest, match="twice"):
        requests.read(body, "anthropic", check=refuse)
    assert seen[-1] == body


@pytest.mark.parametrize(
    ("texts", "escaped"), [("abc", False), ("aüc", False), ("a\U0001f600c", True)], ids=repr
)
def test_kept_requests_are_bounded_in_bytes(texts: str, escaped: bool) -> None:
    """Of many that have nothing in common; what they take is about what is counted."""
    limit = 2_000_000
    requests, sizes = KnownRequests(limit), list[int]()
    requests.read(chat("warm", "up"), "anthropic")
    tracemalloc.start()
    try:
        for number in range(300):
            data = chat(f"{number} {texts}", "b", number=number)
            if not escaped:
                data = msgspec.json.encode(json.loads(data))
            requests.read(data, "anthropic")
            sizes.append(requests.size)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert limit * 0.9 < max(sizes) <= limit
    assert taken < limit * 1.1
    assert known(requests, chat(f"{number} {texts}", "b", "c", number=number), "anthropic") >= 0


def test_eleven_thousand_calls_leave_no_more_than_the_limit() -> None:
    limit, kept = 500_000, KnownRequests(500_000)
    for number in range(11_000):
        text = json.dumps(f"{number} " * 300)
        kept.read(
            b'{"model":"m","messages":[{"role":"user","content":%b}]}' % text.encode(),
            "openai_chat",
        )
        assert kept.size <= limit
    assert 90 < len(kept) < 120
    long = chat("a" * 200, "b" * 200, "c")
    assert [known(kept, long, "anthropic") for _ in range(2)] == [0, 0], "more than half of it"

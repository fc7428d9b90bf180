"""The key of a request ignores markers, spelling and identifiers, and nothing else."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exchanges import all_records, needs_exchanges
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.rendered import Mark, Plan
from anaphora.replay.keys import IDENTIFIERS, ReplayRequest, key_of
from anaphora.replay.rules import MatchRules
from anaphora.wire.cutting import cut

NO_RULES = MatchRules(shipped=False)
Place = tuple[str | int, ...]

MESSAGES: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64,
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    "system": [{"type": "text", "text": "You are terse."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hello?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"cache_control": "no"}}
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "Ten lines."}],
                }
            ],
        },
    ],
}
MARKER = {"type": "ephemeral", "ttl": "1h"}


def key(body: Any, path: str = "/v1/messages", **fields: Any) -> str:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = ReplayRequest(
        **{"method": "POST", "provider": "anthropic", **fields}, path=path, body=data
    )
    return key_of(request, NO_RULES).key


def recorded() -> list[dict[str, Any]]:
    """Requests of all wires, with the provider that they were sent to."""
    found = []
    for record in all_records():
        if (name := record["wire"]) in wire.WIRES:
            row = catalog.dialects().at_host(record["host"], name, record["path"])
            found.append({**record, "provider": row.provider if row else ""})
    return found


RECORDED = recorded()
requests = st.sampled_from(RECORDED) if RECORDED else st.nothing()


def places(value: Any, before: Place = ()) -> Iterator[Place]:
    """The places of all values that are no containers."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
        if isinstance(item, dict | list):
            yield from places(item, (*before, name))
        else:
            yield (*before, name)


def changed(body: Any, place: Place) -> Any:
    """The body with another value at a place."""
    body = copy.deepcopy(body)
    inner = body
    for step in place[:-1]:
        inner = inner[step]
    old = inner[place[-1]]
    inner[place[-1]] = (
        old + "x"
        if isinstance(old, str)
        else "x"
        if old is None
        else not old
        if isinstance(old, bool)
        else old + 1
    )
    return body


def shuffled(value: Any, data: st.DataObject) -> Any:
    if isinstance(value, dict):
        names = data.draw(st.permutations(list(value)))
        return {name: shuffled(value[name], data) for name in names}
    if isinstance(value, list):
        return [shuffled(item, data) for item in value]
    return value


#: What is not compared: the listed fields, markers, and what Gemini does not read.
NOT_COMPARED = {*IDENTIFIERS, "systemInstruction.role"}


def is_compared(place: Place) -> bool:
    named = ".".join(step for step in place if isinstance(step, str))
    listed = {each.replace("[]", "") for each in NOT_COMPARED}
    markers = {"cache_control", "prompt_cache_breakpoint"}
    return not (
        markers & set(place)
        or any(named == each or named.startswith(f"{each}.") for each in listed)
    )


@needs_exchanges
@given(requests, st.data())
def test_key_follows_every_other_field(record: dict[str, Any], data: st.DataObject) -> None:
    body = json.loads(record["request"])
    compared = [place for place in places(body) if is_compared(place)]
    place = data.draw(st.sampled_from(compared))
    path, provider = record["path"], record["provider"]
    assert key(changed(body, place), path, provider=provider) != key(body, path, provider=provider)


@needs_exchanges
@given(requests, st.data())
def test_key_ignores_order_and_white_space(record: dict[str, Any], data: st.DataObject) -> None:
    body, path = json.loads(record["request"]), record["path"]
    other = json.dumps(shuffled(body, data), indent=data.draw(st.sampled_from([None, 1, 4])))
    assert key(other.encode(), path) == key(body, path)


@needs_exchanges
@given(requests, st.data())
def test_key_ignores_markers(record: dict[str, Any], data: st.DataObject) -> None:
    """Wherever the wire may put them."""
    path, codec = record["path"], wire.get(record["wire"])
    rendered = cut(codec, record["request"].encode(), path)
    splices = [chunk.index for chunk in rendered if chunk.splice is not None]
    if not rendered.markers or not splices:
        return
    ttl = data.draw(st.sampled_from(list(rendered.markers)))
    chosen = data.draw(st.sets(st.sampled_from(splices), min_size=1, max_size=4))
    plan = Plan(marks=tuple(Mark(index, ttl) for index in sorted(chosen)))
    marked = codec.assemble(rendered, plan).body.join()
    assert marked != record["request"].encode()
    own = wire.PROVIDERS[record["wire"]]
    assert key(marked, path, provider=own) == key(record["request"].encode(), path, provider=own)


@each_row("place", IDENTIFIERS)
def test_key_ignores_an_identifier(place: str) -> None:
    body: dict[str, Any] = {"model": "gpt-5.1", "input": [{"role": "user", "content": "Hello?"}]}
    plain = key(body, "/v1/responses", provider="openai")
    for value in ("one", "two"):
        inner: Any = body
        *steps, last = place.replace("[]", "").split(".")
        for step in steps:
            inner = inner.setdefault(step, {})
            inner = inner[0] if isinstance(inner, list) else inner
        inner[last] = value
        assert key(body, "/v1/responses", provider="openai") == plain


@each_row(
    "place",
    [
        ("tools", 0),
        ("system", 0),
        ("messages", 0, "content", 0),
        ("messages", 2, "content", 0),
        ("messages", 2, "content", 0, "content", 0),
        (),
    ],
    ids=str,
)
def test_key_ignores_a_marker_at(place: Place) -> None:
    body = copy.deepcopy(MESSAGES)
    inner: Any = body
    for step in place:
        inner = inner[step]
    inner["cache_control"] = MARKER
    assert key(body) == key(MESSAGES)


def test_field_with_the_name_of_a_marker_is_compared() -> None:
    body = copy.deepcopy(MESSAGES)
    body["messages"][1]["content"][0]["input"] = {"cache_control": "yes"}
    assert key(body) != key(MESSAGES)


@each_row(
    ("one", "two"),
    [
        ({}, {"method": "PUT"}),
        ({}, {"provider": "deepseek"}),
        ({}, {"path": "/v1/messages/count_tokens"}),
        ({}, {"query": "beta=true"}),
        ({"query": "beta=true"}, {"query": "beta=false"}),
    ],
    ids=["method", "provider", "path", "query", "value"],
)
def test_key_follows_the_address(one: dict[str, str], two: dict[str, str]) -> None:
    assert key(MESSAGES, **{"path": "/v1/messages", **one}) != key(
        MESSAGES, **{"path": "/v1/messages", **two}
    )


def test_stream_and_whole_answer_have_different_keys() -> None:
    assert key({**MESSAGES, "stream": True}) != key({**MESSAGES, "stream": False})
    body = {"contents": [{"parts": [{"text": "Hello?"}]}]}
    whole, stream = (
        key(body, f"/v1beta/models/gemini-2.5-flash:{method}")
        for method in ("generateContent", "streamGenerateContent")
    )
    assert whole != stream


@pytest.mark.parametrize("query", ["key=AIza-1&alt=sse", "alt=sse&KEY=AIza-2", "alt=sse&api_key="])
def test_key_ignores_credentials_in_the_query(query: str) -> None:
    path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
    assert key(b"{}", path, query=query) == key(b"{}", path, query="alt=sse")


def test_member_that_is_given_twice_is_compared() -> None:
    body = b'{"model":"m","messages":[],"a":%b,"a":2,"b":{"c":%b,"c":4}}'
    keys = [key(body % pair) for pair in ((b"1", b"3"), (b"5", b"3"), (b"1", b"5"))]
    assert len(set(keys)) == 3
    assert keys[0] != key(b'{"model":"m","messages":[],"a":2,"b":{"c":4}}')


def test_identifiers_count_where_no_model_is_called() -> None:
    keys = {key({"user_id": name}, "/v1/organizations/users") for name in ("one", "two")}
    assert len(keys) == 2


def test_key_ignores_headers() -> None:
    assert key(MESSAGES, headers={"x-api-key": "sk-1"}) == key(MESSAGES)


# ── Bodies that are no prompts ───────────────────────────────────────────────────────────────────


def form(boundary: str, content: str = "a,b\n1,2\n") -> dict[str, Any]:
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
        f"{content}\r\n--{boundary}--\r\n"
    )
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    return {"path": "/v1/files", "body": body.encode(), "headers": headers}


def test_boundary_of_an_upload_is_not_compared() -> None:
    assert key(**form("a1b2c3")) == key(**form("----WebKitFormBoundaryXyz"))
    assert key(**form("a1b2c3")) != key(**form("a1b2c3", "a,b\n1,3\n"))


def test_compressed_body_is_compared_decompressed() -> None:
    data = json.dumps(MESSAGES).encode()
    for encoding, packed in (("gzip", gzip.compress(data)), ("deflate", zlib.compress(data))):
        assert key(packed, headers={"content-encoding": encoding}) == key(MESSAGES)


def test_broken_bodies_have_keys() -> None:
    bodies = [b"", b"{", b"\xff", b"[]", b"null", b'"\\ud800"', b'{"messages": 1}', b"[" * 9999]
    assert len({key(body) for body in bodies}) == len(bodies) - 1  # `null` counts as no body
    assert key(b"\x1f\x8bno gzip", headers={"content-encoding": "gzip"})

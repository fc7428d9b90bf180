"""Markers that the proxy places in a program's requests."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planted import GUIDE, Place, body, grown, spec
from support.tables import each_row

from anaphora import wire
from anaphora.catalog import dialects
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.rendered import Rendered
from anaphora.traffic import placing
from anaphora.traffic.calls import ProxyRoute, UpstreamRequest
from anaphora.traffic.placing import Placer
from anaphora.traffic.planning import ConversationPlans, PlannedCall, read_request
from anaphora.wire.cutting import cut

KEY = "sk-canary-7Yt2mWq9"
Json = dict[str, Any]

ANTHROPIC = Place("anthropic", "anthropic", "claude-sonnet-4-5")
MARKED = {
    "anthropic": ANTHROPIC,
    "openai_chat": Place("openai_chat", "openai", "gpt-5.6"),
    "openai_responses": Place("openai_responses", "openai", "gpt-5.6"),
    "minimax": Place("minimax/anthropic", "minimax", "MiniMax-M2.7"),
    "openrouter": Place("openai_chat", "openrouter", "anthropic/claude-sonnet-4.5"),
    "alibaba": Place("openai_chat", "alibaba", "qwen3-max"),
}


def turns(count: int) -> list[Json]:
    prompt = spec() | {"marked": False}
    prompts = [prompt]
    for _ in range(count - 1):
        prompts.append(grown(prompts[-1]))
    return prompts


def path_of(place: Place) -> str:
    rows = [row for row in dialects().rows if row.provider == place.provider]
    return next(r.request_path for r in rows if r.wire == place.wire.rpartition("/")[2])


def request(place: Place, data: bytes, **headers: str) -> UpstreamRequest:
    route = ProxyRoute(prefix="", provider=place.provider, upstream="https://api.example.com")
    sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **headers}
    return UpstreamRequest(
        method="POST",
        route=route,
        path=path_of(place),
        query="",
        headers=tuple(sent.items()),
        body=data,
    )


def codec_name(place: Place) -> str:
    return f"{place.provider}/{place.wire.rpartition('/')[2]}"


def split(place: Place, data: bytes) -> Rendered:
    return cut(wire.get(codec_name(place)), data, path_of(place))


def marked(placer: Placer, place: Place, data: bytes, **headers: str) -> Rendered:
    """The request as it goes upstream."""
    return split(place, placer(request(place, data, **headers)) or data)


# ── Through the relay ────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def relayed(emu: Emulator, placer: Placer | None) -> Iterator[Proxy]:
    upstreams = {row.provider: f"{emu.url}/{row.provider}" for row in dialects().rows}
    with running(default_routes(upstreams), place=placer) as proxy:
        yield proxy


def send(proxy: Proxy, place: Place, data: bytes) -> None:
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    headers |= {"authorization": f"Bearer {KEY}", "x-api-key": KEY}
    address = proxy.url_of(place.provider) + path_of(place)
    with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as response:
        response.read()


@pytest.mark.parametrize("name", MARKED)
def test_program_without_markers_pays_less(emu: Emulator, name: str) -> None:
    place, costs, read = MARKED[name], [], []
    for placer in (None, Placer()):
        with relayed(emu, placer) as proxy:
            for prompt in turns(6):
                send(proxy, place, body(place, prompt))
        calls = emu.requests()[:6]
        assert [call["status"] for call in calls] == [200] * 6
        costs.append(sum(Decimal(call["cost_usd"]) for call in calls))
        read.append(sum(call["read"] for call in calls))
        emu.reset()
    if name in ("anthropic", "openrouter"):  # markers only
        assert read[0] == 0
        assert costs[1] < costs[0] / 2
    elif name == "alibaba":  # reads at markers cost less than those that it finds by itself
        assert costs[1] < costs[0]
    else:  # it caches by itself, as well as with markers here
        assert costs[1] <= costs[0]


def rejecting(markers: bool) -> Iterator[str]:
    """A gateway that knows no markers."""

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            wrong = b"cache_control" in data if markers else True
            reason = b"cache_control: Extra inputs are not permitted" if markers else b"no credit"
            answer = b'{"error":{"message":"%b"}}' % (reason if wrong else b"")
            self.send_response(400 if wrong else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("about_markers", [True, False])
def test_gateway_that_rejects_markers_gets_no_more(about_markers: bool) -> None:
    placer, statuses = Placer(), []
    with contextlib.contextmanager(rejecting)(about_markers) as url:
        for prompt in turns(3):
            routes = default_routes({"anthropic": url})
            with running(routes, place=placer, observers=[placer]) as proxy:
                try:
                    send(proxy, ANTHROPIC, body(ANTHROPIC, prompt))
                    statuses.append(200)
                except urllib.error.HTTPError as problem:
                    statuses.append(problem.code)
                    problem.read()
                    problem.close()
    if about_markers:
        assert statuses == [400, 200, 200]
        assert placer.unchanged == {"for a provider that rejected markers": 2}
        (notice,) = placer.failures
        assert "anthropic rejected a request with markers" in notice.message
    else:
        assert (statuses, placer.placed) == ([400] * 3, 3)
        assert not placer.failures


# ── One request ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MARKED)
def test_only_markers_are_added(name: str) -> None:
    place, placer = MARKED[name], Placer()
    for prompt in turns(3):
        data = body(place, prompt)
        before, after = split(place, data), marked(placer, place, data)
        assert list(after) == list(before)
    # MiniMax caches unmarked requests as well, and charges nothing for writing them.
    assert placer.placed == (0 if name == "minimax" else 3)


def test_tools_system_and_tail_are_marked() -> None:
    placer = Placer()
    first, second = (marked(placer, ANTHROPIC, body(ANTHROPIC, each)) for each in turns(2))
    sections = [first.chunk(mark.chunk).section for mark in first.marks]
    assert sections[-1] == "messages"
    assert "system" in sections
    # The tail moves; what the first call wrote at its end is found again.
    assert second.marks[-1].chunk == len(second) - 1
    assert len(second.marks) <= 4


def test_own_markers_stay() -> None:
    prompt = spec()
    data = body(ANTHROPIC, prompt)
    own = split(ANTHROPIC, data).marks
    placer = Placer()
    after = marked(placer, ANTHROPIC, data)
    assert set(own) < set(after.marks)
    assert len(after.marks) <= 4


def test_own_markers_are_replaced_when_asked() -> None:
    prompt = spec() | {"marked": False}
    data = body(ANTHROPIC, prompt)
    plain = marked(Placer(), ANTHROPIC, data).marks
    fields = json.loads(data)
    fields["tools"][0]["cache_control"] = {"type": "ephemeral"}
    placer = Placer("replace")
    after = marked(placer, ANTHROPIC, json.dumps(fields).encode())
    assert after.marks == plain


def test_request_with_all_slots_taken_is_left_alone() -> None:
    fields = json.loads(body(ANTHROPIC, spec()))
    for tool in fields["tools"][:2]:
        tool["cache_control"] = {"type": "ephemeral"}
    placer = Placer()
    assert placer(request(ANTHROPIC, json.dumps(fields).encode())) is None
    assert placer.unchanged == {"with the markers already": 1}


# ── Whether reuse is expected ────────────────────────────────────────────────────────────────────


def question(text: str, system: str = GUIDE, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    request = {"model": ANTHROPIC.model, "max_tokens": 9, "system": system, "messages": messages}
    return json.dumps(request | fields).encode()


def test_single_question_is_not_written() -> None:
    placer = Placer()
    assert placer(request(ANTHROPIC, question("What?"))) is None
    assert placer.unchanged == {"that no change is expected to make cheaper": 1}


def test_second_question_with_the_same_system_prompt_marks_that_alone() -> None:
    placer = Placer()
    placer(request(ANTHROPIC, question("What?")))
    after = marked(placer, ANTHROPIC, question("Who? " * 2000))
    assert [after.chunk(mark.chunk).section for mark in after.marks] == ["system"]
    # Another account has a cache of its own.
    other = {"authorization": "Bearer another"}
    assert placer(request(ANTHROPIC, question("Where?"), **other)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ]
        },
    ],
)
def test_conversation_is_written_at_once(fields: Json) -> None:
    assert marked(Placer(), ANTHROPIC, question("What?", **fields)).marks


def test_single_calls_with_tools_are_recognised() -> None:
    """Questions with a tool for the answer, none of which is continued: only what they share is
    worth writing."""
    placer, sections = Placer(), []
    for number in range(8):
        tools = [{"name": "answer", "input_schema": {"type": "object"}}]
        after = marked(placer, ANTHROPIC, question(f"{number}? " * 2000, tools=tools))
        sections.append({after.chunk(mark.chunk).section for mark in after.marks})
    assert "messages" in sections[0]
    assert all("messages" not in each and "system" in each for each in sections[-2:])


def test_end_that_changes_with_every_call_is_not_marked() -> None:
    """A program that appends the time to its last message, and takes it out again."""
    placer, history = Placer(), []
    ends = []
    for turn in range(5):
        history.append({"role": "user", "content": [{"type": "text", "text": f"{turn} " + GUIDE}]})
        last = history[-1]["content"]
        clock = {"type": "text", "text": f"It is 10:0{turn}."}
        sent = [*history[:-1], {"role": "user", "content": [*last, clock]}]
        after = marked(placer, ANTHROPIC, question("", messages=sent))
        ends.append(after.marks[-1].chunk - len(after) if after.marks else None)
        history.append({"role": "assistant", "content": f"Answer {turn}."})
    assert ends[-2:] == [-2, -2]


def test_first_question_of_an_older_conversation_keeps_the_key_of_its_tools() -> None:
    """The key belongs to tools and system prompt; only the question is that of the older one."""
    place, placer = Place("openai_chat", "openai", "gpt-5.2"), Placer()

    def key(name: str, *texts: str) -> str:
        roles = ("user", "assistant")
        messages = [{"role": "system", "content": GUIDE}]
        messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        tool = {"name": name, "description": "d " * 900, "parameters": {"type": "object"}}
        tools = [{"type": "function", "function": tool}]
        sent = {"model": place.model, "tools": tools, "messages": messages}
        placed = placer(request(place, json.dumps(sent).encode()))
        assert placed is not None
        return str(json.loads(placed)["prompt_cache_key"])

    first = key("look_up", "Why?")
    assert key("look_up", "Why?", "So.", "And?") == first
    other = key("write", "Why?")
    assert other != first
    assert key("write", "Why?", "So.", "And?") == other == key("write", "How?")
    assert key("look_up", "Why?", "So.", "And?", "So.", "Sure?") == first


def test_branches_keep_their_own_history() -> None:
    start, left = turns(2)
    right = json.loads(json.dumps(left))
    right["messages"][-2][1][0] = "It is black."
    plans = ConversationPlans()

    def add(prompt: Json, at: float) -> PlannedCall:
        data = body(ANTHROPIC, prompt)
        read = read_request("POST", "anthropic", "/v1/messages", {}, data)
        assert read is not None
        return plans.add(read, scope="", at=at)

    first, one = add(start, 0), add(left, 60)
    other, longer = add(right, 90), add(grown(left), 120)
    assert one.state is first.state
    assert other.state is not first.state
    assert longer.state is one.state
    assert (longer.state.gaps.count, other.state.gaps.count) == (3, 3)


# ── Requests that are left as they are ───────────────────────────────────────────────────────────

LONG = {"model": "m", "messages": [{"role": "user", "content": GUIDE}]}


@each_row(
    ("place", "data", "changes", "reason"),
    [
        (ANTHROPIC, b"{}", {"method": "GET"}, "not calls of a model"),
        (ANTHROPIC, b"{}", {"path": "/v1/models"}, "not calls of a model"),
        (ANTHROPIC, b"{}", {"path": "/v1/messages/count_tokens"}, "not calls of a model"),
        (ANTHROPIC, b"{}", {"body": None}, "too large to change"),
        (ANTHROPIC, b"not JSON", {}, "that cannot be read"),
        (ANTHROPIC, b'{"model":"m","messages":[{"role":"robot"}]}', {}, "that cannot be read"),
        (
            ANTHROPIC,
            gzip.compress(b"{}", mtime=0),
            {"headers": (("content-encoding", "gzip"),)},
            "not calls of a model",
        ),
        (
            Place("openai_chat", "deepseek", "m"),
            json.dumps(LONG).encode(),
            {},
            "for a provider without cache markers",
        ),
        (
            Place("openai_responses", "openai", "gpt-5.6"),
            json.dumps({"model": "gpt-5.6", "input": GUIDE, "previous_response_id": "r"}).encode(),
            {},
            "for a provider without cache markers",
        ),
        (
            Place("openai_responses", "openrouter", "anthropic/claude-opus-5"),
            json.dumps({"model": "anthropic/claude-opus-5", "input": GUIDE}).encode(),
            {},
            "for a provider without cache markers",
        ),
        (
            ANTHROPIC,
            b'{"model":"claude-sonnet-4-5","max_tokens":1,"max_tokens":2,"tools":[{"name":"f"}],'
            + b'"messages":'
            + json.dumps(LONG["messages"]).encode()
            + b"}",
            {},
            "that cannot be read",
        ),
    ],
)
def test_request_is_left_as_it_is(place: Place, data: bytes, changes: Json, reason: str) -> None:
    placer = Placer()
    sent = request(place, data)
    assert placer(msgspec.structs.replace(sent, **changes)) is None
    assert placer.unchanged == {reason: 1}
    assert all(notice.code == "markers_not_placed" for notice in placer.notices)
    assert bool(placer.notices) == (reason == "that cannot be read")


@pytest.mark.parametrize("problem", [InvalidRequest("no"), RuntimeError(KEY), RecursionError()])
def test_failure_breaks_no_request(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(placing, "splice", fail)
    placer = Placer()
    assert placer(request(ANTHROPIC, body(ANTHROPIC, turns(1)[0]))) is None
    (notice,) = placer.notices
    assert notice.code == "markers_not_placed"
    assert KEY not in repr(notice)


@st.composite
def damaged(draw: Any) -> tuple[Place, bytes]:
    """A request with some bytes changed, moved or repeated."""
    place = MARKED[draw(st.sampled_from(sorted(MARKED)))]
    prompt = spec() | {"marked": draw(st.booleans())}
    data = bytearray(body(place, prompt, indent=draw(st.sampled_from([None, 1]))))
    for _ in range(draw(st.integers(1, 3))):
        # The long texts are no place to break anything.
        start = draw(st.sampled_from([0, len(data) - 1500])) + draw(st.integers(0, 1400))
        end = start + draw(st.integers(0, 40))
        piece = draw(st.sampled_from([b"", b'"', b"{", b"}", b",", b"[", b"null", b"\\u0061"]))
        piece = bytes(data[start:end]) * 2 if draw(st.booleans()) else piece
        data[start:end] = piece
    return place, bytes(data)


@given(damaged())
def test_damaged_request_is_left_as_it_is_or_means_the_same(case: tuple[Place, bytes]) -> None:
    place, data = case
    placed = Placer()(request(place, data))
    if placed is not None:
        assert list(split(place, placed)) == list(split(place, data))
        assert len(split(place, placed).marks) <= 4


def test_placer_and_judge_read_the_same_conversation_at_once() -> None:
    """In threads of their own; what is remembered of earlier requests is shared."""
    bodies = [body(ANTHROPIC, prompt) for prompt in turns(20)]
    expected = [list(split(ANTHROPIC, data)) for data in bodies]
    failed: list[int] = []

    def place() -> None:
        placer = Placer()
        for index, data in enumerate(bodies):
            if list(marked(placer, ANTHROPIC, data)) != expected[index]:
                failed.append(index)

    threads = [threading.Thread(target=place) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_notice_holds_no_key() -> None:
    marker = {"type": "ephemeral", "ttl": KEY}
    content = [{"type": "text", "text": "x", "cache_control": marker}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    data = msgspec.json.encode(body)
    sent = msgspec.structs.replace(request(ANTHROPIC, data), path=f"/{KEY}/v1/messages")
    placer = Placer()
    assert placer(sent) is None
    (notice,) = placer.failures
    assert "is not a TTL" in notice.message
    assert KEY not in repr(notice)


def test_memory_is_bounded() -> None:
    placer = Placer()
    for number in range(300):
        model = f"claude-{number % 100}"
        data = question(f"{number} " * 200, tools=[{"name": "f", "input_schema": {}}], model=model)
        placer(request(ANTHROPIC, data))
    assert len(placer._plans._memories) <= 64
    assert placer._plans._index.size <= 32 * 1024 * 1024
    assert KEY not in repr(vars(placer))

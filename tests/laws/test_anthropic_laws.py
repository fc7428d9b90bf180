"""The laws of SPEC G that rendering, planning and replaying must keep, on the Anthropic wire."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some

from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, PromptCachePlan
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tools import ToolRegistry
from anaphora.values import Conversation, Message, from_json, to_json
from anaphora.wire import anthropic


def render(call: Call, previous: Rendered | None = None) -> Rendered:
    return anthropic.render(call, catalog.profile("anthropic", call.model), previous)


def planned_body(call: Call) -> bytes:
    rendered = render(call)
    plan = plan_once(rendered, catalog.rules("anthropic", call.model), reuse_expected=True)
    return anthropic.assemble(rendered, plan).body.join()


def grown(turns: list[list[Message]]) -> list[Conversation]:
    """The conversation after each turn."""
    conversation = Conversation([Message.user("hello")])
    seen = [conversation]
    for added in turns:
        conversation = conversation.append(*added)
        seen.append(conversation)
    return seen


@given(some.frames(), some.turns, some.texts)
def test_law_1_what_was_cacheable_begins_the_next_turn(
    frame: some.Frame, turns: list[list[Message]], state: str
) -> None:
    previous: Rendered | None = None
    certificate = None
    for index, conversation in enumerate(grown(turns)):
        rendered = render(frame.call(conversation, f"{state} {index}"), previous)
        fingerprint = cache.fingerprint(rendered)
        if previous is not None and certificate is not None:
            assert rendered.cacheable_data().startswith(previous.cacheable_data())
            assert fingerprint.extends(certificate)
            assert fingerprint.first_difference(certificate) is None
        previous, certificate = rendered, fingerprint


@given(some.frames(), some.turns, st.data())
def test_law_2_moving_a_marker_changes_nothing_around_it(
    frame: some.Frame, turns: list[list[Message]], data: st.DataObject
) -> None:
    rendered = render(frame.call(grown(turns)[-1], "now"))
    markable = [chunk.index for chunk in rendered if chunk.splice is not None]
    chosen = sorted(data.draw(st.sets(st.sampled_from(markable), max_size=4)))
    marked = anthropic.assemble(rendered, Plan(marks=tuple(Mark(at, "5m") for at in chosen)))
    bare = anthropic.assemble(rendered, Plan())
    assert marked.body.join().replace(anthropic_marker("5m"), b"") == bare.body.join()
    body = json.loads(marked.body.join())
    assert len(markers(body)) == len(chosen)
    for message in body["messages"]:
        assert isinstance(message["content"], list)


@given(some.tools, st.randoms(use_true_random=False))
def test_law_3_the_order_of_registration_changes_no_byte(
    tools: tuple[Any, ...], shuffle: random.Random
) -> None:
    def listed(order: list[Any]) -> bytes:
        registry = ToolRegistry()
        for tool in order:
            registry.add_schema(tool.name, tool.description, tool.schema, lambda **_: "")
        frame = some.Frame(
            model="claude-sonnet-4-5",
            tools=registry.tools(),
            blocks=(),
            stable=(),
            dynamic=(),
            remainder=(),
            cache=PromptCachePlan(),
        )
        return planned_body(frame.call(Conversation([Message.user("hello")])))

    reordered = list(tools)
    shuffle.shuffle(reordered)
    assert listed(list(tools)) == listed(reordered)


@given(some.frames(), some.turns)
def test_law_3_a_round_trip_through_json_changes_no_byte(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    live = grown(turns)[-1]
    reloaded = from_json(to_json(live), Conversation)
    assert planned_body(frame.call(live)) == planned_body(frame.call(reloaded))
    whole = from_json(to_json(frame.call(live)), Call)
    assert planned_body(whole) == planned_body(frame.call(live))


@given(some.frames(), some.turns)
def test_law_3_a_round_trip_through_sqlite_changes_no_byte(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    live = grown(turns)[-1]
    db = sqlite3.connect(":memory:")
    try:
        db.execute("create table messages (position integer primary key, body text)")
        db.executemany("insert into messages values (?, ?)", enumerate(map(shuffled_json, live)))
        rows = db.execute("select body from messages order by position").fetchall()
    finally:
        db.close()
    reloaded = Conversation(from_json(body, Message) for (body,) in rows)
    assert planned_body(frame.call(live)) == planned_body(frame.call(reloaded))


def shuffled_json(message: Message) -> str:
    """A message as a jsonb column gives it back: keys in another order."""

    def reverse(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reverse(value[key]) for key in sorted(value, reverse=True)}
        return [reverse(item) for item in value] if isinstance(value, list) else value

    return json.dumps(reverse(json.loads(to_json(message))))


HASH_SEED_PROGRAM = """
from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.tools import ToolRegistry
from anaphora.values import Conversation, Message, ToolCall
from anaphora.wire import anthropic
from typing import Literal

registry = ToolRegistry()
def search(query: str, kinds: list[Literal["a", "b"]] | None = None, limit: int = 3) -> str:
    '''Look something up.'''
    return query
def write(path: str, text: str) -> None:
    '''Write a file.'''
for name in {"alpha", "beta", "gamma", "delta"}:          # set order: differs by hash seed
    registry.add_schema(name, name, {"type": "object", "properties": {"x": {}}}, lambda **_: "")
for function in {search, write}:
    registry.add(function)
talk = Conversation([Message.user("hi"), Message.assistant(ToolCall("1", "search", '{"query": "x"}')),
                     Message.tool("1", "found")])
ir = PromptIR.chat(talk, system=[PromptBlock.cached_long("identity", "You are terse.")])
call = Call(ir=ir, model="claude-sonnet-4-5", tools=registry.tools(), params=Params(
    max_tokens=9, metadata={"a": "1", "b": "2"}))
rendered = anthropic.render(call, catalog.profile("anthropic", call.model))
plan = plan_once(rendered, catalog.rules("anthropic", call.model), reuse_expected=True)
print(anthropic.assemble(rendered, plan).body.join().hex(), cache.fingerprint(rendered).hex)
"""


def test_law_3_the_hash_seed_changes_no_byte() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", HASH_SEED_PROGRAM],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42", "4711")
    }
    assert len(outputs) == 1
    assert outputs.pop().strip()


@given(some.frames(), some.turns, st.none() | some.texts)
def test_law_4_markers_are_few_falling_and_only_where_allowed(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    body = json.loads(planned_body(frame.call(grown(turns)[-1], state)))
    found = markers(body)
    assert len(found) <= 4
    ttls = [marker.get("ttl", "5m") for _, marker in found]
    assert ttls == sorted(ttls, key=lambda ttl: {"1h": 0, "5m": 1}[ttl])
    for block, _ in found:
        assert block.get("type") not in ("thinking", "redacted_thinking")
        assert block.get("text") != ""
    if state is not None and state.strip():
        assert "cache_control" not in body["messages"][-1]["content"][-1]


@given(some.frames(), some.turns)
def test_law_9_a_replayed_message_renders_as_the_live_one_did(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    live = grown(turns)[-1]
    first = render(frame.call(live))
    replayed = Conversation(from_json(to_json(message), Message) for message in live)
    again = render(frame.call(replayed), first)
    assert again.data() == first.data()
    assert cache.fingerprint(again) == cache.fingerprint(first)


@given(some.frames(), some.turns)
def test_law_10_a_new_date_in_the_tail_touches_only_the_tail(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    conversation = grown(turns)[-1]
    monday = render(frame.call(conversation, "Today is 2026-11-16."))
    tuesday = render(frame.call(conversation, "Today is 2026-11-17."), monday)
    assert cache.fingerprint(monday) == cache.fingerprint(tuesday)
    before, after = monday.data(), tuesday.data()
    changed = next(at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    assert changed >= monday.offset(monday.cacheable)
    assert before[changed + 1 :] == after[changed + 1 :]


def anthropic_marker(ttl: str) -> bytes:
    ttl_field = {} if ttl == "5m" else {"ttl": ttl}
    marker = json.dumps({"type": "ephemeral", **ttl_field}, separators=(",", ":"))
    return b',"cache_control":' + marker.encode()


def markers(body: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every marker of a request with the block it stands on, in hash order."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def visit(block: dict[str, Any]) -> None:
        if isinstance(block.get("content"), list):
            for inner in block["content"]:
                visit(inner)
        if "cache_control" in block:
            found.append((block, block["cache_control"]))

    for block in [*body.get("tools", []), *body.get("system", [])]:
        visit(block)
    for message in body["messages"]:
        visit(message)
    return found

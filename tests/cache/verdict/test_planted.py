"""Verdict reasons as a table: a cause is planted in the second of two requests, and must be named.

Every change of bytes is planted on every wire; changes that only some can express are in separate
tables below.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planted import PLACES, PNG, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora.cache.sent_call import reply_lines
from anaphora.tokens import Counts
from anaphora.values import Message, Usage

Json = dict[str, Any]


def system_text(old: str, new: str) -> Callable[[Json], None]:
    def plant(prompt: Json) -> None:
        assert any(old in text for text in prompt["system"]), old
        prompt["system"] = [text.replace(old, new) for text in prompt["system"]]

    return plant


def add_tool(prompt: Json) -> None:
    prompt["tools"].append({**prompt["tools"][0], "name": "zoom"})


def add_first_tool(prompt: Json) -> None:
    prompt["tools"].insert(0, {**prompt["tools"][0], "name": "ask"})


def remove_tool(prompt: Json) -> None:
    del prompt["tools"][1]


def remove_last_tool(prompt: Json) -> None:
    del prompt["tools"][-1]


def move_tool(prompt: Json) -> None:
    prompt["tools"].append(prompt["tools"].pop(0))


def edit_tool(prompt: Json) -> None:
    prompt["tools"][1] = {**prompt["tools"][1], "description": "Looks for something."}


def reorder_schema(prompt: Json) -> None:
    schema = prompt["tools"][1]["schema"]
    prompt["tools"][1]["schema"] = dict(reversed(schema.items()))


def require_more(prompt: Json) -> None:
    prompt["tools"][1]["schema"]["properties"]["deep"] = {"type": "boolean"}


def drop_message(prompt: Json) -> None:
    del prompt["messages"][1:3]


def move_message(prompt: Json) -> None:
    messages = prompt["messages"]
    messages[0], messages[4] = messages[4], messages[0]


def put_between(prompt: Json) -> None:
    prompt["messages"][2:2] = [("user", ["By the way."]), ("assistant", ["Yes?"])]


def edit_message(prompt: Json) -> None:
    prompt["messages"][1] = ("assistant", ["It holds nothing at all."])


def count_message(prompt: Json) -> None:
    prompt["messages"][1] = ("assistant", ["It holds 4 lines."])


def truncate(prompt: Json) -> None:
    del prompt["messages"][1:]


def summarise(prompt: Json) -> None:
    prompt["messages"][:3] = [("user", ["Earlier: a file and a picture were looked at."])]


def drop_oldest(prompt: Json) -> None:
    del prompt["messages"][:2]


def image_gone(prompt: Json) -> None:
    prompt["messages"][2] = ("user", ["And in the picture?"])


def image_added(prompt: Json) -> None:
    prompt["messages"][0] = ("user", ["What is in the file?", {"image": PNG[::-1]}])


def block_removed(prompt: Json) -> None:
    del prompt["system"][0]


def block_added(prompt: Json) -> None:
    prompt["system"].append("Never guess.")


def block_moved(prompt: Json) -> None:
    prompt["system"].reverse()


#: The planted change, and the expected kind and place.
CHANGES: dict[str, tuple[Callable[[Json], None], str, str]] = {
    "a date": (system_text("2026-11-15", "2026-11-16"), "date", "system"),
    "a nonce": (system_text("3f9a21c4", "77b0e918"), "nonce", "system"),
    "edited instructions": (
        system_text("short sentences", "whole paragraphs"),
        "text_edited",
        "sys",
    ),
    "trailing blank in the system text": (
        system_text("you saw. ", "you saw.  "),
        "whitespace",
        "sys",
    ),
    "a system block gone": (block_removed, "block_removed", "system"),
    "a system block more": (block_added, "block_added", "system"),
    "system blocks swapped": (block_moved, "block_moved", "system"),
    "a tool at the end": (add_tool, "tool_added", "tool"),
    "a tool at the beginning": (add_first_tool, "tool_added", "tool"),
    "a tool gone": (remove_tool, "tool_removed", "tool"),
    "the last tool gone": (remove_last_tool, "tool_removed", "tool"),
    "tools in another order": (move_tool, "tool_moved", "tool"),
    "a tool's description": (edit_tool, "text_edited", "tool search"),
    "a schema's keys in another order": (reorder_schema, "key_order", "tool search"),
    "a schema with another property": (require_more, "value_changed", "tool search"),
    "a pair of messages dropped": (drop_message, "message_dropped", "conversation"),
    "two messages swapped": (move_message, "message_moved", "conversation"),
    "messages put in between": (put_between, "message_added", "conversation"),
    "an edited answer": (edit_message, "text_edited", "conversation"),
    "another number in an answer": (count_message, "counter", "conversation"),
    "a history cut off": (truncate, "message_dropped", "conversation"),
    "an image evicted": (image_gone, "image_gone", "conversation"),
    "an image attached again": (image_added, "image_added", "conversation"),
}

#: Where the wire has no such thing: system prompts in several blocks, say.
WIRES = ["anthropic", "openai_chat", "openai_responses", "gemini", "deepseek", "minimax"]


@each_row("name", WIRES)
@each_row("planted", CHANGES)
def test_a_changed_byte_is_found(name: str, planted: str) -> None:
    place = PLACES[name]
    plant, kind, where = CHANGES[planted]
    before = spec()
    after = grown(before)
    if planted == "a history cut off":
        after = copy.deepcopy(before)
    plant(after)
    one, two = split(place, body(place, before)), split(place, body(place, after))
    found = verdict_of(place, one, two, read=None)
    assert found.result in ("miss", "partial")
    assert found.change is not None
    cause = (
        "history_edited"
        if found.change.section == "messages"
        else f"{found.change.section}_changed"
    )
    assert (found.cause, found.change.kind) == (cause, kind), found.sentence
    assert where in f"{found.change.label} {found.change.path}"
    assert found.broke
    # The byte is the first that differs, and the excerpts surround it.
    offset = found.change.offset
    assert one.data()[:offset] == two.data()[:offset]
    assert one.data()[offset : offset + 1] != two.data()[offset : offset + 1]


@each_row("name", WIRES)
@each_row("shortened", [summarise, drop_oldest])
def test_a_compaction_is_no_edit(name: str, shortened: Callable[[Json], None]) -> None:
    """Several messages make room for one, or for none from the beginning on. What is no longer
    sent is not lost; what stands behind it is billed again."""
    place = PLACES[name]
    after = grown(spec())
    shortened(after)
    one, two = split(place, body(place, spec())), split(place, body(place, after))
    found = verdict_of(place, one, two, read=None)
    # DeepSeek keeps whole units: the beginning that is left is none.
    result = "miss" if name == "deepseek" else "partial"
    assert (found.result, found.cause) == (result, "compaction"), found.sentence
    assert found.predicted is not None
    assert found.left is not None
    assert found.lost < min(found.left, Counts(two).total) - found.predicted
    assert not found.broke


@each_row("name", WIRES)
def test_a_summary_is_known_by_the_reply_that_it_repeats(name: str) -> None:
    """Nothing of the history is left but the summary that the previous call was asked for."""
    place = PLACES[name]
    told = "\n".join(f"- File {at} holds a line about a cat on a mat." for at in range(4))
    reply = Message.assistant(f"<analysis>Short.</analysis><summary>\n{told}\n</summary>")
    before, after = spec(), spec()
    before["messages"].append(("user", ["Summarise all of this."]))
    after["messages"] = [("user", [f"This goes on. Summary:\n{told}"])]
    one, two = split(place, body(place, before)), split(place, body(place, after))
    known = {"reply_lines": reply_lines(reply)}
    found = verdict_of(place, one, two, read=None, earlier=known)
    assert found.cause == "compaction", found.sentence
    assert (found.lost == 0) == (name != "deepseek")  # which keeps whole units
    # Any other text in its place is the beginning of another history.
    assert verdict_of(place, one, two, read=None).cause == "history_edited"


@each_row("type_", [{}, {"type": "message"}])
def test_a_reply_that_comes_back_as_a_string_is_no_summary(type_: Json) -> None:
    """Responses take the model's own message as `{"role": "assistant", "content": "…"}`."""
    told = "The file holds a line about a cat that sat on a mat, and nothing else."
    place = PLACES["openai_responses"]
    reply = {**type_, "role": "assistant", "content": told}
    first = {"role": "user", "content": "Read this: " + "a cat on a mat " * 800}

    def request(*items: Json) -> bytes:
        return json.dumps({"model": "gpt-5.2", "input": [*items]}).encode()

    one = split(place, request(first, {"role": "user", "content": "What is in it?"}))
    pruned = {"role": "user", "content": "Read this: (pruned)"}
    asked = {"role": "user", "content": "What is in it?"}
    two = split(place, request(pruned, asked, reply, {"role": "user", "content": "Thanks."}))
    earlier = {"reply_lines": reply_lines(Message.assistant(told))}
    found = verdict_of(place, one, two, read=None, earlier=earlier)
    assert found.cause == "history_edited", found.sentence


@given(st.text("ab \n", max_size=400), st.integers(1, 60), st.integers(1, 60))
def test_little_is_kept_of_a_long_reply(text: str, times: int, size: int) -> None:
    """Calls are remembered by the thousand, and each line of a reply is searched for."""
    lines = reply_lines(Message.assistant("\n".join(f"{at} {text * size}" for at in range(times))))
    assert len(lines) <= 24
    assert sum(map(len, lines)) <= 24 * 120
    assert all(len(line) >= 40 for line in lines)


@each_row("name", WIRES)
def test_white_space_and_key_order_of_a_body_are_distinguished(name: str) -> None:
    place = PLACES[name]
    before, after = spec(), grown(spec())
    one = split(place, body(place, before))
    spaced = verdict_of(place, one, split(place, body(place, after, separators=(", ", ": "))))
    assert spaced.change is not None
    assert spaced.change.kind == "whitespace"
    ordered = verdict_of(place, one, split(place, body(place, after, sort_keys=True)))
    assert ordered.change is not None
    assert ordered.change.kind == "key_order"


@each_row("name", WIRES)
def test_a_conversation_that_only_grew_is_a_hit(name: str) -> None:
    place = PLACES[name]
    one = split(place, body(place, spec()))
    two = split(place, body(place, grown(spec())))
    read = Counts(one).total
    found = verdict_of(place, one, two, read=read)
    assert (found.result, found.change, found.causes, found.lost) == ("hit", None, (), 0)
    assert not found.broke
    assert found.sentence.startswith("Hit: ")


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────

PARAMETERS: dict[str, tuple[str, Json, Json, str]] = {
    "anthropic: thinking": (
        "anthropic",
        {},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        "thinking_changed",
    ),
    "anthropic: tool choice": (
        "anthropic",
        {"tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "any"}},
        "parameter_changed",
    ),
    "anthropic: effort": (
        "anthropic",
        {"output_config": {"effort": "low"}},
        {"output_config": {"effort": "high"}},
        "parameter_changed",
    ),
    "chat: effort": (
        "openai_chat",
        {"reasoning_effort": "low"},
        {"reasoning_effort": "high"},
        "parameter_changed",
    ),
    "chat: verbosity": ("openai_chat", {}, {"verbosity": "low"}, "parameter_changed"),
    "chat: service tier": ("openai_chat", {}, {"service_tier": "flex"}, "parameter_changed"),
    "chat: cache key": (
        "openai_chat",
        {"prompt_cache_key": "one"},
        {"prompt_cache_key": "two"},
        "other_key",
    ),
    "responses: effort": (
        "openai_responses",
        {"reasoning": {"effort": "low"}},
        {"reasoning": {"effort": "high"}},
        "parameter_changed",
    ),
    "responses: output format": (
        "openai_responses",
        {},
        {"text": {"format": {"type": "json_object"}}},
        "parameter_changed",
    ),
    "responses: cache key": (
        "openai_responses",
        {"prompt_cache_key": "one"},
        {"prompt_cache_key": "two"},
        "other_key",
    ),
    "gemini: tool config": (
        "gemini",
        {},
        {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
        "parameter_changed",
    ),
}


@each_row("planted", PARAMETERS)
def test_a_changed_parameter_is_found(planted: str) -> None:
    name, was, now, cause = PARAMETERS[planted]
    place = PLACES[name]
    before = {**spec(), "params": was}
    after = {**grown(spec()), "params": now}
    one, two = split(place, body(place, before)), split(place, body(place, after))
    found = verdict_of(place, one, two, read=None)
    assert found.result in ("miss", "partial")
    assert (found.cause, found.change) == (cause, None), found.sentence
    assert found.broke


@each_row("name", WIRES)
def test_a_changed_model_is_found(name: str) -> None:
    place = PLACES[name]
    one = split(place, body(place, spec()))
    two = split(place, body(place, grown(spec()), model="another-model"), model="another-model")
    found = verdict_of(place, one, two)
    assert found.cause == "model_changed"
    assert "another-model" in found.sentence


def test_a_parameter_that_the_cache_does_not_depend_on_is_not_blamed() -> None:
    place = PLACES["openai_chat"]
    after = {**grown(spec()), "params": {"tool_choice": "none", "temperature": 0.5}}
    found = verdict_of(place, split(place, body(place, spec())), split(place, body(place, after)))
    assert found.cause == "provider_side"


def test_a_parameter_precedes_bytes_hashed_after_its_section() -> None:
    """A model change voids everything, so an edit in the messages does not matter any more."""
    place = PLACES["anthropic"]
    after = grown(spec())
    edit_message(after)
    other = split(place, body(place, after, model="claude-opus-4-5"))
    found = verdict_of(place, split(place, body(place, spec())), other)
    assert [cause.kind for cause in found.causes] == ["model_changed", "history_edited"]
    # The other way round: tool choice voids messages, and the tools stand before those.
    after = {**grown(spec()), "params": {"tool_choice": {"type": "any"}}}
    move_tool(after)
    found = verdict_of(place, split(place, body(place, spec())), split(place, body(place, after)))
    assert [cause.kind for cause in found.causes] == ["tools_changed", "parameter_changed"]


# ── The clock and the route ──────────────────────────────────────────────────────────────────────

CLOCK: dict[str, tuple[str, float, str]] = {
    "anthropic: five minutes are over": ("anthropic", 301.0, "expired"),
    "anthropic: nine hours": ("anthropic", 9 * 3600.0, "expired"),
    "minimax: five minutes are over": ("minimax", 400.0, "expired"),
    "deepseek: the next day": ("deepseek", 90_000.0, "expired"),
    "chat: two days": ("openai_chat", 2 * 86_400.0, "expired"),
    "responses: two days": ("openai_responses", 2 * 86_400.0, "expired"),
    "gemini: two hours": ("gemini", 7_200.0, "expired"),
    "anthropic: two seconds": ("anthropic", 2.0, "not_yet_visible"),
    "anthropic: four minutes": ("anthropic", 240.0, "provider_side"),
    "anthropic: 299 seconds": ("anthropic", 299.0, "provider_side"),
    "chat: a minute": ("openai_chat", 60.0, "provider_side"),
    "deepseek: a minute": ("deepseek", 60.0, "provider_side"),
}


@each_row("planted", CLOCK)
def test_the_time_between_calls_is_found_as_cause(planted: str) -> None:
    name, gap, cause = CLOCK[planted]
    place = PLACES[name]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    found = verdict_of(place, one, two, later={"at": 1000.0 + gap})
    assert (found.result, found.cause) == ("miss", cause), found.sentence
    assert not found.broke


OVERLAPPING: dict[str, tuple[str, float | None, float, str]] = {
    # The wire, when the response of the first call began, when the second was sent, the cause.
    "anthropic: before the response": ("anthropic", 1005.0, 1004.0, "not_yet_visible"),
    "anthropic: while it came": ("anthropic", 1005.0, 1030.0, "provider_side"),
    "anthropic: its start is not recorded": ("anthropic", None, 1030.0, "unknown"),
    "anthropic: it had ended": ("anthropic", None, 1050.0, "provider_side"),
    "chat: while it came": ("openai_chat", 1005.0, 1030.0, "not_yet_visible"),
    "responses: its start is not recorded": ("openai_responses", None, 1030.0, "not_yet_visible"),
    "responses: it had ended": ("openai_responses", None, 1050.0, "provider_side"),
}


@each_row("planted", OVERLAPPING)
def test_a_call_that_had_not_ended_may_not_be_readable(planted: str) -> None:
    """The first call ends after 40 s. Nothing of it was read."""
    name, began, at, cause = OVERLAPPING[planted]
    place = PLACES[name]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    times = {"began": began, "ended": 1040.0}
    found = verdict_of(place, one, two, earlier=times, later={"at": at})
    assert found.cause == cause, found.sentence
    assert bool(found.lost) == (cause != "unknown")


@pytest.mark.parametrize("began, cause", [(1009.0, "provider_side"), (1001.0, "expired")])
def test_lifetime_counts_from_the_response(began: float, cause: str) -> None:
    """Anthropic: 308 s after a request whose response took 9 s to begin, its entry is alive."""
    place = PLACES["anthropic"]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    found = verdict_of(place, one, two, earlier={"began": began}, later={"at": 1308.0})
    assert found.cause == cause
    if cause == "expired":
        assert "the cache entry expired 7 s ago" in found.sentence


def test_the_sentence_names_when_an_entry_expired() -> None:
    place = PLACES["anthropic"]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    found = verdict_of(place, one, two, later={"at": 1000.0 + 300 + 47})
    assert "the cache entry expired 47 s ago" in found.sentence


@each_row("name", WIRES)
def test_a_changed_route_is_found(name: str) -> None:
    place = PLACES[name]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    found = verdict_of(place, one, two, earlier={"route": "a"}, later={"route": "b"})
    assert found.cause == "other_route"
    assert not found.broke


@pytest.mark.parametrize(
    "unknown",
    [{"earlier": {"at": None}}, {"later": {"at": None}}, {"earlier": {"complete": False}}],
    ids=["when the first was sent", "when the second was", "a part of the prompt"],
)
def test_the_provider_is_not_blamed_where_something_is_unknown(unknown: Json) -> None:
    place = PLACES["anthropic"]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    assert verdict_of(place, one, two, **copy.deepcopy(unknown)).cause == "unknown"


# ── Markers, minimum, look-back ──────────────────────────────────────────────────────────────────


def test_without_a_marker_the_reusable_tokens_count_as_lost() -> None:
    place = PLACES["anthropic"]
    before = {**spec(), "marked": False}
    one, two = split(place, body(place, before)), split(place, body(place, grown(before)))
    found = verdict_of(place, one, two, earlier={"usage": None})
    assert found.cause == "no_marker"
    assert found.lost == Counts(one).total


def test_a_marker_on_volatile_content_is_found() -> None:
    place = PLACES["anthropic"]

    def prompt(clock: str) -> bytes:
        output = json.loads(body(place, {**spec(), "marked": False}))
        state = {"type": "text", "text": f"It is {clock}.", "cache_control": {"type": "ephemeral"}}
        output["messages"][-1]["content"].append(state)
        return json.dumps(output).encode()

    found = verdict_of(place, split(place, prompt("09:41")), split(place, prompt("09:42")))
    assert found.cause == "marker_on_volatile"
    assert found.change is not None
    assert found.change.kind == "clock"


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "gemini"])
def test_a_prompt_below_the_minimum_is_found(name: str) -> None:
    place = PLACES[name]
    before = {**spec(), "system": ["Be brief."], "tools": []}
    before["messages"] = [("user", ["What is in the box?"])]
    one, two = split(place, body(place, before)), split(place, body(place, grown(before)))
    nothing = {"usage": Usage(uncached=Counts(one).total, read=0, written={}, output=1)}
    for later in ({"at": 1060.0}, {"at": 1000.5}, {"at": 9999.0}):
        found = verdict_of(place, one, two, earlier=nothing, later=later)
        assert (found.result, found.cause) == ("not_cacheable", "below_minimum")
        assert found.sentence.startswith(
            "Not cached: the previous prompt was below the minimum of "
        )
        assert (found.lost, found.broke, len(found.causes)) == (0, False, 1)


def test_a_write_beyond_the_look_back_is_found() -> None:
    place = PLACES["anthropic"]
    before, after = spec(), grown(spec())
    after["messages"][-1] = ("user", [f"part {at}" for at in range(25)])
    one, two = split(place, body(place, before)), split(place, body(place, after))
    found = verdict_of(place, one, two)
    assert found.cause == "lookback_exceeded"
    assert "27 blocks" in found.sentence


def test_a_write_within_the_look_back_is_not_blamed() -> None:
    place = PLACES["anthropic"]
    before, after = spec(), grown(spec())
    after["messages"][-1] = ("user", [f"part {at}" for at in range(18)])
    one, two = split(place, body(place, before)), split(place, body(place, after))
    assert verdict_of(place, one, two).cause == "provider_side"


def test_the_first_image_invalidates_the_messages() -> None:
    place = PLACES["anthropic"]
    before = spec()
    before["messages"] = [("user", ["one"]), ("assistant", ["two"]), ("user", ["three"])]
    after = copy.deepcopy(before)
    after["messages"] += [("assistant", ["four"]), ("user", ["see:", {"image": PNG}])]
    one, two = split(place, body(place, before)), split(place, body(place, after))
    found = verdict_of(place, one, two, read=Counts(one).tokens(5))
    assert (found.result, found.cause, found.change) == ("partial", "images_changed", None)
    assert found.broke

"""The sentences of verdicts, as a user reads them: which field changed and how, what each cause lost,
and nothing about losing what was never cached."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.planted import PLACES, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.verdict import SentCall, Verdict, find_change, judge, preflight
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import Usage
from anaphora.wire.cutting import cut

Json = dict[str, Any]

LONG = "Look before you leap, and say what you saw. " * 300
GEMINI = "/v1beta/models/gemini-2.5-pro:generateContent"

#: The same conversation in the forms that clients of each wire send.
BODIES: dict[str, Json] = {
    "anthropic": {
        "system": f"{LONG}Today is 2026-11-15.",
        "messages": [
            {"role": "user", "content": "Say one."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": ["the mat"]}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "A cat."}]},
        ],
    },
    "openai_chat": {
        "messages": [
            {"role": "system", "content": f"{LONG}Today is 2026-11-15."},
            {"role": "user", "content": [{"type": "text", "text": "Say one."}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "t1", "type": "function",
                 "function": {"name": "look", "arguments": '{"at": "the mat"}'}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "A cat."},
        ],
    },
    "openai_responses": {
        "instructions": f"{LONG}Today is 2026-11-15.",
        "input": [
            {"role": "user", "content": "Say one."},
            {"type": "function_call", "call_id": "t1", "name": "look",
             "arguments": '{"at": "the mat"}'},
            {"type": "function_call_output", "call_id": "t1", "output": "A cat."},
        ],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": f"{LONG}Today is 2026-11-15."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Say one."}]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "look", "args": {"at": "the mat"}}}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "look", "response": {"seen": "A cat."}}}]},
        ],
    },
}  # fmt: skip

#: Wire, what is replaced, the field in which it stands, and the character there.
FIELDS = [
    ("anthropic", "-15", "-16", "system[0].text", len(LONG) + 18),
    ("anthropic", "Say one", "Say two", "messages[0].content[0].text", 4),
    ("anthropic", "the mat", "the rug", "messages[1].content[0].input.at[0]", 4),
    ("anthropic", "A cat", "A dog", "messages[2].content[0].content[0].text", 2),
    ("openai_chat", "-15", "-16", "messages[0].content", len(LONG) + 18),
    ("openai_chat", "Say one", "Say two", "messages[1].content[0].text", 4),
    ("openai_chat", "the mat", "the rug", "messages[2].tool_calls[0].function.arguments", 12),
    ("openai_responses", "-15", "-16", "instructions", len(LONG) + 18),
    ("openai_responses", "Say one", "Say two", "input[0].content[0].text", 4),
    ("openai_responses", "the mat", "the rug", "input[1].arguments", 12),
    ("gemini", "-15", "-16", "systemInstruction.parts[0].text", len(LONG) + 18),
    ("gemini", "the mat", "the rug", "contents[1].parts[0].functionCall.args.at", 4),
    ("gemini", "A cat", "A dog", "contents[2].parts[0].functionResponse.response.seen", 2),
]


def chunks(name: str, data: str) -> Rendered:
    return cut(wire.get(name), data.encode(), GEMINI if name == "gemini" else "")


@each_row("name, old, new, path, character", FIELDS)
def test_a_change_is_located_in_its_field(
    name: str, old: str, new: str, path: str, character: int
) -> None:
    data = json.dumps({"model": "a-model", **BODIES[name]})
    one, two = chunks(name, data), chunks(name, data.replace(old, new))
    change = find_change(SentCall(rendered=one), SentCall(rendered=two))
    assert change is not None
    assert (change.path, change.character) == (path, character)
    assert f" at character {character:,} of {path}" in str(change)
    was, now = change.excerpts
    assert f"was `{was}`, now `{now}`" in str(change)
    assert (old.lstrip("-") in was, new.lstrip("-") in now) == (True, True)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("new", ["2026-11-15. Be kind.", "2026-11-1"])
def test_a_text_that_became_longer_or_shorter_was_edited(name: str, new: str) -> None:
    data = json.dumps({"model": "a-model", **BODIES[name]})
    one, two = chunks(name, data), chunks(name, data.replace("2026-11-15.", new))
    change = find_change(SentCall(rendered=one), SentCall(rendered=two))
    assert change is not None
    assert (change.section, change.character) == (
        "system",
        len(f"{LONG}Today is 2026-11-1") + (2 if "kind" in new else 0),
    )
    was, now = change.excerpts
    assert was.endswith("is 2026-11-15.")
    assert now.endswith(f"is {new}")


def test_keys_in_another_order_come_before_a_value_behind_them() -> None:
    tool = {"name": "look", "input_schema": {"type": "object", "required": ["at"], "title": "A"}}
    moved = {"name": "look", "input_schema": {"required": ["at"], "type": "object", "title": "B"}}
    data = {"model": "claude-sonnet-4-5", "max_tokens": 9, **BODIES["anthropic"]}
    one, two = (
        chunks("anthropic", json.dumps({**data, "tools": [each]})) for each in (tool, moved)
    )
    change = find_change(SentCall(rendered=one), SentCall(rendered=two))
    assert change is not None
    assert (change.kind, change.path) == ("key_order", "tools[0].input_schema")


def test_the_sentence_shows_no_secret() -> None:
    place = PLACES["openai_chat"]
    before, after = spec(), grown(spec())
    before["system"][0] += " The key is sk-live-0123456789abcdef."
    after["system"][0] += " The key is sk-live-9876543210fedcba."
    one, two = split(place, body(place, before)), split(place, body(place, after))
    (notice,) = preflight(one, two)
    for text in (verdict_of(place, one, two).sentence, notice.message):
        assert text.count("[redacted]") == 2
        assert "0123456789" not in text
        assert "9876543210" not in text


# ── What each cause explains ─────────────────────────────────────────────────────────────────────


def long_message(end: str) -> Json:
    prompt = spec()
    prompt["messages"].append(("user", [*[LONG] * 3, end]))
    return prompt


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic", "minimax"])
def test_an_edit_at_the_end_is_not_blamed_for_what_stands_before_it(name: str) -> None:
    place = PLACES[name]
    before = long_message("Which one? " * 300)
    after = long_message("Which two? " * 300)
    one, two = split(place, body(place, before)), split(place, body(place, after))
    found = verdict_of(place, one, two, profile=catalog.profile(place.provider, place.model))
    assert found.result == "miss"
    kept, lost = found.predicted, found.left
    assert kept is not None
    assert lost is not None
    if name.startswith("openai"):  # others read up to the marker behind the system prompt
        assert kept > 0.9 * Counts(one).total - 1200
    assert found.losses["provider_side"] == kept
    (edit,) = (kind for kind in found.losses if kind != "provider_side")
    assert edit in ("history_edited", "marker_on_volatile")
    assert found.losses[edit] == lost - kept
    assert f"{kept:,} because the loss is on the provider's side" in found.sentence
    assert f"{lost - kept:,} because the text was edited at character 6 of" in found.sentence
    assert found.broke


def test_an_edit_behind_the_last_granule_is_not_a_cause() -> None:
    place = PLACES["openai_chat"]
    before, after = spec(), spec()
    before["messages"][-1] = ("user", ["Which colour?"])
    after["messages"][-1] = ("user", ["Which shape?"])
    one, two = split(place, body(place, before)), split(place, body(place, after))
    found = verdict_of(place, one, two)
    assert (found.cause, found.change, found.broke) == ("provider_side", None, False)
    assert len(found.causes) == 1
    assert list(found.losses) == ["provider_side"]


def test_an_estimate_does_not_accuse_the_provider() -> None:
    """What was read is within the error of what should have been."""
    place = PLACES["openai_chat"]
    before, after = spec(), spec()
    before["messages"][0] = ("user", [f"One. {LONG}"])
    after["messages"][0] = ("user", [f"Two. {LONG}"])
    one, two = split(place, body(place, before)), split(place, body(place, after))
    kept = verdict_of(place, one, two, read=None).predicted
    assert kept is not None
    assert verdict_of(place, one, two, read=kept - 512).cause == "history_edited"
    assert "provider_side" in verdict_of(place, one, two, read=128).losses


def test_the_provider_is_not_blamed_for_a_part_where_times_are_unknown() -> None:
    place = PLACES["openai_chat"]
    one, two = (
        split(place, body(place, long_message(f"Which {one}? " * 300))) for one in ("one", "two")
    )
    found = verdict_of(place, one, two, earlier={"at": None})
    assert [cause.kind for cause in found.causes] == ["unknown", "history_edited"]
    assert "the times of the calls are not recorded" in found.sentence


# ── What was never cached ────────────────────────────────────────────────────────────────────────


def short_pair(name: str, *, edited: bool = False) -> tuple[Rendered, Rendered]:
    place = PLACES[name]
    before = {**spec(), "system": ["Be brief."], "tools": []}
    before["messages"] = [("user", ["What is in the box?"])]
    after = grown(before)
    if edited:
        after["system"] = ["Be very brief."]
    return split(place, body(place, before)), split(place, body(place, after))


@each_row("edited", [False, True])
@each_row("billed", [False, True])
@each_row("name", PLACES)
def test_a_short_conversation_is_not_a_miss(name: str, billed: bool, edited: bool) -> None:
    place = PLACES[name]
    rules = catalog.rules(place.provider, place.model)
    one, two = short_pair(name, edited=edited)

    def sent(rendered: Rendered, at: float) -> SentCall:
        usage = Usage(uncached=Counts(rendered).total, read=0, written={}, output=1)
        return SentCall(rendered=rendered, at=at, usage=usage if billed else None)

    for gap in (0.5, 60.0, 100_000.0):
        found = judge(sent(one, 0.0), sent(two, gap), rules)
        assert (found.result, found.cause) == ("not_cacheable", "below_minimum")
        assert found.sentence.startswith("Not cached")
        assert "billed again" not in found.sentence
        assert (found.lost, found.broke) == (0, False)
        assert found.cost_usd == 0
    assert preflight(one, two, rules) == ()


def test_nothing_is_billed_again_that_no_marker_cached() -> None:
    place = PLACES["anthropic"]
    before = {**spec(), "marked": False}
    one, two = split(place, body(place, before)), split(place, body(place, grown(before)))
    nothing = Usage(uncached=Counts(one).total, read=0, written={}, output=1)
    found = verdict_of(place, one, two, earlier={"usage": nothing})
    assert found.sentence == (
        "Not cached: the previous call had no cache marker, and this provider caches nothing without"
        f" one. {found.lost:,} tokens could have been read: cost unknown."
    )
    assert not found.broke
    edited = grown(before)
    edited["system"][0] = "Another."
    assert not verdict_of(
        place, one, split(place, body(place, edited)), earlier={"usage": nothing}
    ).broke


def test_a_short_prompt_needs_no_marker() -> None:
    """A newcomer's first calls: nothing is wrong with them."""
    place = PLACES["anthropic"]
    before = {**spec(), "marked": False}
    one, two = split(place, body(place, before)), split(place, body(place, grown(before)))
    found = verdict_of(place, one, two, earlier={"usage": Usage(uncached=21, output=1)})
    assert found.cause == "no_marker"
    assert "without one; its 21 tokens are below the minimum of" in found.sentence


def test_a_call_without_a_marker_reads_nothing() -> None:
    place = PLACES["anthropic"]
    unmarked = {**grown(spec()), "marked": False}
    one, two = split(place, body(place, spec())), split(place, body(place, unmarked))
    found = verdict_of(place, one, two)
    assert found.cause == "no_marker"
    assert "this call had no cache marker, and this provider reads nothing" in found.sentence
    assert "were billed again" in found.sentence


def test_a_model_that_caches_by_handles_only_lost_nothing() -> None:
    """Without a handle it caches nothing."""
    rules = catalog.rules("google", "gemini-2.0-flash-exp")
    data = json.dumps(BODIES["gemini"])
    one = chunks("gemini", data)
    usage = Usage(uncached=Counts(one).total, read=0, output=1)
    first, second = (SentCall(rendered=one, at=at, usage=usage) for at in (0.0, 60.0))
    found = judge(first, second, rules)
    assert (found.cause, found.left, found.lost) == ("no_marker", 0, 0)
    assert "the previous call had no cache handle" in found.sentence


def test_a_write_that_did_not_happen_is_not_awaited() -> None:
    """A prompt near the minimum: the bill shows that nothing was written."""
    place = PLACES["anthropic"]
    before = {**spec(), "system": ["Look before you leap. " * 210], "tools": []}
    before["messages"] = [("user", ["What is in the box?"])]
    one, two = split(place, body(place, before)), split(place, body(place, grown(before)))
    minimum = catalog.rules("anthropic", place.model).minimum_tokens.value
    assert minimum < Counts(one).total < 1.3 * minimum
    nothing = Usage(uncached=Counts(one).total, read=0, written={}, output=1)
    found = verdict_of(place, one, two, earlier={"usage": nothing}, later={"at": 1000.5})
    assert (found.result, found.cause) == ("not_cacheable", "below_minimum")
    assert "was probably below the minimum of 1,024 tokens: nothing was written" in found.sentence


# ── A system message at the end ──────────────────────────────────────────────────────────────────


def reminded(turns: int, *, kept: bool, on: str = "system") -> bytes:
    """A reminder follows each question; unless it is kept, only the last one."""
    messages: list[Json] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": [{"type": "text", "text": f"{turn}: {LONG}"}]})
        if kept or turn == turns - 1:
            text = {"type": "text", "text": f"{1000 - turn} tokens left"}
            messages.append({"role": "system", "content": [text]})
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": "Yes."}]})
    marked = messages[-1] if on == "system" else messages[-2]
    marked["content"][-1]["cache_control"] = {"type": "ephemeral"}
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    data = {"model": "claude-opus-4-8", "max_tokens": 9, "system": system, "messages": messages}
    return json.dumps(data).encode()


def reminded_verdict(*, kept: bool, on: str = "system") -> Verdict:
    codec = wire.get("anthropic")
    one, two = (cut(codec, reminded(turns, kept=kept, on=on)) for turns in (2, 3))
    rules = catalog.rules("anthropic", "claude-opus-4-8")
    return judge(SentCall(rendered=one, at=0.0), SentCall(rendered=two, at=60.0), rules)


@pytest.mark.parametrize("kept", [True, False])
def test_a_marker_on_a_system_message_at_the_end_is_named(kept: bool) -> None:
    found = reminded_verdict(kept=kept)
    assert (found.result, found.cause) == ("partial", "marker_on_trailing_system")
    place = "messages[4].content[0]" if kept else "messages[3].content[0]"
    assert f"was on a system message at its end ({place})" in found.sentence
    assert found.broke is not kept


def test_a_marker_before_that_message_is_found_again() -> None:
    assert reminded_verdict(kept=True, on="user").result == "hit"


# ── Figures that no source confirms ──────────────────────────────────────────────────────────────


@each_row(
    ("name", "later", "expected"),
    [
        ("openai_chat", {"at": 1_000_000.0}, "Not verified: ttls, default_ttl in the catalog."),
        ("anthropic", {"at": 1_000_000.0}, None),  # all of its figures are published
    ],
)
def test_a_verdict_names_the_unverified_figure_it_rests_on(
    name: str, later: Json, expected: str | None
) -> None:
    place = PLACES[name]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    usage = Usage(uncached=Counts(two).total, read=0, written={}, output=1)
    found = verdict_of(place, one, two, later={**later, "usage": usage})
    assert found.cause == "expired"
    assert bool(found.causes[0].unverified) == (expected is not None)
    assert ("Not verified" in found.sentence) == (expected is not None)
    assert (expected or "") in found.sentence


def test_a_changed_parameter_that_may_not_matter_says_so() -> None:
    """What Bedrock's cache depends on is taken from Anthropic's page."""
    body_: Json = {
        "messages": [{"role": "user", "content": [{"text": LONG}, {"cachePoint": {"type": "default"}}]}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}]},
    }  # fmt: skip
    path = "/model/us.anthropic.claude-sonnet-5/converse"
    calls: list[SentCall] = []
    for choice in ("auto", "any"):
        body_["toolConfig"]["toolChoice"] = {choice: {}}
        rendered = cut(wire.get("bedrock"), json.dumps(body_).encode(), path)
        usage = Usage(uncached=9, read=0, written={"5m": Counts(rendered).total}, output=1)
        calls.append(SentCall(rendered=rendered, at=float(len(calls) * 60), usage=usage))
    rules = catalog.rules("bedrock", "us.anthropic.claude-sonnet-5", "bedrock")
    found = judge(calls[0], calls[1], rules)
    assert found.cause == "parameter_changed"
    assert "Not verified: invalidates.tool_choice in the catalog." in found.sentence

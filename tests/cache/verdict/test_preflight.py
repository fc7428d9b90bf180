"""What will be lost, or refused, is named before anything is sent."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support.planted import PLACES, PNG, body, grown, spec, split

from anaphora import catalog, wire
from anaphora.cache.verdict import SentCall, judge, preflight
from anaphora.values import Notice
from anaphora.wire.cutting import cut

Json = dict[str, Any]

THOUGHT = {"type": "thinking", "thinking": "The cat is grey.", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def thoughtful(*thoughts: Json) -> Json:
    prompt = spec()
    prompt["messages"][3] = ("assistant", [*thoughts, "A cat, on a mat."])
    return prompt


def looked_at(before: Json, after: Json, rules: bool = False) -> tuple[Notice, ...]:
    place = PLACES["anthropic"]
    one, two = split(place, body(place, before)), split(place, body(place, after))
    known = catalog.rules(place.provider, place.model) if rules else None
    return preflight(one, two, known)


@pytest.mark.parametrize("thought", [THOUGHT, REDACTED], ids=["signed", "redacted"])
def test_signed_thinking_behind_a_change_is_reported(thought: Json) -> None:
    before = thoughtful(thought)
    after = grown(before)
    after["messages"][0] = ("user", ["What was in the file?"])
    bound, broken = looked_at(before, after)
    assert (bound.code, bound.path) == ("thinking_bound", "messages[3].content[0]")
    assert "newer models reject the request" in bound.message
    assert (broken.code, broken.path) == ("prefix_breaks", "messages[0].content[0].text")
    assert broken.tokens


def test_drop_block_is_reported_as_dropped() -> None:
    before = thoughtful(THOUGHT)
    after = grown(before)
    after["system"][0] = "You are another assistant."
    binding = {"prefix_mismatch_behavior": "drop_block"}
    after["params"] = {"thinking": {"type": "adaptive", "block_binding": binding}}
    assert "it will be dropped" in looked_at(before, after)[0].message


@pytest.mark.parametrize(
    "change", ["nothing", "thinking left out", "behind the thinking", "new thinking"]
)
def test_unbound_thinking_is_not_reported(change: str) -> None:
    before = thoughtful(THOUGHT)
    after = grown(before)
    if change == "thinking left out":
        after["messages"][3] = ("assistant", ["A cat, on a mat."])
    elif change == "behind the thinking":
        after["messages"][4] = ("user", ["Which colour was it?"])
    elif change == "new thinking":
        after["messages"][0] = ("user", ["What was in the file?"])
        other = {**THOUGHT, "signature": "b3RoZXI"}
        after["messages"][3] = ("assistant", [other, "A cat, on a mat."])
    assert "thinking_bound" not in [notice.code for notice in looked_at(before, after)]


def test_a_grown_conversation_gives_no_notice() -> None:
    assert looked_at(thoughtful(THOUGHT), grown(thoughtful(THOUGHT)), rules=True) == ()


def test_with_rules_parameters_and_images_are_checked() -> None:
    before = spec()
    before["messages"] = [("user", ["one"])]
    after = copy.deepcopy(before)
    after["messages"] += [("assistant", ["two"]), ("user", ["see", {"image": PNG}])]
    after["params"] = {"tool_choice": {"type": "any"}}
    codes = [notice.code for notice in looked_at(before, after, rules=True)]
    assert codes == ["parameter_changed", "images_changed"]
    assert looked_at(before, after) == ()


def test_a_write_beyond_the_look_back_is_reported() -> None:
    before = spec()
    after = grown(before)
    after["messages"][-1] = ("user", [f"result {at}" for at in range(30)])
    assert [notice.code for notice in looked_at(before, after, rules=True)] == ["lookback_exceeded"]


def test_unsigned_thinking_is_not_bound() -> None:
    before = thoughtful({"type": "thinking", "thinking": "The cat is grey."})
    after = grown(before)
    after["messages"][0] = ("user", ["What was in the file?"])
    assert [notice.code for notice in looked_at(before, after)] == ["prefix_breaks"]


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize("mode", [None, "implicit", "explicit"])
def test_openai_marks_a_split_request_by_itself_unless_it_is_told_not_to(
    name: str, mode: str | None
) -> None:
    def sent(system: str, *more: Json) -> SentCall:
        messages = [{"role": "system", "content": system * 2000}, *more]
        body: Json = {
            "model": "gpt-5.6",
            "messages" if name == "openai_chat" else "input": messages,
        }
        if mode is not None:
            body["prompt_cache_options"] = {"mode": mode}
        return SentCall(rendered=cut(wire.get(name), json.dumps(body).encode()))

    rules = catalog.rules("openai", "gpt-5.6", name)
    hello, more = ({"role": "user", "content": text} for text in ("Hello", "More?"))
    earlier, later = sent("Be brief. ", hello), sent("Be brief. ", hello, more)
    notices = preflight(earlier.rendered, sent("Be long. ", hello).rendered, rules)
    verdict = judge(earlier, later, rules)
    if mode == "explicit":
        assert not notices
        assert verdict.cause == "no_marker"
    else:
        assert [notice.code for notice in notices] == ["prefix_breaks"]
        assert verdict.result == "hit"

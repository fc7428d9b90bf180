"""Calls that are remembered without their text are found, compared and judged."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.cache import PrefixIndex
from anaphora.cache.rebuilt_text import with_text_of
from anaphora.cache.sent_call import SentCall
from anaphora.cache.verdict import judge
from anaphora.rendered import Plan, Rendered
from anaphora.values import Usage
from anaphora.wire.request_bodies import RequestBodies

RULES = catalog.rules("openai", "gpt-4o", "openai_chat")
BODIES = RequestBodies()
TEXTS = [f"{number}: " + "All of this is said again. " * 150 for number in range(8)]


def request(texts: list[str], system: str = "Be brief.", **fields: Any) -> Rendered:
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    messages = [{"role": "system", "content": system}, *said]
    body = json.dumps({"model": "gpt-4o", "messages": messages, **fields}).encode()
    return wire.get("openai_chat").split(BODIES.read("program", "openai_chat", body), (), "")


def without(call: SentCall, bare: Rendered) -> tuple[SentCall, Rendered]:
    return replace(call, rendered=bare), bare


def index_of(most_bytes: int) -> PrefixIndex[SentCall]:
    return PrefixIndex(most_bytes=most_bytes, drop_text=without)


def test_calls_lose_their_text_and_not_their_conversation() -> None:
    index, size = index_of(30_000), 0
    for turn in (1, 3, 5, 7):
        for conversation in range(5):
            texts = [text.replace("this", f"what {conversation} said") for text in TEXTS[:turn]]
            rendered = request(texts)
            found = index.add(rendered, SentCall(rendered=rendered))
            assert (found is not None and found.continues) is (turn > 1)
            size = rendered.size
            assert index.size <= 30_000 + size
    with_text = [call for call in index.calls() if call.rendered.has_text]
    assert 0 < len(with_text) < len(index) == 10


def test_texts_of_tools_and_system_prompt_are_kept_longer() -> None:
    """They are counted once for all calls that have them."""
    index = index_of(20_000)
    for conversation in range(20):
        rendered = request([f"{conversation} {TEXTS[0]}"], "Be brief. " * 400)
        index.add(rendered, SentCall(rendered=rendered))
    kept = [[run.log.has_text for run in call.rendered.runs] for call in index.calls()]
    assert kept[0] == [True, False]
    assert kept[-1] == [True, True]
    for conversation in range(20):
        rendered = request(["Hello"], f"{conversation} Be brief. " * 400)
        index.add(rendered, SentCall(rendered=rendered))
    assert index.calls()[0].rendered.without_text().runs == index.calls()[0].rendered.runs
    assert index.size <= 20_000


def test_text_is_rebuilt_from_the_later_prompt() -> None:
    earlier = request(TEXTS[:5])
    changed = [TEXTS[0], "another text", *TEXTS[2:6]]
    later = request(changed)
    index = index_of(0)
    index.add(earlier, SentCall(rendered=earlier))
    index.add(later, SentCall(rendered=later))
    [bare, _] = index.calls()
    assert not bare.rendered.has_text
    rebuilt = with_text_of(bare, later).rendered
    assert len(rebuilt.data()) == len(earlier.data())
    same = [rebuilt.chunk(at).data == earlier.chunk(at).data for at in range(len(earlier))]
    assert same == [True, True, False, True, True, True]
    assert b"\0" in rebuilt.chunk(2).data


def test_verdict_names_the_block_if_its_text_is_gone() -> None:
    earlier = request(TEXTS[:5])
    usage = Usage(uncached=5_000, read=0, output=1)
    before = SentCall(rendered=earlier, at=0.0, usage=usage)
    later = request([TEXTS[0], TEXTS[1].replace("All", "Most", 1), *TEXTS[2:7]])
    after = SentCall(rendered=later, at=10.0, usage=Usage(uncached=5_000, read=1024, output=1))
    index = index_of(0)
    index.add(earlier, before)
    found = index.add(later, after)
    assert found is not None
    assert found.continues
    [bare, _] = index.calls()
    known, gone = (judge(call, after, RULES) for call in (before, bare))
    assert known.change is not None
    assert gone.change is not None
    assert (known.change.kind, gone.change.kind) == ("text_edited", "block_changed")
    assert gone.change.path == "messages[2].content[0]"
    assert gone.change.before == "no longer kept"
    assert (gone.result, gone.cause, gone.left) == (known.result, known.cause, known.left)
    assert abs(gone.lost - known.lost) <= RULES.granule_tokens.value


def test_a_prompt_without_text_is_no_edit_of_another() -> None:
    """What cannot be compared is not taken for the same."""
    index = index_of(0)
    first = request([TEXTS[0]])
    index.add(first, SentCall(rendered=first))
    second = request([TEXTS[1]], "Other instructions.")
    index.add(second, SentCall(rendered=second))
    edited = request([TEXTS[0] + "!"])
    found = index.find(edited)
    assert found is None or not found.continues


def test_marks_and_plan_need_no_text() -> None:
    index = index_of(0)
    first = request(TEXTS[:3])
    index.add(first, SentCall(rendered=first, plan=Plan()))
    grown = request(TEXTS[:5])
    found = index.add(grown, SentCall(rendered=grown, plan=Plan()))
    assert found is not None
    assert found.chunks == 4
    verdict = judge(
        replace(found.call, usage=Usage(uncached=3_000, output=1), at=0.0),
        SentCall(rendered=grown, at=10.0, usage=Usage(uncached=2_000, read=3_000, output=1)),
        RULES,
    )
    assert verdict.result == "hit"


def test_what_is_remembered_besides_texts_is_bounded() -> None:
    index: PrefixIndex[SentCall] = PrefixIndex(most_memory=60_000, drop_text=without)
    for conversation in range(40):
        rendered = request([f"{conversation}, {at}" for at in range(9)])
        index.add(rendered, SentCall(rendered=rendered))
        assert index.memory <= 60_000
    assert len(index) == 12
    index.shrink(0, 0)
    assert len(index) == 1

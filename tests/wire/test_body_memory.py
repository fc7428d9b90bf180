"""A body that begins like an earlier one is split as if it were the first."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from support.growing_bodies import PATHS, Body, attempt, conversations

from anaphora import wire
from anaphora.cache.compared_prompt import block_hashes
from anaphora.cache.simulator import RenderedPrompt
from anaphora.rendered import Plan, Rendered
from anaphora.rendered.request_log import TextNotKept
from anaphora.tokens import Counts
from anaphora.wire.body_memory import BodyMemory
from anaphora.wire.reading import decode_members
from anaphora.wire.request_bodies import RequestBodies, list_of_messages


def parts(rendered: Rendered | None) -> Any:
    """All that a later reader may ask for."""
    if rendered is None:
        return None
    chunks = [(chunk.path, chunk.label, chunk.data, chunk.splice) for chunk in rendered]
    prompt, count = RenderedPrompt(rendered, Plan()), len(rendered)
    keys = [prompt.key(position) for position in range(count)]
    hashed = keys, block_hashes(prompt, 0), rendered.digest(count), Counts(rendered).total
    return chunks, rendered.marks, rendered.data(), rendered.model, rendered.envelope.tail, hashed


@pytest.mark.parametrize("name", PATHS)
@given(conversation=conversations())
def test_body_is_split_as_if_it_were_the_first(name: str, conversation: list[Body]) -> None:
    codec, path = wire.get(name), PATHS[name]
    bodies, kept = RequestBodies(grids=(64, 512)), list[Rendered | None]()
    for each in conversation:
        data = each.write(name)
        whole, problem = attempt(lambda: codec.split(data, (), path))  # noqa: B023
        split, refused = attempt(
            lambda: codec.split(bodies.read("program", name, data), (), path)  # noqa: B023
        )
        assert refused == problem
        if split is not None and len(kept) % 2:
            block_hashes(RenderedPrompt(split, Plan()), 0)  # before the text is read from the body
        assert parts(split) == parts(whole)
        # As long as a request is in use, its chunks are; its text is not needed.
        kept.append(split if split is None or len(kept) % 3 == 0 else split.without_text())


def test_remembered_request_has_no_text() -> None:
    """Nothing is computed from text that is gone."""
    split, bodies = wire.get("openai_chat").split, RequestBodies()
    first = split(bodies.read("program", "openai_chat", chat("a", "b")), (), "")
    prompt = RenderedPrompt(first, Plan())
    keys = [prompt.key(position) for position in range(2)]
    bare = first.without_text()
    assert first.has_text
    assert not bare.has_text
    assert [RenderedPrompt(bare, Plan()).key(position) for position in range(2)] == keys
    assert Counts(bare).total == Counts(first).total
    for read in (bare.data, lambda: bare.chunk(1), lambda: bare.digest(2)):
        with pytest.raises(TextNotKept, match="not kept"):
            read()
    # The next turn has its own text, also of the messages that were known.
    grown = chat("a", "b", "c")
    again = split(bodies.read("program", "openai_chat", grown), (), "")
    assert again.runs[0].log.base is bare.runs[0].log.base
    assert again.data() == split(grown, (), "").data()
    # Requests that are split from bytes share nothing with those.
    other = split(grown, (), "")
    assert other.runs[0].log.base is other.runs[0].log
    assert other.without_text().data() == other.data()


def chat(*texts: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text * 1000} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def known(memory: BodyMemory[None], data: bytes, scope: str = "scope") -> int:
    """Keeps a body; how many of its messages were known."""
    body = memory.digests(scope, "openai_chat", data)
    found = memory.find(body)
    elements = list_of_messages("openai_chat", data, decode_members(data))
    assert elements is not None
    outline = memory.outline(body, elements, found)
    if outline is not None:
        memory.keep(outline, found, lambda: None)
    return 0 if found is None else found.count


def test_messages_of_the_body_before_are_known() -> None:
    memory: BodyMemory[None] = BodyMemory()
    assert known(memory, chat("one", "two")) == 0
    assert known(memory, chat("one", "two", "three", "four")) == 2
    assert known(memory, chat("one", "two", "three", "four", n=2)) == 4, "another field changed"
    assert known(memory, chat("one", "two", "three", "five", "six")) == 3
    assert known(memory, chat("one", "two"), "another scope") == 0
    memory.clear()
    assert known(memory, chat("one", "two", "three")) == 0


def test_kept_bodies_are_bounded() -> None:
    memory: BodyMemory[None] = BodyMemory(most_bytes=5_000)
    for number in range(40):
        known(memory, chat(f"{number:02}a", "two", "three"))
        assert memory.size <= 5_000
    assert len(memory) == 3
    assert known(memory, chat("39a", "two", "three", "four")) == 3
    assert known(memory, chat("00a", "two", "three", "four")) == 0


def test_body_with_very_many_messages_takes_no_place() -> None:
    memory: BodyMemory[None] = BodyMemory(most_bytes=5_000)
    known(memory, chat("one", "two"))
    known(memory, chat("other", *3 * "abcdefghijklmnopqrstuvwxyz"))
    assert len(memory) == 1
    assert known(memory, chat("one", "two", "three")) == 2


def test_grown_body_replaces_the_one_before() -> None:
    memory: BodyMemory[None] = BodyMemory()
    texts = ["one"]
    for number in range(20):
        texts.append(f"{number:03}")
        known(memory, chat(*texts))
    assert len(memory) == 1


def test_text_is_not_kept() -> None:
    """A body takes about what its size says: 100 bytes a message."""
    memory: BodyMemory[None] = BodyMemory()
    known(memory, chat("warm", "up"))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20):
            known(memory, chat(*[f"{number} {index} " for index in range(40)], n=number))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(memory) == 21
    assert after - before < memory.size


@pytest.mark.parametrize(("changed", "expected"), [(0, 0), (1, 0), (2, 0), (3, 3), (4, 4), (5, 5)])
def test_a_changed_byte_ends_what_is_known(changed: int, expected: int) -> None:
    """Also one in the white space before a message. A body that changes in its first bytes is read
    whole."""
    memory: BodyMemory[None] = BodyMemory()
    data = chat("one", "two", "three", "four", "five")
    known(memory, data)
    grown = data.replace(b"]}", b', {"role": "user", "content": "six"}]}')
    if changed == 0:
        other = grown.replace(b'"m"', b'"n"')
    else:
        at = [index for index in range(len(grown)) if grown.startswith(b'{"role"', index)][changed]
        other = grown[: at - 1] + b"\n" + grown[at:]
    assert known(memory, other) == expected

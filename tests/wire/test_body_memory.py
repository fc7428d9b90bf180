"""A body that begins like an earlier one is split as if it were the first."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from support.growing_bodies import PATHS, Body, attempt, conversations

from anaphora import wire
from anaphora.cache.simulator import RenderedPrompt
from anaphora.rendered import Plan, Rendered
from anaphora.rendered.chunks import is_placeholder
from anaphora.wire.body_memory import BodyMemory, RequestBodies, RunningDigest, list_of_messages
from anaphora.wire.reading import decode_members


def parts(rendered: Rendered | None) -> Any:
    """All that a later reader may ask for."""
    if rendered is None:
        return None
    chunks = [(chunk.path, chunk.label, chunk.data, chunk.splice) for chunk in rendered]
    return chunks, rendered.marks, rendered.data(), rendered.model, rendered.envelope.tail


@pytest.mark.parametrize("name", PATHS)
@given(conversation=conversations())
def test_body_is_split_as_if_it_were_the_first(name: str, conversation: list[Body]) -> None:
    codec, path = wire.get(name), PATHS[name]
    bodies, kept = RequestBodies(grids=(64, 512)), []
    for each in conversation:
        data = each.write(name)
        whole, problem = attempt(lambda: codec.split(data, (), path))  # noqa: B023
        split, refused = attempt(
            lambda: codec.split(bodies.read("program", name, data), (), path)  # noqa: B023
        )
        assert refused == problem
        assert parts(split) == parts(whole)
        kept.append(split)  # as long as a request is in use, its chunks are


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=40)
@given(conversation=conversations())
def test_dropped_text_is_read_again_from_the_request(name: str, conversation: list[Body]) -> None:
    """As long as the request is in use. Its keys are known without that."""
    codec, path = wire.get(name), PATHS[name]
    bodies = RequestBodies(grids=(64, 512))
    kept: list[Rendered] = []
    for each in conversation:
        data = each.write(name)
        whole, _ = attempt(lambda: codec.split(data, (), path))  # noqa: B023
        decoded, _ = attempt(lambda: bodies.read("program", name, data))  # noqa: B023
        if decoded is None or whole is None:
            continue
        split = codec.split(decoded, (), path)
        assert keys(split) == keys(whole)
        for run in split.runs:
            if run.log.request is not None:
                run.log.drop_text()
                assert not run.log.buffer
        if len(kept) % 2:  # else the next request finds it without text
            assert parts(split) == parts(whole)
            assert not any(chunk.data.count(b"\0") for chunk in split)
        assert keys(split) == keys(whole)
        kept.append(split)


def keys(rendered: Rendered) -> list[bytes]:
    prompt = RenderedPrompt(rendered, Plan())
    return [prompt.key(index) for index in range(len(prompt))]


def test_text_that_cannot_be_read_again_is_other_text() -> None:
    codec, bodies = wire.get("openai_chat"), RequestBodies()
    data = chat("one", "two", "three")
    split = codec.split(bodies.read("program", "openai_chat", data), (), "")
    texts = [chunk.data for chunk in split]
    split.runs[-1].log.drop_text()
    dropped = [chunk.data for chunk in split]
    assert [len(text) for text in dropped] == [len(text) for text in texts]
    assert all(map(is_placeholder, dropped))
    assert len(set(dropped)) == len(texts)
    more = chat("one", "two", "three", "four")
    decoded = bodies.read("program", "openai_chat", more)
    grown = codec.split(decoded, (), "")
    assert grown.runs[-1].log is split.runs[-1].log
    assert [chunk.data for chunk in grown] == [chunk.data for chunk in codec.split(more, (), "")]


def chat(*texts: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text * 1000} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def known(memory: BodyMemory[None], data: bytes, scope: str = "scope") -> int:
    """Keeps a body; how many of its messages were known."""
    body = RunningDigest(data)
    found = memory.find(scope, "openai_chat", body)
    elements = list_of_messages("openai_chat", data, decode_members(data))
    assert elements is not None
    outline = memory.outline(body, elements, found)
    if outline is not None:
        memory.keep(scope, "openai_chat", outline, found, lambda: None)
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
    memory: BodyMemory[None] = BodyMemory(most_bytes=12_000)
    for number in range(40):
        known(memory, chat(f"{number:02}a", "two", "three"))
        assert memory.size <= 12_000
    assert len(memory) == 3
    assert known(memory, chat("39a", "two", "three", "four")) == 3
    assert known(memory, chat("00a", "two", "three", "four")) == 0


def test_body_with_very_many_messages_takes_no_place() -> None:
    memory: BodyMemory[None] = BodyMemory(most_bytes=12_000)
    known(memory, chat("one", "two"))
    known(memory, chat("other", *"abcdefghijklmnopqrstuvwxyz", *"abcdefghijklmnopqrstuvwxyz"))
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
    assert after - before < 20 * (3000 + 40 * 100)


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

"""Whatever came before, a request is cut as if it were the first."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import wire
from anaphora.rendered import Rendered

PATH = "/v1beta/models/g:generateContent"
MARKS: dict[str, dict[str, Any]] = {
    "anthropic": {"cache_control": {"type": "ephemeral"}},
    "openai_chat": {"prompt_cache_breakpoint": {"mode": "explicit"}},
    "openai_responses": {"prompt_cache_breakpoint": {"mode": "explicit"}},
    "gemini": {},
}

#: Who speaks, what, and how it is put: as a text, as a list, or as a list with a marker.
Turn = tuple[str, str, str]
encoded = st.tuples(
    st.sampled_from(["user", "assistant"]),
    st.sampled_from(["one", "two", ""]),
    st.sampled_from(["text", "list", "marked"]),
)
conversations = st.tuples(
    st.sampled_from([None, "Be brief."]), st.lists(encoded, min_size=1, max_size=5).map(tuple)
)


def message(name: str, turn: Turn) -> dict[str, Any]:
    role, text, form = turn
    if name == "gemini":
        return {"role": role.replace("assistant", "model"), "parts": [{"text": text}]}
    if form == "text":
        return {"role": role, "content": text}
    kinds = {"anthropic": "text", "openai_chat": "text", "openai_responses": "input_text"}
    kind = "output_text" if (name, role) == ("openai_responses", "assistant") else kinds[name]
    marked = form == "marked" and (role == "user" or name == "anthropic")
    return {
        "role": role,
        "content": [{"type": kind, "text": text or ".", **(MARKS[name] if marked else {})}],
    }


def body(name: str, system: str | None, turns: tuple[Turn, ...]) -> bytes:
    messages = [message(name, turn) for turn in turns]
    lead = [{"role": "system", "content": system}] if system else []
    if name == "anthropic":
        head = {"system": system} if system else {}
        return json.dumps({"model": "m", "max_tokens": 1, **head, "messages": messages}).encode()
    if name == "gemini":
        return json.dumps({"contents": messages}).encode()
    field = "messages" if name == "openai_chat" else "input"
    return json.dumps({"model": "m", field: [*lead, *messages]}).encode()


def looks(rendered: Rendered) -> Any:
    """Everything there is to see of it."""
    runs = [(run.lead, run.close, run.count, run.first_message, run.role) for run in rendered.runs]
    return list(rendered), rendered.marks, runs, rendered.data(), rendered.body_order


def forget(name: str) -> None:
    """Clears what a wire remembers of earlier requests."""
    import_module(f"anaphora.wire.{name}.types").MEMO.clear()


@pytest.mark.parametrize("name", MARKS)
@given(requests=st.lists(conversations, min_size=2, max_size=6), kept=st.booleans())
def test_split_is_independent_of_earlier_requests(
    name: str, requests: list[tuple[str | None, tuple[Turn, ...]]], kept: bool
) -> None:
    codec = wire.get(name)
    alone = []
    for request in requests:
        forget(name)
        alone.append(looks(codec.split(body(name, *request), (), PATH)))
    forget(name)
    alive: list[Rendered] = []
    for request, expected in zip(requests, alone, strict=True):
        rendered = codec.split(body(name, *request), (), PATH)
        assert looks(rendered) == expected
        alive += [rendered] if kept else []
    # Those who went on did not change what they went on from.
    assert [looks(rendered) for rendered in alive] == (alone if kept else [])


@pytest.mark.parametrize("name", MARKS)
def test_next_turn_extends_the_log(name: str) -> None:
    codec, turns = wire.get(name), [("user", "one", "text"), ("assistant", "two", "text")]
    first = codec.split(body(name, None, tuple(turns)), (), PATH)
    again = codec.split(body(name, None, (*turns, ("user", "three", "text"))), (), PATH)
    assert first.runs[-1].log is again.runs[-1].log
    assert (len(first), len(again)) == (2, 3)
    other = codec.split(body(name, None, (*turns, ("user", "four", "text"))), (), PATH)
    assert other.runs[-1].log is not first.runs[-1].log, "two ways to go on: a log for each"
    assert b"three" in again.data()
    assert b"three" not in other.data()


@each_row("name", [*MARKS])
def test_decoded_members_split_like_the_body(name: str) -> None:
    """They are not changed: others read them as well."""
    data = body(name, "Be brief.", (("user", "one", "text"), ("assistant", "two", "text")))
    found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    before = dict(found)
    codec = wire.get(name)
    assert looks(codec.split(found, (), PATH)) == looks(codec.split(data, (), PATH))
    assert found == before

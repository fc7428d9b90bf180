"""Which earlier call the journal compares a call with, over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from anaphora.emulator.server import Emulator

Json = dict[str, Any]

GUIDE = "Say what you saw, cite the line, and add nothing of your own. " * 400
TITLE = "Give this conversation a title of at most five words. " * 5


def anthropic(texts: list[str], system: str, **more: Any) -> Json:
    block = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 20,
        "system": [block],
        "messages": messages(texts),
        **more,
    }


def chat(texts: list[str], system: str, **more: Any) -> Json:
    whole = [{"role": "system", "content": system}, *messages(texts)]
    return {"model": "gpt-4.1", "messages": whole, **more}


def messages(texts: list[str]) -> list[Json]:
    return [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]


WIRES = {
    "anthropic": (anthropic, "/v1/messages", ("claude-sonnet-4-5", "claude-opus-4-5")),
    "openai_chat": (chat, "/v1/chat/completions", ("gpt-4.1", "gpt-4o")),
}


class Caller:
    """Sends requests on one wire, and reads the journal."""

    def __init__(self, emu: Emulator, wire: str) -> None:
        self.url = emu.url
        self._body, self._path, self.models = WIRES[wire]

    def send(
        self, *texts: str, system: str = GUIDE, headers: Json | None = None, **more: Any
    ) -> Json:
        known = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
        body = self._body(list(texts), system, **more)
        reply = httpx.post(self.url + self._path, json=body, headers={**known, **(headers or {})})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def journal(self) -> list[Json]:
        """The calls, the oldest first."""
        entries: list[Json] = httpx.get(f"{self.url}/_emulator/requests").json()["requests"]
        return entries[::-1]

    def compared(self) -> list[tuple[int | None, str]]:
        """The number of the call that each was compared with, and the result."""
        return [(one["compared_with"], one["verdict"]["result"]) for one in self.journal()]


@pytest.fixture(params=WIRES)
def caller(emu: Emulator, request: pytest.FixtureRequest) -> Caller:
    return Caller(emu, request.param)


def test_full_hits_of_two_models_in_turn(caller: Caller) -> None:
    texts = ["What is in the file?"]
    for turn in range(3):
        for model in caller.models:
            caller.send(*texts, model=model)
        texts += [f"Answer {turn}.", f"And line {turn}?"]
    expected = [(None, "first")] * 2 + [(number, "hit") for number in range(1, 5)]
    assert caller.compared() == expected
    assert all("model changed" not in str(one["verdict"]) for one in caller.journal())


def test_parallel_calls_with_one_system_prompt(caller: Caller) -> None:
    caller.send("The first question.")
    with ThreadPoolExecutor(7) as pool:
        list(pool.map(lambda number: caller.send(f"Question {number}, a new one."), range(7)))
    assert caller.compared() == [(None, "first")] + [(1, "hit")] * 7
    entries = caller.journal()
    assert {one["same_conversation"] for one in entries[1:]} == {False}
    assert {one["read"] for one in entries[1:]} == {entries[1]["read"]}


def test_interleaved_conversations(caller: Caller) -> None:
    talks = [[f"Talk {number}: what is in the file?"] for number in range(3)]
    for turn in range(3):
        for number, texts in enumerate(talks):
            caller.send(*texts)
            texts += [f"Answer {turn} of {number}.", f"And line {turn}, talk {number}?"]
    entries = caller.journal()
    assert [one["compared_with"] for one in entries[3:]] == [1, 2, 3, 4, 5, 6]
    assert {one["verdict"]["result"] for one in entries[1:]} == {"hit"}


def test_new_conversation_loses_nothing(caller: Caller) -> None:
    history = [f"A message with some text in it, number {number}. " * 60 for number in range(9)]
    caller.send(*history)
    caller.send("Something else entirely.")
    last = caller.journal()[-1]
    assert (last["compared_with"], last["same_conversation"]) == (1, False)
    assert (last["verdict"]["result"], last["verdict"]["cause"]) == ("hit", None)
    assert "lost" not in last["verdict"]["sentence"]


def test_changed_system_prompt_of_a_conversation_is_named(caller: Caller) -> None:
    caller.send("What is in the file?", system="It is 09:30. " + GUIDE)
    caller.send("Unrelated, by another program.", system=TITLE)
    caller.send("What is in the file?", "A line.", "And?", system="It is 09:31. " + GUIDE)
    last = caller.journal()[-1]
    assert (last["compared_with"], last["same_conversation"]) == (1, True)
    assert last["verdict"]["result"] == "miss"
    assert last["verdict"]["cause"] in ("system_changed", "marker_on_volatile")


def test_side_calls_have_conversations_of_their_own(caller: Caller) -> None:
    session = {"x-claude-code-session-id": "s1"}
    question = "What is in the file?"
    caller.send(question, headers=session)
    caller.send(question, system=TITLE, headers=session)
    caller.send("You are a subagent: list the files.", headers=session)
    caller.send(question, "A line.", "And then?", headers=session)
    entries = caller.journal()
    assert [one["compared_with"] for one in entries] == [None, None, 1, 1]
    assert [one["same_conversation"] for one in entries] == [None, None, False, True]
    assert [one["verdict"]["result"] for one in entries] == ["first", "first", "hit", "hit"]


@pytest.mark.parametrize(
    "wire, names",
    [
        ("anthropic", [{"headers": {"x-claude-code-session-id": name}} for name in "ab"]),
        ("anthropic", [{"metadata": {"user_id": name}} for name in "ab"]),
        ("openai_chat", [{"headers": {"session-id": name}} for name in "ab"]),
        ("openai_chat", [{"user": name} for name in "ab"]),
        ("openai_chat", [{"safety_identifier": name} for name in "ab"]),
    ],
)
def test_what_clients_send_separates_conversations(
    emu: Emulator, wire: str, names: list[Json]
) -> None:
    """Two conversations that begin with the same words."""
    caller = Caller(emu, wire)
    for name in names:
        caller.send("Hello", **name)
    for name in names:
        caller.send("Hello", "Hi.", "What can you do?", **name)
    entries = caller.journal()
    assert [one["compared_with"] for one in entries] == [None, 1, 1, 2]
    assert [one["same_conversation"] for one in entries] == [None, False, True, True]
    assert [one["verdict"]["result"] for one in entries[1:]] == ["hit"] * 3


def test_conversations_with_cache_keys_of_their_own(emu: Emulator) -> None:
    """A key for each conversation is a boundary; a new key at every call is a broken cache."""
    caller = Caller(emu, "openai_chat")
    caller.send("Hello, one.", prompt_cache_key="one")
    caller.send("Hello, two.", prompt_cache_key="two")
    caller.send("Hello, one.", "Hi.", "More.", prompt_cache_key="one")
    assert caller.compared()[:2] == [(None, "first"), (None, "first")]
    assert caller.compared()[2] == (1, "hit")
    caller.send("Hello, one.", "Hi.", "More.", "Yes.", "Again.", prompt_cache_key="three")
    assert caller.journal()[-1]["verdict"]["cause"] == "other_key"


def test_count_calls_are_not_compared_with(emu: Emulator) -> None:
    caller = Caller(emu, "anthropic")
    caller.send("What is in the file?")
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    body = anthropic(["What is in the file?", "A line.", "And?"], GUIDE)
    del body["max_tokens"]
    url = f"{emu.url}/v1/messages/count_tokens"
    assert httpx.post(url, json=body, headers=headers).status_code == 200
    caller.send("What is in the file?", "A line.", "And?")
    last = caller.journal()[-1]
    assert (last["compared_with"], last["verdict"]["result"]) == (1, "hit")


def test_response_chains(emu: Emulator) -> None:
    """Two chains that only their ids tell apart."""
    headers = {"authorization": "Bearer k"}

    def ask(text: str, previous: str | None = None) -> str:
        body = {"model": "gpt-4.1", "instructions": GUIDE, "input": text}
        if previous is not None:
            body["previous_response_id"] = previous
        reply = httpx.post(f"{emu.url}/v1/responses", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    first, second = ask("Hello"), ask("Hello")
    third = ask("More", first)
    ask("More", second)
    ask("And more", third)
    entries = httpx.get(f"{emu.url}/_emulator/requests").json()["requests"][::-1]
    assert [one["compared_with"] for one in entries] == [None, 1, 1, 2, 3]
    assert [one["verdict"]["result"] for one in entries] == ["first"] + ["hit"] * 4


def test_ids_of_conversations_are_not_in_the_journal(emu: Emulator) -> None:
    caller = Caller(emu, "anthropic")
    canary = "canary-7f3d"
    caller.send("Hello", headers={"x-claude-code-session-id": canary}, metadata={"user_id": canary})
    assert canary not in str(caller.journal())

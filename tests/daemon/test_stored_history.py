"""The size of what apps have stored: a bound counts all that a provider may have added to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.daemon import llm_yaml, running_daemon
from support.socket_upstream import UpstreamConnection, socket_upstream

from anaphora.daemon.money.late_bills import StoredHistory
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.errors import NotFound
from anaphora.wire.facts.reading import RequestFacts, read_facts
from anaphora.wire.reading import decode_members

APP = "notes"
CONVERSATION = HandleRow(
    kind="conversation", id="conv_1", app=APP, provider="openai", created=1.0, tokens=100
)

GRANTED: dict[str, Any] = {
    "capabilities_grant": ["llm_complete"],
    "llm": {
        "providers": ["openai"],
        "models": ["gpt-5.2"],
        "usd_per_day": 0.05,
        "allow": ["stored_responses"],
    },
}


def request(**fields: Any) -> RequestFacts:
    body = {"model": "gpt-5.2", "input": "Hi", "conversation": "conv_1", **fields}
    return read_facts("openai_responses", decode_members(json.dumps(body).encode()), "")


def with_history(
    folder: Path, test: Callable[[StoredHistory, SqliteStore], Awaitable[None]]
) -> None:
    async def main() -> None:
        store = SqliteStore.open(folder / "store.sqlite")
        try:
            await store.add_handle(CONVERSATION)
            await test(StoredHistory(store), store)
        finally:
            await store.close()

    asyncio.run(main())


def test_bill_of_a_call_is_the_size_of_its_conversation(tmp_path: Path) -> None:
    async def test(history: StoredHistory, _: SqliteStore) -> None:
        grown = await history.begin(APP, request(), 50)
        await history.end(grown, sent=True, size=180)
        assert await history.tokens(APP, request()) == 180
        await history.end(await history.begin(APP, request(), 50), sent=False)
        assert await history.tokens(APP, request()) == 180

    with_history(tmp_path, test)


def test_items_count_by_their_size(tmp_path: Path) -> None:
    """Also more of them than one statement reads."""

    async def test(history: StoredHistory, store: SqliteStore) -> None:
        item = HandleRow(kind="item", id="", app=APP, provider="openai", created=1.0, tokens=7)
        for number in range(100):
            await store.add_handle(replace(item, id=f"msg_{number}"))
        # As earlier versions stored them.
        await store.add_handle(replace(item, kind="response", id="rs_1"))
        names = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(100)]
        names.append({"type": "reasoning", "id": "rs_1"})
        assert await history.tokens(APP, request(conversation=None, input=names)) == 707
        with pytest.raises(NotFound, match="'msg_100'"):
            await history.tokens(APP, request(input=[{"id": "msg_100"}, *names]))
        with pytest.raises(NotFound):
            await history.tokens("other", request(conversation=None, input=names))

    with_history(tmp_path, test)


def test_call_that_broke_off_may_have_grown_its_conversation(tmp_path: Path) -> None:
    async def test(history: StoredHistory, _: SqliteStore) -> None:
        facts = request(input="word " * 1000)
        await history.end(await history.begin(APP, facts, 50), sent=True)
        assert await history.tokens(APP, facts) == 100 + facts.size + 50

    with_history(tmp_path, test)


def test_calls_at_the_same_time_add_to_each_other(tmp_path: Path) -> None:
    async def test(history: StoredHistory, _: SqliteStore) -> None:
        facts = request()
        first = await history.begin(APP, facts, 50)
        assert await history.tokens(APP, facts) == 100 + facts.size + 50
        second = await history.begin(APP, facts, 50)
        for grown in (first, second):
            await history.end(grown, sent=True, size=130)
        assert await history.tokens(APP, facts) == 100 + 2 * (facts.size + 50)

    with_history(tmp_path, test)


def test_items_that_are_added_during_a_call_count(tmp_path: Path) -> None:
    async def test(history: StoredHistory, store: SqliteStore) -> None:
        facts = request()
        grown = await history.begin(APP, facts, 50)
        await store.grow_handle(CONVERSATION, 1000)
        await history.end(grown, sent=True, size=130)
        assert await history.tokens(APP, facts) == 1100 + facts.size + 50
        await store.grow_handle(CONVERSATION, None)
        assert await history.tokens(APP, facts) is None

    with_history(tmp_path, test)


def test_files_have_no_history(tmp_path: Path) -> None:
    async def test(history: StoredHistory, store: SqliteStore) -> None:
        file = {"type": "input_file", "file_id": "file_1"}
        facts = request(input=[{"role": "user", "content": [file]}])
        with pytest.raises(NotFound):
            await history.tokens(APP, facts)
        await store.add_handle(
            HandleRow(kind="file", id="file_1", app=APP, provider="openai", created=1.0)
        )
        assert await history.tokens(APP, facts) == 100

    with_history(tmp_path, test)


def test_image_in_a_conversation_leaves_calls_without_a_bound(tmp_path: Path) -> None:
    """An address of a few bytes is billed as thousands of tokens."""

    def answer(connection: UpstreamConnection) -> None:
        while connection.read_request():
            body = b'{"id": "conv_1", "object": "conversation"}'
            head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n"
            connection.send(f"{head}content-type: application/json\r\n\r\n".encode() + body)

    grant = {**GRANTED, "llm": {**GRANTED["llm"], "usd_per_day": 100}}
    image = {"type": "input_image", "image_url": "https://example.com/a.png"}
    items = {"items": [{"type": "message", "role": "user", "content": [image]}]}
    ask = {"model": "gpt-5.2", "input": "Hi", "conversation": "conv_1"}
    with (
        socket_upstream(answer) as upstream,
        running_daemon(
            tmp_path, upstream, extensions={"demo": grant}, llm=llm_yaml(upstream.url)
        ) as daemon,
        daemon.client() as http,
    ):
        assert http.post("/v1/conversations", json={}).status_code == 200
        added = http.post("/v1/conversations/conv_1/items", json=items)
        assert added.status_code == 200, added.text
        refused = http.post("/v1/responses", json=ask)
        assert refused.status_code == 403
        assert "the size of the stored conversation" in refused.text


@pytest.mark.parametrize("kind", ["text", "image"])
@pytest.mark.parametrize("by", ["previous_response_id", "item_reference", "item"])
def test_image_of_a_response_counts_where_it_is_continued(
    kind: str, by: str, tmp_path: Path
) -> None:
    """It is input only then: the bill of the response itself does not tell its size."""
    made = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "AA=="}
    if kind == "text":
        made = {"id": "ig_1", "type": "web_search_call", "status": "completed"}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    reply = {"id": "resp_1", "object": "response", "model": "gpt-5.2", "status": "completed"}
    data = json.dumps({**reply, "output": [made], "usage": usage}).encode()

    def answer(connection: UpstreamConnection) -> None:
        while connection.read_request():
            head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(data)}\r\n"
            connection.send(f"{head}content-type: application/json\r\n\r\n".encode() + data)

    body: dict[str, Any] = {"model": "gpt-5.2", "input": [{"role": "user", "content": "Draw."}]}
    body |= {"max_output_tokens": 100, "store": True}
    continued = {
        "previous_response_id": {**body, "previous_response_id": "resp_1"},
        "item_reference": {
            **body,
            "input": [{"type": "item_reference", "id": "ig_1"}, *body["input"]],
        },
        "item": {**body, "input": [{**made, "result": None}, *body["input"]]},
    }[by]
    if by == "item" and kind == "text":
        return  # it is sent whole
    with (
        socket_upstream(answer) as upstream,
        running_daemon(
            tmp_path, upstream, extensions={"demo": GRANTED}, llm=llm_yaml(upstream.url)
        ) as daemon,
        daemon.client() as http,
    ):
        assert http.post("/v1/responses", json=body).status_code == 200
        response = http.post("/v1/responses", json=continued)
        # 50,000 tokens of an image are more than the grant has.
        assert response.status_code == (200 if kind == "text" else 402), response.text

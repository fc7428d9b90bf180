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
from support.request_facts import facts_in
from support.socket_upstream import UpstreamConnection, socket_upstream

from anaphora.daemon.access.handles import stored_tokens
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.errors import NotFound
from anaphora.wire.permissions.facts import CallFacts

APP = "notes"
GRANTED: dict[str, Any] = {
    "capabilities_grant": ["llm_complete"],
    "llm": {
        "providers": ["openai"],
        "models": ["gpt-5.2"],
        "usd_per_day": 0.05,
        "allow": ["stored_responses"],
    },
}


def request(**fields: Any) -> CallFacts:
    body = {"model": "gpt-5.2", "input": "Hi", **fields}
    return facts_in("openai_responses", json.dumps(body).encode())


def with_store(folder: Path, test: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SqliteStore.open(folder / "store.sqlite")
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_items_count_by_their_size(tmp_path: Path) -> None:
    """Also more of them than one statement reads."""

    async def test(store: SqliteStore) -> None:
        item = HandleRow(kind="item", id="", app=APP, provider="openai", created=1.0, tokens=7)
        for number in range(100):
            await store.add_handle(replace(item, id=f"msg_{number}"))
        names = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(100)]
        assert await stored_tokens(store, APP, request(input=names)) == 700
        with pytest.raises(NotFound, match="'msg_100'"):
            await stored_tokens(store, APP, request(input=[{"id": "msg_100"}, *names]))
        with pytest.raises(NotFound):
            await stored_tokens(store, "other", request(input=names))
        with pytest.raises(NotFound):
            await stored_tokens(store, APP, request(input=names), "elsewhere")
        await store.add_handle(replace(item, id="msg_0", tokens=None))
        assert await stored_tokens(store, APP, request(input=names)) is None

    with_store(tmp_path, test)


def test_files_have_no_history(tmp_path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        file = {"type": "input_file", "file_id": "file_1"}
        facts = request(input=[{"role": "user", "content": [file]}], previous_response_id="resp_1")
        response = HandleRow(
            kind="response", id="resp_1", app=APP, provider="openai", created=1.0, tokens=100
        )
        await store.add_handle(response)
        with pytest.raises(NotFound):
            await stored_tokens(store, APP, facts)
        await store.add_handle(replace(response, kind="file", id="file_1", tokens=None))
        assert await stored_tokens(store, APP, facts) == 100

    with_store(tmp_path, test)


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

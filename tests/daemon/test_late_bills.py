"""Background responses that end early: their spend is settled when the app fetches or cancels
them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from support.daemon import GRANT, TestedDaemon, create_home, llm_yaml, running_daemon
from support.ledgers import PostgresPlace
from support.nodes import running_node, running_nodes
from support.socket_upstream import UpstreamConnection, socket_upstream
from support.waiting import wait_until

from anaphora import catalog, emulator
from anaphora.cli.common import anaphora
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.server import Emulator
from anaphora.values import Usage

LIMITED: dict[str, Any] = {
    **GRANT,
    "llm": {**GRANT["llm"], "usd_per_day": 5, "allow": ["stored_responses", "background"]},
}
AT_OPENAI = {"anaphora-provider": "openai"}
QUEUED: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-4.1",
    "status": "queued",
    "output": [],
    "usage": None,
}
BODY = {"model": "gpt-4.1", "input": "Hello?", "max_output_tokens": 1000, "store": True}
USAGE = {"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010}
BILL = 1000 * 2_000 + 10 * 8_000
WORD = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "incomplete",
    "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
}
FAILED = {"status": "failed", "error": {"code": "server_error", "message": "broken"}}
CANCELED = {"status": "cancelled"}


@pytest.fixture
def emu() -> Iterator[Emulator]:
    options = EmulatorOptions(latency=Latency(first=0.0))
    with emulator.running(options) as running:
        yield running


def spent(daemon: TestedDaemon) -> tuple[int, int]:
    """Billed and estimated nano-dollars."""
    command = ["spend", "--home", str(daemon.home), "--json"]
    result = CliRunner().invoke(anaphora, command, catch_exceptions=False)
    total = json.loads(result.output)["total"]
    return total["billed_nano_usd"], total["estimated_nano_usd"]


def settled(daemon: TestedDaemon, before: tuple[int, int]) -> tuple[int, int]:
    """What is spent once it has changed: that is written after the answer."""
    wait_until(lambda: spent(daemon) != before, "the bill is written")
    return spent(daemon)


class BackgroundProvider:
    """Answers with a queued response, and with the given fields when it is fetched or canceled."""

    def __init__(self, ended: dict[str, Any]) -> None:
        self.ended = {**QUEUED, **ended}

    def handle(self, connection: UpstreamConnection) -> None:
        while request := connection.read_request():
            path = request.split(b" ")[1]
            kind, body = b"application/json", json.dumps(self.ended).encode()
            if path.endswith(b"/responses"):
                body = json.dumps(QUEUED).encode()
            elif b"stream=true" in path:
                kind = b"text/event-stream"
                event = f"response.{self.ended['status']}"
                fields = {"type": event, "sequence_number": 1, "response": self.ended}
                body = f"event: {event}\ndata: {json.dumps(fields)}\n\n".encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
            connection.send(head % (kind, len(body)) + body)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (FAILED, (0, 0)),
        ({**FAILED, "usage": USAGE}, (BILL, 0)),
        ({**CANCELED, "usage": USAGE}, (BILL, 0)),
        ({**FAILED, "output": [WORD]}, None),
        ({**CANCELED, "output": [WORD]}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_responses_that_ended_early_are_settled_when_they_are_fetched(
    ended: dict[str, Any], expected: tuple[int, int] | None, stream: bool, tmp_path: Path
) -> None:
    """None: an estimate, below the bound."""
    provider = BackgroundProvider(ended)
    with (
        socket_upstream(provider.handle) as upstream,
        running_daemon(tmp_path, upstream, extensions={"limited": LIMITED}) as daemon,
        daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
    ):
        made = http.post("/v1/responses", json={**BODY, "background": True})
        assert made.status_code == 200, made.text
        bound = spent(daemon)
        assert bound[0] == bound[1] > 0
        query = {"stream": "true"} if stream else {}
        assert http.get("/v1/responses/resp_1", params=query).status_code == 200
        found = settled(daemon, bound)
        if expected is not None:
            assert found == expected
        else:
            assert 0 < found[0] == found[1] < bound[0]


@pytest.mark.parametrize("stream", [False, True])
def test_late_bill_is_charged_as_the_provider_billed_it(stream: bool, tmp_path: Path) -> None:
    """Also what was read of another app's cache; the app sees none of it."""
    usage = {**USAGE, "input_tokens_details": {"cached_tokens": 800}}
    price = catalog.price("openai", "gpt-5.6", datetime.datetime.now(datetime.UTC))
    assert price is not None
    bill = price.of(Usage(uncached=200, read=800, output=10))
    alone = price.of(Usage(uncached=1000, read=0, output=10))
    assert bill is not None
    assert alone is not None
    provider = BackgroundProvider({"status": "completed", "usage": usage, "model": "gpt-5.6"})
    with (
        socket_upstream(provider.handle) as upstream,
        running_daemon(
            tmp_path, upstream, extensions={"limited": LIMITED, "other": LIMITED}
        ) as daemon,
        daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
    ):
        http.post("/v1/responses", json={**BODY, "model": "gpt-5.6", "background": True})
        bound = spent(daemon)
        query = {"stream": "true"} if stream else {}
        fetched = http.get("/v1/responses/resp_1", params=query)
        assert "800" not in fetched.text
        assert settled(daemon, bound) == (int(bill * 10**9), 0)
    assert bill < alone


def test_canceled_response_that_had_begun_stays_at_its_bound(tmp_path: Path) -> None:
    """The provider may bill what it does not report."""
    provider = BackgroundProvider(CANCELED)
    with (
        socket_upstream(provider.handle) as upstream,
        running_daemon(tmp_path, upstream, extensions={"limited": LIMITED}) as daemon,
        daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
    ):
        http.post("/v1/responses", json={**BODY, "background": True})
        bound = spent(daemon)
        assert http.post("/v1/responses/resp_1/cancel").json()["status"] == "cancelled"
        assert http.get("/v1/responses/resp_1").json()["status"] == "cancelled"
        provider.ended |= {"usage": USAGE}
        http.get("/v1/responses/resp_1")
        # The settlement before it would have been written by now.
        assert settled(daemon, bound) == (BILL, 0)


def test_response_that_begins_while_it_is_canceled_is_charged(tmp_path: Path) -> None:
    def handle(connection: UpstreamConnection) -> None:
        while request := connection.read_request():
            fields: dict[str, Any] = QUEUED
            if request.split(b" ")[1].endswith(b"/cancel"):
                fields = {**QUEUED, **CANCELED, "output": [WORD]}
            body = json.dumps(fields).encode()
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            connection.send(head % len(body) + body)

    with (
        socket_upstream(handle) as upstream,
        running_daemon(tmp_path, upstream, extensions={"limited": LIMITED}) as daemon,
        daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
    ):
        http.post("/v1/responses", json={**BODY, "background": True})
        bound = spent(daemon)
        assert http.post("/v1/responses/resp_1/cancel").json()["status"] == "cancelled"
        found = settled(daemon, bound)
        assert 0 < found[0] == found[1] < bound[0]


def test_response_that_is_canceled_before_it_began_costs_nothing(tmp_path: Path) -> None:
    options = EmulatorOptions(background=50.0, latency=Latency(first=0.0))
    with (
        emulator.running(options) as emu,
        running_daemon(
            tmp_path, emu, llm=llm_yaml(emu.url), extensions={"limited": LIMITED}
        ) as daemon,
        daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
    ):
        body = {"model": "gpt-5.2", "input": "Hello?", "background": True, "store": True}
        id = http.post("/v1/responses", json=body).json()["id"]
        bound = spent(daemon)
        assert bound[0] > 0
        assert http.post(f"/v1/responses/{id}/cancel").json()["status"] == "cancelled"
        assert settled(daemon, bound) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_bill_is_settled_after_a_restart(stream: bool, tmp_path: Path) -> None:
    """Also where the app left the stream."""
    options = EmulatorOptions(background=5.0, latency=Latency(first=0.0, pace=0.02))
    with emulator.running(options) as emu:
        home = tmp_path / "home"
        tokens = create_home(home, emu, extensions={"limited": LIMITED})
        with (
            running_node(home, tokens) as daemon,
            daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
        ):
            id = begin(http, stream=stream)
        with (
            running_node(home, tokens) as daemon,
            daemon.client("limited", headers=AT_OPENAI | daemon.headers("limited")) as http,
        ):
            check_fetched(daemon, http, id, emu)


def test_labels_of_a_bill_that_is_settled_after_a_restart(emu: Emulator, tmp_path: Path) -> None:
    """As before it, also where the prompt has many blocks."""
    tools = [
        {"type": "function", "name": f"tool_{n}", "parameters": {"type": "object"}}
        for n in range(100)
    ]
    body = {**ASKED, "background": True, "tools": tools, "input": "Hello? " * 20_000}
    home = tmp_path / "home"
    tokens = create_home(home, emu, extensions={"limited": LIMITED})
    headers = AT_OPENAI | {"authorization": f"Bearer {tokens['limited'].reveal()}"}

    def costs(daemon: TestedDaemon) -> dict[str, int]:
        command = ["spend", "--home", str(daemon.home), "--by", "label", "--json"]
        result = CliRunner().invoke(anaphora, command, catch_exceptions=False)
        return {row["label"]: row["billed_nano_usd"] for row in json.loads(result.output)["rows"]}

    with running_node(home, tokens) as daemon, daemon.client(None, headers=headers) as http:
        id = str(http.post("/v1/responses", json=body).json()["id"])
    with running_node(home, tokens) as daemon, daemon.client(None, headers=headers) as http:
        bound = spent(daemon)
        emu.advance(10)
        assert http.get(f"/v1/responses/{id}").json()["status"] == "completed"
        billed, _ = settled(daemon, bound)
        assert costs(daemon)["conversation"] > billed * 3 // 4


def test_bill_is_settled_by_any_node(
    emu: Emulator, postgres_place: PostgresPlace, tmp_path: Path
) -> None:
    with running_nodes(tmp_path, emu, postgres_place.url, extensions={"limited": LIMITED}) as (
        first,
        second,
    ):
        headers = AT_OPENAI | first.headers("limited")
        with (
            first.client("limited", headers=headers) as one,
            second.client("limited", headers=headers) as two,
        ):
            id = begin(one, stream=False)
            check_fetched(second, two, id, emu)
            # Nothing changes when the node fetches it that made the call.
            found = spent(second)
            assert one.get(f"/v1/responses/{id}").status_code == 200
            assert spent(second) == found
            assert two.post("/v1/responses", json={**ASKED, "previous_response_id": id})


ASKED = {"model": "gpt-5.2", "input": "Hello?", "store": True}


def begin(http: httpx.Client, *, stream: bool) -> str:
    """The id of a background response that is not complete."""
    body = {**ASKED, "background": True}
    if not stream:
        return str(http.post("/v1/responses", json=body).json()["id"])
    with http.stream("POST", "/v1/responses", json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data:"))
        assert any("output_text.delta" in line for line in lines)
        return str(json.loads(first.removeprefix("data:"))["response"]["id"])


def check_fetched(daemon: TestedDaemon, http: httpx.Client, id: str, emu: Emulator) -> None:
    bound = spent(daemon)
    assert bound[0] == bound[1] > 0
    emu.advance(10)
    assert http.get(f"/v1/responses/{id}").json()["status"] == "completed"
    (call,) = (each for each in emu.requests() if each.get("cost_usd"))
    assert settled(daemon, bound) == (int(Decimal(call["cost_usd"]) * 10**9), 0)

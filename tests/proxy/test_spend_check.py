"""`SpendCheck`: real SDKs are stopped at a limit in dollars, on the emulator."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as checked
from hypothesis import strategies as st
from support.sdk_programs import AWS, PROGRAMS, History, status_of
from support.socket_upstream import SocketUpstream, answering, socket_upstream

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.faults import HEADER
from anaphora.emulator.server import Emulator
from anaphora.proxy.routes import NetworkUpstream, default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.proxy.signing import RequestSigner
from anaphora.proxy.spend_check import ProgramLimit, SpendCheck
from anaphora.traffic.calls import KEPT_BYTES
from anaphora.traffic.judging import Judge

pytestmark = [
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),
    pytest.mark.usefixtures("more_faults"),
]

every = pytest.mark.parametrize("name", PROGRAMS)
either = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
QUESTION: History = [("user", "Rome?")]
CLAUDE = {"x-api-key": "any", "anthropic-version": "2023-06-01", "content-type": "application/json"}


@pytest.fixture(scope="module")
def _emulator() -> Iterator[Emulator]:
    options = EmulatorOptions(latency=Latency(first=0.0))
    with emulator.running(options) as emu:
        yield emu


@pytest.fixture
def emu(_emulator: Emulator) -> Emulator:
    _emulator.reset()
    return _emulator


class Limited:
    """A proxy with the limit."""

    def __init__(self, proxy: Proxy, limit: ProgramLimit, judge: Judge) -> None:
        self.proxy, self.limit, self.judge = proxy, limit, judge

    def settled(self) -> ProgramLimit:
        assert self.proxy.settle(10.0)
        return self.limit


@contextmanager
def limited(emu: Emulator | SocketUpstream, usd: str) -> Iterator[Limited]:
    judge, limit = Judge(), ProgramLimit(Decimal(usd))
    urls = {"anthropic": emu.url, "openai": f"{emu.url}/v1", "google": emu.url, "bedrock": emu.url}
    with running(
        default_routes(urls | {"ollama": f"{emu.url}/ollama"}, region="us-east-1"),
        observers=[judge, SpendCheck(judge, limit)],
        upstream=NetworkUpstream(signer=RequestSigner(AWS)),
    ) as proxy:
        yield Limited(proxy, limit, judge)


def post(
    run: Limited, path: str, body: Any, provider: str = "anthropic", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    url = urlsplit(run.proxy.url_of(provider))
    connection = HTTPConnection(url.hostname or "", url.port)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", url.path + path, data, CLAUDE | headers)
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def message(text: str = "Rome?", model: str = "claude-opus-5-5", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "max_tokens": 50, "messages": messages, **more}


def billed(emu: Emulator) -> Decimal:
    bills = (Decimal(each["cost_usd"]) for each in emu.requests() if each.get("cost_usd"))
    return sum(bills, Decimal(0))


# ── Programs with SDKs ───────────────────────────────────────────────────────────────────────────


@every
@either
def test_the_last_call_may_pass_it_and_later_ones_get_402(
    emu: Emulator, name: str, stream: bool
) -> None:
    with limited(emu, "0.0001") as run:
        program = PROGRAMS[name](run.proxy, {})
        assert program.ask(QUESTION, stream=stream)
        for _ in range(2):
            with pytest.raises(program.Refused, match="stopped by anaphora watch") as refused:
                program.ask(QUESTION, stream=stream)
            assert status_of(refused.value) == 402
            assert r"limit of $0.0001 (--max-usd): it is used up, with $0." in str(refused.value)
        limit = run.settled()
        assert (limit.calls, limit.refused) == (1, 2), "no SDK tries again"
        assert limit.spent_usd >= billed(emu) > Decimal("0.0001")
        if name != "openai_chat" or not stream:  # which has no bill, unless it is asked for
            assert limit.spent_usd == billed(emu)
        assert limit.spent_usd < 8 * billed(emu)
        assert run.judge.summary().kinds["refused"] == 2
    assert limit.headline.startswith("limit of $0.0001: $0.")
    assert limit.headline.endswith(" spent in 1 call, 2 calls refused")


@every
def test_bills_are_counted_below_it(emu: Emulator, name: str) -> None:
    with limited(emu, "5") as run:
        program = PROGRAMS[name](run.proxy, {})
        history: History = []
        for question in ("Rome?", "Oslo?", "Bern?"):
            history.append(("user", question))
            history.append(("assistant", program.ask(history)))
        limit = run.settled()
        assert (limit.calls, limit.refused) == (3, 0)
        assert limit.held_usd == 0
        assert limit.spent_usd == billed(emu) == run.judge.summary().spent_usd


# ── Requests of other kinds ──────────────────────────────────────────────────────────────────────


def test_refusal_is_not_to_be_repeated_and_names_no_key(emu: Emulator) -> None:
    with limited(emu, "0") as run:
        status, headers, body = post(run, "/v1/messages", message())
        assert (status, headers["x-should-retry"]) == (402, "false")
        error = json.loads(body)["error"]
        assert error["message"] == (
            "stopped by anaphora watch at its limit of $0 (--max-usd): it is used up, with $0 spent"
            " in 0 calls. This call was not sent."
        )


def test_free_calls_pass(emu: Emulator) -> None:
    with limited(emu, "0") as run:
        counting = {key: value for key, value in message().items() if key != "max_tokens"}
        assert post(run, "/v1/messages/count_tokens", counting)[0] == 200
        assert post(run, "/api/event_logging/batch", {"events": []})[0] == 404, "of the emulator"
        url = urlsplit(run.proxy.url_of("anthropic"))
        connection = HTTPConnection(url.hostname or "", url.port)
        connection.request("GET", f"{url.path}/v1/models", headers=CLAUDE)
        assert connection.getresponse().status == 200
        connection.close()
        assert run.settled().refused == 0


def test_calls_of_unknown_cost_are_refused(emu: Emulator) -> None:
    chat = {"model": "qwen3:0.6b", "stream": False, "messages": [{"role": "user", "content": "Hi"}]}
    with limited(emu, "5") as run:
        status, _, body = post(run, "/v1/chat/completions", chat, "ollama")
        assert status == 402
        assert b"no price is known for qwen3:0.6b" in body
        status, _, body = post(run, "/v1/messages/batches", {"requests": []})
        assert status == 402
        assert b"the cost of /v1/messages/batches is not known here" in body, body.decode()
        status, _, body = post(run, "/v1/messages", b"{")
        assert status == 402
        assert b"it cannot be read, so its cost is unknown" in body
    assert not [each for each in emu.requests() if "read" in each]


def test_a_compressed_request_is_read(emu: Emulator) -> None:
    import gzip

    body = gzip.compress(json.dumps(message()).encode())
    with limited(emu, "5") as run:
        status, _, _ = post(run, "/v1/messages", body, **{"content-encoding": "gzip"})
        limit = run.settled()
        assert (status < 400) == (limit.spent_usd > 0)
        assert limit.calls == 1


def test_a_body_that_is_too_large_to_read_is_not_sent(emu: Emulator) -> None:
    large = message("x" * (KEPT_BYTES + 1_000_000))
    with limited(emu, "5") as run:
        status, _, answer = post(run, "/v1/messages", large)
        assert status == 402
        assert b"its body is larger than 32 MB" in answer
        assert run.settled().refused == 1
    assert not emu.requests()
    with limited(emu, "0") as run:
        assert post(run, "/v1/messages", large)[0] == 402


def test_other_forms_of_a_path_are_counted(emu: Emulator) -> None:
    key = {"authorization": "Bearer any"}
    for path in ("/v1/messages/", "//v1/%6dessages?beta=true"):
        emu.reset()
        with limited(emu, "5") as run:
            assert post(run, path, message(), **key)[0] == 200
            assert run.settled().calls == 1
            assert run.limit.spent_usd >= billed(emu)
            assert run.limit.spent_usd > 0


def answered(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return f"{head}\r\n".encode() + data


def test_a_compaction_is_counted_by_its_bill() -> None:
    question = {"model": "gpt-5.6", "input": [{"role": "user", "content": "Rome?"}]}
    usage = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
    compacted = {"id": "resp_1", "object": "response.compaction", "output": [], "usage": usage}
    with socket_upstream(answering(answered(compacted))) as server, limited(server, "5") as run:
        assert post(run, "/responses/compact", question, "openai", authorization="x")[0] == 200
        limit = run.settled()
        assert limit.calls == 1
        assert limit.spent_usd > 0


def test_an_answer_in_the_background_counts_at_its_upper_end(emu: Emulator) -> None:
    """Its bill comes with a later request, if at all."""
    body = {"model": "gpt-5.6", "input": "Rome?", "max_output_tokens": 5000}
    queued: dict[str, Any] = {"id": "resp_1", "status": "queued", "output": [], "usage": None}
    with socket_upstream(answering(answered(queued))) as server, limited(server, "5") as run:
        waiting = body | {"background": True}
        status, _, answer = post(run, "/responses", waiting, "openai", authorization="Bearer any")
        assert (status, json.loads(answer)["status"]) == (200, "queued")
        limit = run.settled()
        whole = limit.spent_usd
        assert limit.held_usd == 0
    with limited(emu, "5") as run:
        post(run, "/responses", body, "openai", authorization="Bearer any")
        assert 0 < run.settled().spent_usd < whole / 10


def test_errors_of_the_provider_cost_nothing(emu: Emulator) -> None:
    with limited(emu, "5") as run:
        assert post(run, "/v1/messages", message(), **{HEADER: "529"})[0] == 529
        assert post(run, "/v1/messages", message(max_tokens=-1))[0] >= 400
        limit = run.settled()
        assert limit.spent_usd == limit.held_usd == 0


@pytest.mark.long
def test_a_stream_that_is_left_counts(emu: Emulator) -> None:
    with limited(emu, "5") as run:
        url = urlsplit(run.proxy.url_of("anthropic"))
        connection = HTTPConnection(url.hostname or "", url.port)
        fault = {HEADER: "slow-drip; seconds=6"}
        body = json.dumps(message("Tell a story", stream=True, max_tokens=4000))
        connection.request("POST", f"{url.path}/v1/messages", body, CLAUDE | fault)
        answer = connection.getresponse()
        assert answer.read(10)
        with run_lock(run):
            held = run.limit.held_usd
        assert held > 0
        answer.close()
        connection.close()
        limit = run.settled()
        assert limit.held_usd == 0
        assert 0 < limit.spent_usd < held


@contextmanager
def run_lock(run: Limited) -> Iterator[None]:
    """Waits until a call is in flight."""
    end = time.monotonic() + 20
    while not run.limit.held_usd:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield


def test_calls_wait_for_those_in_flight(emu: Emulator) -> None:
    """A call may cost 0.1 dollars, and costs a hundredth of it: with a limit of 0.05, they are sent
    one after the other, and none is refused."""
    with limited(emu, "0.05") as run:
        statuses: list[int] = []

        def ask(number: int) -> None:
            body = message(f"Number {number}", max_tokens=4000)
            statuses.append(post(run, "/v1/messages", body)[0])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        limit = run.settled()
        assert statuses == [200] * 4
        assert (limit.calls, limit.refused) == (4, 0)
        assert limit.spent_usd == billed(emu)


# ── The law ──────────────────────────────────────────────────────────────────────────────────────


@checked(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(
        st.tuples(st.integers(1, 500), st.integers(0, 500), st.booleans()), min_size=2, max_size=10
    ),
    limit=st.integers(1, 300),
)
def test_only_the_last_call_exceeds_it(
    emu: Emulator, calls: list[tuple[int, int, bool]], limit: int
) -> None:
    emu.reset()
    usd = Decimal(limit) / 10_000
    with limited(emu, str(usd)) as run:

        def ask(index: int, most: int, words: int, stream: bool) -> None:
            body = message(f"Call {index} " + "word " * words, max_tokens=most, stream=stream)
            status, _, _ = post(run, "/v1/messages", body)
            assert status in (200, 402)

        threads = [
            threading.Thread(target=ask, args=(index, *call)) for index, call in enumerate(calls)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = run.settled()
    bills = [Decimal(each["cost_usd"]) for each in emu.requests() if each.get("cost_usd")]
    assert found.spent_usd == sum(bills)
    assert found.calls == len(bills)
    assert found.calls + found.refused == len(calls)
    assert sum(bills) < usd + max(bills)
    assert not found.refused or found.spent_usd >= usd

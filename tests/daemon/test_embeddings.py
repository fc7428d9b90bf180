"""`/v1/embeddings` through the daemon: under a grant, held, settled and audited like a call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.daemon import GRANT, TestedDaemon, running_daemon
from support.ended_calls import entries, open_holds, outcomes, raw_request
from support.failing_provider import failing_daemon
from support.rpc_calls import audit_rows
from support.tables import each_row
from support.waiting import wait_until

from anaphora import emulator
from anaphora.daemon.endpoints.embeddings import most_tokens
from anaphora.emulator.server import Emulator
from anaphora.errors import RequestRejected

MODEL = "text-embedding-3-small"
ASKED = {"model": MODEL, "input": "A harbour."}
#: Nano-dollars of a token of that model.
PRICE = 20


def grant(**fields: Any) -> dict[str, Any]:
    return {**GRANT, "llm": {**GRANT["llm"], "allow": ["embeddings"], **fields}}


GRANTS = {
    "demo": grant(),
    "counted": grant(),
    "none": GRANT,
    "poor": grant(usd_per_day=0.00001),
    "unlimited": grant(usd_per_day="unlimited", allow=["embeddings", {"fields": ["input_type"]}]),
    "other": grant(models=["text-embedding-3-large"]),
    "claude": grant(providers=["anthropic"]),
    "slow": grant(requests_per_minute=1),
    "no-calls": {"capabilities_grant": [], "llm": grant()["llm"]},
}


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(emu: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, emu, extensions=GRANTS) as running:
        yield running


def post(daemon: TestedDaemon, app: str, **fields: Any) -> httpx.Response:
    with daemon.client(app) as client:
        return client.post("/v1/embeddings", json={**ASKED, **fields})


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_sdk_gets_the_provider_s_vectors(
    encoding: Any, daemon: TestedDaemon, emu: Emulator
) -> None:
    made = []
    for url, key in ((daemon.url, daemon.token()), (emu.url, "any")):
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
            answer = client.embeddings.create(
                model=MODEL, input=["one", "two"], dimensions=8, encoding_format=encoding
            )
        assert answer.usage.prompt_tokens > 0
        made.append([each.embedding for each in answer.data])
    assert made[0] == made[1]
    assert len(made[0]) == 2


def test_it_is_billed_by_its_input_and_audited(daemon: TestedDaemon) -> None:
    response = post(daemon, "counted")
    assert response.status_code == 200, response.text
    tokens = response.json()["usage"]["prompt_tokens"]
    [(kind, billed, bound, input, output)] = entries(daemon, "counted")
    assert (kind, billed, input, output) == ("billed", tokens * PRICE, tokens, 0)
    assert bound >= len("A harbour.") * PRICE
    assert float(response.headers["anaphora-cost-usd"]) == pytest.approx(billed / 1e9)
    assert response.headers["anaphora-provider"] in ("openai", "openai-chat")
    assert outcomes(daemon, "counted") == [("ok", billed)]
    (row,) = [row for row in audit_rows(daemon) if row.app == "counted"]
    assert (row.method, row.operation, row.model) == ("/v1/embeddings", "embeddings", MODEL)
    assert row.call_id == response.headers["anaphora-request-id"]
    assert (row.usage.uncached, row.system) == (tokens, "openai")


@each_row(
    ("app", "fields", "status", "reason"),
    [
        ("none", {}, 403, "not in allow (embeddings) of the grant"),
        ("no-calls", {}, 403, "is not granted llm_complete"),
        ("other", {}, 403, "is not granted to other"),
        ("claude", {}, 403, "no granted provider has embeddings"),
        ("demo", {"model": "openai/embed-unpriced"}, 403, "no price is known for embed-unpriced"),
        ("demo", {"input_type": "query"}, 403, "field 'input_type' is not in allow (fields)"),
        ("demo", {"input": {"image": "x"}}, 400, "input: must be a text"),
        ("demo", {"model": 7}, 400, "model: must be the name of a model"),
        ("poor", {"input": "A harbour. " * 1000}, 402, "usd_per_day"),
    ],
)  # fmt: skip
def test_refusals(
    app: str, fields: dict[str, Any], status: int, reason: str, daemon: TestedDaemon
) -> None:
    response = post(daemon, app, **fields)
    assert response.status_code == status, response.text
    assert reason in response.json()["error"]["message"]
    assert not open_holds(daemon, app)


def test_a_model_without_a_price_is_sent_without_a_limit(daemon: TestedDaemon) -> None:
    response = post(daemon, "unlimited", model="openai/embed-unpriced", input_type="query")
    assert response.status_code == 200, response.text
    assert "anaphora-cost-usd" not in response.headers


def test_rates_of_the_grant_count(daemon: TestedDaemon) -> None:
    assert post(daemon, "slow").status_code == 200
    assert post(daemon, "slow").status_code == 429


def test_error_of_the_provider(daemon: TestedDaemon) -> None:
    response = post(daemon, "unlimited", model="gpt-5.2")
    assert response.status_code == 403
    assert "not allowed to generate embeddings" in response.json()["error"]["message"]


def test_usage_that_is_missing_or_cannot_be_true(tmp_path: Path) -> None:
    with failing_daemon(tmp_path, extensions={"demo": grant()}) as (daemon, provider):
        for usage in ({}, {"prompt_tokens": 10**9}):
            provider.fail(200, {"object": "list", "data": [], "usage": usage})
            assert (made := post(daemon, "demo")).status_code == 200, made.text
        provider.fail(500, {"error": {"message": "broken"}})
        assert post(daemon, "demo").status_code >= 500
        bound = (len("A harbour.") + 2) * PRICE
        settled = [(kind, billed) for kind, billed, *_ in entries(daemon, "demo", 3)]
        assert settled == [("bound", bound), ("disputed", bound), ("free", 0)]


def test_an_app_that_leaves_is_billed_what_it_cost(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    with failing_daemon(tmp_path, extensions={"demo": grant()}) as (daemon, provider):
        provider.fail(200, {"object": "list", "data": [], "usage": usage})
        whole, provider.data = provider.data, b""
        provider.later = (b"",) * 20 + (whole,)
        with raw_request(daemon, "demo", "/v1/embeddings", ASKED, "openai"):
            wait_until(lambda: provider.requests, "the request arrived")
        [(kind, billed, *_)] = entries(daemon, "demo")
    assert (kind, billed) == ("billed", 3 * PRICE)


@each_row(
    ("given", "tokens"),
    [("abc", 5), ("ü", 4), (["a", "b"], 6), ([7, 8, 9], 5), ([[7], [8, 9]], 7), ([], 0)],
)
def test_the_most_tokens_of_an_input(given: Any, tokens: int) -> None:
    assert most_tokens(given) == tokens


@each_row("given", [None, 7, [None], ["a", 7], [[]], {"text": "a"}, [[True]]])
def test_other_inputs_are_rejected(given: Any) -> None:
    with pytest.raises(RequestRejected, match="input: must be"):
        most_tokens(given)

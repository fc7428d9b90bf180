"""Requests of Responses that name a prompt which OpenAI keeps: its model and size are hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.daemon import GRANT, TestedDaemon
from support.failing_provider import FailingProvider, failing_daemon
from support.rpc_calls import audit_rows

from anaphora import wire
from anaphora.values import Message, Reply, Usage
from anaphora.wire.replies import reply_events

PROMPT: dict[str, Any] = {"id": "pmpt_1", "variables": {"city": "Paris"}}
BODY: dict[str, Any] = {"prompt": PROMPT, "input": "hi"}


def grant(**llm: Any) -> dict[str, Any]:
    base = {**GRANT["llm"], "usd_per_day": "unlimited", "allow": ["stored_prompts"]}
    return {**GRANT, "llm": {**base, **llm}}


APPS = {
    "none": grant(allow=[]),
    "open": grant(),
    "narrow": grant(models=["gpt-5.2"]),
    "elsewhere": grant(providers=["anthropic"]),
    "daily": grant(usd_per_day=5),
    "monthly": grant(usd_per_day="unlimited", usd_per_month=5),
    "approved": grant(approved_prompt="prompt1:0"),
}


@pytest.fixture(scope="module")
def failing(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[TestedDaemon, FailingProvider]]:
    with failing_daemon(tmp_path_factory.mktemp("daemon"), extensions=APPS) as both:
        yield both


@pytest.fixture
def daemon(failing: tuple[TestedDaemon, FailingProvider]) -> TestedDaemon:
    daemon, provider = failing
    provider.requests.clear()
    reply = Reply(
        id="resp_1",
        model="gpt-5.2-pro",
        message=Message.assistant("ok"),
        stop_reason="end",
        usage=Usage(uncached=9, output=1),
    )
    codec = wire.get("openai_responses")
    provider.fail(200, codec.write_reply(reply), "content-type: application/json")
    writer = codec.writer()
    provider.streamed = "".join(writer.write(each).decode() for each in reply_events(reply))
    return daemon


def ask(daemon: TestedDaemon, app: str, **changes: Any) -> Any:
    with daemon.client(app) as http:
        return http.post("/v1/responses", json={**BODY, **changes})


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("none", {}, 403, "stored_prompts"),
    ("none", {"model": "gpt-5.2"}, 403, "stored_prompts"),
    ("daily", {}, 400, "no bound"),
    ("daily", {"model": "gpt-5.2"}, 400, "no bound"),
    ("monthly", {}, 400, "no bound"),
    ("approved", {}, 403, "approves one prompt"),
    ("elsewhere", {}, 400, "prompt"),
    ("narrow", {"model": "gpt-5-nano"}, 403, "gpt-5.2"),
    ("open", {"prompt": None}, 400, "model"),
    (
        "open",
        {"prompt": {**PROMPT, "variables": {"doc": {"type": "input_file", "file_id": "file_1"}}}},
        404,
        "file_1",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("app", "changes", "status", "text"), REFUSED)
def test_stored_prompt_is_refused(
    app: str,
    changes: dict[str, Any],
    status: int,
    text: str,
    stream: bool,
    daemon: TestedDaemon,
    failing: tuple[TestedDaemon, FailingProvider],
) -> None:
    response = ask(daemon, app, stream=stream, **changes)
    assert response.status_code == status, response.text
    assert text in response.json()["error"]["message"]
    assert failing[1].requests == []


@pytest.mark.parametrize("app", ["open", "narrow"])
@pytest.mark.parametrize("stream", [False, True])
def test_stored_prompt_passes(
    app: str, stream: bool, daemon: TestedDaemon, failing: tuple[TestedDaemon, FailingProvider]
) -> None:
    provider = failing[1]
    if stream:
        provider.stream_pieces(provider.streamed)
    response = ask(daemon, app, stream=stream)
    assert response.status_code == 200, response.text
    assert "ok" in response.text
    sent = json.loads(provider.requests[-1].partition(b"\r\n\r\n")[2])
    message = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert sent["input"] == [{"type": "message", **message}]
    assert (sent["prompt"], "model" in sent) == (PROMPT, False)
    (row,) = [
        each
        for each in audit_rows(daemon)
        if each.call_id == response.headers["anaphora-request-id"]
    ]
    assert row.answered_by == "gpt-5.2-pro"


def test_model_beside_a_stored_prompt_passes(
    daemon: TestedDaemon, failing: tuple[TestedDaemon, FailingProvider]
) -> None:
    response = ask(daemon, "narrow", model="gpt-5.2")
    assert response.status_code == 200, response.text
    sent = json.loads(failing[1].requests[-1].partition(b"\r\n\r\n")[2])
    assert (sent["prompt"], sent["model"]) == (PROMPT, "gpt-5.2")

"""The programs in examples/ run as they are."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import agent
import web_backend
from anaphora import emulator


def test_agent_reads_the_cache_in_every_later_call(capsys: pytest.CaptureFixture[str]) -> None:
    agent.main()
    shown = capsys.readouterr().out
    assert shown.count("> ") == 2
    assert shown.count("after: Hit: ") == 2
    assert "turns, $0.00" in shown


def test_web_backend_shares_the_prefix_between_users() -> None:
    with emulator.running() as emu:
        app = web_backend.create_app(web_backend.emulated_config(emu.url), environ={"KEY": "any"})
        with TestClient(app) as client:
            for user in ("ada", "ada", "bob"):
                answer = client.post(f"/chat/{user}", content="Hello?")
                assert answer.status_code == 200
                assert answer.text
            costs = client.get("/costs").json()
        second_user, *_ = emu.requests()
    assert set(costs) == {"ada", "bob"}
    assert costs["ada"]["verdict"].startswith("Hit: ")
    assert float(costs["ada"]["cost_usd"]) > float(costs["bob"]["cost_usd"]) > 0
    assert second_user["read"] > 500, "bob reads the instructions that ada's call cached"


def test_web_backend_reports_an_error_in_the_stream() -> None:
    with emulator.running(emulator.EmulatorOptions()) as emu:
        config = web_backend.emulated_config(emu.url)
        config["providers"]["claude"] |= {
            "headers": {"x-emulator-fault": "529"},
            "retry": {"max_attempts": 1},
        }
        with TestClient(web_backend.create_app(config, environ={"KEY": "any"})) as client:
            assert "[error: " in client.post("/chat/ada", content="Hello?").text
            assert client.get("/costs").json() == {}

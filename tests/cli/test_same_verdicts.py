"""A session, `watch`, the daemon, `explain` and `simulate` say the same about the same calls.

A session talks to the emulator, with several breaks. Its requests are then sent once more, byte by
byte and after the same pauses, through the proxy and through a daemon; `explain` and `simulate`
read them from a log.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from support.daemon import GRANT, NO_TLS, llm_yaml, running_daemon
from support.emulated_client import LONG, MODELS, connected
from support.session_breaks import MOMENT, STEPS, STORY
from support.waiting import PATIENCE

from anaphora import catalog
from anaphora.audit import AuditEnvelope, rows
from anaphora.cache.sent_call import ttl_seconds
from anaphora.cache.verdict import Verdict
from anaphora.cli.common import anaphora
from anaphora.emulator.server import Emulator
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import running
from anaphora.traffic.judging import Judge

#: By the name of the provider: that of the catalog, and the path at the proxy and the daemon.
PLACES = {
    "anthropic": ("anthropic", "/v1/messages"),
    "openai_responses": ("openai", "/v1/responses"),
    "openai_chat": ("openai", "/v1/chat/completions"),
    "deepseek": ("deepseek", "/chat/completions"),
}


class Clock:
    """Real time, moved forward by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self._shift = time.time, 0.0
        monkeypatch.setattr("time.time", lambda: self._real() + self._shift)

    def wait(self, seconds: float) -> None:
        self._shift += seconds


class Sent(NamedTuple):
    """A request of the session, and how long it was after the one before."""

    pause: float
    path: str
    body: bytes
    answer: bytes
    at: float


class Said(NamedTuple):
    """What one interface says about a call."""

    result: str
    cause: str | None
    predicted: int | None
    lost: int
    remedy: str | None

    @classmethod
    def of(cls, verdict: Verdict | None) -> Said:
        assert verdict is not None
        remedy = None if verdict.remedy is None else verdict.remedy.kind
        return cls(verdict.result, verdict.cause, verdict.predicted, verdict.lost, remedy)


# ── The conversation ─────────────────────────────────────────────────────────────────────────────


async def converse(emu: Emulator, name: str, clock: Clock) -> tuple[list[Sent], list[Said]]:
    lifetime = ttl_seconds(catalog.rules(PLACES[name][0], MODELS[name]))
    sent: list[Sent] = []
    said: list[Said] = []
    async with connected(emu, (name,)) as emulated:
        chat = emulated.client.session(name, system=LONG, on_prefix_break="off")
        for turn, (step, lifetimes, _) in enumerate(STEPS):
            step(chat)
            pause = MOMENT + lifetimes * lifetime
            clock.wait(pause)
            response = await chat.send(f"Turn {turn}. {STORY}")
            said.append(Said.of(response.verdict))
            request = emulated.transport.sent[-1]
            sent.append(
                Sent(
                    pause,
                    httpx.URL(request.url).path,
                    request.body,
                    bytes(emulated.transport.received[-1]),
                    time.time(),
                )
            )
    return sent, said


# ── The same requests elsewhere ──────────────────────────────────────────────────────────────────


def watched(emu: Emulator, name: str, calls: list[Sent], clock: Clock) -> list[Said]:
    provider, path = PLACES[name]
    judge = Judge()
    routes = default_routes({provider: f"{emu.url}/{provider}"})
    headers = {"x-api-key": "other", "authorization": "Bearer other"}
    with running(routes, observers=[judge]) as proxy:
        for call in calls:
            clock.wait(call.pause)
            post(proxy.url_of(provider) + path, call.body, headers)
    return [Said.of(call.verdict) for call in judge.calls]


def post(url: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    kinds = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    answer = httpx.post(
        url, content=body, headers={**kinds, **headers}, verify=NO_TLS, timeout=PATIENCE
    )
    assert answer.status_code == 200, answer.text
    return answer


def served(emu: Emulator, name: str, calls: list[Sent], clock: Clock, folder: Path) -> list[Said]:
    """By a daemon that leaves requests as they are, from its audit log and its headers."""
    id = {"openai_responses": "openai", "openai_chat": "openai-chat"}.get(name, name)
    llm = llm_yaml(emu.url)
    llm["providers"] = {id: {**llm["providers"][id], "model": MODELS[name]}}
    grant = {**GRANT["llm"], "providers": [id], "place_markers": False, "share_cache": True}
    extensions = {"demo": {**GRANT, "llm": grant}}
    path, remedies = PLACES[name][1], list[str | None]()
    with running_daemon(folder, emu, extensions=extensions, llm=llm) as daemon:
        for call in calls:
            clock.wait(call.pause)
            url = f"{daemon.url}{path if path.startswith('/v1') else '/v1' + path}"
            answer = post(url, call.body, daemon.headers("demo"))
            remedy = json.loads(answer.headers["anaphora-verdict"]).get("remedy")
            remedies.append(None if remedy is None else remedy["kind"])
        home = daemon.home
    kept = [row.content for row in rows(home / "audit") if isinstance(row.content, AuditEnvelope)]
    return [
        Said(row.verdict or "", row.cause, row.predicted, row.lost, remedy)
        for row, remedy in zip(kept, remedies, strict=True)
    ]


def logged(calls: list[Sent], provider: str, folder: Path) -> tuple[list[Said], list[Said]]:
    """What `explain` and `simulate` say about a log of the calls."""
    file = folder / "log.jsonl"
    lines = [
        msgspec.json.encode(
            {
                "request": msgspec.Raw(call.body),
                "response": msgspec.Raw(call.answer),
                "provider": provider,
                "path": call.path,
                "time": call.at,
            }
        )
        for call in calls
    ]
    file.write_bytes(b"\n".join(lines))

    def run(command: str) -> Any:
        done = CliRunner().invoke(anaphora, [command, str(file), "--json"])
        return json.loads(done.stdout)

    def said(fields: dict[str, Any]) -> Said:
        causes = fields["causes"]
        cause = causes[0]["kind"] if causes else None
        remedy = None if fields["remedy"] is None else fields["remedy"]["kind"]
        return Said(fields["result"], cause, fields["predicted"], fields["lost"], remedy)

    explained = [said(turn["verdict"]) for turn in run("explain")["turns"]]
    simulated = sorted(run("simulate")["rows"], key=lambda row: row["at"])
    return explained, [said(row["verdict"]) for row in simulated]


@pytest.mark.breaks_prefix(reason="messages are edited and dropped on purpose")
@pytest.mark.parametrize("name", PLACES)
def test_every_interface_says_the_same(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    clock = Clock(monkeypatch)
    calls, session = asyncio.run(converse(emu, name, clock))
    explained, simulated = logged(calls, PLACES[name][0], tmp_path)
    everywhere = {
        "watch": watched(emu, name, calls, clock),
        "daemon": served(emu, name, calls, clock, tmp_path),
        "explain": explained,
        "simulate": simulated,
    }
    for turn, (_, _, cause) in enumerate(STEPS):
        assert session[turn].cause == cause, turn
        for interface, said in everywhere.items():
            assert said[turn] == session[turn], (interface, turn)

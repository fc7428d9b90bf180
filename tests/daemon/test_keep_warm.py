"""`keep_warm` of a grant: the daemon keeps the cached prefixes of an app alive during pauses."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner
from support.daemon import KEY, llm_yaml, running_daemon
from support.honest_apps import charges, provider_bills
from support.ledgers import rows
from support.waiting import PATIENCE, wait_until
from support.warm_daemon import (
    CANARY,
    MINUTE,
    PARAGRAPH,
    SYSTEM,
    Conversation,
    Provider,
    WarmDaemon,
    grant,
)

from anaphora.cli.common import anaphora
from anaphora.daemon.access.identity import ADMIN
from anaphora.emulator.server import Emulator


@pytest.fixture
def warm(emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    shift, real = [0.0], time.time
    monkeypatch.setattr("time.time", lambda: real() + shift[0])
    provider = Provider(emu)
    monkeypatch.setattr(emu.engine, "receive", provider.receive)

    @contextmanager
    def run(providers: dict[str, Any] | None = None, **extensions: Any) -> Iterator[WarmDaemon]:
        grants, llm = extensions or {"demo": grant()}, llm_yaml(emu.url)
        llm["providers"] |= providers or {}
        with running_daemon(tmp_path, emu, extensions=grants, llm=llm) as daemon:
            yield WarmDaemon(daemon, provider, shift)

    return run


def test_refreshes_are_calls_of_the_app(warm: Callable[..., Any]) -> None:
    """In the explanation of the next call, the audit log, the ledger, `spend` and the metrics."""
    with warm() as running:
        chat = Conversation(running)
        chat.converse(7, 7, 7)
        sent = running.refreshes()
        assert sent
        assert all(body["max_tokens"] == 0 and "stream" not in body for body in sent)
        explained = chat.explained()
        assert explained["verdict"]["result"] == "hit"
        usd = Decimal(explained["verdict"]["kept_warm_usd"])
        assert usd > 0
        sentence = explained["verdict"]["sentence"]
        assert "Keeping the prefix alive until this call cost $0.0" in sentence
        assert "kept_warm" in [notice["code"] for notice in explained["notices"]]
        with running.daemon.client(ADMIN) as client:
            metrics = client.get("/metrics").text
    audited = running.audited()
    kept = [row for row in audited if row.operation == "prewarm"]
    assert len(kept) == len(sent)
    assert {(row.app, row.method, row.adapter) for row in kept} == {("demo", "keep_warm", "daemon")}
    assert {row.conversation for row in audited} == {kept[0].conversation}
    assert all(row.cost_nano_usd for row in kept)
    assert kept[-1].cost_nano_usd == usd * 10**9
    calls = f'anaphora_calls_total{{model="claude-sonnet-4-5",outcome="ok",provider="anthropic"}} {len(audited)}'
    assert calls in metrics
    assert (
        f'anaphora_prewarm_calls_total{{model="claude-sonnet-4-5",provider="anthropic"}} {len(kept)}'
        in metrics
    )
    report = CliRunner().invoke(
        anaphora, ["spend", "--home", str(running.daemon.home), "--json"], catch_exceptions=False
    )
    assert report.exit_code == 0, report.output
    total = json.loads(report.output)["total"]
    assert total["calls"] == len(audited)
    assert total["billed_nano_usd"] == sum(row.cost_nano_usd or 0 for row in audited)


def paid(running: WarmDaemon) -> int:
    return sum(row.cost_nano_usd or 0 for row in running.audited())


def test_pauses_of_four_to_nine_minutes_cost_less(warm: Callable[..., Any], tmp_path: Path) -> None:
    generator = random.Random(3)
    pauses = [generator.uniform(4, 9) for _ in range(12)]
    costs = []
    for keep_warm in (True, False):
        with warm(demo=grant(keep_warm)) as running:
            Conversation(running, f"with {keep_warm}").converse(*pauses)
            assert bool(running.refreshes()) or not keep_warm
        costs.append(paid(running))
        shutil.rmtree(tmp_path / "home")
        running.provider.requests.clear()
    assert costs[0] < costs[1]


@pytest.mark.parametrize(
    ("keep_warm", "pauses"),
    [
        (True, (60, 60, 60)),
        (True, (4, 4, 4, 4)),  # each call refreshes the prefix itself
        (False, (7, 7, 7)),
        ({"usd_per_day": 0.0001}, (7, 7, 7)),
    ],
)
def test_no_refresh(warm: Callable[..., Any], keep_warm: Any, pauses: tuple[float, ...]) -> None:
    with warm(demo=grant(keep_warm)) as running:
        chat = Conversation(running)
        chat.converse(*pauses)
        assert len(running.sent()) == 1 + len(pauses)
        codes = [notice["code"] for notice in chat.explained()["notices"]]
        assert ("keep_warm_bound" in codes) == isinstance(keep_warm, dict)


def test_refreshes_of_a_pause_are_bounded(warm: Callable[..., Any]) -> None:
    with warm(demo=grant({"refreshes": 1})) as running:
        chat = Conversation(running)
        chat.converse(7, 7, 9, 9)
        before = len(running.refreshes())
        running.wait(90 * MINUTE)
        assert len(running.refreshes()) <= before + 1
        assert running.daemon.daemon.services.calls.tools.refresher._bytes == 0


def test_daemon_looks_every_second(warm: Callable[..., Any]) -> None:
    with warm() as running:
        Conversation(running).converse(7, 7)
        before = len(running.refreshes())
        running.jump(4.8 * MINUTE)
        wait_until(lambda: len(running.refreshes()) > before)


@pytest.mark.parametrize("stream", [True, False])
def test_app_without_markers_and_streams(warm: Callable[..., Any], stream: bool) -> None:
    """The request is sent again with the markers that the planner placed, and not as a stream."""
    with warm(demo=grant(usd_per_day="unlimited")) as running:
        chat = PlainConversation(running, stream=stream)
        chat.converse(4, 7)  # later the planner chooses an hour
        assert running.refreshes()
        for refresh in running.refreshes():
            assert refresh["max_tokens"] == 0
            assert not refresh.get("stream")
            assert "cache_control" in json.dumps(refresh["messages"])


TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, 0),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, 1),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}, None),
    ],
)
def test_what_takes_no_call_without_an_answer(
    warm: Callable[..., Any], fields: dict[str, Any], limit: int | None
) -> None:
    with warm() as running:
        chat = Conversation(running, **fields)
        chat.converse(7, 7)
        assert {body["max_tokens"] for body in running.refreshes()} == {limit} - {None}
        codes = [notice["code"] for notice in chat.explained()["notices"]]
        assert ("keep_warm_impossible" in codes) == (limit is None)


class OpenAiConversation(Conversation):
    """With the format of Responses or Chat Completions, whose models of today keep a prefix for
    half an hour."""

    def __init__(
        self, warm: WarmDaemon, path: str, *, chained: bool = False, **fields: Any
    ) -> None:
        super().__init__(warm, **fields)
        self.path = path
        self.chained = chained
        self.last = ""

    def send(self) -> dict[str, Any]:
        text = {"role": "user", "content": f"{len(self.messages)}: {PARAGRAPH}"}
        self.messages.append(text)
        body: dict[str, Any] = {"model": "gpt-5.6", **self.fields}
        if self.path == "/v1/chat/completions":
            body["messages"] = [{"role": "system", "content": SYSTEM}, *self.messages]
        else:
            body |= {"instructions": SYSTEM, "input": self.messages}
        if self.chained:
            body["store"] = True
            if self.last:
                body |= {"previous_response_id": self.last, "input": [text]}
        with self.warm.daemon.client(self.app) as client:
            answer = client.post(self.path, json=body)
        assert answer.status_code == 200, answer.text
        self.ids.append(answer.headers["anaphora-request-id"])
        self.last = answer.json()["id"]
        self.messages.append({"role": "assistant", "content": "Yes."})
        return dict(answer.json())


def test_responses_is_asked_for_no_answer(warm: Callable[..., Any]) -> None:
    with warm() as running:
        OpenAiConversation(running, "/v1/responses", max_output_tokens=64).converse(40, 40)
        refresh, *_ = running.refreshes()
        assert refresh["prompt_cache_options"]["prewarm"] is True
        assert refresh["store"] is False


def test_responses_without_such_a_call_gives_the_shortest_answer(
    warm: Callable[..., Any], emu: Emulator
) -> None:
    azure = {
        "dialect": "azure/openai_responses",
        "base_url": f"{emu.url}/azure",
        "model": "gpt-5.6",
        "key": {"secret": "PROVIDER_KEY"},
    }
    with warm(providers={"azure": azure}, demo=grant(providers=["azure"])) as running:
        chat = OpenAiConversation(running, "/v1/responses", max_output_tokens=64)
        chat.converse(70, 70, 70)
        assert {body["max_output_tokens"] for body in running.sent()} == {16, 64}
        assert "keep_warm_failed" not in [each["code"] for each in chat.explained()["notices"]]


def test_chat_completions_gives_the_shortest_answer(warm: Callable[..., Any]) -> None:
    with warm(demo=grant(n=2)) as running:
        chat = OpenAiConversation(running, "/v1/chat/completions", n=2, max_completion_tokens=64)
        chat.converse(40, 40)
        short = [body for body in running.sent() if body["max_completion_tokens"] == 1]
        assert short
        assert all("n" not in body for body in short)


def test_stored_history_is_not_sent_again(warm: Callable[..., Any]) -> None:
    with warm(demo=grant(allow=["stored_responses"])) as running:
        OpenAiConversation(running, "/v1/responses", max_output_tokens=64).converse(40, 40)
        assert running.refreshes()  # such pauses are bridged
        running.wait(3 * 60 * MINUTE)
        chat = OpenAiConversation(running, "/v1/responses", chained=True, max_output_tokens=64)
        refresher = running.daemon.daemon.services.calls.tools.refresher
        assert refresher is not None
        chat.send()
        running.wait(1)
        kept = refresher._bytes
        chat.send()
        running.wait(1)
        assert refresher._bytes == kept > 0
        before = running.sent()
        assert before[-1]["previous_response_id"]
        running.wait(40 * MINUTE)
        sent = running.sent()[len(before) :]
        assert not any("previous_response_id" in body for body in sent)


class PlainConversation(Conversation):
    """Of an app that leaves caching to the daemon."""

    def body(self) -> dict[str, Any]:
        body = super().body()
        body["system"] = SYSTEM
        body["messages"] = self.messages
        return body


def revoke(running: WarmDaemon) -> None:
    arguments = ["apps", "revoke", "demo", "--home", str(running.daemon.home)]
    done = CliRunner().invoke(anaphora, arguments)
    assert done.exit_code == 0, done.output


def change_grant(running: WarmDaemon) -> None:
    changed = {"demo": grant(max_tokens=2048)}
    (running.daemon.home / "extensions.yaml").write_bytes(msgspec.json.encode(changed))
    running.reload()


def remove_provider(running: WarmDaemon) -> None:
    path = running.daemon.home / "llm.yaml"
    config = json.loads(path.read_bytes())
    config["providers"]["anthropic"]["timeouts"] = {"total": 77}
    path.write_bytes(msgspec.json.encode(config))
    running.reload()


def drain(running: WarmDaemon) -> None:
    running.daemon.daemon.services.calls.drain()


@pytest.mark.parametrize("end", [revoke, change_grant, remove_provider, drain])
def test_what_ends_refreshes(warm: Callable[..., Any], end: Callable[[WarmDaemon], None]) -> None:
    with warm() as running:
        Conversation(running).converse(7, 7)
        before = running.refreshes()
        end(running)
        refresher = running.daemon.daemon.services.calls.tools.refresher
        assert refresher is not None
        if end in (revoke, change_grant):  # nothing is kept until the refresh would be due
            assert refresher._bytes == 0
        running.wait(30 * MINUTE)
        assert running.refreshes() == before


def test_no_refresh_while_a_call_of_the_conversation_runs(
    warm: Callable[..., Any], emu: Emulator
) -> None:
    # Otherwise the call would be read on when its app has gone.
    cancelled = {**llm_yaml(emu.url)["providers"]["anthropic"], "on_abort": "cancel"}
    with warm({"anthropic": cancelled}) as running:
        chat = Conversation(running)
        chat.converse(7, 7)
        before, sent = len(running.refreshes()), len(running.sent())
        running.provider.hangs = True
        with closing(HTTPConnection(urlsplit(running.daemon.url).netloc, timeout=PATIENCE)) as call:
            headers = {**running.daemon.headers(), "content-type": "application/json"}
            call.request("POST", "/v1/messages", json.dumps(chat.body()), headers)
            wait_until(lambda: len(running.sent()) > sent)
            running.provider.hangs = False
            running.wait(4.8 * MINUTE)
            assert len(running.refreshes()) == before
        wait_until(lambda: len(running.refreshes()) > before)  # the prefix is alive still


@pytest.mark.parametrize("apps", [("demo",), ("demo", "other")])
def test_apps_with_one_provider_pay_for_their_own(
    warm: Callable[..., Any], apps: tuple[str, ...], emu: Emulator, tmp_path: Path
) -> None:
    """Each app sees what its refreshes would have cost alone, and is charged the bill."""
    with warm(demo=grant(), other=grant()) as running:
        chats = [Conversation(running, app=app) for app in apps]
        for chat in chats:
            chat.send()
        for _ in range(3):
            running.wait(7 * MINUTE)
            for chat in chats:
                chat.send()
        for chat in chats:
            verdict = chat.explained()["verdict"]
            assert verdict["result"] == "hit"
            assert 0 < Decimal(verdict["kept_warm_usd"]) < Decimal("0.02")
        assert running.refreshes()
    charged = sorted(billed for billed, _ in charges(tmp_path / "home").values())
    assert charged == sorted(bill.nano_usd for bill in provider_bills(emu).values())


def test_refresh_has_the_key_that_is_in_force(warm: Callable[..., Any]) -> None:
    with warm() as running:
        Conversation(running).converse(7, 7)
        (running.daemon.home / "secrets" / "PROVIDER_KEY.txt").write_text("sk-another\n")
        running.reload()
        before = len(running.provider.requests)
        running.wait(5 * MINUTE)
        (refresh,) = running.provider.requests[before:]
        assert refresh.headers["x-api-key"] == "sk-another"


def test_refusal_is_not_repeated(warm: Callable[..., Any]) -> None:
    with warm() as running:
        running.provider.refuses = True
        chat = Conversation(running)
        chat.converse(7, 7, 7, 7)
        assert len(running.refreshes()) == 1
        Conversation(running, "another").converse(7, 7, 7)
        assert len(running.refreshes()) == 1
    failed = [row for row in running.audited() if row.operation == "prewarm"]
    assert [row.outcome for row in failed] == ["RequestRejected"]


def test_refreshes_of_disputed_usage_count_for_their_bound(warm: Callable[..., Any]) -> None:
    """What is charged for them is what the day's refreshes have cost."""
    with warm() as running:
        running.provider.overstates = True
        Conversation(running).converse(7, 7, 7)
        assert running.refreshes()
        store = running.daemon.home / "store.sqlite"
        disputed = "SELECT SUM(billed) FROM entries WHERE kind = 'disputed'"
        [(charged,)] = rows(store, disputed)
        assert charged > 0
        counted = "SELECT SUM(billed) FROM label_sums WHERE label = 'keep_warm'"
        assert rows(store, counted) == [(charged,)]


def test_conversations_that_do_not_fit_are_let_go(
    warm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.daemon.calls.keep_warm._MOST_BYTES", 50_000)
    with warm() as running:
        Conversation(running).converse(7, 7, 7)
        assert running.refreshes() == []


def test_no_text_and_no_key_is_shown_anywhere(warm: Callable[..., Any]) -> None:
    with warm() as running:
        chat = Conversation(running)
        chat.converse(7, 7, 7)
        assert running.refreshes()
        with running.daemon.client(ADMIN) as client:
            shown = [client.get("/metrics").text, json.dumps(chat.explained())]
    files = [path for path in running.daemon.home.rglob("*") if path.is_file()]
    assert files
    shown += [
        path.read_bytes().decode("latin-1") for path in files if path.parent.name != "secrets"
    ]
    for text in shown:
        assert CANARY not in text
        assert KEY not in text

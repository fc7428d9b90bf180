"""A provider whose reads come in other steps than the catalog says: after three conversations the
session, `complete()`, the daemon, `watch` and `explain` predict the next one to the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.delegation import app_of, delegating
from support.emulated_client import AT_ONCE, LONG, connected

from anaphora import Usage
from anaphora.cache.learned_steps import LearnedRow
from anaphora.cache.verdict import Verdict
from anaphora.catalog import dialects
from anaphora.cli.common import anaphora as cli
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator, running
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import running as proxied
from anaphora.traffic.judging import Judge

MODEL = "gpt-5.5"
ROWS = """
provider = "openai"
[[rules]]
source = "this test"
date = 2026-11-17
models = ["gpt-5.5"]
granule_tokens = 2048
granule_offset = 0
minimum_tokens = 2048
"""
TEXT = "learned: reads come in steps of 2,048; the catalog says 512 less 128"
TURNS = 8
Json = dict[str, Any]
#: What was predicted and billed, call by call, of each conversation.
Reads = list[list[tuple[int | None, int | None]]]


@pytest.fixture(scope="module")
def coarse() -> Iterator[Emulator]:
    """An emulator that reads in steps of 2,048."""
    with running(EmulatorOptions(rows=ROWS, latency=AT_ONCE)) as emulator:
        yield emulator


@pytest.fixture
def emulator(coarse: Emulator) -> Emulator:
    coarse.reset()
    return coarse


def system(conversation: int) -> str:
    return f"Conversation {conversation}. {LONG}"


def bodies(conversation: int) -> Iterator[Json]:
    """The requests of one conversation."""
    messages: list[Json] = [{"role": "system", "content": system(conversation)}]
    for turn in range(TURNS):
        messages = [*messages, {"role": "user", "content": f"{conversation}, question {turn}?"}]
        yield {"model": MODEL, "max_completion_tokens": 16, "messages": messages}
        messages = [*messages, {"role": "assistant", "content": f"Answer {turn}."}]


def seen(verdict: Verdict | None, usage: Usage | None) -> tuple[int | None, int | None]:
    assert verdict is not None
    assert usage is not None
    return verdict.predicted, usage.read


def is_learned(reads: Reads) -> None:
    """The first three conversations are predicted by the catalog, the others by their bills."""
    assert len(reads) == 5
    for number, conversation in enumerate(reads):
        assert [billed for _, billed in conversation] == [0, *[2048] * (TURNS - 1)]
        right = [predicted == billed for predicted, billed in conversation[1:]]
        assert right == [number >= 3] * (TURNS - 1), number


def test_session(emulator: Emulator) -> None:
    async def main() -> Reads:
        reads: Reads = []
        async with connected(emulator, ["openai_chat"]) as emulated:
            for number in range(5):
                chat = emulated.client.session("openai_chat", model=MODEL, system=system(number))
                calls = [await chat.send(f"Question {turn}?") for turn in range(TURNS)]
                reads.append([(call.record.predicted, call.usage.read) for call in calls])
        return reads

    is_learned(asyncio.run(main()))


def test_a_session_keeps_the_rules_that_it_began_with(emulator: Emulator) -> None:
    async def main() -> list[tuple[int | None, int | None]]:
        async with connected(emulator, ["openai_chat"]) as emulated:
            old = emulated.client.session("openai_chat", model=MODEL, system=system(9))
            await old.send("First?")
            for number in range(3):
                chat = emulated.client.session("openai_chat", model=MODEL, system=system(number))
                for turn in range(TURNS):
                    await chat.send(f"Question {turn}?")
            calls = [await old.send("Second?"), await old.fork().send("Third?")]
            new = emulated.client.session("openai_chat", model=MODEL, system=system(9))
            calls.append(await new.send("First?"))
        return [(call.record.predicted, call.usage.read) for call in calls]

    second, third, first = asyncio.run(main())
    assert second[0] != second[1] == 2048
    assert third[0] != third[1] == 2048
    assert first[1] == 2048


def test_complete(emulator: Emulator) -> None:
    async def main() -> Reads:
        reads: Reads = []
        async with connected(emulator, ["openai_chat"]) as emulated:
            for number in range(5):
                calls = []
                for body in bodies(number):
                    history = body["messages"][1:]
                    answer = await emulated.client.complete(
                        history,
                        "openai_chat",
                        model=MODEL,
                        system=system(number),
                        conversation=True,
                    )
                    calls.append(answer)
                reads.append([(call.record.predicted, call.usage.read) for call in calls])
        return reads

    is_learned(asyncio.run(main()))


def test_daemon(emulator: Emulator, tmp_path: Path) -> None:
    async def main() -> Reads:
        reads: Reads = []
        async with delegating(emulator, tmp_path, ["openai_chat"]) as daemon:
            for number in range(5):
                calls = []
                for body in bodies(number):
                    request = daemon.request("openai_chat", body, model=MODEL)
                    calls.append(await daemon.service.complete(request))
                reads.append([seen(call.verdict, call.usage) for call in calls])
        return reads

    is_learned(
        [[(p or 0, b) if not b else (p, b) for p, b in each] for each in asyncio.run(main())]
    )


def test_watch(emulator: Emulator) -> None:
    import urllib.request

    judge = Judge()
    upstreams = {row.provider: f"{emulator.url}/{row.provider}" for row in dialects().rows}
    with proxied(default_routes(upstreams), observers=[judge]) as proxy:
        for number in range(5):
            for body in bodies(number):
                url = f"{proxy.url_of('openai')}/v1/chat/completions"
                headers = {"content-type": "application/json", "authorization": "Bearer sk-x"}
                data = json.dumps(body).encode()
                with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
                    answer.read()
    calls = [seen(call.verdict, call.usage) for call in judge.calls]
    is_learned([calls[at : at + TURNS] for at in range(0, len(calls), TURNS)])


def logged(emulator: Emulator, post: Callable[[Json], Json]) -> list[Json]:
    return [
        {"request": body, "response": post(body), "time": 1000.0 * (1 + number) + turn}
        for number in range(5)
        for turn, body in enumerate(bodies(number))
    ]


def test_explain(emulator: Emulator, tmp_path: Path) -> None:
    import urllib.request

    def post(body: Json) -> Json:
        headers = {"content-type": "application/json", "authorization": "Bearer sk-x"}
        url = f"{emulator.url}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            reply: Json = json.loads(answer.read())
        return reply

    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in logged(emulator, post)))
    ran = CliRunner().invoke(cli, ["explain", "--json", str(file)])
    report = json.loads(ran.stdout)
    calls = [(turn["verdict"]["predicted"], turn["verdict"]["billed"]) for turn in report["turns"]]
    is_learned([calls[at : at + TURNS] for at in range(0, len(calls), TURNS)])
    (row,) = report["learned"]
    assert (row["provider"], row["model"], row["text"]) == ("openai", MODEL, TEXT)
    for command in ("explain", "simulate"):
        printed = CliRunner().invoke(cli, [command, str(file)], env={"COLUMNS": "200"})
        assert f"openai/{MODEL}: {TEXT}" in printed.stdout
    simulated = json.loads(CliRunner().invoke(cli, ["simulate", "--json", str(file)]).stdout)
    assert [each["text"] for each in simulated["learned"]] == [TEXT]


def test_what_the_daemon_holds_and_books_stays_the_same(emulator: Emulator, tmp_path: Path) -> None:
    """The bound of a call is the same before and after its provider's steps were learned."""

    async def main() -> tuple[list[int], list[str]]:
        limited = app_of(providers=["openai_chat"], usd_per_day=1.0)
        async with delegating(emulator, tmp_path, ["openai_chat"], app=limited) as daemon:
            held, costs = [], []
            for number in range(5):
                for body in bodies(number):
                    request = daemon.request("openai_chat", body, model=MODEL)
                    reply = await daemon.service.complete(request)
                    costs.append(str(reply.cost_usd))
                entries = await daemon.spent()
                held.append(entries.held)
        return held, costs

    held, costs = asyncio.run(main())
    assert held == [0] * 5
    conversations = [costs[at : at + TURNS] for at in range(0, len(costs), TURNS)]
    assert conversations[0] == conversations[4]


MASKED_ROWS = """
provider = "deepseek"
[[rules]]
source = "this test"
date = 2026-11-17
granule_tokens = 600
minimum_tokens = 600
"""


def test_the_daemon_learns_from_bills_that_apps_do_not_see(tmp_path: Path) -> None:
    """Where apps share a cache, one is not shown what it read of another's; the steps of reads are
    learned from all of it."""

    async def main(emulator: Emulator) -> tuple[list[int | None], tuple[LearnedRow, ...]]:
        apps = [app_of(name, providers=["deepseek"]) for name in ("first", "second")]
        shown: list[int | None] = []
        async with delegating(emulator, tmp_path, ["deepseek"], app=apps[0]) as daemon:
            daemon.service.use_grants([app.grant for app in apps])
            for number in range(4):
                for app in apps:
                    for body in bodies(number):
                        body = {**body, "model": "deepseek-v4-flash", "max_tokens": 16}
                        del body["max_completion_tokens"]
                        request = daemon.request("openai_chat", body, app=app, provider="deepseek")
                        reply = await daemon.service.complete(request)
                        shown.append(reply.usage.read)
            endpoint = daemon.service.tools.pool.called("deepseek")
            assert endpoint is not None
            return shown, endpoint.steps.learned

    with running(EmulatorOptions(rows=MASKED_ROWS, latency=AT_ONCE)) as emulator:
        shown, learned = asyncio.run(main(emulator))
        billed = [call["read"] for call in reversed(emulator.requests())]
    # The second app's first call reads what the first one wrote, and is not shown it, nor more than
    # it has written itself: also after the steps were learned.
    own, second = [0, *[3600] * 3, *[4200] * 4], [0, 3600, 3600, 4096, *[4200] * 4]
    assert shown == [*own, *second] * 4
    assert billed == [*own, *[3600] * 3, *[4200] * 5] * 4
    (row,) = learned
    assert (row.granule_tokens, row.granule_offset, row.minimum_tokens) == (600, 0, 128)

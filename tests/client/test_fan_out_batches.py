"""`client.map(batch=True)`: the Batch APIs of Anthropic and OpenAI behind the same call."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.emulated_client import AT_ONCE, KEY, LONG, connected
from support.waiting import PATIENCE

from anaphora import emulator
from anaphora.catalog.api_limits import batch_limits
from anaphora.client.fan_out import batch_apis, batches
from anaphora.client.parameters import call_of
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse, json_response
from anaphora.emulator.server import Emulator
from anaphora.errors import (
    BudgetExceeded,
    InvalidRequest,
    RequestRejected,
    Unauthenticated,
    Upstream,
)

QUESTIONS = [f"What is {number}?" for number in range(20)]
PROVIDERS = ("anthropic", "openai_responses", "openai_chat")


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(latency=AT_ONCE, batch_seconds=30.0)) as running:
        yield running


@pytest.fixture(autouse=True)
def _fast(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of the client takes no time, and a minute for the emulator."""
    emu.reset()
    sleep = asyncio.sleep

    async def wait(seconds: float) -> None:
        emu.advance(seconds)
        await sleep(0)

    for module in (batches, batch_apis):
        monkeypatch.setattr(module, "asyncio", _Asyncio(wait))


class _Asyncio:
    """asyncio with another `sleep`."""

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def ran(emu: Emulator) -> list[dict[str, Any]]:
    """The requests that ran, the oldest first."""
    calls = [entry for entry in reversed(emu.requests()) if "read" in entry]
    assert all(call["batch"] for call in calls)
    return [call | {"written": sum(call["written"].values())} for call in calls]


def submitted(emu: Emulator) -> int:
    return sum(
        entry["method"] == "POST" and entry["path"].endswith("/batches") for entry in emu.requests()
    )


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_batch_of_one_request_writes_what_the_second_batch_reads(
    emu: Emulator, name: str
) -> None:
    async def cost(warm: Any) -> Decimal:
        emu.reset()
        async with connected(emu, [name]) as emulated:
            result = await emulated.client.map(
                QUESTIONS, system=LONG, max_tokens=64, batch=True, warm=warm
            )
            assert len(emulated.records) == 20
        assert not result.errors
        assert len(set(result.texts)) == 20
        assert result.cost_usd == sum(Decimal(call["cost_usd"]) for call in ran(emu))
        return result.cost_usd

    at_once = asyncio.run(cost("off"))
    assert submitted(emu) == 1
    assert not any(call["read"] for call in ran(emu))
    primed = asyncio.run(cost("auto"))
    assert submitted(emu) == 2
    assert sum(max(call["written"], call["uncached"]) > 1000 for call in ran(emu)) <= 2
    assert primed < at_once * Decimal("0.4")


@pytest.mark.parametrize("name", PROVIDERS[:2])
def test_a_batch_costs_half_of_single_calls(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            common: dict[str, Any] = {"max_tokens": 16, "warm": "off"}
            batch = await emulated.client.map(QUESTIONS[:3], batch=True, **common)
            single = await emulated.client.map(QUESTIONS[:3], **common)
            assert batch.texts == single.texts
            assert batch.cost_usd is not None
            assert 2 * batch.cost_usd == single.cost_usd

    asyncio.run(main())


def test_prompts_that_share_nothing_are_one_batch(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(QUESTIONS, batch=True, on_cold="raise")
            assert not result.errors
            assert "cold_unchecked" in [notice.code for notice in result.notices]

    asyncio.run(main())
    assert submitted(emu) == 1


def test_providers_get_batches_of_their_own(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic", "openai_chat"]) as emulated:
            calls = [
                call_of(question, model, {})
                for question in QUESTIONS[:3]
                for model in ("claude-sonnet-4-5", "gpt-5.2")
            ]
            result = await emulated.client.map(calls, batch=True)
            models = [item.unwrap().record.model for item in result.items]
            assert models == ["claude-sonnet-4-5", "gpt-5.2"] * 3

    asyncio.run(main())
    assert submitted(emu) == 2


@pytest.mark.parametrize("name", PROVIDERS[:2])
@pytest.mark.long
def test_one_rejected_request_is_one_error(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            # The longest prompt exceeds the model's window.
            prompts = ["Hello?", "word " * 4_000_000, "And you?"]
            result = await emulated.client.map(prompts, batch=True, max_tokens=64)
            assert [item.index for item in result.errors] == [1]
            assert isinstance(result.errors[0].error, Upstream)
            assert result.items[0].text

    asyncio.run(main())


def test_a_provider_without_batches_is_refused(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["gemini", "deepseek"]) as emulated:
            for name in ("gemini", "deepseek"):
                with pytest.raises(InvalidRequest, match=f"no Batch API is known for {name}"):
                    await emulated.client.map(["Hi"], name, batch=True)
            assert not emulated.transport.sent

    asyncio.run(main())


def test_a_batch_that_cannot_be_submitted_is_an_error_of_each_item() -> None:
    with emulator.running(EmulatorOptions(latency=AT_ONCE, keys=frozenset(["another"]))) as strict:

        async def main() -> None:
            async with connected(strict, ["anthropic"]) as emulated:
                result = await emulated.client.map(QUESTIONS[:3], batch=True)
                assert {type(item.error) for item in result.items} == {Unauthenticated}
                assert KEY not in str(result.items[0].error)

        asyncio.run(main())


@pytest.mark.parametrize("fault", ["529", "rate-limit", "reset"])
def test_a_failed_look_at_a_batch_is_repeated(emu: Emulator, fault: str) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            emulated.transport.faults = [None, fault, None]
            result = await emulated.client.map(QUESTIONS[:3], batch=True)
            assert not result.errors

    asyncio.run(main())
    assert submitted(emu) == 1


def test_a_batch_may_not_exceed_the_budget(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            common: dict[str, Any] = {"max_tokens": 16, "batch": True, "warm": "off"}
            whole = await emulated.client.map(QUESTIONS, **common)
            assert whole.cost_usd is not None
            emu.reset()
            bound = whole.cost_usd / 2
            part = await emulated.client.map(QUESTIONS, max_cost_usd=bound, **common)
            assert part.cost_usd is not None
            assert part.cost_usd <= bound
            assert 0 < part.progress.done < 20
            assert {type(item.error) for item in part.errors} == {BudgetExceeded}
            assert part.stop_reason == "cost_usd"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["anthropic", "openai_responses"])
def test_a_batch_counts_in_the_budget_around_it(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            client = emulated.client
            common: dict[str, Any] = {"max_tokens": 16, "batch": True, "warm": "off"}
            async with client.budget(usd=1) as budget:
                whole = await client.map(QUESTIONS, **common)
            assert not whole.errors
            assert budget.spent_usd == whole.cost_usd
            assert budget.held_usd == 0
            assert budget.calls == len(QUESTIONS)
            emu.reset()
            async with client.budget(usd=budget.spent_usd / 2) as small:
                part = await client.map(QUESTIONS, **common)
            assert part.errors
            assert {type(item.error) for item in part.errors} == {BudgetExceeded}
            assert part.stop_reason == "cost_usd"
            assert small.held_usd == 0
            assert part.cost_usd == small.spent_usd <= budget.spent_usd / 2

    asyncio.run(main())


def test_requests_beyond_the_limit_of_a_batch_are_another_batch(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = batch_limits("anthropic")
    assert known is not None
    limits = msgspec.structs.replace(known, most_requests=8)
    monkeypatch.setattr(batch_apis, "batch_limits", lambda _provider: limits)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(QUESTIONS, batch=True)
            assert not result.errors

    asyncio.run(main())
    assert submitted(emu) == 3


@pytest.mark.parametrize("name", PROVIDERS[:2])
@pytest.mark.parametrize("again", [True, False])
def test_a_killed_run_collects_the_batch_that_it_submitted(
    emu: Emulator, tmp_path: Path, name: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the next run would not use a batch."""
    file = tmp_path / "answers.jsonl"

    async def run(**options: Any) -> Any:
        async with connected(emu, [name]) as emulated:
            return await emulated.client.map(QUESTIONS, results=file, **options)

    class Killed(BaseException):
        pass

    async def killed(self: Any, batch: str) -> Any:
        raise Killed

    kind = batch_apis.AnthropicBatches if name == "anthropic" else batch_apis.OpenAIBatches
    with monkeypatch.context() as patch:
        patch.setattr(kind, "status", killed)
        with pytest.raises(BaseException) as problem:  # noqa: PT011
            asyncio.run(run(batch=True))
        assert "Killed" in repr(problem.value)
    assert submitted(emu) == 1
    state = [
        json.loads(line)
        for line in (tmp_path / "answers.state.jsonl").read_text().split("\n")
        if line
    ]
    assert len(state[-1]["batch"]["keys"]) == 20
    result = asyncio.run(run(batch=again))
    assert not result.errors
    assert submitted(emu) == 1
    assert len(ran(emu)) == 20
    assert asyncio.run(run(batch=again)).progress.resumed == 20


#: For each line of arguments: starts a run in a process of its own, prints its number and then its
#: exit code. The process is forked, since most of a start is the imports.
_RUNS = """
import asyncio, json, os, sys
from pathlib import Path
from support.emulated_client import KEY, settings
from anaphora import AsyncClient

async def run(url, name, results, questions):
    config = {"providers": settings(url, [name])}
    async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
        await client.map(questions, batch=True, results=Path(results))

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            asyncio.run(run(*json.loads(line)))
        finally:
            os._exit(1)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runs:
    """Starts runs that are killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _RUNS],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, *arguments: Any) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    runs = Runs()
    with runs.process:
        yield runs
    assert runs.process.returncode == 0


def kill_while_submitting(
    runs: Runs,
    emu: Emulator,
    name: str,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    arrives: bool,
) -> None:
    """A run whose process ends before the response to its POST; `arrives`: the provider has created
    the batch."""
    receive = emu.engine.receive
    started = threading.Event()

    def answer(request: EmulatorRequest, **options: Any) -> EmulatorResponse:
        if request.method != "POST" or not request.path.endswith("/batches"):
            return receive(request, **options)
        response = receive(request) if arrives else EmulatorResponse(hang=True)
        assert started.wait(PATIENCE)
        os.kill(child, signal.SIGKILL)
        return response

    with monkeypatch.context() as patch:
        patch.setattr(emu.engine, "receive", answer)
        child = runs.start(emu.url, name, str(file), QUESTIONS)
        started.set()
        assert runs.read() == -signal.SIGKILL


NAMED = {
    "anthropic": r"the batch whose requests have the ids {mark}_…",
    "openai_chat": r"the batch with the metadata anaphora_batch: {mark}",
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("arrives", [True, False])
def test_a_batch_whose_id_was_not_noted_is_named_and_not_submitted_twice(
    runs: Runs,
    emu: Emulator,
    tmp_path: Path,
    name: str,
    arrives: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "answers.jsonl"
    kill_while_submitting(runs, emu, name, file, monkeypatch, arrives=arrives)

    async def run(file: Path, **options: Any) -> Any:
        async with connected(emu, [name]) as emulated:
            return await emulated.client.map(QUESTIONS, results=file, **options)

    state = (tmp_path / "answers.state.jsonl").read_text()
    (mark,) = set(re.findall(r'"mark":"(\w+)"', state))
    for batch in (True, False):
        result = asyncio.run(run(file, batch=batch))
        assert {type(item.error) for item in result.items} == {InvalidRequest}
        reason = f"results: an earlier run may have sent this request to {name}, in "
        assert str(result.items[0].error).startswith(reason + NAMED[name].format(mark=mark))
    assert submitted(emu) == arrives
    assert not asyncio.run(run(tmp_path / "more.jsonl", batch=True)).errors


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("status", [None, 200, 500, 504])
def test_a_batch_is_named_when_its_submission_may_have_arrived(
    emu: Emulator, name: str, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut, a proxy answers something else, or gives up."""
    receive, sent = emu.engine.receive, list[EmulatorRequest]()

    def answer(request: EmulatorRequest, **options: Any) -> EmulatorResponse:
        response = receive(request, **options)
        if request.method == "POST" and request.path.endswith("/batches"):
            sent.append(request)
            if status is None:
                return msgspec.structs.replace(response, reset=True)
            return json_response(b"{}", status=status)
        return response

    monkeypatch.setattr(emu.engine, "receive", answer)

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            result = await emulated.client.map(QUESTIONS, batch=True)
            assert len(result.errors) == 20
            pattern = rf"; {name} may run " + NAMED[name].format(mark=r"[0-9a-f]{16}")
            assert re.search(pattern + r"\Z", str(result.items[0].error))

    asyncio.run(main())
    assert len(sent) == submitted(emu) == 1


def test_a_submission_that_did_not_arrive_is_repeated(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            emulated.transport.faults = ["529", None]
            result = await emulated.client.map(QUESTIONS, batch=True)
            assert not result.errors

    asyncio.run(main())
    assert len(ran(emu)) == 20


def test_answers_that_were_collected_are_neither_lost_nor_counted_again(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed between two results of a batch, and the next one cannot read the others."""
    file = tmp_path / "answers.jsonl"

    async def run(faults: list[str | None]) -> Any:
        async with connected(emu, ["anthropic"]) as emulated:
            emulated.transport.faults = faults
            return await emulated.client.map(QUESTIONS, results=file, batch=True)

    class Killed(BaseException):
        pass

    read, lines = batch_apis.AnthropicBatches._outcome, list[bytes]()

    def killed(self: Any, line: bytes) -> Any:
        lines.append(line)
        if len(lines) > 5:
            raise Killed
        return read(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(batch_apis.AnthropicBatches, "_outcome", killed)
        with pytest.raises(BaseException) as problem:  # noqa: PT011
            asyncio.run(run([]))
        assert "Killed" in repr(problem.value)
    partly = asyncio.run(run(["529"] * 5))
    assert (partly.progress.resumed, partly.progress.done, partly.progress.failed) == (5, 5, 15)
    result = asyncio.run(run([]))
    assert not result.errors
    assert (result.progress.resumed, result.progress.done) == (5, 20)
    assert result.cost_usd == sum(item.cost_usd for item in result.items)
    assert asyncio.run(run([])).progress.resumed == 20
    assert submitted(emu) == 1


def test_a_run_that_is_cancelled_cancels_its_batch_unless_results_are_kept(
    emu: Emulator, tmp_path: Path
) -> None:
    async def main(results: Path | None) -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            seen = asyncio.Event()

            def note(progress: Any) -> None:
                if progress.batch:
                    seen.set()

            mapped = emulated.client.map(QUESTIONS, batch=True, results=results, on_progress=note)
            task = asyncio.ensure_future(mapped)
            await seen.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main(None))
    assert any(entry["path"].endswith("/cancel") for entry in emu.requests())
    emu.reset()
    asyncio.run(main(tmp_path / "kept.jsonl"))
    assert not any(entry["path"].endswith("/cancel") for entry in emu.requests())


@pytest.mark.parametrize(
    "line, kind, message",
    [
        (b'{"custom_id":"k","result":{"type":"expired"}}', Upstream, "expired"),
        (b'{"custom_id":"k","result":{"type":"canceled"}}', Upstream, "canceled"),
        (
            b'{"custom_id":"k","result":{"type":"errored","error":{"type":"error","error":'
            b'{"type":"invalid_request_error","message":"no"}}}}',
            RequestRejected,
            "no",
        ),
    ],
)
def test_outcomes_without_a_reply_are_errors(
    emu: Emulator, line: bytes, kind: type[Exception], message: str
) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            endpoint = emulated.client._targets("anthropic", None)[0][0].endpoint
            outcome = batch_apis.batch_api(endpoint, "/v1/messages", ())._read(line)
            assert outcome.key == "k"
            assert isinstance(outcome.error, kind)
            assert message in str(outcome.error)

    asyncio.run(main())

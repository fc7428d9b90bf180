"""The steps of a call: their order, and calls that leave some of them out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.delegation import Delegating, delegating
from support.emulated_client import MODELS
from support.waiting import PATIENCE

from anaphora.audit.reading import rows
from anaphora.daemon.calls import pipeline
from anaphora.daemon.calls.behind import AnsweredCall, AnsweredCalls
from anaphora.daemon.calls.call import AppCall, AppReply, CallOutcome
from anaphora.daemon.calls.pipeline import AFTER, BEFORE, BEHIND, ORDER, CallPipeline, CallStep
from anaphora.daemon.calls.steps.audit import AuditCall
from anaphora.emulator.server import Emulator
from anaphora.errors import Overloaded

BODY: dict[str, Any] = {
    "model": MODELS["anthropic"],
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Tell me about harbours."}],
}
RECORDED = ["permit", "plan", "hold", "send", "relay", "settle", "judge", "audit"]


class Recorded(CallStep):
    """A step that notes when it runs, around another."""

    def __init__(self, step: CallStep, seen: list[str]) -> None:
        self.name = step.name
        self._step = step
        self._seen = seen

    async def before(self, call: AppCall) -> None:
        self._note("before", CallStep.before)
        await self._step.before(call)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        self._note("after", CallStep.after)
        self._step.after(call, outcome)

    def behind(self, call: AppCall) -> None:
        self._note("behind", CallStep.behind)
        self._step.behind(call)

    def _note(self, hook: str, nothing: Any) -> None:
        if getattr(type(self._step), hook) is not nothing:
            self._seen.append(f"{hook} {self.name}")


def recorded(daemon: Delegating) -> list[str]:
    seen: list[str] = []
    steps = daemon.service.pipeline.steps.values()
    daemon.service.pipeline.use(*(Recorded(step, seen) for step in steps))
    return seen


async def asked(daemon: Delegating, stream: bool) -> AppReply:
    call = daemon.request("anthropic", {**BODY, "stream": stream})
    return (await daemon.stream(call))[1] if stream else await daemon.service.complete(call)


def test_every_moment_keeps_the_order_of_the_steps() -> None:
    for names in (*BEFORE.values(), *AFTER.values(), BEHIND):
        assert list(names) == sorted(names, key=ORDER.index)
    assert " ▸ ".join(ORDER) in str(pipeline.__doc__)


@pytest.mark.parametrize("stream", [False, True])
def test_order_of_a_call(emu: Emulator, tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            assert list(daemon.service.pipeline.steps) == RECORDED
            seen = recorded(daemon)
            await asked(daemon, stream)
            answered = [
                *("before permit", "before audit", "before plan"),
                *("before hold", "before send", "before judge", "after settle"),
                *("after plan", "after judge", "after relay", "after audit"),
            ]
            assert seen[: len(answered)] == answered
            await asyncio.sleep(0)
            assert seen[len(answered) :] == ["behind audit"]

    asyncio.run(main())


def test_each_attempt_is_held_and_settled(emu: Emulator, tmp_path: Path) -> None:
    retry = {"max_attempts": 2, "first_wait": 0.001}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], retry=retry) as daemon:
            seen = recorded(daemon)
            daemon.transport.faults = ["529", "529"]
            with pytest.raises(Overloaded):
                await asked(daemon, False)
            assert seen.count("before plan") == 1, "the request is prepared once a target"
            assert seen.count("before hold") == seen.count("after settle") == 2
            assert seen.count("after audit") == 1
            daemon.transport.faults = ["529", None]
            await asked(daemon, False)
            assert seen.count("before hold") == seen.count("after settle") == 4

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "left_out",
    [("audit",), ("judge",), ("hold", "settle"), ("hold", "settle", "judge", "audit"), ("permit",)],
)
def test_steps_can_be_left_out(
    emu: Emulator, tmp_path: Path, left_out: tuple[str, ...], stream: bool
) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            service = daemon.service
            call = daemon.request("anthropic", {**BODY, "stream": stream})
            if "permit" in left_out:
                await service.permit.before(call)  # what it finds is needed
            kept = [step for name, step in service.pipeline.steps.items() if name not in left_out]
            service.pipeline = CallPipeline(kept)
            if stream:
                _, reply = await daemon.stream(call)
            else:
                reply = await service.complete(call)
            assert reply.reply.text
            assert (reply.verdict is None) == ("judge" in left_out)
            spent = await daemon.spent()
            assert (spent.today == 0) == ("settle" in left_out)

    asyncio.run(main())
    calls = [row for row in rows(tmp_path / "audit") if getattr(row.content, "call_id", "")]
    assert len(calls) == (0 if "audit" in left_out else 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("broken", ["judge", "relay"])
def test_a_step_that_fails_after_the_answer_leaves_a_row(
    emu: Emulator, tmp_path: Path, broken: str, stream: bool
) -> None:
    """A bug of ours: the app gets an error, the bill is booked, and the log has the call."""

    class Broken(Recorded):
        def after(self, call: AppCall, outcome: CallOutcome) -> None:
            if outcome.error is None:
                raise RuntimeError("broken")
            super().after(call, outcome)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            pipeline = daemon.service.pipeline
            pipeline.use(Broken(pipeline.steps[broken], []))
            with pytest.raises(RuntimeError, match="broken"):
                await asked(daemon, stream)
            assert (await daemon.spent()).today > 0

    asyncio.run(main())
    calls = [row for row in rows(tmp_path / "audit") if getattr(row.content, "call_id", "")]
    assert len(calls) == 1


def test_answers_do_not_wait_for_what_runs_behind_them(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails there is not seen by the app; what is left is run when the daemon stops."""
    monkeypatch.setattr("anaphora.daemon.calls.behind._COLLECT", PATIENCE)
    ended: list[str] = []

    def fail(answered: Sequence[AnsweredCall]) -> None:
        ended.extend(one.call.request_id for one in answered)
        raise RuntimeError("fails")

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            monkeypatch.setattr(answered_calls(daemon), "_finish", fail)
            calls = [daemon.request("anthropic", BODY) for _ in range(2)]
            for call in calls:
                assert (await daemon.service.complete(call)).reply.text
            assert not ended
            await daemon.service.close()
            assert ended == [call.request_id for call in calls]

    asyncio.run(main())


def answered_calls(daemon: Delegating) -> AnsweredCalls:
    step = daemon.service.pipeline.steps["audit"]
    assert isinstance(step, AuditCall)
    return step.answered


def test_a_full_queue_behind_the_answers_is_emptied_by_the_call_that_fills_it(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.daemon.calls.behind.MOST_WAITING", 3)
    monkeypatch.setattr("anaphora.daemon.calls.behind._COLLECT", PATIENCE)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            waiting = []
            for _ in range(4):
                await daemon.service.complete(daemon.request("anthropic", BODY))
                waiting.append(len(answered_calls(daemon)))
            assert waiting == [1, 2, 0, 1]
            assert daemon.service.explain(daemon.app, "req-4"), "looked at before its time"
            assert not len(answered_calls(daemon))

    asyncio.run(main())
    assert (
        len([row for row in rows(tmp_path / "audit") if getattr(row.content, "call_id", "")]) == 4
    )


def test_calls_wait_while_no_more_rows_can_wait_for_the_audit_log(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.audit.writer.MOST_WAITING", 2)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            writer: Any = daemon.audit._writer
            store, append = writer.store, writer.store.append

            def fail(*_: object) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(store, "append", fail)
            for _ in range(2):
                await daemon.service.complete(daemon.request("anthropic", BODY))
                daemon.service.finish_answered()
            third = asyncio.create_task(daemon.service.complete(daemon.request("anthropic", BODY)))
            await asyncio.wait({third}, timeout=0.2)
            assert not third.done()
            assert not daemon.transport.sent[2:]
            monkeypatch.setattr(store, "append", append)
            assert (await asyncio.wait_for(third, PATIENCE)).reply.text

    asyncio.run(main())
    written = [row.content for row in rows(tmp_path / "audit")]
    assert len([row for row in written if getattr(row, "call_id", "")]) == 3

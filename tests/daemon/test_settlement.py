"""What calls of apps are charged, however they end."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from support.delegation import Delegating, app_of, delegating
from support.emulated_client import LONG, MODELS

from anaphora.audit import AuditEnvelope, AuditLog
from anaphora.audit.reading import rows
from anaphora.client.costs.settling import nano_usd_up
from anaphora.daemon.access.denials import DenialLog
from anaphora.daemon.access.grants import AppGrant
from anaphora.daemon.values import App
from anaphora.dashboard.past_calls.sums import CallTotals, figures_of
from anaphora.emulator.server import Emulator
from anaphora.errors import (
    AnaphoraError,
    GrantExceeded,
    GrantRateLimited,
    Io,
    NotGranted,
    Overloaded,
    Transport,
)

pytestmark = pytest.mark.usefixtures("more_faults")

BODY: dict[str, Any] = {
    "model": MODELS["anthropic"],
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "Tell me about " + "harbours, " * 40}],
}
STREAMED = {**BODY, "stream": True}
ONCE = {"max_attempts": 1}


async def charged(daemon: Delegating) -> tuple[int, int]:
    """Nano-dollars that were charged, and the part of them that no bill confirms."""
    await daemon.spent()
    sums = await daemon.store.spend([])
    return (sums[0].billed, sums[0].estimated) if sums else (0, 0)


def test_failure_before_any_output_is_free(emu: Emulator, tmp_path: Path) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], retry=ONCE) as daemon:
            daemon.transport.faults = ["529"]
            with pytest.raises(Overloaded):
                await daemon.service.complete(daemon.request("anthropic", BODY))
            assert await charged(daemon) == (0, 0)

    asyncio.run(main())


def test_retry_is_charged_once(emu: Emulator, tmp_path: Path) -> None:
    """Each attempt has a hold of its own."""
    retry = {"max_attempts": 2, "first_wait": 0.001}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], retry=retry) as daemon:
            daemon.transport.faults = ["529", None]
            reply = await daemon.service.complete(daemon.request("anthropic", BODY))
            assert [attempt.status for attempt in reply.attempts] == [529, 200]
            assert reply.cost_usd is not None
            assert await charged(daemon) == (nano_usd_up(reply.cost_usd), 0)

    asyncio.run(main())


def test_request_without_an_answer_costs_its_bound(emu: Emulator, tmp_path: Path) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], retry=ONCE) as daemon:
            daemon.transport.faults = ["cut; after=0"]
            with pytest.raises(AnaphoraError):
                await daemon.service.complete(daemon.request("anthropic", BODY))
            billed, estimated = await charged(daemon)
            assert billed == estimated > 0

    asyncio.run(main())


def test_left_stream_costs_what_arrived(emu: Emulator, tmp_path: Path) -> None:
    """The input as reported, the output as received; upstream is cancelled."""

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.transport.faults = ["slow-drip; seconds=0.05"]
            stream = daemon.service.stream(daemon.request("anthropic", STREAMED))
            await stream.head()
            await stream.aclose()
            left = await charged(daemon)
            daemon.transport.faults = []
            reply = await daemon.service.complete(daemon.request("anthropic", BODY))
            assert reply.cost_usd is not None
            assert left[0] == left[1] > 0
            assert left[0] < nano_usd_up(reply.cost_usd)
            assert daemon.transport.in_use == 0

    asyncio.run(main())


def test_broken_stream_costs_what_arrived(emu: Emulator, tmp_path: Path) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.transport.faults = ["cut; after=6"]
            with pytest.raises(Transport):
                await daemon.stream(daemon.request("anthropic", STREAMED))
            billed, estimated = await charged(daemon)
            assert billed == estimated > 0

    asyncio.run(main())


def test_spend_limit_refuses_before_sending(emu: Emulator, tmp_path: Path) -> None:
    app = app_of(providers=["anthropic"], usd_per_day=0.001)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], app=app) as daemon:
            with pytest.raises(GrantExceeded) as refused:
                await daemon.service.complete(daemon.request("anthropic", BODY))
            assert refused.value.limit == "usd_per_day"
            assert daemon.transport.sent == []
            assert await charged(daemon) == (0, 0)

    asyncio.run(main())


def test_model_without_a_price_needs_a_grant_without_limit(emu: Emulator, tmp_path: Path) -> None:
    body = {**BODY, "model": "local-model"}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            with pytest.raises(NotGranted, match="no price"):
                await daemon.service.complete(daemon.request("anthropic", body))
            free = app_of("free", providers=["anthropic"], usd_per_day=None)
            reply = await daemon.service.complete(daemon.request("anthropic", body, app=free))
            assert reply.cost_usd is None

    asyncio.run(main())


def test_rates_of_a_grant(emu: Emulator, tmp_path: Path) -> None:
    app = app_of(providers=["anthropic"], requests_per_minute=2)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], app=app) as daemon:
            for _ in range(2):
                await daemon.service.complete(daemon.request("anthropic", BODY))
            with pytest.raises(GrantRateLimited) as refused:
                await daemon.service.complete(daemon.request("anthropic", BODY))
            assert 0 < (refused.value.retry_after or 0) <= 61
            assert len(daemon.transport.sent) == 2

    asyncio.run(main())


def test_rows_of_calls_and_refusals(emu: Emulator, tmp_path: Path) -> None:
    """D3, D9: every call has an audit row with app and request id; repeated refusals have one."""
    app = app_of(providers=["anthropic"], models=["claude-sonnet-*"])
    denied = {**BODY, "model": "claude-opus-5-5"}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], app=app) as daemon:
            call = daemon.request("anthropic", BODY, ignored=("colour",))
            await daemon.service.complete(call)
            daemon.service.finish_answered()
            for _ in range(4):
                with pytest.raises(NotGranted):
                    await daemon.service.complete(daemon.request("anthropic", denied))

    asyncio.run(main())
    written: list[Any] = [row.content for row in rows(tmp_path / "audit")]
    calls = [row for row in written if hasattr(row, "call_id")]
    assert [(row.app, row.call_id, row.outcome, row.repeats) for row in calls] == [
        ("notes", "req-1", "ok", 1),
        ("notes", "req-2", "NotGranted", 1),
        ("notes", "req-2", "NotGranted", 3),
    ]
    assert (calls[0].method, calls[0].ignored) == ("/v1/messages", ("colour",))
    assert calls[0].cost_nano_usd > 0


async def charged_in_rows(daemon: Delegating, folder: Path) -> tuple[int, int]:
    """The same as `charged`, by the audit log."""
    await charged(daemon)
    daemon.service.finish_answered()
    daemon.audit.flush()
    sums = CallTotals()
    for row in rows(folder / "audit"):
        if isinstance(row.content, AuditEnvelope):
            sums.add_sums(CallTotals(*figures_of(row.content)))
    return sums.cost_nano_usd, sums.unbilled_nano_usd


@pytest.mark.parametrize(
    "faults",
    [["cut; after=0"], ["cut; after=0", None], ["529", None], ["cut; after=6"], [None]],
    ids=lambda faults: ", ".join(map(str, faults)),
)
def test_rows_hold_what_the_ledger_charges(
    faults: list[str | None], emu: Emulator, tmp_path: Path
) -> None:
    """Also for attempts without a bill, whether or not a later one is answered."""
    retry = {"max_attempts": 2, "first_wait": 0.001}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], retry=retry) as daemon:
            daemon.transport.faults = list(faults)
            with contextlib.suppress(AnaphoraError):
                await daemon.stream(daemon.request("anthropic", STREAMED))
            ledger = await charged(daemon)
            assert await charged_in_rows(daemon, tmp_path) == ledger
            assert (ledger[1] > 0) == any(fault and "cut" in fault for fault in faults)

    asyncio.run(main())


def test_refusal_of_a_started_call_has_one_row(emu: Emulator, tmp_path: Path) -> None:
    """Spend and rates are checked when the call is prepared, which is a row of the same kind."""
    app = app_of(providers=["anthropic"], usd_per_day=0.001)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], app=app) as daemon:
            for body in (BODY, STREAMED, BODY):
                with pytest.raises(GrantExceeded):
                    await daemon.stream(daemon.request("anthropic", body))

    asyncio.run(main())
    found = [row.content for row in rows(tmp_path / "audit")]
    calls = [row for row in found if isinstance(row, AuditEnvelope)]
    assert sum(row.repeats for row in calls) == 3
    assert {(row.outcome, row.provider, row.attempts) for row in calls} == {
        ("GrantExceeded", "", 0)
    }


def test_refusal_after_an_attempt_is_a_call(emu: Emulator, tmp_path: Path) -> None:
    """The second attempt does not fit the limit any more: the first one was sent."""
    retry = {"max_attempts": 2, "first_wait": 0.001}
    app = app_of(providers=["anthropic"], usd_per_day=0.006)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], app=app, retry=retry) as daemon:
            daemon.transport.faults = ["cut; after=0"]
            with pytest.raises(GrantExceeded):
                await daemon.service.complete(daemon.request("anthropic", BODY))
            assert len(daemon.transport.sent) == 1
            assert await charged_in_rows(daemon, tmp_path) == await charged(daemon)

    asyncio.run(main())
    found = [row.content for row in rows(tmp_path / "audit")]
    [call] = [row for row in found if isinstance(row, AuditEnvelope)]
    assert (call.outcome, call.provider, call.attempts) == ("GrantExceeded", "anthropic", 2)


def test_repeats_of_a_refusal_are_written_when_their_minute_is_over(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    with AuditLog(tmp_path / "audit") as log:
        denials = DenialLog(log, lambda: now, lambda *_: None)
        app = App(id="notes", grant=AppGrant(app="notes"))
        for _ in range(5):
            denials.add(app, "/v1/messages", NotGranted("no such model"))
        denials.write_minute()
        now += 60
        denials.write_minute()
        denials.write_minute()
        log.flush()
        found = [row.content for row in rows(tmp_path / "audit")]
    calls = [row for row in found if isinstance(row, AuditEnvelope)]
    assert [row.repeats for row in calls] == [1, 4]


def test_rows_hold_what_was_predicted(emu: Emulator, tmp_path: Path) -> None:
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            for text in ("Hello", "Good evening"):
                messages = [{"role": "user", "content": text}]
                body = {**BODY, "system": system, "messages": messages}
                await daemon.service.complete(daemon.request("anthropic", body))

    asyncio.run(main())
    found = [row.content for row in rows(tmp_path / "audit")]
    first, second = [row for row in found if isinstance(row, AuditEnvelope)]
    assert not first.predicted
    assert second.predicted == second.usage.read == first.usage.written_total > 0


def test_steps_that_fail_after_the_answer_neither_lose_it_nor_show_this_machine(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Io(f"{tmp_path}/audit: No space left on device")

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            monkeypatch.setattr(daemon.audit._writer, "failing", "No space left on device")
            monkeypatch.setattr(daemon.audit, "calls_ended", fail)
            monkeypatch.setattr("anaphora.daemon.calls.steps.settle.cost_of_reply", fail)
            monkeypatch.setattr("anaphora.traffic.matching.judge", fail)
            reply = await daemon.service.complete(daemon.request("anthropic", BODY))
            assert reply.reply.text
            codes = {notice.code for notice in reply.notices}
            assert {"audit_failed", "settle_failed"} <= codes
            assert str(tmp_path) not in repr(reply.notices)
            billed, estimated = await charged(daemon)
            assert billed == estimated > 0

    asyncio.run(main())


def test_rows_name_the_conversation_and_the_turn(emu: Emulator, tmp_path: Path) -> None:
    """A call that continues an earlier one of its app is in the same conversation, whatever another
    app sends, and where another provider had to answer it."""
    names = ["anthropic", "openai_chat"]
    routes = {"safe": [{"provider": "anthropic"}, {"provider": "openai_chat", "model": "gpt-5.2"}]}
    one, two = (app_of(name, providers=[*names, "safe"]) for name in ("one", "two"))
    question = BODY["messages"]
    grown = [*question, {"role": "assistant", "content": "Hi."}, *question]

    async def main() -> None:
        async with delegating(emu, tmp_path, names, routes=routes, retry=ONCE) as daemon:
            daemon.service.use_grants([one.grant, two.grant])
            daemon.transport.faults = [None, None, "529", None, None]
            for app, messages in ((one, question), (two, question), (one, grown), (two, grown)):
                body = {**BODY, "messages": messages}
                call = daemon.request("anthropic", body, app=app, provider="safe")
                await daemon.service.complete(call)

    asyncio.run(main())
    calls = [row.content for row in rows(tmp_path / "audit")]
    found = [row for row in calls if isinstance(row, AuditEnvelope)]
    assert [row.provider for row in found] == ["anthropic", "anthropic", "openai_chat", "anthropic"]
    ids = [row.conversation for row in found]
    assert ids[0] == ids[2] != ids[1] == ids[3]
    assert [row.turn for row in found] == [1, 1, 2, 2]

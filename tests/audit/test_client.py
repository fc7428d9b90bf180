"""Calls of a client and of adapters in an audit log: what a row holds, and what it never holds."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from support.audit_logs import settle
from support.canaries import KEY, NAMES, PROMPT, WORDS, replaced
from support.emulated_client import LONG, MODELS, WIRES, RecordingTransport, settings
from support.event_loops import in_event_loop
from support.raw_server import RawServer, raw_server, reply
from support.records import FULL, LOST
from support.waiting import PATIENCE, until

from anaphora import AsyncClient, Client, PromptBlock, errors
from anaphora.audit import AuditedAdapter, AuditEnvelope, AuditLog, calls, labelled, verify
from anaphora.client.adapter import ClientAdapter, LlmMessage, LlmRequest
from anaphora.client.observe import EndedCall
from anaphora.emulator.server import Emulator

SECRET = "sk-canary-4711-Zx9Qw"
SYSTEM_CANARY = "SYSTEMCANARY"
USER_CANARY = "USERCANARY"


def rows_of(path: Path) -> list[AuditEnvelope]:
    return [call for _, call in calls(path)]


def stored(folder: Path) -> bytes:
    """All bytes of a log and of the files beside it, but for its key."""
    files = [one for one in folder.rglob("*") if one.is_file() and one.suffix != ".key"]
    return b"".join(one.read_bytes() for one in files)


@asynccontextmanager
async def audited(
    url: str, log: AuditLog, names: tuple[str, ...] = tuple(MODELS), **provider: Any
) -> AsyncIterator[tuple[AsyncClient, RecordingTransport]]:
    transport = RecordingTransport()
    config = {"providers": settings(url, names, **provider)}
    async with AsyncClient.from_config(
        config, environ={"KEY": SECRET}, audit=log, transport=transport
    ) as client:
        yield client, transport
    await transport.close()


# ── What a row holds ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MODELS)
@in_event_loop
async def test_each_call_has_a_row_with_its_figures(
    name: str, emu: Emulator, tmp_path: Path
) -> None:
    with AuditLog(tmp_path / "audit", app="shop", node="n1") as log:
        async with audited(emu.url, log) as (client, _):
            chat = client.session(name, system=LONG, max_tokens=50)
            with labelled("checkout", "eu"):
                first = await chat.send("Which cities?")
            second = await chat.send("And Rome?")
            streamed = client.send("Hello?", name, max_tokens=50)
            async for _ in streamed:
                pass
    assert streamed.response is not None
    rows = rows_of(tmp_path / "audit")
    verify(tmp_path / "audit")
    for row, response in zip(rows, (first, second, streamed.response), strict=True):
        record = response.record
        assert (row.app, row.node, row.epoch, row.adapter) == ("shop", "n1", 1, "client")
        assert (row.provider, row.model) == (record.provider, record.model)
        assert (row.raw_hash, row.outcome, row.status) == (response.raw_hash, "ok", 200)
        assert (row.request_id, row.response_id) == (record.request_id, record.response_id or None)
        assert (row.usage.uncached, row.usage.read) == (record.usage.uncached, record.usage.read)
        assert row.usage.written_total == (record.usage.written_total or 0)
        assert row.cost_nano_usd == (
            None if record.cost_usd is None else round(record.cost_usd * 10**9)
        )
        assert row.at == pytest.approx(record.at)
        assert row.seconds == pytest.approx(record.seconds, abs=1e-5)
        assert row.stop_reason == record.stop_reason
        assert len(row.prompt_hash) == 64
    verdict = second.verdict
    assert verdict is not None
    assert (rows[1].verdict, rows[1].cause, rows[1].lost) == (
        verdict.result,
        verdict.cause,
        verdict.lost,
    )
    assert [row.labels for row in rows] == [("checkout", "eu"), (), ()]
    assert [row.streamed for row in rows] == [False, False, True]
    system = [[block for block in row.blocks if block.kind == "system"] for row in rows]
    if system[0]:  # a few wires send it as a message
        assert system[0][0].digest == system[1][0].digest
        assert system[0][0].tokens > 1000


@in_event_loop
async def test_blocks_have_label_tokens_marker_ttl_and_digest(
    emu: Emulator, tmp_path: Path
) -> None:
    def lookup(city: str) -> str:
        """Looks up a city."""
        return city

    blocks = [PromptBlock("rules", LONG), PromptBlock("style", "Be terse. " * 50)]
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, _):
            chat = client.session("anthropic", system=blocks, tools=[lookup], tool_choice="none")
            await chat.send("Rome?")
            await chat.send("Paris?")
    first, second = rows_of(tmp_path / "audit")
    assert [(block.label, block.kind) for block in first.blocks] == [
        ("tool lookup", "tool"),
        ("rules", "system"),
        ("style", "system"),
        *(("conversation", "messages") for _ in first.blocks[3:]),
    ]
    assert any(block.marker and block.ttl for block in first.blocks)
    assert all(block.tokens > 0 and len(block.digest) == 32 for block in first.blocks)
    # The tools and the system prompt stay, the conversation grows.
    assert [block.digest for block in second.blocks[:3]] == [b.digest for b in first.blocks[:3]]
    assert second.blocks[-1].digest != first.blocks[-1].digest
    # A message that was marked keeps its digest in the next call.
    assert {b.digest for b in first.blocks if b.marker} <= {b.digest for b in second.blocks}


@in_event_loop
async def test_calls_of_a_session_are_one_conversation(emu: Emulator, tmp_path: Path) -> None:
    """One with a name is the same in every process; the name itself is not stored."""
    with AuditLog(tmp_path / "audit") as log:
        for _ in range(2):
            async with audited(emu.url, log, ("anthropic",)) as (client, _transport):
                chat = client.session("anthropic", model=MODELS["anthropic"])
                await chat.send("Hello?")
                await chat.send("And now?")
                await chat.fork().send("Or so?")
                named = client.session("anthropic", model=MODELS["anthropic"], id="user NAMECANARY")
                await named.send("Hello?")
    found = rows_of(tmp_path / "audit")
    assert [row.turn for row in found] == 2 * [1, 2, 1, 1]
    ids = [row.conversation for row in found]
    assert ids[0] == ids[1]
    assert ids[3] == ids[7]
    assert len({ids[0], ids[2], ids[3], ids[4], ids[6]}) == 5
    assert b"NAMECANARY" not in stored(tmp_path)


@in_event_loop
async def test_digests_depend_on_the_key_of_the_log(emu: Emulator, tmp_path: Path) -> None:
    """So that a short text cannot be guessed from its digest."""
    digests = []
    for name in ("one", "two"):
        with AuditLog(tmp_path / name) as log:
            async with audited(emu.url, log) as (client, transport):
                await client.complete("yes", "anthropic", system="no")
                rendered = transport.sent[-1].body
        (row,) = rows_of(tmp_path / name)
        digests += [{block.digest for block in row.blocks} | {row.prompt_hash}]
        for piece in (b"yes", b"no", b'{"type":"text","text":"no"}', rendered):
            assert blake3(piece).hexdigest()[:32] not in stored(tmp_path).decode()
    assert not digests[0] & digests[1]


@in_event_loop
async def test_equal_prompts_have_equal_hashes(emu: Emulator, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, _):
            for text in ("Rome?", "Rome?", "Paris?"):
                await client.complete(text, "openai_chat", system=LONG)
    first, second, other = (row.prompt_hash for row in rows_of(tmp_path / "audit"))
    assert first == second != other


@pytest.mark.parametrize("streams", [False, True])
@in_event_loop
async def test_a_row_of_an_adapter_has_its_id_and_its_prompt_hash(
    streams: bool, emu: Emulator, tmp_path: Path
) -> None:
    request = LlmRequest(
        model=MODELS["anthropic"],
        system="be precise",
        messages=(LlmMessage("user", "hello"),),
        max_tokens=256,
    )
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, transport):
            adapter = ClientAdapter(client, "anthropic", "claude")
            if streams:
                async for _ in adapter.stream(request):
                    pass
            else:
                await adapter.complete(request)
            raw = bytes(transport.received[-1])
    (row,) = rows_of(tmp_path / "audit")
    assert (row.adapter, row.prompt_hash) == ("claude", request.prompt_hash())
    assert row.prompt_hash.startswith("7c2425e4")
    assert row.raw_hash == blake3(raw).hexdigest()


@in_event_loop
async def test_any_adapter_can_be_audited(emu: Emulator, tmp_path: Path) -> None:
    request = LlmRequest(model=MODELS["anthropic"], messages=(LlmMessage("user", "hello"),))
    with AuditLog(tmp_path / "audit") as log:
        async with AsyncClient.from_config(
            {"providers": settings(emu.url, ("anthropic",))}, environ={"KEY": SECRET}
        ) as client:
            adapter = AuditedAdapter(ClientAdapter(client, "anthropic", "claude"), log)
            response = await adapter.complete(request)
            chunks = [chunk async for chunk in adapter.stream(request)]
            with pytest.raises(errors.Timeout):
                await adapter.complete(msgspec.structs.replace(request, timeout_ms=0))
    assert chunks[-1].finish_reason
    done, streamed, failed = rows_of(tmp_path / "audit")
    assert (done.adapter, done.raw_hash) == ("claude", response.raw_hash)
    assert done.prompt_hash == streamed.prompt_hash == failed.prompt_hash == request.prompt_hash()
    assert (done.outcome, streamed.outcome, failed.outcome) == ("ok", "ok", "Timeout")


@pytest.mark.breaks_prefix(reason="the break is what the row tells")
@in_event_loop
async def test_a_break_names_the_block_that_changed(emu: Emulator, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, _):
            day = "Monday"
            from anaphora import PromptIR

            chat = client.session(
                "anthropic",
                prompt=lambda: PromptIR(
                    system_blocks=(PromptBlock("rules", f"It is {day}. {LONG}"),)
                ),
                on_prefix_break="off",
            )
            await chat.send("Rome?")
            day = "Tuesday"
            await chat.send("Paris?")
    row = rows_of(tmp_path / "audit")[-1]
    assert (row.broke, row.changed, row.cause) == (True, "rules", "system_changed")
    assert row.change is not None
    assert row.lost > 1000
    assert row.lost_nano_usd is not None and row.lost_nano_usd > 0  # noqa: PT018
    assert b"Tuesday" not in stored(tmp_path)


@pytest.mark.parametrize(
    "fault, outcome, status",
    [("529", "Overloaded", 529), ("spend-cap", "QuotaExhausted", 429), ("cut", "Transport", 200)],
)
@in_event_loop
async def test_failed_calls_have_rows(
    fault: str, outcome: str, status: int | None, emu: Emulator, tmp_path: Path
) -> None:
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log, retry={"max_attempts": 2, "first_wait": 0.001}) as (
            client,
            transport,
        ):
            transport.faults = [fault]
            with pytest.raises(errors.AnaphoraError):
                await client.complete("Hello?", "anthropic", timeout=5)
    (row,) = rows_of(tmp_path / "audit")
    assert (row.outcome, row.status) == (outcome, status)
    assert row.attempts >= 1
    assert row.raw_hash == ""
    assert row.blocks


@in_event_loop
async def test_a_cancelled_call_has_a_row(emu: Emulator, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, transport):
            transport.faults = ["timeout"]
            task = asyncio.ensure_future(client.complete("Hello?", "anthropic"))
            await until(lambda: transport.sent, "the request is sent")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    (row,) = rows_of(tmp_path / "audit")
    assert row.outcome == "CancelledError"


def test_labels_reach_the_calls_of_a_client_without_async(emu: Emulator, tmp_path: Path) -> None:
    environ = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": emu.url}
    with (
        AuditLog(tmp_path / "audit") as log,
        Client.from_env(environ, audit=log) as client,
        labelled("outer"),
    ):
        assert client.audit is log
        with labelled("inner\nline"):
            client.complete("Hello?", model=MODELS["anthropic"])
        client.complete("Hello?", model=MODELS["anthropic"])
    assert [row.labels for row in rows_of(tmp_path / "audit")] == [
        ("outer", "inner?line"),
        ("outer",),
    ]


# ── What a row never holds ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("record", [FULL, LOST], ids=["answered", "failed"])
@pytest.mark.parametrize(
    "canary, keep", [(PROMPT, NAMES), (KEY, NAMES | WORDS)], ids=["prompt", "key"]
)
def test_no_text_of_a_record_is_stored(
    record: Any, canary: str, keep: set[str], tmp_path: Path
) -> None:
    planted = replaced(record, canary, keep)
    assert "CANARY" in repr(planted)
    with AuditLog(tmp_path / "audit") as log:
        assert log.call_ended(EndedCall(record=planted)) == ()
    assert len(rows_of(tmp_path / "audit")) == 1
    assert b"CANARY" not in stored(tmp_path)


@pytest.mark.parametrize("wire", WIRES)
@in_event_loop
async def test_no_prompt_response_or_key_is_stored(
    wire: str, emu: Emulator, tmp_path: Path
) -> None:
    def lookup(city: str) -> str:
        """TOOLCANARY"""
        return f"RESULTCANARY {city}"

    with AuditLog(tmp_path / "audit", anchor=tmp_path / "anchor") as log:
        async with audited(emu.url, log) as (client, _):
            chat = client.session(wire, system=f"{SYSTEM_CANARY} {LONG}", tools=[lookup])
            answers = [await chat.run(f"{USER_CANARY} call lookup", max_turns=3)]
            adapter = ClientAdapter(client, wire, "any")
            message = LlmMessage("user", USER_CANARY)
            request = LlmRequest(model=MODELS[wire], system=SYSTEM_CANARY, messages=(message,))
            answered = await adapter.complete(request)
    data = stored(tmp_path)
    assert len(rows_of(tmp_path / "audit")) >= 3
    assert b"CANARY" not in data
    assert SECRET.encode() not in data
    for text in (*(answer.text for answer in answers), answered.text):
        assert text
        assert text[:12].encode() not in data


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
@in_event_loop
async def test_an_error_that_repeats_prompt_and_key_is_not_stored(
    wire: str, status: int, tmp_path: Path
) -> None:
    """In the message, in codes and in headers, where a provider might put it."""
    quoted = f"your prompt '{USER_CANARY} {SYSTEM_CANARY}' with key {SECRET}"
    error = {"message": quoted, "type": quoted, "code": quoted, "status": quoted, "param": quoted}
    body = json.dumps({"type": "error", "error": error, "request_id": quoted}).encode()

    async def handle(server: RawServer, reader: Any, writer: Any) -> None:
        while await server.read(reader):
            headers = (f"request-id: {quoted}", f"x-request-id: {quoted}")
            writer.write(reply(body, f"{status} Told", *headers))
            await writer.drain()

    with AuditLog(tmp_path / "audit") as log:
        async with (
            raw_server(handle) as server,
            audited(server.url, log, (wire,), retry={"max_attempts": 1}) as (client, _),
        ):
            with pytest.raises(errors.AnaphoraError):
                await client.complete(USER_CANARY, wire, system=SYSTEM_CANARY)
            with pytest.raises(errors.AnaphoraError):
                async for _ in client.stream(USER_CANARY, wire, system=SYSTEM_CANARY):
                    pass
    assert len(rows_of(tmp_path / "audit")) == 2
    data = stored(tmp_path)
    assert b"CANARY" not in data
    assert SECRET.encode() not in data


# ── A log that cannot be written ─────────────────────────────────────────────────────────────────


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@in_event_loop
async def test_an_answer_does_not_wait_for_the_disk(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, _):
            monkeypatch.setattr(
                "anaphora.audit.log_file.os.fsync", lambda _: goes_on.wait(PATIENCE)
            )
            for _ in range(3):
                assert (await client.complete("Hello?", "anthropic")).text
            before = log.head.seq
            goes_on.set()
            await log.aflush()
    assert before == 2, "nothing was committed when the answers were there"
    assert len(rows_of(tmp_path / "audit")) == 3


@in_event_loop
async def test_an_answer_is_returned_when_its_row_cannot_be_written(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AuditLog(tmp_path / "audit") as log:
        async with audited(emu.url, log) as (client, _):
            with monkeypatch.context() as patch:
                patch.setattr("anaphora.audit.log_file.os.fsync", full)
                await client.complete("One?", "anthropic")
                with pytest.raises(errors.Io):
                    await log.aflush()
                response = await client.complete("Two?", "anthropic")
            assert response.text
            (notice,) = [each for each in response.notices if each.code == "audit_failed"]
            assert "No space left on device" in notice.message
            await asyncio.to_thread(settle, log)
    assert len(rows_of(tmp_path / "audit")) == 2


@in_event_loop
async def test_a_required_log_refuses_calls_before_they_are_sent(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AuditLog(tmp_path / "audit", required=True) as log:
        async with audited(emu.url, log) as (client, transport):
            with monkeypatch.context() as patch:
                patch.setattr("anaphora.audit.log_file.os.fsync", full)
                assert (await client.complete("One?", "anthropic")).text
                with pytest.raises(errors.Io):
                    await log.aflush()
                with pytest.raises(errors.Io, match="the audit log cannot be written"):
                    await client.complete("Two?", "anthropic")
                with pytest.raises(errors.Io, match="the audit log cannot be written"):
                    async for _ in client.stream("Two?", "anthropic"):
                        pass
                assert len(transport.sent) == 1
            await asyncio.to_thread(settle, log)
            await client.complete("Three?", "anthropic")
    assert len(rows_of(tmp_path / "audit")) == 2


@in_event_loop
async def test_a_closed_log_loses_no_answer(emu: Emulator, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    async with audited(emu.url, log) as (client, _):
        log.close()
        response = await client.complete("Hello?", "anthropic")
    assert response.text
    assert [each.code for each in response.notices if each.code == "audit_failed"]


@in_event_loop
async def test_a_required_log_that_is_closed_refuses_calls(emu: Emulator, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit", required=True)
    log.close()
    async with audited(emu.url, log) as (client, transport):
        with pytest.raises(errors.Io, match="cannot be written: it is closed"):
            await client.complete("Hello?", "anthropic")
        assert not transport.sent


@pytest.mark.parametrize("wrong", ["audit", Path("audit"), object(), print])
def test_what_is_no_log_is_named(wrong: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="audit: must be"):
        AsyncClient.from_env({"ANTHROPIC_API_KEY": "any"}, audit=wrong)

"""Apps do not see each other in a cache that they share at a provider."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.delegation import Delegating, app_of, delegating
from support.emulated_client import KEY, LONG, MODELS
from support.scripted_provider import ScriptedProvider, scripted_provider

from anaphora.audit import calls
from anaphora.client.config.resolve import resolve
from anaphora.daemon.access.isolation import own_usage
from anaphora.daemon.calls.call import AppReply
from anaphora.daemon.values import App
from anaphora.emulator.server import Emulator
from anaphora.rendered import Mark, Plan
from anaphora.values import Usage, UsageUpdate

pytestmark = pytest.mark.usefixtures("more_faults")

ONE, TWO = (app_of(name, providers=["anthropic"]) for name in ("one", "two"))
MARKED = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}


def body(question: str, wire: str = "anthropic", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    if wire == "anthropic":
        fields |= {"system": [MARKED], "max_tokens": 20}
    else:
        messages.insert(0, {"role": "system", "content": LONG})
        fields |= {"max_completion_tokens": 20}
    return {"model": MODELS[wire], "messages": messages, **fields}


async def ask(daemon: Delegating, app: App, question: str, **fields: Any) -> AppReply:
    call = daemon.request("anthropic", body(question, **fields), app=app)
    if call.stream:
        return (await daemon.stream(call))[1]
    return await daemon.service.complete(call)


@pytest.mark.parametrize("stream", [False, True])
def test_reads_of_what_another_app_wrote_are_hidden(
    stream: bool, emu: Emulator, tmp_path: Path
) -> None:
    """In usage, cost, verdict and explanation; what is spent is the provider's bill."""

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])
            first = await ask(daemon, ONE, "Hello?", stream=stream)
            other = await ask(daemon, TWO, "Hello?", stream=stream)
            again = await ask(daemon, TWO, "And now?", stream=stream)
            assert b'"cache_read_input_tokens":0' not in bytes(daemon.transport.received[1])
            assert (other.usage.read, other.usage.written) == (0, first.usage.written)
            assert other.reply.usage == other.usage
            assert other.cost_usd == first.cost_usd
            assert other.verdict is not None
            assert other.verdict.result == "first"
            assert other.body is None
            assert again.usage.read == first.usage.written_total
            explained = daemon.service.explain(TWO, other.request_id)
            assert explained is not None
            assert explained["usage"]["read"] == 0
            assert daemon.service.explain(ONE, other.request_id) is None
            await daemon.spent(TWO)
            (_, row) = await daemon.store.spend(["app"])
            assert (row.app, row.read) == ("two", 2 * (again.usage.read or 0))

    asyncio.run(main())


def test_failure_to_note_a_prefix_loses_no_answer(emu: Emulator, tmp_path: Path) -> None:
    """Nor its bill: the answer has a notice."""

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])

            def fail(*_: object) -> None:
                raise RuntimeError("the prefixes cannot be noted")

            daemon.service.tools.memory.prefixes.add = fail  # type: ignore[assignment, method-assign]
            first = await ask(daemon, ONE, "Hello?")
            again = await ask(daemon, ONE, "Hello?")
            spent = await daemon.spent(ONE)
        assert first.cost_usd is not None
        assert "verdict_failed" in [notice.code for notice in again.notices]
        assert first.reply.message.parts
        assert spent.today > 0

    asyncio.run(main())


def test_audit_rows_have_both_views(emu: Emulator, tmp_path: Path) -> None:
    """The operator's figures, and what the app saw, where that differs."""

    async def main() -> tuple[AppReply, AppReply]:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])
            return await ask(daemon, ONE, "Hello?"), await ask(daemon, TWO, "Hello?")

    first, other = asyncio.run(main())
    (one, two) = [call for _, call in calls(tmp_path / "audit")]
    assert one.own is None
    assert two.own is not None
    assert two.usage.read == first.usage.written_total
    assert (two.own.usage.read, two.own.usage.written_total) == (0, first.usage.written_total)
    assert two.own.cost_nano_usd == one.cost_nano_usd
    assert two.cost_nano_usd is not None
    assert one.cost_nano_usd is not None
    assert two.cost_nano_usd < one.cost_nano_usd
    assert other.verdict is not None
    assert two.verdict == other.verdict.result


def test_stream_that_is_left_is_charged_by_the_bill(emu: Emulator, tmp_path: Path) -> None:
    """Its app sees what it would have cost alone."""

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])
            daemon.transport.faults = ["slow-drip; seconds=0.05"] * 2
            for app in (ONE, TWO):
                call = daemon.request("anthropic", body("Hello?", stream=True), app=app)
                stream = daemon.service.stream(call)
                await stream.head()
                await stream.aclose()
            assert (await daemon.spent(ONE)).today > (await daemon.spent(TWO)).today > 0
            first, other = sorted(await daemon.store.spend(["app"]), key=lambda row: row.app)
            assert (first.read, other.written) == (0, 0)
            assert other.read == first.written > 0

    asyncio.run(main())
    (one, two) = [call for _, call in calls(tmp_path / "audit")]
    assert one.own is None
    assert two.own is not None
    assert two.own.unbilled_nano_usd == one.unbilled_nano_usd > two.unbilled_nano_usd > 0


def test_what_a_stream_that_was_left_has_cached_is_the_apps_own(
    emu: Emulator, tmp_path: Path
) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])
            daemon.transport.faults = ["slow-drip; seconds=0.05"]
            call = daemon.request("anthropic", body("Hello?", stream=True), app=ONE)
            stream = daemon.service.stream(call)
            await stream.head()
            await stream.aclose()
            assert ((await ask(daemon, ONE, "And now?")).usage.read or 0) > 4000
            assert (await ask(daemon, TWO, "And now?")).usage.read == 0

    asyncio.run(main())


def test_events_of_a_stream_hide_them_too(emu: Emulator, tmp_path: Path) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])
            await ask(daemon, ONE, "Hello?")
            call = daemon.request("anthropic", body("Hello?", stream=True), app=TWO)
            pieces, _ = await daemon.stream(call)
            assert all(piece.data is None for piece in pieces)
            events = msgspec.json.encode([event for piece in pieces for event in piece.events])
            assert b'"read":0' in events
            assert b"cache_read_input_tokens" not in events

    asyncio.run(main())


def test_only_user_of_a_provider_is_not_masked(emu: Emulator, tmp_path: Path) -> None:
    """Neither is an app that shares its cache."""
    sharing = app_of("two", providers=["anthropic"], share_cache=True)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant])
            written = (await ask(daemon, ONE, "Hello?")).usage.written_total
            daemon.service.use_grants([ONE.grant, sharing.grant])
            reply = await ask(daemon, sharing, "Hello?")
            assert reply.usage.read == written
            assert reply.body is not None

    asyncio.run(main())


def test_verdict_compares_with_the_apps_own_calls(emu: Emulator, tmp_path: Path) -> None:
    """Also of an app that shares its cache: a change to another app's prompt would show that."""
    one, two = (app_of(id, providers=["anthropic"], share_cache=True) for id in ("one", "two"))

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([one.grant, two.grant])
            for app, text in ((one, "The password is 4711."), (two, "The password is x.")):
                system = [MARKED, {**MARKED, "text": LONG + text}]
                call = daemon.request("anthropic", {**body("Hi"), "system": system}, app=app)
                reply = await daemon.service.complete(call)
                assert reply.verdict is not None
                assert reply.verdict.result == "first"
                assert reply.verdict.change is None

    asyncio.run(main())


def test_entries_of_one_account_share_a_cache(emu: Emulator, tmp_path: Path) -> None:
    """Two ids with the same address and key are one provider."""
    one, two = app_of("one", providers=["anthropic"]), app_of("two", providers=["again"])

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            again = {**daemon.config.providers, "again": daemon.config.providers["anthropic"]}
            config = msgspec.structs.replace(daemon.config, providers=again)
            daemon.service.reload(config, resolve(config, environ={"KEY": KEY}))
            daemon.service.use_grants([one.grant, two.grant])
            await ask(daemon, one, "Hello?")
            assert (await ask(daemon, two, "Hello?")).usage.read == 0

    asyncio.run(main())


def test_apps_get_their_own_cache_key(emu: Emulator, tmp_path: Path) -> None:
    """Where the provider has keys: a change to the body, with a notice."""
    one, two = (app_of(name, providers=["openai_chat"]) for name in ("one", "two"))

    async def main() -> None:
        async with delegating(emu, tmp_path, ["openai_chat"]) as daemon:
            daemon.service.use_grants([one.grant])
            call = daemon.request("openai_chat", body("Hi", "openai_chat", prompt_cache_key="k"))
            await daemon.service.complete(msgspec.structs.replace(call, app=one))
            daemon.service.use_grants([one.grant, two.grant])
            for app, key in ((one, {"prompt_cache_key": "k"}), (two, {"prompt_cache_key": "k"})):
                call = daemon.request("openai_chat", body("Hi", "openai_chat", **key), app=app)
                reply = await daemon.service.complete(call)
                assert "cache_key_per_app" in [notice.code for notice in reply.notices]
            for app in (one, two):
                call = daemon.request("openai_chat", body("Hi", "openai_chat"), app=app)
                await daemon.service.complete(call)
            keys = [sent["prompt_cache_key"] for sent in daemon.sent]
            assert keys[0] == "k"
            assert len(set(keys)) == 5

    asyncio.run(main())


@pytest.mark.parametrize("key", [{}, {"prompt_cache_key": "k"}])
def test_keys_that_separate_nothing_do_not_unmask(
    key: dict[str, str], emu: Emulator, tmp_path: Path
) -> None:
    """DeepSeek has no cache keys: what another app wrote is read with any."""
    one, two = (app_of(name, providers=["deepseek"]) for name in ("one", "two"))

    async def main() -> None:
        async with delegating(emu, tmp_path, ["deepseek"]) as daemon:
            daemon.service.use_grants([one.grant, two.grant])
            asked = {**body("Hello?", "openai_chat"), "model": MODELS["deepseek"], **key}
            first, other = [
                await daemon.service.complete(daemon.request("openai_chat", asked, app=app))
                for app in (one, two)
            ]
            assert b'"prompt_cache_hit_tokens":0' not in bytes(daemon.transport.received[1])
            assert other.usage == first.usage
            assert other.verdict is not None
            assert str(other.verdict) == str(first.verdict)

    asyncio.run(main())


def test_form_of_a_reply_does_not_tell_whether_something_is_hidden(
    emu: Emulator, tmp_path: Path
) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            daemon.service.use_grants([ONE.grant, TWO.grant])
            first, other = await ask(daemon, ONE, "Hello?"), await ask(daemon, TWO, "Hello?")
            assert first.body is other.body is None
            assert first.reply.usage == other.reply.usage
            call = daemon.request("anthropic", body("Hello?", stream=True), app=ONE)
            pieces, _ = await daemon.stream(call)
            read = [e.usage.read for p in pieces for e in p.events if isinstance(e, UsageUpdate)]
            assert read[0] == read[-1] == first.usage.written_total

    asyncio.run(main())


def test_other_fields_of_a_reply_do_not_tell_what_was_read(tmp_path: Path) -> None:
    """Servers report the cache beside the usage as well: llama.cpp in `timings`, Groq in `x_groq`,
    OpenAI in its diagnostics."""
    chat = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    message = {"role": "assistant", "content": "Hello."}
    cached = {
        "timings": {"cache_n": 900},
        "x_groq": {"usage": {"prompt_tokens_details": {"cached_tokens": 900}}},
        "prompt_cache_diagnostics": {"type": "cache_hit"},
        "system_fingerprint": "f",
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005}
    usage["prompt_tokens_details"] = {"cached_tokens": 900}  # type: ignore[assignment]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = {**chat, "choices": [choice], "usage": usage, **cached}
    chunk = {**chat, "object": "chat.completion.chunk"}
    begin = {"index": 0, "delta": message, "finish_reason": None}
    chunks = [
        {**chunk, "choices": [begin], **cached},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **cached},
        {**chunk, "choices": [], "usage": usage, **cached},
    ]
    lines = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in chunks)
    one, two = (app_of(name, providers=["deepseek"]) for name in ("one", "two"))
    asked = {**body("Hello?", "openai_chat"), "model": MODELS["deepseek"]}

    async def main(provider: ScriptedProvider) -> None:
        async with delegating(provider, tmp_path, ["deepseek"]) as daemon:
            daemon.service.use_grants([one.grant, two.grant])
            provider.error = 200, msgspec.json.encode(whole)
            reply = await daemon.service.complete(daemon.request("openai_chat", asked, app=one))
            provider.error = 200, lines + b"data: [DONE]\n\n"
            call = daemon.request("openai_chat", {**asked, "stream": True}, app=two)
            pieces, streamed = await daemon.stream(call)
            shown = [reply.reply, streamed.reply, *(piece.events for piece in pieces)]
            text = repr(shown)
            assert "fingerprint" in text
            assert not any(word in text for word in ("900", "timings", "x_groq", "cache_hit"))

    with scripted_provider() as provider:
        asyncio.run(main(provider))


def test_hidden_tokens_stay_in_the_sum() -> None:
    usage = Usage(uncached=10, read=500, written={"5m": 20}, output=7)
    alone, hidden = own_usage(usage, None, Plan(marks=(Mark(3, "1h"),)))
    assert (alone.read, alone.written, hidden) == (0, {"5m": 20, "1h": 500}, 500)
    assert alone.input == usage.input
    alone, hidden = own_usage(usage, None, Plan())
    assert (alone.uncached, alone.read, hidden) == (510, 0, 500)

"""Conversations behind a router: pinned to the host that has their prefix cached, until it fails or
the prefix expires."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from support.emulated_client import LONG
from support.virtual_emulator import VirtualEmulator, run_virtual

from anaphora import catalog, errors
from anaphora.client.response import Response
from anaphora.client.session import Session
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.faults import Faults
from anaphora.values import Message, Reply
from anaphora.wire.dialect.routers import answering_host

HOSTS = ("DeepInfra", "Novita", "Google AI Studio")
ROUTERS = {"openrouter": HOSTS, "vercel": HOSTS, "huggingface": ("deepinfra", "novita", "together")}
TURNS = 6
DOWN, LIMITED = 'fault: "529"', "fault: rate-limit, seconds: 0"
every_router = pytest.mark.parametrize("router", ROUTERS)


def emulated(router: str = "openrouter", faults: str = "", **options: Any) -> EmulatorOptions:
    rules = Faults.decode(f"faults: [{faults}]", "faults.yaml") if faults else Faults()
    options.setdefault("router_hosts", ROUTERS[router])
    return EmulatorOptions(faults=rules, tool_calls=False, **options)


async def send(chat: Session, text: str, *, stream: bool = False) -> Response:
    turn = chat.send(text)
    if stream:
        async for _ in turn:
            pass
        assert turn.response is not None
        return turn.response
    return await turn


async def converse(chat: Session, turns: int = TURNS, *, stream: bool = False) -> list[Response]:
    responses = []
    for turn in range(turns):
        responses.append(await send(chat, f"Question {turn}?", stream=stream))
        await asyncio.sleep(1)
    return responses


def pins(virtual: VirtualEmulator) -> list[str | None]:
    """The host that each request asks for."""
    return [pin_of(body) for body in virtual.transport.bodies]


def pin_of(body: bytes) -> str | None:
    request = json.loads(body)
    host = request["model"].partition(":")[2]
    gateway = request.get("providerOptions", {}).get("gateway", {})
    order = request.get("provider", {}).get("order") or gateway.get("order") or [host]
    assert len(order) == 1
    return order[0] or None


def hosts(responses: list[Response]) -> list[str]:
    return [host_of(response) for response in responses]


def host_of(response: Response) -> str:
    assert response.verdict is not None
    return response.verdict.host


def codes(response: Response) -> list[str]:
    return [each.code for each in response.notices if each.code in ("moved", *PIN_NOTICES)]


PIN_NOTICES = ("host_pinned", "host_released")


def read_share(responses: list[Response]) -> float:
    usages = [response.usage for response in responses]
    return sum(one.read or 0 for one in usages) / sum(one.input or 0 for one in usages)


# ── Pinning ──────────────────────────────────────────────────────────────────────────────────────


@every_router
@pytest.mark.parametrize("stream", [False, True], ids=["complete", "stream"])
def test_conversation_stays_at_the_host_of_its_first_call(
    monkeypatch: pytest.MonkeyPatch, router: str, stream: bool
) -> None:
    async def main(virtual: VirtualEmulator) -> list[Response]:
        first: set[str] = set()
        for name in range(4):
            chat = virtual.client.session(router, system=f"{name} {LONG}")
            responses = await converse(chat, stream=stream)
            (host,) = set(hosts(responses))
            first.add(host)
            assert host in ROUTERS[router]
            assert pins(virtual)[-TURNS:] == [None] + [host] * (TURNS - 1)
            assert [codes(one) for one in responses] == [[], ["host_pinned"], *[[]] * (TURNS - 2)]
            for response in responses[1:]:
                verdict = response.verdict
                assert verdict is not None
                assert (verdict.result, verdict.pinned) == ("hit", True)
                assert str(verdict).endswith(f" Pinned to {host}.")
        assert len(first) > 1, "every first call went to the same host"
        return responses

    run_virtual(monkeypatch, main, router, options=emulated(router))


@every_router
def test_read_share_is_that_of_one_host(monkeypatch: pytest.MonkeyPatch, router: str) -> None:
    async def main(virtual: VirtualEmulator) -> float:
        answered = []
        for name in range(4):
            answered += await converse(virtual.client.session(router, system=f"{name} {LONG}"))
        return read_share(answered)

    one = run_virtual(monkeypatch, main, router, options=emulated(router, router_hosts=("One",)))
    three = run_virtual(monkeypatch, main, router, options=emulated(router))
    assert three >= 0.9 * one > 0.5


@every_router
def test_only_the_pin_differs_from_a_request_without_it(
    monkeypatch: pytest.MonkeyPatch, router: str
) -> None:
    async def main(virtual: VirtualEmulator) -> list[bytes]:
        await converse(virtual.client.session(router, system=LONG, max_tokens=64))
        return virtual.transport.bodies

    pinned = run_virtual(monkeypatch, main, router, options=emulated(router))
    plain = run_virtual(monkeypatch, main, router, options=emulated(router, router_hosts=()))
    for one, two in zip(pinned, plain, strict=True):
        host = pin_of(one)
        for pin in (
            f',"provider":{{"order":["{host}"]}}',
            f',"providerOptions":{{"gateway":{{"order":["{host}"]}}}}',
            f":{host}",
        ):
            one = one.replace(pin.encode(), b"", 1)
        assert one == two


def test_fork_is_pinned_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("openrouter", system=LONG)
        (first,) = await converse(chat, 1)
        for name in range(4):
            branch = await chat.fork().send(f"Branch {name}")
            assert host_of(branch) == host_of(first)

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


def test_saved_conversation_keeps_its_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        history: list[Message] = []

        def chat() -> Session:
            return virtual.client.session(
                "openrouter", id="u", system=LONG, messages=history, save=history.append
            )

        responses = [await chat().send(f"Question {turn}?") for turn in range(TURNS)]
        assert len(set(hosts(responses))) == 1
        assert pins(virtual)[1:] == [host_of(responses[0])] * (TURNS - 1)

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


# ── Release ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("fault", "error"), [(DOWN, "Overloaded"), (LIMITED, "RateLimited")])
@pytest.mark.parametrize("stream", [False, True], ids=["complete", "stream"])
def test_call_is_sent_again_without_the_pin_when_the_host_fails(
    monkeypatch: pytest.MonkeyPatch, fault: str, error: str, stream: bool
) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("openrouter", system=LONG)
        first, _, third, fourth = await converse(chat, 4, stream=stream)
        host = host_of(first)
        assert [attempt.error for attempt in third.attempts] == [error, None]
        assert third.attempts[0].wait is None
        assert pins(virtual) == [None, host, host, None, host_of(third)]
        assert codes(third)[0] == "host_released"
        assert f"not pinned to {host}: it failed with {error}" in str(third.notices)
        assert host_of(fourth) == host_of(third)

    faults = f"{{{fault}, nth: 3}}"
    run_virtual(monkeypatch, main, "openrouter", options=emulated(faults=faults))


@pytest.mark.parametrize("fault", [DOWN, LIMITED])
def test_pin_is_released_if_the_call_fails(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("openrouter", system=LONG)
        (first,) = await converse(chat, 1)
        with pytest.raises((errors.Overloaded, errors.RateLimited)):
            await chat.send("Fails.")
        tried = len(virtual.transport.bodies)
        again = await chat.send("Works.")
        assert pins(virtual)[1] == host_of(first)
        assert set(pins(virtual)[2:]) == {None}
        assert "host_released" in codes(again)
        assert len(virtual.transport.bodies) == tried + 1

    faults = f"{{{fault}, nth: [2, 3, 4, 5]}}"
    run_virtual(monkeypatch, main, "openrouter", options=emulated(faults=faults))


def test_pin_is_released_if_a_stream_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("openrouter", system=LONG)
        (first,) = await converse(chat, 1, stream=True)
        with pytest.raises(errors.AnaphoraError):
            await send(chat, "Breaks off.", stream=True)
        again = await send(chat, "Works.", stream=True)
        assert pins(virtual) == [None, host_of(first), None]
        assert codes(again)[0] == "host_released"

    faults = "{fault: stream-error, after: 4, nth: 2}"
    run_virtual(monkeypatch, main, "openrouter", options=emulated(faults=faults))


def test_conversation_moves_with_the_router_and_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The router tries another host by itself, since the pin is an order, not a limit."""

    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("openrouter", system=LONG)
        before = await converse(chat, 3)
        moved, *after = await converse(chat, 3)
        old, new = host_of(before[0]), host_of(moved)
        assert old != new
        assert len(moved.attempts) == 1
        assert codes(moved) == ["moved"]
        assert f"moving from {old} to {new} pays" in str(moved.notices)
        verdict = moved.verdict
        assert verdict is not None
        assert (verdict.result, verdict.cause, verdict.pinned) == ("miss", "other_route", False)
        text = f"sent the call to {new}, and the prefix was cached at {old}, which it was pinned to"
        assert text in str(verdict)
        assert verdict.lost > 0
        assert hosts(after) == [new, new]
        assert pins(virtual)[-3:] == [old, new, new]
        assert all(each.verdict is not None and each.verdict.result == "hit" for each in after)

    # The fourth call at the same host fails, whichever it is.
    faults = ", ".join(f'{{{DOWN}, host: "{host}", nth: 4}}' for host in HOSTS)
    run_virtual(monkeypatch, main, "openrouter", options=emulated(faults=faults))


def test_host_that_no_longer_has_the_model_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face tries no other host than the one in the model's name."""

    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("huggingface", system=LONG)
        (first,) = await converse(chat, 1)
        left = tuple(name for name in ROUTERS["huggingface"] if name != host_of(first))
        virtual.engine.options = emulated(router_hosts=left)
        virtual.engine.reset()
        second, third = await converse(chat, 2)
        assert [attempt.error for attempt in second.attempts] == ["NotFound", None]
        assert host_of(second) == host_of(third) in left
        assert pins(virtual) == [None, host_of(first), None, host_of(second)]

    run_virtual(monkeypatch, main, "huggingface", options=emulated("huggingface"))


def test_expired_prefix_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = virtual.client.session("openrouter", system=LONG)
        first, _ = await converse(chat, 2)
        seconds = {"5m": 300, "30m": 1800, "1h": 3600, "24h": 86400}[_ttl()]
        await asyncio.sleep(0.9 * seconds)
        third = await chat.send("In time?")
        await asyncio.sleep(1.1 * seconds)
        fourth = await chat.send("Too late?")
        host = host_of(first)
        assert pins(virtual) == [None, host, host, None]
        assert codes(third) == []
        assert codes(fourth) == ["host_released"]
        assert f"not pinned to {host}: the cached prefix expired" in str(fourth.notices)

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


def _ttl() -> str:
    rules = catalog.rules("openrouter", "openai/gpt-5.2", "openai_chat")
    ttl: str = rules.ttls.value[0] if rules.default_ttl is None else rules.default_ttl.value
    return ttl


def test_prompt_too_short_to_be_cached_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        await converse(virtual.client.session("openrouter", system="Be brief.", max_tokens=8))
        assert set(pins(virtual)) == {None}

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


# ── The app's own choice ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "provider",
    [
        {"order": ["Novita", "DeepInfra"]},
        {"only": ["novita"]},
        {"sort": "throughput"},
        {"order": []},
        None,
    ],
    ids=str,
)
def test_hosts_of_the_app_are_never_overwritten(
    monkeypatch: pytest.MonkeyPatch, provider: dict[str, Any] | None
) -> None:
    async def main(virtual: VirtualEmulator) -> list[Response]:
        extras = {"openai_chat": json.dumps({"provider": provider})}
        responses = await converse(virtual.client.session("openrouter", system=LONG, extras=extras))
        for body in virtual.transport.bodies:
            assert json.loads(body)["provider"] == provider
        assert all(set(codes(response)) <= {"moved"} for response in responses)
        return responses

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


@pytest.mark.parametrize("model", ["openai/gpt-5.2:nitro", "openai/gpt-5.2:floor"])
def test_model_that_chooses_hosts_is_not_pinned(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        await converse(virtual.client.session("openrouter", model=model, system=LONG))
        bodies = map(json.loads, virtual.transport.bodies)
        assert all(body["model"] == model and "provider" not in body for body in bodies)

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


def test_pin_joins_other_settings_of_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        own = '{"provider": {"data_collection": "deny"}}'
        chat = virtual.client.session("openrouter", system=LONG, extras={"openai_chat": own})
        first, _ = await converse(chat, 2)
        both = [json.loads(body)["provider"] for body in virtual.transport.bodies]
        deny = {"data_collection": "deny"}
        assert both == [deny, deny | {"order": [host_of(first)]}]

    run_virtual(monkeypatch, main, "openrouter", options=emulated())


def test_verdict_names_the_hosts_of_a_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pin, because the app chooses the order by speed."""

    async def main(virtual: VirtualEmulator) -> list[Response]:
        extras = {"openai_chat": '{"provider": {"sort": "throughput"}}'}
        return await converse(virtual.client.session("openrouter", system=LONG, extras=extras), 12)

    responses = run_virtual(monkeypatch, main, "openrouter", options=emulated())
    flips = 0
    for before, after in pairwise(responses):
        verdict, old, new = after.verdict, host_of(before), host_of(after)
        assert verdict is not None
        assert not verdict.pinned
        if old != new and verdict.result != "hit":
            flips += 1
            assert verdict.cause == "other_route"
            assert f"sent the call to {new}, and the prefix was cached at {old}." in str(verdict)
            assert verdict.lost > 0
    assert flips > 1
    assert read_share(responses) < 0.75


@pytest.mark.parametrize(
    ("named", "host"),
    [
        ('"Google AI Studio"', "Google AI Studio"),
        ('"deepinfra/turbo"', "deepinfra/turbo"),
        ('"a\\",\\"model\\":\\"b"', ""),
        ('"a\\nb"', ""),
        (f'"{"x" * 200}"', ""),
        ('""', ""),
        ("7", ""),
        ('{"name": "x"}', ""),
        ("null", ""),
    ],
)
def test_only_plain_names_of_hosts_are_used(named: str, host: str) -> None:
    message = Message(role="assistant", parts=())
    reply = Reply(
        id="",
        model="",
        message=message,
        stop_reason="end",
        extras={"openai_chat": f'{{"provider":{named}}}'},
    )
    assert answering_host(reply, {}, catalog.dialects().find("openrouter")) == host


# ── Routes of several providers ──────────────────────────────────────────────────────────────────


def test_conversation_returns_to_its_first_hop_when_its_prefix_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same rule for hops and for hosts: a place is kept while the prefix there is alive."""

    async def main(virtual: VirtualEmulator) -> list[str]:
        chat = virtual.client.session("main", system=LONG)
        responses = await converse(chat, 3)
        await asyncio.sleep(2 * 86_400)
        responses.append(await chat.send("Much later?"))
        assert codes(responses[-1]) == []
        return [response.record.provider for response in responses]

    places = run_virtual(
        monkeypatch,
        main,
        "deepseek",
        "openrouter",
        options=emulated(faults=f"{{{DOWN}, provider: deepseek, nth: [2, 3, 4]}}"),
        routes={"main": [{"provider": "deepseek"}, {"provider": "openrouter"}]},
    )
    assert places == ["deepseek", "openrouter", "openrouter", "deepseek"]

"""Two apps on one key: each is charged what the provider bills, and sees what it wrote itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.daemon import GRANT, TestedDaemon, create_home, started_daemon
from support.honest_apps import WIRES, Answer, Chat, charges, provider_bills

from anaphora.emulator.server import Emulator

APPS = ("one", "two")
_TURNS = 4


def conversations(apps: Iterable[str]) -> list[Chat]:
    """Two of each app on each wire; one of them streams."""
    return [
        Chat(app, wire, str(number), stream=bool(number))
        for wire in WIRES
        for number in range(2)
        for app in apps
    ]


def asked(daemon: TestedDaemon, chats: list[Chat]) -> list[tuple[Chat, Answer]]:
    """One turn of each conversation."""
    with contextlib.ExitStack() as stack:
        clients = {
            app: stack.enter_context(daemon.client(app)) for app in {chat.app for chat in chats}
        }
        return [(chat, chat.ask(clients[chat.app])) for chat in chats]


def day(
    folder: Path, emu: Emulator, apps: Iterable[str], *, starts: int = 1
) -> list[tuple[Chat, Answer]]:
    """Conversations through a daemon that is started so many times."""
    tokens = create_home(folder, emu, extensions=dict.fromkeys(apps, GRANT))
    chats, found = conversations(apps), []
    for _ in range(starts):
        with started_daemon(folder, tokens) as daemon:
            for _ in range(_TURNS // starts):
                found += asked(daemon, chats)
    return found


@pytest.mark.long
def test_charge_of_each_answered_call_is_the_bill(emu: Emulator, tmp_path: Path) -> None:
    """To the nano-dollar, for reads of its own conversations and of others; and the app sees what
    it would see alone."""
    both = day(tmp_path / "both", emu, APPS)
    bills = provider_bills(emu)
    charged = charges(tmp_path / "both")
    assert len(charged) == len(both) == len(APPS) * len(WIRES) * 2 * _TURNS
    for chat, answer in both:
        assert charged[answer.request_id] == (bills[answer.reply_id].nano_usd, "billed"), chat.wire
    hidden = [bills[answer.reply_id].read - answer.read for _, answer in both]
    assert min(hidden) == 0
    assert max(hidden) > 1000  # what the other app wrote
    for app in APPS:
        emu.reset()
        alone = day(tmp_path / app, emu, [app])
        for (chat, seen), (_, expected) in zip(own_calls(both, app), alone, strict=True):
            assert is_own(chat, seen.read, expected.read)


def is_own(chat: Chat, shown: int, read: int) -> bool:
    """Whether all of a read is shown. A cache by single tokens also finds the beginning of another
    question, which is not noted."""
    return read - (20 if chat.wire == "gemini" else 0) <= shown <= read


def own_calls(calls: list[tuple[Chat, Answer]], app: str) -> list[tuple[Chat, Answer]]:
    return [(chat, answer) for chat, answer in calls if chat.app == app]


@pytest.mark.long
def test_after_a_restart_reads_are_the_apps_own_once_it_has_sent_them_again(
    emu: Emulator, tmp_path: Path
) -> None:
    """The process before knew what the app had sent. The charge is the bill all the same."""
    found = day(tmp_path / "home", emu, APPS, starts=2)
    bills, charged = provider_bills(emu), charges(tmp_path / "home")
    for chat, answer in found:
        bill = bills[answer.reply_id]
        assert charged[answer.request_id] == (bill.nano_usd, "billed"), chat.wire
        assert answer.read <= bill.read
    chats = len(found) // _TURNS
    restarted, again = found[2 * chats : 3 * chats], found[3 * chats :]
    hidden = [bills[answer.reply_id].read - answer.read for _, answer in restarted]
    assert max(hidden) > 1000
    assert min(answer.read for _, answer in again) > 1000


@pytest.mark.parametrize("wire", ["anthropic", "deepseek"])
def test_cost_and_verdict_are_as_if_the_app_were_alone(
    wire: str, emu: Emulator, tmp_path: Path
) -> None:
    """In the headers: the bill itself would tell what the other app has sent."""
    tokens = create_home(tmp_path / "home", emu, extensions=dict.fromkeys(APPS, GRANT))
    with started_daemon(tmp_path / "home", tokens) as daemon:
        chats = [Chat(app, wire, "same") for app in APPS]
        first, other = (
            [answer for _ in range(3) for _, answer in asked(daemon, [chat])] for chat in chats
        )
    bills = provider_bills(emu)
    assert [each.cost_usd for each in first] == [each.cost_usd for each in other]
    assert [each.verdict for each in first] == [each.verdict for each in other]
    billed = [sum(bills[each.reply_id].nano_usd for each in calls) for calls in (first, other)]
    assert billed[0] > billed[1]


@pytest.mark.parametrize("place", ["system", "message"])
def test_text_with_another_end_is_the_apps_own(place: str, emu: Emulator, tmp_path: Path) -> None:
    """A cache by tokens finds the beginning of a block: a long text with another question, or a
    system prompt with another date."""
    text = "".join(f"line {number} of a long text; " for number in range(2000))
    tokens = create_home(tmp_path / "home", emu, extensions=dict.fromkeys(APPS, GRANT))
    reads: dict[str, list[int]] = {app: [] for app in APPS}
    with started_daemon(tmp_path / "home", tokens) as daemon:
        for app in APPS:
            with daemon.client(app) as client:
                for question in ("Who is it?", "When was that?", "Where?"):
                    system, asked_for = (text + question, "Go on.")
                    if place == "message":
                        system, asked_for = "Be brief.", text + question
                    body = {
                        "systemInstruction": {"parts": [{"text": system}]},
                        "contents": [{"role": "user", "parts": [{"text": asked_for}]}],
                        "generationConfig": {"maxOutputTokens": 64},
                    }
                    path = "/v1beta/models/gemini-2.5-flash:generateContent"
                    usage = client.post(path, json=body).raise_for_status().json()["usageMetadata"]
                    reads[app].append(usage.get("cachedContentTokenCount") or 0)
    assert reads["one"][0] == reads["two"][0] == 0
    assert min(reads["one"][1:]) > 5000
    billed = sorted(bill.read for bill in provider_bills(emu).values())[1:3]
    assert reads["one"][1:] == billed
    for shown, read in zip(reads["two"][1:], billed, strict=True):
        assert 0.99 * read <= shown <= 1.01 * read  # predicted by bytes

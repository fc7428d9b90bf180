"""A conversation that is kept in a file, by its name alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.emulated_client import KEY, LONG, settings

import anaphora
from anaphora import Client, Message
from anaphora.emulator.server import Emulator
from anaphora.errors import AnaphoraError, InvalidRequest, Parse


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ada.jsonl"


def opened(emu: Emulator) -> Client:
    config = {"providers": settings(emu.url, ["anthropic"])}
    return Client.from_config(config, environ={"KEY": KEY})


def asked(emu: Emulator, path: Any, text: str, **options: Any) -> anaphora.Response:
    with opened(emu) as client:
        chat = client.session("anthropic", system=LONG, history=path, **options)
        return chat.send(text).result()


def rows(path: Path) -> list[Message]:
    return [anaphora.from_json(line, Message) for line in path.read_bytes().splitlines()]


def test_conversation_continues_in_the_next_process(emu: Emulator, path: Path) -> None:
    asked(emu, path, "One")
    response = asked(emu, str(path), "Two")
    assert [message.role for message in rows(path)] == ["user", "assistant"] * 2
    assert response.usage.read is not None
    assert response.usage.input is not None
    assert response.usage.read > 0.9 * response.usage.input
    assert not response.notices
    assert path.read_bytes() == b"".join(anaphora.to_json(row) + b"\n" for row in rows(path))


def test_torn_last_line_is_named_left_out_and_overwritten(emu: Emulator, path: Path) -> None:
    asked(emu, path, "One")
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:-10])
    response = asked(emu, path, "Two")
    (notice,) = response.notices
    assert notice.code == "history_torn"
    assert f"{path}:3: the last line is incomplete" in notice.message
    assert path.read_bytes().startswith(whole)
    assert [row.text for row in rows(path)][::2] == ["One", "Two"]
    assert not asked(emu, path, "Three").notices


def test_last_message_without_a_line_end_is_kept(emu: Emulator, path: Path) -> None:
    asked(emu, path, "One")
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert not asked(emu, path, "Two").notices
    assert len(rows(path)) == 4


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_file_that_was_cut_anywhere_is_continued(emu: Emulator, path: Path, cut: int) -> None:
    asked(emu, path, "One")
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    asked(emu, path, "Two")
    assert [row.text for row in rows(path)][-2] == "Two"


OTHERS = [
    ("settings: {}\n", Parse, r"ada.jsonl:1: not a Message: .*as anaphora.to_json writes it"),
    ('{"role":"user"}\n', Parse, r"ada.jsonl:1: not a Message: "),
    ('[{"role":"user","content":"Hi"}]\n', Parse, r"ada.jsonl:1: not a Message"),
]


@pytest.mark.parametrize("content, kind, message", OTHERS)
def test_other_file_is_an_error_and_stays(
    emu: Emulator, path: Path, content: str, kind: type[AnaphoraError], message: str
) -> None:
    path.write_text(content)
    with pytest.raises(kind, match=message):
        asked(emu, path, "One")
    assert path.read_text() == content


def test_path_that_is_none_is_named(emu: Emulator, tmp_path: Path) -> None:
    for given, message in [
        (tmp_path, "is not a file"),
        (tmp_path / "no" / "ada.jsonl", "there is no folder"),
        ("", "must be the path of a JSONL file"),
        ([Message.user("Hi")], "must be the path of a JSONL file"),
    ]:
        with pytest.raises(InvalidRequest, match=message) as caught:
            asked(emu, given, "One")
        assert caught.value.path == "history"
    for more in ({"messages": [Message.user("Hi")]}, {"save": print}):
        with pytest.raises(InvalidRequest, match=r"history and .* cannot be combined"):
            asked(emu, tmp_path / "ada.jsonl", "One", **more)


def test_file_that_something_else_changed_is_not_written(emu: Emulator, path: Path) -> None:
    """Two sessions with one file would mix their messages."""
    with opened(emu) as client:
        chat = client.session("anthropic", history=path)
        chat.send("One").result()
        client.session("anthropic", history=path).send("Two").result()
        before = path.read_bytes()
        response = chat.send("Three").result()
        assert [notice.code for notice in response.notices] == ["save_failed"]
        assert "was changed since the session read it" in str(response.notices[0])
        assert path.read_bytes() == before
        assert response.text


@pytest.mark.skipif(os.name != "posix", reason="needs /dev/full")
def test_full_disk_leaves_no_part_of_a_line(
    emu: Emulator, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(emu, path, "One")
    before, write, left = path.read_bytes(), os.write, [40]

    def full(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        done, left[0] = write(file, data[: left[0]]), 0
        return done

    with opened(emu) as client:
        chat = client.session("anthropic", system=LONG, history=path)
        with monkeypatch.context() as patch:
            patch.setattr("anaphora.client.session.history_file.os.write", full)
            response = chat.send("Two").result()
        assert [notice.code for notice in response.notices] == ["save_failed"]
        assert path.read_bytes() == before
        chat.send("Three").result()  # what was not saved comes first
    assert [row.text for row in rows(path)][::2] == ["One", "Two", "Three"]


def test_fork_is_not_written(emu: Emulator, path: Path) -> None:
    with opened(emu) as client:
        chat = client.session("anthropic", history=path)
        chat.send("One").result()
        chat.fork().send("Another").result()
    assert len(rows(path)) == 2
    assert path.stat().st_mode & 0o777 == 0o600

"""Gemini's resumable uploads through the daemon: the address of an upload is its key, and the file
belongs to the app that began it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from google.genai import errors as genai_errors
from google.genai import types
from support.daemon import GRANT, TestedDaemon, llm_yaml, running_daemon
from support.daemon_sdks import sdk_client

from anaphora import emulator
from anaphora.daemon.access.identity import ADMIN
from anaphora.daemon.endpoints import uploads
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.server import Emulator

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

OPEN: dict[str, Any] = {**GRANT, "llm": {**GRANT["llm"], "allow": ["stored_responses"]}}
#: More than one piece of Google's SDK.
LARGE = b"a line of a text file\n" * 450_000
START = {
    "x-goog-upload-protocol": "resumable",
    "x-goog-upload-command": "start",
    "x-goog-upload-header-content-length": "5",
    "x-goog-upload-header-content-type": "text/plain",
}
PIECE = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
PATH = "/upload/v1beta/files"


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(latency=Latency(first=0.0))) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(emu: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedDaemon]:
    apps = {**dict.fromkeys(("one", "two", "three", "lists", "other"), OPEN), "plain": GRANT}
    with running_daemon(tmp_path_factory.mktemp("daemon"), emu, extensions=apps) as tested:
        yield tested


@pytest.fixture(scope="module")
def clients(daemon: TestedDaemon) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        yield {
            app: stack.enter_context(sdk_client("gemini", daemon.url, daemon.token(app))).sdk
            for app in ("one", "lists", "other", "plain")
        }


def upload(client: Any, data: bytes, **config: Any) -> types.File:
    config = {"mime_type": "text/plain", **config}
    file: types.File = client.files.upload(file=io.BytesIO(data), config=config)
    return file


@pytest.mark.parametrize("data", [b"", b"Hello", LARGE], ids=["empty", "small", "large"])
def test_files_of_googles_sdk(data: bytes, clients: dict[str, Any]) -> None:
    one, two = clients["lists"], clients["other"]
    file = upload(one, data, display_name="notes")
    assert file.name is not None
    assert (file.display_name, file.size_bytes or 0) == ("notes", len(data))
    assert one.files.get(name=file.name).sha256_hash == file.sha256_hash
    assert [each.name for each in one.files.list()] == [file.name]
    asked = [types.Part.from_uri(file_uri=file.uri or "", mime_type="text/plain"), "What is it?"]
    assert one.models.generate_content(model="gemini-2.5-flash", contents=asked).text
    assert list(two.files.list()) == []
    asks: tuple[Callable[[], Any], ...] = (
        lambda: two.files.get(name=file.name),
        lambda: two.files.delete(name=file.name),
        lambda: two.models.generate_content(model="gemini-2.5-flash", contents=asked),
    )
    for ask in asks:
        with pytest.raises(genai_errors.ClientError) as refused:
            ask()
        assert refused.value.code == 404
    one.files.delete(name=file.name)
    assert list(one.files.list()) == []


def test_files_need_a_grant_and_get_their_name_from_the_provider(
    clients: dict[str, Any], emu: Emulator
) -> None:
    before = len(emu.requests())
    with pytest.raises(genai_errors.ClientError) as refused:
        upload(clients["plain"], b"Hello")
    assert (refused.value.code, "stored_responses" in str(refused.value)) == (403, True)
    with pytest.raises(genai_errors.ClientError) as refused:
        upload(clients["one"], b"Hello", name="files/mine")
    assert (refused.value.code, "file.name" in str(refused.value)) == (400, True)
    with pytest.raises(genai_errors.ClientError) as refused:
        upload(clients["one"], bytes(32 * 1024 * 1024 + 1))
    assert refused.value.code == 413
    assert len(emu.requests()) == before


def begun(http: httpx.Client, **headers: str) -> str:
    answer = http.post(PATH, json={}, headers={**START, **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-goog-upload-status"] == "active"
    return str(answer.headers["x-goog-upload-url"])


def test_address_of_an_upload_is_ours_and_its_key(daemon: TestedDaemon, emu: Emulator) -> None:
    with daemon.client("one") as one, daemon.client("two") as two:
        url = begun(one)
        assert url.startswith(f"{daemon.url}{PATH}?upload_id=")
        assert "upload-" not in url  # the id at the provider
        for other, headers in ((two, {}), (httpx, {"authorization": "Bearer wrong"})):
            answer = other.post(url, content=b"Hello", headers={**PIECE, **headers})
            assert answer.status_code in (401, 404)
        wrong = url.replace("upload_id=", "upload_id=x")
        assert httpx.post(wrong, content=b"Hello", headers=PIECE).status_code == 401
        assert httpx.post(f"{daemon.url}{PATH}", json={}, headers=START).status_code == 401
        answer = httpx.post(url, headers={"x-goog-upload-command": "query"})
        assert answer.headers["x-goog-upload-size-received"] == "0"
        answer = httpx.post(url, content=b"Hello", headers=PIECE)
        assert (answer.status_code, answer.headers["x-goog-upload-status"]) == (200, "final")
        name = answer.json()["file"]["name"]
        assert one.get(f"/v1beta/{name}").json()["sizeBytes"] == "5"
        assert two.get(f"/v1beta/{name}").status_code == 404
        # It is over.
        assert httpx.post(url, content=b"Hello", headers=PIECE).status_code == 401


def test_pieces_that_do_not_fit_are_refused(daemon: TestedDaemon, emu: Emulator) -> None:
    with daemon.client("one") as one:
        url = begun(one)
        before = len(emu.requests())
        for content, headers, status in (
            (b"Hello!", PIECE, 400),
            (b"Hello", {**PIECE, "x-goog-upload-offset": "1"}, 400),
            (b"Hello", {**PIECE, "x-goog-upload-offset": "-1"}, 400),
            (b"Hello", {**PIECE, "x-goog-upload-command": "burn"}, 400),
            (b"Hello", {"x-goog-upload-command": "query"}, 400),
            (b"Hello", {**PIECE, "content-encoding": "gzip"}, 415),
        ):
            answer = httpx.post(url, content=content, headers=headers)
            assert answer.status_code == status, (headers, answer.text)
            # Google's SDK sends a piece again until it sees a status.
            assert answer.headers["x-goog-upload-status"] == "final"
        assert len(emu.requests()) == before
        answer = httpx.post(url, headers={"x-goog-upload-command": "cancel"})
        assert answer.headers["x-goog-upload-status"] == "cancelled"
        for headers in (
            {"x-goog-upload-protocol": "raw"},
            {"x-goog-upload-header-content-length": "many"},
            {"x-goog-upload-header-content-type": "text/plain\tx"},
        ):
            assert one.post(PATH, json={}, headers={**START, **headers}).status_code == 400


def test_upload_ends_with_the_token_that_began_it(daemon: TestedDaemon) -> None:
    with daemon.client("three") as three, daemon.client(ADMIN) as admin:
        url = begun(three)
        rotated = admin.post(
            "/rpc",
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "admin.apps.rotate",
                "params": {"app": "three", "overlap": 0},
            },
        ).json()
        assert rotated["result"]["token"]
        assert httpx.post(url, content=b"Hello", headers=PIECE).status_code == 401


def test_address_of_an_upload_begins_no_other(daemon: TestedDaemon, emu: Emulator) -> None:
    with daemon.client("one") as one:
        url = begun(one)
        before = len(emu.requests())
        assert httpx.post(url, json={}, headers=START).status_code == 401
        assert len(emu.requests()) == before


def test_upload_that_is_not_gone_on_with_ends(
    daemon: TestedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon.client("one") as one:
        url = begun(one)
        monkeypatch.setattr(uploads, "_IDLE", 0.0)
        assert httpx.post(url, content=b"Hello", headers=PIECE).status_code == 401
        assert one.post(url, content=b"Hello", headers=PIECE).status_code == 404


def test_upload_ends_with_the_grant_of_its_provider(emu: Emulator, tmp_path: Path) -> None:
    others = [id for id in OPEN["llm"]["providers"] if id != "gemini"]
    narrow = {**OPEN, "llm": {**OPEN["llm"], "providers": others}}
    with (
        running_daemon(tmp_path, emu, extensions={"one": OPEN}) as daemon,
        daemon.client("one") as one,
    ):
        url = begun(one)
        (daemon.home / "extensions.yaml").write_bytes(msgspec.json.encode({"one": narrow}))
        before = len(emu.requests())
        assert one.post(url, content=b"Hello", headers=PIECE).status_code == 404
        assert len(emu.requests()) == before


def test_address_of_an_upload_behind_a_proxy_has_its_certificate(
    emu: Emulator, tmp_path: Path
) -> None:
    llm = llm_yaml(emu.url)
    llm["daemon"] |= {
        "behind_proxy": True,
        "trusted_proxies": ["127.0.0.1"],
        "allowed_hosts": ["llm.example.com"],
    }
    with (
        running_daemon(tmp_path, emu, extensions={"one": OPEN}, llm=llm) as daemon,
        daemon.client("one") as one,
    ):
        url = begun(one, host="llm.example.com", **{"x-forwarded-for": "10.1.2.3"})
        assert url.startswith(f"https://llm.example.com{PATH}?upload_id=")

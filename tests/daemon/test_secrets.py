"""The secrets folder of a home: strict, and read again when it changes (SPEC D2)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import Secret
from anaphora.daemon.home import Home, init
from anaphora.daemon.home.secrets import SecretsFolder, resolve_providers
from anaphora.daemon.home.settings import have_changed
from anaphora.errors import AnaphoraError, InvalidConfig, InvalidRequest, MissingSecret

KEY = "sk-canary-9aF3xLq8wZ"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init(tmp_path / "home")
    return Home.open(tmp_path / "home")


def write(home: Home, content: bytes, name: str = "NAME", mode: int = 0o600) -> Path:
    path = home.secrets / f"{name}.txt"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def read(home: Home, name: str = "NAME") -> str:
    return SecretsFolder(home.secrets).read(name).reveal()


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_final_line_break_is_not_part_of_the_key(home: Home, end: str) -> None:
    write(home, f"{KEY}{end}".encode())
    assert read(home) == KEY


@pytest.mark.parametrize("size", [1, 8192])
def test_sizes(home: Home, size: int) -> None:
    write(home, b"k" * size + b"\r\n")
    assert len(read(home)) == size


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"k" * 8193, "is longer than 8,192 bytes"),
        (b"k" * 100_000, "is longer than"),
        (KEY.encode() + b"\n\n", "is not a key: it contains spaces, line breaks or non-ASCII"),
        (b" " + KEY.encode(), "is not a key"),
        (b"\xef\xbb\xbf" + KEY.encode(), "contains characters other than ASCII"),
        (b"\xff", "contains characters other than ASCII"),
        (b"a\x00b", "is not a key"),
    ],
)
def test_what_is_not_a_key(home: Home, content: bytes, reason: str) -> None:
    write(home, content)
    with pytest.raises(MissingSecret, match=reason) as raised:
        read(home)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("name", ["", "A", "name", "1A", "A-B", "A" * 65, "../A", "A\n", KEY])
def test_names(home: Home, name: str) -> None:
    with pytest.raises(InvalidRequest, match="the name of a secret has 2 to 64") as raised:
        read(home, name)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o700, 0o601])
def test_other_modes_than_0600_are_refused(home: Home, mode: int) -> None:
    write(home, KEY.encode(), mode=mode)
    with pytest.raises(MissingSecret, match=f"has mode {mode:04o}, and must have 0600"):
        read(home)


def test_links_pipes_and_folders_are_refused(home: Home) -> None:
    path = write(home, KEY.encode(), "TARGET")
    (home.secrets / "LINK.txt").symlink_to(path)
    os.mkfifo(home.secrets / "PIPE.txt", 0o600)
    (home.secrets / "FOLDER.txt").mkdir()
    for name, reason in [
        ("LINK", "is a symbolic link"),
        ("PIPE", "is not a regular file"),
        ("FOLDER", "is not a regular file"),
        ("NONE", "there is no file"),
    ]:
        with pytest.raises(MissingSecret, match=reason):
            read(home, name)


def test_a_folder_that_others_may_change_is_refused(home: Home) -> None:
    write(home, KEY.encode())
    home.secrets.chmod(0o777)
    with pytest.raises(MissingSecret, match=r"the folder of .* has mode 0777"):
        read(home)
    home.secrets.chmod(0o700)
    home.secrets.rename(home.path / "elsewhere")
    home.secrets.symlink_to(home.path / "elsewhere")
    with pytest.raises(MissingSecret, match=r"the folder of .* is a symbolic link"):
        read(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_are_refused(home: Home) -> None:
    os.chown(write(home, KEY.encode()), 12345, -1)
    with pytest.raises(MissingSecret, match="belongs to user 12345"):
        read(home)


def test_written_by_rename_with_mode_0600(home: Home) -> None:
    folder, before = SecretsFolder(home.secrets), os.umask(0)
    try:
        path = folder.write("NAME", Secret(f"{KEY}\n"))
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o7777, path.read_text()) == (0o600, KEY)
    inode = path.stat().st_ino
    folder.write("NAME", Secret("other"))
    assert (path.stat().st_ino != inode, read(home)) == (True, "other")
    assert os.listdir(home.secrets) == ["NAME.txt"]
    with pytest.raises(InvalidRequest, match="the input is empty"):
        folder.write("NAME", Secret("\n"))
    assert read(home) == "other"


def test_a_change_is_noticed(home: Home) -> None:
    folder = SecretsFolder(home.secrets)
    path = write(home, KEY.encode())
    folder.read("NAME")
    assert not have_changed(folder.seen)
    folder.write("NAME", Secret("other-key"))
    assert have_changed(folder.seen)
    folder.read("NAME")
    assert not have_changed(folder.seen)
    path.chmod(0o644)
    assert have_changed(folder.seen)
    path.unlink()
    with pytest.raises(MissingSecret):
        folder.read("NAME")
    assert not have_changed(folder.seen)


def config(home: Home, key: str) -> ClientConfig:
    home.llm_yaml.write_text(f"providers:\n  one:\n    wire: anthropic\n    key: {key}\n")
    return home.config()


def test_providers_have_their_keys(home: Home) -> None:
    write(home, KEY.encode())
    one = resolve_providers(home, config(home, "{secret: NAME}"))["one"]
    assert one.headers()["x-api-key"] == KEY
    assert KEY not in repr(one)


def test_a_missing_key_names_line_and_command(home: Home) -> None:
    with pytest.raises(MissingSecret) as raised:
        resolve_providers(home, config(home, "{secret: NAME}"))
    message = str(raised.value)
    assert message.startswith(f"{home.llm_yaml}:4: providers.one.key: there is no file ")
    assert message.endswith(f"; store it with: anaphora secrets set NAME --home {home.path}")
    with pytest.raises(InvalidConfig, match=r"4: providers.one.key.secret: 'name': the name of a"):
        resolve_providers(home, config(home, "{secret: name}"))


def test_keys_in_the_environment_must_be_allowed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THIS_TEST", KEY)
    with pytest.raises(InvalidConfig, match="--allow-env-keys"):
        resolve_providers(home, config(home, "{env: KEY_OF_THIS_TEST}"))
    allowed = resolve_providers(home, config(home, "{env: KEY_OF_THIS_TEST}"), allow_env=True)
    assert allowed["one"].secret == Secret(KEY)


def test_no_frame_of_an_error_holds_the_key(home: Home) -> None:
    write(home, f"{KEY} {KEY}".encode())
    with pytest.raises(AnaphoraError) as raised:
        resolve_providers(home, config(home, "{secret: NAME}"))
    for entry in raised.traceback:
        if "anaphora" in str(entry.path):
            assert KEY not in repr(entry.frame.f_locals)


def test_core_dumps_are_off() -> None:
    code = (
        "import resource; from anaphora.daemon.home.secrets import disable_core_dumps;"
        "disable_core_dumps(); print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    source = Path(__file__).parents[2] / "src"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert run.stdout.strip() == "(0, 0)"

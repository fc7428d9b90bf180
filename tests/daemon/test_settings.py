"""The files of a home: read together, and read again when one changes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.tables import each_row

from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import Secret
from anaphora.daemon.home import Home, init
from anaphora.daemon.home.config import DaemonConfig, daemon_config
from anaphora.daemon.home.secrets import SecretsFolder
from anaphora.daemon.home.settings import SettingsFiles
from anaphora.errors import InvalidConfig, Io, MissingSecret

GRANT = "app: {capabilities_grant: [llm_complete], llm: {usd_per_day: %s}}"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init(tmp_path / "home")
    home = Home.open(tmp_path / "home")
    SecretsFolder(home.secrets).write("ANTHROPIC_API_KEY", Secret("first"))
    home.extensions_yaml.write_text(GRANT % 1)
    return home


def limit(files: SettingsFiles) -> int | None:
    return files.reload().grants.apps["app"].llm.nano_usd_per_day


def test_init_writes_a_home_for_its_owner_only(tmp_path: Path) -> None:
    created = init(tmp_path / "new" / "home")
    home = Home.open(tmp_path / "new" / "home")
    assert created == [
        home.path, home.secrets, home.llm_yaml, home.extensions_yaml, home.token_key_file,
    ]  # fmt: skip
    for path in created:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    with pytest.raises(MissingSecret, match="anaphora secrets set ANTHROPIC_API_KEY"):
        SettingsFiles(home).load()


def test_init_keeps_what_is_there(home: Home) -> None:
    home.llm_yaml.write_text("# mine")
    home.secrets.joinpath("ANTHROPIC_API_KEY.txt").unlink()
    home.extensions_yaml.unlink()
    key = home.token_key()
    assert init(home.path) == [home.extensions_yaml]
    assert (home.llm_yaml.read_text(), home.token_key()) == ("# mine", key)


@pytest.mark.parametrize("name", ["llm.yaml", "extensions.yaml"])
def test_files_that_others_may_change_are_not_used(name: str, home: Home) -> None:
    """Who writes llm.yaml decides where keys are sent, and who writes extensions.yaml, who may
    spend."""
    path = home.path / name
    path.chmod(0o666)
    files = SettingsFiles(home)
    files.load()  # no other user gets into the folder
    home.path.chmod(0o755)
    with pytest.raises(InvalidConfig, match=f"{name}: other users may change it"):
        files.load()
    assert files.reload().grants.apps
    assert "run chmod 600" in files.problems[0]
    path.chmod(0o644)
    files.load()


def test_a_folder_that_is_no_home(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is not a daemon's home: it has no llm"):
        Home.open(tmp_path)


def test_a_home_that_others_may_change(home: Home) -> None:
    home.path.chmod(0o770)
    with pytest.raises(InvalidConfig, match="other users may change it \\(mode 0770\\)"):
        Home.open(home.path)


@pytest.mark.parametrize("content", ["", "x" * 64, "ab" * 31, "ab" * 33])
def test_a_damaged_key_of_token_hashes(home: Home, content: str) -> None:
    home.token_key_file.write_text(content)
    with pytest.raises(InvalidConfig, match=r"tokens\.key is"):
        home.token_key()


def test_a_missing_key_of_token_hashes_is_not_replaced_silently(home: Home) -> None:
    """All tokens would be wrong."""
    home.token_key_file.unlink()
    with pytest.raises(InvalidConfig, match="restore it from a backup"):
        home.token_key()
    assert init(home.path) == [home.token_key_file]
    home.token_key()


def test_a_changed_grant_is_used(home: Home) -> None:
    files = SettingsFiles(home)
    files.load()
    assert not files.changed()
    home.extensions_yaml.write_text(GRANT % 25)
    assert files.changed()
    assert limit(files) == 25 * 10**9
    assert (files.problems, files.changed()) == ((), False)


def test_a_broken_grant_keeps_the_old_ones(home: Home) -> None:
    """D11: and it is reported, once for each change."""
    files = SettingsFiles(home)
    files.load()
    home.extensions_yaml.write_text("app:\n  llm: {usd_per_dya: 9}\n")
    assert limit(files) == 10**9
    [problem] = files.problems
    assert problem.startswith(f"{home.extensions_yaml}:2: app.llm: unknown field 'usd_per_dya'")
    assert not files.changed()
    home.extensions_yaml.unlink()
    assert (files.changed(), limit(files)) == (True, 10**9)
    assert "cannot be read" in files.problems[0]
    home.extensions_yaml.write_text(GRANT % 2)
    assert (limit(files), files.problems) == (2 * 10**9, ())


def test_a_broken_llm_yaml_keeps_the_providers_and_not_the_grants(home: Home) -> None:
    files = SettingsFiles(home)
    before = files.load()
    home.llm_yaml.write_text("providers: 1")
    home.extensions_yaml.write_text(GRANT % 3)
    after = files.reload()
    assert after.providers is before.providers
    assert after.grants.apps["app"].llm.nano_usd_per_day == 3 * 10**9
    assert len(files.problems) == 1


def test_a_changed_secret_is_used_by_the_next_call(home: Home) -> None:
    files, folder = SettingsFiles(home), SecretsFolder(home.secrets)
    assert files.load().providers["anthropic-default"].secret == Secret("first")
    folder.write("ANTHROPIC_API_KEY", Secret("second"))
    assert files.changed()
    assert files.reload().providers["anthropic-default"].secret == Secret("second")
    folder.path("ANTHROPIC_API_KEY").chmod(0o644)
    assert files.changed()
    assert files.reload().providers["anthropic-default"].secret == Secret("second")
    assert "has mode 0644" in files.problems[0]
    assert not files.changed()
    os.chmod(folder.path("ANTHROPIC_API_KEY"), 0o600)
    assert files.changed()
    assert (files.reload() is not None, files.problems) == (True, ())


def test_a_first_load_fails_where_a_file_is_broken(home: Home) -> None:
    home.extensions_yaml.unlink()
    with pytest.raises(Io, match="cannot be read"):
        SettingsFiles(home).load()


def section(text: str) -> DaemonConfig:
    return daemon_config(ClientConfig.from_text(f"daemon:\n  {text}", "llm.yaml"))


def test_the_daemon_section() -> None:
    assert daemon_config(ClientConfig()) == DaemonConfig(host="127.0.0.1", port=7707)
    assert section("{port: 0, host: '::1'}") == DaemonConfig(host="::1", port=0)
    assert section("{host: 0.0.0.0, tls: {cert: c, key: k}}").is_exposed
    assert section(
        "{host: 0.0.0.0, behind_proxy: true, trusted_proxies: [10.0.0.0/8], allowed_hosts: [a.b]}"
    ).behind_proxy


@each_row(
    "text, message",
    [
        ("prot: 1", "2: daemon: unknown field 'prot'; did you mean port?"),
        ("port: 65536", "2: daemon.port: expected a whole number <= 65535"),
        ("port: '80'", "2: daemon.port: expected a whole number, found a text"),
        ("tls: yes", "2: daemon.tls: expected a mapping, found true or false; write `tls:"),
        ("tls: {cert: c}", "2: daemon.tls: key is missing"),
        ("host: 0.0.0.0", "2: daemon.host: 0.0.0.0 is not a loopback address"),
        ("host: example.com", "2: daemon.host: example.com is not a loopback address"),
        ("behind_proxy: true", "2: daemon.behind_proxy: needs `trusted_proxies` and"),
        ("trusted_proxies: [all]", "2: daemon.trusted_proxies: 'all' is not an address"),
    ],
)
def test_the_daemon_section_is_strict(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        section(text)
    assert f"llm.yaml:{message}" in str(raised.value)

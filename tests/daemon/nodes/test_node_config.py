"""The fields of the `daemon` section for several nodes."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from support.tables import each_row

from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import Secret
from anaphora.daemon.home import Home, init
from anaphora.daemon.home.config import NODE_NAME, DaemonConfig, daemon_config
from anaphora.daemon.home.secrets import SecretsFolder, read_password
from anaphora.errors import InvalidConfig, MissingSecret

CANARY = "canary4711password"
STORE = "postgresql://anaphora@db.internal/anaphora"


def read(section: str) -> DaemonConfig:
    return daemon_config(ClientConfig.from_text(f"daemon: {section}\n", "llm.yaml"))


def test_without_an_address_the_store_is_a_file() -> None:
    config = DaemonConfig()
    assert config.store is None
    assert NODE_NAME.match(config.node_name)


def test_the_name_of_a_node() -> None:
    assert read("{node: eu-1.example}").node_name == "eu-1.example"


@each_row(
    "url",
    [
        STORE,
        "postgres://db/anaphora?sslmode=verify-ca",
        "postgresql:///anaphora?host=/run/postgres",
    ],
)
def test_urls(url: str) -> None:
    assert read(f'{{store: "{url}"}}').store == url


@each_row(
    "section, expected",
    [
        ("{store: mysql://db/x}", "store: must be a URL postgresql://…"),
        ("{store: store.sqlite}", "without it: SQLite in the home folder"),
        ('{store: "postgresql://[::1/x"}', "store: is not a valid URL"),
        (f'{{store: "postgresql://u:{CANARY}@db/x"}}', "store_password: {secret: NAME}"),
        (f'{{store: "postgresql://db/x?password={CANARY}"}}', "store: holds a password"),
        (f'{{store: "postgresql://db/x?Password={CANARY}"}}', "store: holds a password"),
        ("{store_password: {secret: NAME}}", "store_password: needs `store`"),
        (f'{{store: "{STORE}", store_password: {CANARY}}}', "write `{secret: NAME}`"),
        ("{node: '-x'}", "a node's name has 1 to 63 letters"),
        (f"{{node: {'n' * 64}}}", "a node's name has 1 to 63 letters"),
    ],
)
def test_errors_say_what_would_be_right_and_show_no_password(section: str, expected: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(section)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("llm.yaml:1: ")
    assert CANARY not in str(caught.value)
    found = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert not [
        frame
        for frame in found.stack
        if "/src/anaphora/" in frame.filename and CANARY in str(frame.locals)
    ]


def test_a_password_is_a_file_of_the_home(tmp_path: Path) -> None:
    init(tmp_path / "home")
    home = Home.open(tmp_path / "home")
    with pytest.raises(MissingSecret, match="anaphora secrets set PG_PASSWORD --home"):
        read_password(home, "PG_PASSWORD", "store_password")
    with pytest.raises(InvalidConfig, match=r"daemon\.store_password: 'pg': the name of a secret"):
        read_password(home, "pg", "store_password")
    path = SecretsFolder(home.secrets).write("PG_PASSWORD", Secret(CANARY))
    assert read_password(home, "PG_PASSWORD", "store_password").reveal() == CANARY
    path.chmod(0o644)
    with pytest.raises(MissingSecret) as caught:
        read_password(home, "PG_PASSWORD", "store_password")
    assert CANARY not in str(caught.value)

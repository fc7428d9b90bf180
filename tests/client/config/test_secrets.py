"""Finding keys, and never showing them."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path

import msgspec
import pytest
from support.tables import each_row

from anaphora.client.config import ClientConfig, Key, ProviderConfig
from anaphora.client.config.resolve import resolve
from anaphora.client.config.secrets import Secret, SecretVariables, find_key, permission_warning
from anaphora.errors import MissingSecret
from anaphora.yaml_values import Origin

CANARY = "sk-canary-4f1d"


def test_reveal_shows_the_secret() -> None:
    assert Secret(CANARY).reveal() == CANARY


def test_secret_is_never_shown_or_serialized() -> None:
    secret = Secret(CANARY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", "%s" % secret]  # noqa: UP031
    shown += [repr([secret]), repr({"key": secret}), str(dir(secret))]
    assert not any(CANARY in each for each in shown)
    assert not hasattr(secret, "__dict__")
    for write in (pickle.dumps, json.dumps, msgspec.json.encode, msgspec.msgpack.encode):
        with pytest.raises(TypeError) as raised:
            write(secret)
        assert CANARY not in str(raised.value)
    assert msgspec.json.encode({"key": secret}, enc_hook=str) == b'{"key":"<secret>"}'


def test_copies_hold_the_same_secret() -> None:
    secret = Secret(CANARY)
    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret


# ── Finding ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    return tmp_path


def put(folder: Path, data: bytes) -> None:
    file = folder / "secrets" / "MINE.txt"
    file.write_bytes(data)
    file.chmod(0o600)


def test_key_from_the_environment(folder: Path) -> None:
    assert find_key(Key(env="MINE"), folder, SecretVariables({"MINE": CANARY})).reveal() == CANARY


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_key_from_a_file(folder: Path, start: bytes, end: bytes) -> None:
    put(folder, start + CANARY.encode() + end)
    assert find_key(Key(secret="MINE"), folder, SecretVariables({})).reveal() == CANARY


ODD = [
    (b"", "is empty"),
    (b" \n\n", "is empty"),
    (b"sk-canary\nsk-other\n", "is not a key"),
    (b"key = sk-canary\n", "is not a key"),
    ("sk-canary-é".encode(), "is not a key"),
    (b"sk-canary\x00", "is not a key"),
]


@pytest.mark.parametrize("data, reason", ODD, ids=range(len(ODD)))  # folders are named after ids
def test_invalid_keys_are_rejected(folder: Path, data: bytes, reason: str) -> None:
    put(folder, data)
    for key, environ in ((Key(secret="MINE"), {}), (Key(env="MINE"), {"MINE": data.decode()})):
        with pytest.raises(MissingSecret, match=reason) as raised:
            find_key(key, folder, SecretVariables(environ))
        assert "canary" not in str(raised.value)


def test_invalid_key_files_are_rejected(folder: Path) -> None:
    put(folder, "sk-canary".encode("utf-16"))
    with pytest.raises(MissingSecret, match="is not UTF-8"):
        find_key(Key(secret="MINE"), folder, SecretVariables({}))
    put(folder, b"k" * 20_000)
    with pytest.raises(MissingSecret, match="too long for a key"):
        find_key(Key(secret="MINE"), folder, SecretVariables({}))


def test_missing_key_is_named(folder: Path) -> None:
    with pytest.raises(MissingSecret, match=r"^the environment variable \$MINE is not set$"):
        find_key(Key(env="MINE"), folder, SecretVariables({"OTHER": CANARY}))
    with pytest.raises(MissingSecret) as raised:
        find_key(Key(secret="MINE"), folder, SecretVariables({}))
    assert str(raised.value) == f"there is no file {folder / 'secrets' / 'MINE.txt'}"
    (folder / "secrets" / "MINE.txt").mkdir()
    with pytest.raises(MissingSecret, match="there is no file"):
        find_key(Key(secret="MINE"), folder, SecretVariables({}))
    origin = Origin("llm.yaml", {"providers.a.key": 7})
    with pytest.raises(MissingSecret, match=r"^llm\.yaml:7: providers\.a\.key: there is no file"):
        find_key(
            Key(secret="MINE"),
            folder,
            SecretVariables({}),
            origin=origin,
            path=("providers", "a", "key"),
        )


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
@pytest.mark.parametrize(
    "mode, expected", [(0o600, False), (0o400, False), (0o640, True), (0o604, True)]
)
def test_readable_key_file_gives_a_warning(folder: Path, mode: int, expected: bool) -> None:
    put(folder, CANARY.encode())
    file = folder / "secrets" / "MINE.txt"
    file.chmod(mode)
    warning = permission_warning(Key(secret="MINE"), folder)
    assert (warning is not None) == expected
    if warning is not None:
        assert str(file) in warning
        assert CANARY not in warning
    assert permission_warning(Key(env="MINE"), folder) is None


# ── Nowhere ──────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "key, text",
    [
        (Key(env="ANTHROPIC_API_KEY"), "$ANTHROPIC_API_KEY"),
        (Key(secret="AZURE_EU-2"), "secrets/AZURE_EU-2.txt"),
        # The key itself, put where its name should be.
        (Key(secret="sk-ant-api03-Xk3vT9qLmN2pR7sW1yZ5aB8c"), "secrets/….txt"),
        (Key(secret="0f8fad5b-d9cb-469f-a165-70867728950e"), "secrets/….txt"),
        (Key(env="gsk_Xk3vT9qLmN2pR7sW1yZ5aB8c"), "$…"),
    ],
)
def test_key_repr_names_its_source(key: Key, text: str) -> None:
    assert str(key) == text
    assert repr(key) == f"Key({text})"


def test_config_repr_hides_headers_and_credentials() -> None:
    provider = ProviderConfig(
        wire="anthropic",
        base_url="https://me:canary@example.com/x",
        headers={"X-Token": "canary"},
        proxy="http://me:canary@proxy:3128",
        account={"token": "x7canary9Kd2", "project": "mine"},
        temperature=0.0,
    )
    shown = repr(ClientConfig(providers={"a": provider}))
    assert "canary" not in shown
    for kept in ("example.com/x", "mine", "X-Token", "proxy:3128", "temperature=0.0"):
        assert kept in shown


def test_resolved_config_repr_hides_the_key(folder: Path) -> None:
    put(folder, CANARY.encode())
    config = ClientConfig.from_text(
        "providers:\n"
        "  a: {wire: anthropic, key: {env: MINE}}\n"
        "  b: {dialect: deepseek, key: {secret: MINE}}\n",
        str(folder / "llm.yaml"),
    )
    found = resolve(config, environ={"MINE": CANARY})
    assert CANARY not in repr(found)
    assert CANARY not in repr(config)
    for one in found.values():
        assert one.secret is not None
        assert one.secret.reveal() == CANARY
        with pytest.raises(TypeError) as raised:
            msgspec.json.encode(one)
        assert CANARY not in str(raised.value)
    assert found["a"].headers() == {"x-api-key": CANARY}
    assert found["b"].headers() == {"authorization": f"Bearer {CANARY}"}


@each_row(
    "headers, text, redacted",
    [
        ({"X-Gateway-Token": "plain-words"}, "no plain-words", "no <secret>"),
        ({"Cf-Aig-Authorization": "Bearer abc-9Kd2"}, "bad abc-9Kd2", "bad <secret>"),
        ({"X-Team": "9Kd2xQ7pLm"}, "team 9Kd2xQ7pLm", "team <secret>"),
        # Useful in an error of the provider, and no secrets.
        ({"X-Team": "search"}, "team search", "team search"),
        ({"OpenAI-Organization": "org-9Kd2xQ7pLm"}, "no org-9Kd2xQ7pLm", "no org-9Kd2xQ7pLm"),
        ({"anthropic-beta": "x-2025-08-07"}, "unknown x-2025-08-07", "unknown x-2025-08-07"),
    ],
)
def test_secret_headers_are_redacted(headers: dict[str, str], text: str, redacted: str) -> None:
    provider = ProviderConfig(wire="openai_chat", headers=headers)
    found = resolve(ClientConfig(providers={"a": provider}), environ={})["a"]
    assert found.redactor()(text) == redacted
    assert next(iter(headers.values())) not in repr(found.headers())

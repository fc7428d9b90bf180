"""A key in the wrong place of llm.yaml is an error that does not show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.collectors import collected, logged
from support.tables import each_row

from anaphora import AsyncClient, Client
from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import resolve
from anaphora.errors import InvalidConfig, InvalidRequest, MissingSecret

#: Names of files, variables and fields may contain single words of it, but not this.
PART = "7Hq2Zt9vXw4LmPr8"
KEY = f"sk-ant-api03-{PART}"

#: By the place of the key: the providers of a configuration, and what the message advises.
ADVICE = "{env: NAME}"
PLACES: dict[str, tuple[str, str]] = {
    "key": ("a: {wire: anthropic, key: KEY}", ADVICE),
    "key as a list": ("a: {wire: anthropic, key: [KEY]}", ADVICE),
    "key as an alias": ("a: {wire: anthropic, key: *KEY}", "undefined alias"),
    "key with a tag": ("a: {wire: anthropic, key: !KEY x}", "not"),
    "key.env": ("a: {wire: anthropic, key: {env: KEY}}", ADVICE),
    "key.secret": ("a: {wire: anthropic, key: {secret: KEY}}", "there is no file"),
    "a field of key": ("a: {wire: anthropic, key: {KEY: env}}", "unknown field"),
    "api_key": ("a: {wire: anthropic, api_key: KEY}", "unknown field 'api_key'"),
    "a field": ("a: {wire: anthropic, KEY: x}", "unknown field '…'"),
    "a field twice": ("a: {KEY: x, KEY: y}", "given twice"),
    "wire": ("a: {wire: KEY}", "no wire"),
    "dialect": ("a: {dialect: KEY}", "no dialect"),
    "dialect and wire": ("a: {dialect: KEY, wire: openai_chat}", "no dialect"),
    "a dialect's wire": ("a: {dialect: deepseek/KEY}", "dialect"),
    "model": ("a: {wire: anthropic, model: KEY}", ADVICE),
    "known_models": ("a: {wire: anthropic, known_models: [KEY]}", ADVICE),
    "an unlisted model": ("a: {wire: anthropic, known_models: [m], model: KEY}", ADVICE),
    "limits of a model": ("a: {wire: anthropic, limits: {models: {KEY: {}}}}", ADVICE),
    "a limit": ("a: {wire: anthropic, limits: {models: {KEY: {rpm: 1}}}}", "unknown field"),
    "prices": ("a: {wire: anthropic, prices: {KEY: {input: 1, output: 1}}}", ADVICE),
    "base_url": ("a: {wire: anthropic, base_url: KEY}", "base_url"),
    "user of base_url": ("a: {wire: anthropic, base_url: 'https://KEY@h'}", "contains a user"),
    "query of base_url": ("a: {wire: anthropic, base_url: 'https://h?key=KEY'}", "a query"),
    "placeholder": ("a: {wire: anthropic, base_url: 'https://h/{KEY}'}", "base_url"),
    "region": ("a: {wire: anthropic, region: KEY}", ADVICE),
    "header name": ("a: {wire: anthropic, headers: {KEY: x}}", ADVICE),
    "bearer as a header name": ("a: {wire: anthropic, headers: {Bearer KEY: x}}", "headers"),
    "auth header": ("a: {wire: anthropic, headers: {x-api-key: KEY}}", "use `key` instead"),
    "header value": ("a: {wire: anthropic, headers: {X: [KEY]}}", "expected a text"),
    "proxy": ("a: {wire: anthropic, proxy: KEY}", "proxy"),
    "password of a proxy": ("a: {wire: anthropic, proxy: 'ftp://u:KEY@h'}", "proxy"),
    "ca": ("a: {wire: anthropic, ca: KEY}", "there is no file …"),
    "a time": ("a: {wire: anthropic, timeouts: {total: KEY}}", "expected a number"),
    "id": ("KEY: {wire: anthropic}", ADVICE),
    "a provider": ("a: KEY", "expected a mapping"),
    "route": ("a: {wire: anthropic}\nroutes: {KEY: [{provider: a}]}", ADVICE),
    "empty route": ("a: {wire: anthropic}\nroutes: {KEY: []}", "routes"),
    "provider of a hop": ("a: {wire: anthropic}\nroutes: {r: [{provider: KEY}]}", "no provider"),
    "model of a hop": ("a: {wire: anthropic}\nroutes: {r: [{provider: a, model: KEY}]}", ADVICE),
    "not YAML": ("a: {wire: anthropic, key: 'KEY}", "not YAML"),
}  # fmt: skip


def text(place: str) -> str:
    first, newline, rest = PLACES[place][0].replace("KEY", KEY).partition("\n")
    return f"providers:\n  {first}{newline}{rest}\n"


def from_file(file: Path) -> None:
    resolve(ClientConfig.read(file), environ={})


def from_text(file: Path) -> None:
    resolve(ClientConfig.from_text(file.read_text()), environ={})


def from_mapping(file: Path) -> None:
    try:
        AsyncClient.from_config(yaml.safe_load(file.read_text()), environ={})
    except yaml.YAMLError as error:
        raise InvalidConfig("not YAML") from error.with_traceback(None)


def for_a_client(file: Path) -> None:
    AsyncClient.from_config(file)


def for_a_sync_client(file: Path) -> None:
    Client.from_config(str(file))


@each_row("read", [from_file, from_text, for_a_client, for_a_sync_client])
@each_row("place", PLACES)
def test_misplaced_key_is_not_shown(
    place: str, read: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("llm.yaml")
    file.write_text(text(place))
    with logged() as log:
        try:
            read(file)
        except InvalidConfig as caught:
            error = caught
        else:
            raise AssertionError("no error")
        assert PLACES[place][1] in str(error)
        for collector, seen in collected(error, [], log):
            assert PART not in seen, f"{collector} of {place}"
        if read is not from_text:
            assert str(error).startswith("llm.yaml:")


@each_row("place", [place for place in PLACES if place not in ("key as an alias", "key with a tag", "not YAML", "a field twice")])  # fmt: skip
def test_misplaced_key_in_a_mapping_is_not_shown(place: str, tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text(text(place))
    with logged() as log:
        with pytest.raises(InvalidConfig) as raised:
            from_mapping(file)
        for collector, seen in collected(raised.value, [], log):
            assert PART not in seen, f"{collector} of {place}"


@pytest.mark.parametrize("value", [f"{PART} {PART}", f"{PART}\n{PART}", f"{PART}-é", f"{PART}\0"])
def test_invalid_key_is_not_in_a_traceback(value: str, tmp_path: Path) -> None:
    """Neither of an environment variable nor of a file; nor are other variables."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "MINE.txt").write_text(value)
    (tmp_path / "llm.yaml").write_text("providers: {a: {wire: anthropic, key: {env: MINE}}}")
    (tmp_path / "file.yaml").write_text("providers: {a: {wire: anthropic, key: {secret: MINE}}}")
    environ, value = _Variables(value), ""

    def caught(make: Callable[[], Any]) -> BaseException:
        with pytest.raises(MissingSecret, match="not a key") as raised:
            make()
        return raised.value

    for name in ("llm.yaml", "file.yaml"):
        for kind in (AsyncClient, Client):
            error = caught(lambda: kind.from_config(tmp_path / name, environ=environ.given()))  # noqa: B023
            for collector, seen in collected(error, [], []):
                assert PART not in seen, collector


class _Variables:
    """Environment variables, of which a traceback through this test shows none."""

    def __init__(self, value: str) -> None:
        self._value = value

    def given(self) -> dict[str, str]:
        return {"MINE": self._value, "OTHER": PART}


@pytest.mark.parametrize(
    "arguments", [{"provider": KEY}, {"provider": "a", "model": KEY}, {"model": KEY}]
)
def test_key_as_an_argument_of_a_call_is_not_shown(arguments: dict[str, Any]) -> None:
    with Client.from_config({"providers": {"a": {"wire": "ollama"}}}) as client:
        with pytest.raises(InvalidRequest, match="looks like an API key") as raised:
            client.send("Hello", **arguments)
        assert PART not in str(raised.value)
        with pytest.raises(InvalidRequest) as raised:
            client.session("a", model=KEY)
        assert PART not in str(raised.value)

"""Official SDKs through the daemon to an independent engine: every wire of theirs, one of its."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.daemon import GRANT, TestedDaemon, running_daemon
from support.daemon_sdks import SDKS, sdk_client
from support.llama import MODEL, Llama

#: Where aiohttp is installed google-genai uses it, in a way that aiohttp advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")


class Engine(NamedTuple):
    url: str


@pytest.fixture(scope="module")
def daemon(llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedDaemon]:
    provider = {
        "dialect": "llamacpp/openai_chat",
        "base_url": llama.address,
        "model": MODEL,
        "prices": {"*": {"input": 0.1, "output": 0.2}},
    }
    llm = {"providers": {"local": provider}, "daemon": {"port": 0}}
    grant = {**GRANT, "llm": {**GRANT["llm"], "providers": ["local"]}}
    folder = tmp_path_factory.mktemp("daemon")
    engine = Engine(llama.address)
    with running_daemon(folder, engine, extensions={"demo": grant}, llm=llm) as tested:
        yield tested


@pytest.mark.parametrize("wire", SDKS)
def test_each_sdk_reads_the_engines_answer(wire: str, daemon: TestedDaemon) -> None:
    with sdk_client(wire, daemon.url, daemon.token()) as sdk:
        answer = sdk.ask(MODEL, "Hello there.", provider="local")
        streamed = sdk.stream(MODEL, "Hello there.", provider="local")
    assert answer.text
    assert streamed.text == answer.text
    assert (streamed.input, streamed.output) == (answer.input, answer.output)
    assert answer.input > 0
    assert answer.output > 0

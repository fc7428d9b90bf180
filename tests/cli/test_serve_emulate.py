"""`anaphora serve --emulate`: models of every provider of the catalog, through the daemon."""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.daemon import GRANT, NO_TLS, running_daemon
from support.waiting import PATIENCE

from anaphora import catalog
from anaphora.cli.main import main
from anaphora.cli.serve import emulated_providers
from anaphora.daemon.faces import FACES
from anaphora.emulator.server import Emulator

HI = [{"role": "user", "content": "Hello"}]
#: The names of providers in the home, where they are not the catalog's.
IDS = {"google": "gemini"}
CLAUDE = "us.anthropic.claude-sonnet-5"
ANY = "any-model"
"""For servers whose models are the operator's own."""
ALL = {row.provider for row in catalog.dialects().rows}
#: Without those whose first row, which they are called by, has a wire that the daemon lacks.
PROVIDERS = {each for each in ALL if catalog.dialects().find(each).wire in FACES}


def model_of(provider: str) -> str:
    return catalog.default_model(provider, datetime.datetime.now(datetime.UTC).date()) or ANY


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a Unix socket has at most 108 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.long
def test_every_provider_answers(short_folder: Path) -> None:
    source = Path(sys.modules[main.__module__].__file__ or "").parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "anaphora", "serve", "--emulate", "--port", "0"],
        cwd=short_folder,
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"], "TMPDIR": str(short_folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            text = ""
            while not text.endswith("}]}'\n"):
                line = process.stderr.readline()
                assert line, text
                text += line
            url = re.search(r"curl (\S+)/v1/messages", text)
            token = re.search(r"x-api-key: ([^']+)'", text)
            emulator = re.search(r"calls are at (\S+)/_emulator", text)
            assert url is not None
            assert token is not None
            assert emulator is not None
            headers = {"authorization": f"Bearer {token[1]}"}
            with httpx.Client(
                base_url=url[1], headers=headers, verify=NO_TLS, timeout=PATIENCE
            ) as http:
                for provider in sorted(PROVIDERS):
                    _ask(http, provider)
                for provider in sorted(ALL - PROVIDERS):
                    _ask_in_vain(http, provider)
                # Which provider has them is clear from their names.
                for model in ("qwen3:0.6b", "mistral-large-4", "grok-4.7"):
                    assert _post(http, model, {}).status_code == 200, model
            calls = httpx.get(f"{emulator[1]}/_emulator/requests?last=1000", verify=NO_TLS).json()
            called = {call["provider"] for call in calls["requests"]}
            assert called == PROVIDERS
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def _ask(http: httpx.Client, provider: str) -> None:
    answer = _post(http, model_of(provider), {"anaphora-provider": IDS.get(provider, provider)})
    assert answer.status_code == 200, (provider, answer.text)
    assert answer.json()["choices"][0]["message"]["content"], provider


def _ask_in_vain(http: httpx.Client, provider: str) -> None:
    answer = _post(http, model_of(provider), {"anaphora-provider": provider})
    assert answer.status_code == 400, (provider, answer.text)
    wire = catalog.dialects().find(provider).wire
    refused = f"the daemon cannot call providers of the wire {wire} yet, only those of anthropic, "
    assert answer.json()["error"]["message"].startswith(refused)


def _post(http: httpx.Client, model: str, headers: dict[str, str]) -> httpx.Response:
    body = {"model": model, "max_completion_tokens": 1000, "messages": HI}
    return http.post("/v1/chat/completions", json=body, headers=headers)


def test_every_wire_of_every_provider_answers(tmp_path: Path, emu: Emulator) -> None:
    """A home with a provider for each row of dialects.toml, all of them at the emulator."""
    rows = [row for row in catalog.dialects().rows if row.wire in FACES]
    providers: dict[str, Any] = {}
    for index, row in enumerate(rows):
        providers[f"p{index}"] = {
            "wire": row.name,
            "model": CLAUDE if row.envelope else model_of(row.provider),
            "prices": {"*": {"input": 0.1, "output": 0.2}},
            "account": {
                name: "a"
                for name in ("resource", "account", "project", "workspace")
                if f"{{{name}}}" in row.base_url + row.path
            },
            **({"region": "here"} if re.search("{region}|{location}", row.base_url) else {}),
        }
    grant = msgspec.json.decode(msgspec.json.encode(GRANT))
    grant["llm"]["providers"] = list(providers)
    llm = {"providers": providers, "daemon": {"port": 0}}
    failed = {}
    with (
        running_daemon(
            tmp_path,
            emu,
            llm=llm,
            extensions={"demo": grant},
            resolve=lambda config: emulated_providers(config, emu.url),
        ) as daemon,
        httpx.Client(
            base_url=daemon.url,
            headers={"authorization": f"Bearer {daemon.token('demo')}"},
            verify=NO_TLS,
            timeout=PATIENCE,
        ) as http,
    ):
        for id, entry in providers.items():
            answer = _post(http, entry["model"], {"anaphora-provider": id})
            if answer.status_code != 200:
                failed[entry["wire"]] = answer.text
    assert not failed
    assert len(providers) == len(rows)

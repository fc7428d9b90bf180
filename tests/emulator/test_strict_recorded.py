"""No false rejection: the emulator accepts what the real services accepted.

The recordings live beside the repository (see their README) and are never copied into it. They hold
no headers, so the ones that every client of Anthropic's sends are added.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from anaphora import catalog, wire
from anaphora.emulator import strict
from anaphora.emulator.billing import ModelFacts
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.hosts import HOSTS
from anaphora.errors import Upstream
from anaphora.tokens import Counts, for_model

FILE = Path(__file__).parents[3] / "shared" / "exchanges" / "exchanges.jsonl.gz"

PROVIDERS = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "*.openai.azure.com": "azure",
    "*.googleapis.com": "google",
    "api.cerebras.ai": "cerebras",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.z.ai": "zai",
    "ollama.com": "ollama",
    "openrouter.ai": "openrouter",
    "router.huggingface.co": "huggingface",
}
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "any"}

#: Recorded 400s that depend on fetched, generated or file content.
BEYOND_THE_REQUEST = {
    "e2b8297e4150401e",  # groq: the model called a tool wrongly
    "e6870c561c489f74",  # groq: the model called no tool
    "8bcd634657ec71a0",  # google: a web page that may not be read
    "66d173495ff64f2f",  # openai: a kind of file that is not taken
}


def recorded(*, good: bool) -> Iterator[Any]:
    if not FILE.exists():
        reason = f"no recorded exchanges at {FILE}"
        yield pytest.param({}, id="none", marks=pytest.mark.skip(reason=reason))
        return
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["wire"] in wire.WIRES and (record["status"] == 200) is good:
                yield pytest.param(record, id=f"{record['wire']}-{record['id']}")


def checked(record: dict[str, Any]) -> Upstream | None:
    name, host = record["wire"], record["host"]
    path = record["path"].split("?")[0]
    # A proxy in front of one of the five is held to that one's rules.
    own = [provider for pattern, provider in PROVIDERS.items() if fnmatchcase(host, pattern)]
    provider = own[0] if own else "vllm" if host != "localhost" else wire.PROVIDERS[name]
    body = record["request"].encode()
    call, rendered = wire.get(name).parse(body, path), wire.get(name).split(body, (), path)
    request = EmulatorRequest(method="POST", path=path, headers=HEADERS, body=body)
    profile = catalog.profile(provider, call.model)
    facts = ModelFacts(provider, name, profile, catalog.rules(provider, call.model, name))
    tokens, _ = Counts(for_model(rendered, profile)).bounds(profile.token_error.value)
    try:
        strict.check(HOSTS[name].checks, request, facts, params=call.params, tokens=tokens)
    except Upstream as error:
        return error
    return None


@pytest.mark.parametrize("record", list(recorded(good=True)))
def test_recorded_success_is_accepted(record: dict[str, Any]) -> None:
    assert checked(record) is None


@pytest.mark.parametrize("record", list(recorded(good=False)))
def test_recorded_error_is_reproduced(record: dict[str, Any]) -> None:
    error = checked(record)
    if record["id"] in BEYOND_THE_REQUEST:
        assert error is None
        return
    assert error is not None
    status, _, body = wire.get(record["wire"]).write_error(error)
    assert status == record["status"]
    assert json.loads(body) == json.loads(record["response"])

"""The emulator rejects what the real services rejected, in their words. That it accepts what they
accepted is in spec/test_recorded_requests.py.

The recordings live beside the repository (see their README) and are never copied into it. They hold
no headers, so the ones that every client of Anthropic's sends are added.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

from support.exchanges import Json, all_records, needs_exchanges, rows_of
from support.tables import Row, table

from anaphora import catalog, wire
from anaphora.emulator import strict
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.hosts import HOSTS
from anaphora.emulator.journal import ModelFacts
from anaphora.errors import Upstream
from anaphora.tokens import Counts, for_model
from anaphora.wire.cutting import cut

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
}


def recorded() -> list[Row]:
    return rows_of(
        record
        for record in all_records()
        if record["wire"] in wire.WIRES and record["status"] != 200
    )


def checked(record: Json) -> Upstream | None:
    name, host = record["wire"], record["host"]
    path = record["path"].split("?")[0]
    # A proxy in front of one of the five is held to that one's rules.
    own = [provider for pattern, provider in PROVIDERS.items() if fnmatchcase(host, pattern)]
    provider = own[0] if own else "vllm" if host != "localhost" else wire.PROVIDERS[name]
    body = record["request"].encode()
    call, rendered = wire.get(name).parse(body, path), cut(wire.get(name), body, path)
    request = EmulatorRequest(method="POST", path=path, headers=HEADERS, body=body)
    profile = catalog.profile(provider, call.model)
    facts = ModelFacts(provider, name, profile, catalog.rules(provider, call.model, name))
    tokens, _ = Counts(for_model(rendered, profile)).bounds(profile.token_error.value)
    try:
        strict.check(HOSTS[name].checks, request, facts, params=call.params, tokens=tokens)
    except Upstream as error:
        return error
    return None


@needs_exchanges
@table(recorded())
def test_recorded_error_is_reproduced(record: Json) -> None:
    error = checked(record)
    if record["id"] in BEYOND_THE_REQUEST:
        assert error is None
        return
    assert error is not None
    status, _, body = wire.get(record["wire"]).write_error(error)
    assert status == record["status"]
    assert json.loads(body) == json.loads(record["response"])

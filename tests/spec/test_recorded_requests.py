"""No request that a provider answered with 200 is refused: not by the emulator, not by the library,
and not by a daemon whose grant allows everything.

The recordings live beside the repository (see their README) and are never copied into it.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest
from msgspec.structs import replace
from support import clouds, exchanges
from support.daemon import TestedDaemon, create_home, started_daemon
from support.failing_provider import FailingProvider
from support.odd_exchanges import odd_rows
from support.request_facts import facts_in
from support.socket_upstream import socket_upstream

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.errors import AnaphoraError
from anaphora.rendered import Plan

pytestmark = exchanges.needs_exchanges

Json = dict[str, Any]

#: Requests of features that are not served, at most twelve: by id, who refuses them.
EXCEPT = {
    "8495babd0441fe35": "emulator library daemon",  # Text Completions of a Claude before Messages
    "0f73c7754428261b": "emulator",  # continues a response that it did not give
    "0b1f086a46bbbdfa": "emulator",  # the same
    "69334ac735ec6f5d": "emulator",  # names cached content that it does not have
    "8422bcd68df928f6": "emulator",  # runs in the background
    "22d12126b0439b98": "emulator",  # the same
    "4ab6e203345c3063": "daemon",  # its file was uploaded through another entry of llm.yaml
    "a5ac6c6c562c37d9": "daemon",  # searches a store of files, which no app owns
    "c59041035894a896": "daemon",  # the same
    "responses-stored-prompt": "emulator library",  # the prompt is known to the provider only
}
#: Of a proxy in front of Vertex AI.
PROXIED = "/google-vertex"
WIRES = {"bedrock_converse": "bedrock"}
ODD_PATHS = {"gemini": "/v1beta/models/gemini-2.5-flash:generateContent"}
KEYS = {
    "authorization": "Bearer k",
    "x-goog-api-key": "k",
    "api-key": "k",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "any",
}
FACE_PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}
PERMISSIONS = """server_tools remote_mcp stored_responses stored_prompts service_tiers
embeddings""".split()


SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALL = {"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}
RESULT = {"toolResult": {"toolUseId": "t1", "content": [{"text": "ok"}]}}
PDF = {"document": {"format": "pdf", "name": "doc", "source": {"bytes": "JVBERi0="}}}
#: Forms that programs send and providers accept: wire, path and body.
FORMS: dict[str, tuple[str, str, Json]] = {
    "a tool message with a name, and fields of LiteLLM": (
        "openai_chat",
        "/v1/chat/completions",
        {
            "model": "gpt-4o",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            "messages": [
                {"role": "user", "content": "hi", "timestamp": 1},
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": None,
                    "tool_calls": [{**CHAT_CALL, "index": 0}],
                    "provider_specific_fields": {"refusal": None},
                },
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
            ],
        },
    ),
    "output_format": (
        "anthropic",
        "/v1/messages",
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "hi"}],
            "output_format": {"type": "json_schema", "schema": SCHEMA},
        },
    ),
    "the assistant first": (
        "anthropic",
        "/v1/messages",
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 64,
            "messages": [
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "hi"},
            ],
        },
    ),
    "a document beside a tool result": (
        "bedrock",
        "/model/us.anthropic.claude-sonnet-4-5-20250929-v1:0/converse",
        {
            "messages": [
                {"role": "user", "content": [{"text": "hi"}]},
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [RESULT, {"text": "See."}, PDF]},
            ],
            "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": SCHEMA}}}]},
        },
    ),
}


class Recorded(msgspec.Struct, frozen=True):
    """A request that was answered with 200."""

    id: str
    wire: str
    path: str
    """Decoded, without the query."""
    body: bytes
    row: Dialect
    record: Json

    @property
    def model_in_path(self) -> str:
        """Of a deployment, or of Gemini's paths."""
        found = re.search(r"(?:deployments|models)/([^/:]+)", self.path)
        return "" if found is None else found[1]


def _read(record: Json) -> Recorded | None:
    name = WIRES.get(record["wire"], record["wire"])
    if name not in wire.WIRES or record["status"] != 200:
        return None
    path = unquote(record["path"].split("?")[0])
    row = catalog.dialects().at_host(record["host"], name, record["path"].split("?")[0])
    row = row or catalog.dialects().find(wire.PROVIDERS[name], name)
    body = record["request"].encode()
    one = Recorded(record["id"], name, path, body, row, record)
    if row.deployments and b'"model":null' in body.replace(b" ", b""):
        fields = {**json.loads(body), "model": one.model_in_path}
        one = replace(one, body=json.dumps(fields).encode())
    return one


def _read_odd(row: Json) -> Recorded:
    dialect = catalog.dialects().find(row["dialect"], row["wire"])
    path = ODD_PATHS.get(row["wire"]) or dialect.request_path
    return Recorded(row["name"], row["wire"], path, row["body"].encode(), dialect, row)


@functools.cache
def recorded() -> tuple[Recorded, ...]:
    found = map(_read, (*exchanges.all_records(), *clouds.all_records()))
    odd = [_read_odd(row.values[0]) for row in odd_rows("request")]
    forms = [
        Recorded(
            name,
            wire_name,
            path,
            json.dumps(body).encode(),
            catalog.dialects().find(wire.PROVIDERS[wire_name], wire_name),
            {"path": path, "cloud": wire_name},
        )
        for name, (wire_name, path, body) in FORMS.items()
    ]
    return (*filter(None, found), *odd, *forms)


def requests(reader: str) -> list[Recorded]:
    """Those that it must accept."""
    return [one for one in recorded() if reader not in EXCEPT.get(one.id, "")]


def test_exceptions_are_few_and_recorded() -> None:
    assert len(EXCEPT) <= 12
    assert EXCEPT.keys() <= {one.id for one in recorded()}
    assert len(recorded()) > 1_100


@pytest.mark.long
def test_emulator_accepts_recorded_requests() -> None:
    engine, refused = Engine(EmulatorOptions(any_model=True)), {}
    for one in requests("emulator"):
        cloud, given = one.record.get("cloud"), one.record.get("request_headers") or {}
        path = f"/{one.row.provider}{one.row.request_path}"
        if one.wire in ("gemini", "bedrock") or one.row.envelope or one.row.methods:
            path = f"/bedrock{one.path}" if cloud == "bedrock" else one.path.removeprefix(PROXIED)
        elif one.row.deployments:
            path = f"/azure{one.path}"
        request = EmulatorRequest(
            method="POST",
            path=path,
            query=dict(parse_qsl(one.record.get("query") or "")),
            headers={**KEYS, **given},
            body=one.body,
        )
        answer = engine.respond(request)
        if answer.status != 200:
            refused[one.id] = (path, answer.status, answer.body[:300])
    assert not refused, "\n".join(map(str, refused.items()))


def test_library_accepts_recorded_requests() -> None:
    refused = {}
    for one in requests("library"):
        codec = wire.codec_for(one.row)
        try:
            call = codec.parse(one.body, one.path)
            rendered = codec.render(call, catalog.profile(one.row.provider, call.model))
            codec.assemble(rendered, Plan())
        except AnaphoraError as problem:
            refused[one.id] = str(problem)
    assert not refused, "\n".join(map(str, refused.items()))


# ── Daemon ───────────────────────────────────────────────────────────────────────────────────────


def provider_of(one: Recorded) -> str:
    return one.row.name.replace("/", "_")


def llm_yaml(url: str) -> Json:
    providers: Json = {}
    for one in recorded():
        entry = providers.setdefault(
            provider_of(one),
            {
                "dialect": one.row.name,
                "base_url": url,
                "key": {"secret": "PROVIDER_KEY"},
                "retry": {"max_attempts": 1},
                "breaker": {"failures": 10_000},
                "models": {},
                **({} if one.row.cloud is None else {"region": "us-east-1"}),
            },
        )
        # The ARN of a profile does not tell its model.
        if (arn := re.search(r"arn:.*application-inference-profile/\w+", one.path)) is not None:
            entry["models"][arn[0]] = {"model": "anthropic.claude-sonnet-5"}
    return {"providers": providers, "daemon": {"port": 0, "drain_delay": 0}}


async def own_everything(home: Path) -> None:
    """The objects that requests name belong to the app, at the provider of the request."""
    store = SqliteStore.open(home / "store.sqlite")
    try:
        for one in recorded():
            facts = facts_in(one.wire, one.body, one.path)
            row = HandleRow(
                kind="file", id="", app="demo", provider=provider_of(one), created=time.time()
            )
            for _, kind, name in facts.handles:
                await store.add_handle(replace(row, kind=kind, id=name))
    finally:
        await store.close()


def names_what_is_not_lent(one: Recorded) -> bool:
    facts = facts_in(one.wire, one.body, one.path)
    kinds = {kind for _, kind, _ in facts.handles}
    return facts.background or not kinds.isdisjoint(("container", "conversation", "cached_content"))


@contextmanager
def wide_daemon(folder: Path, provider: FailingProvider) -> Iterator[TestedDaemon]:
    with socket_upstream(provider) as upstream:
        llm = llm_yaml(upstream.url)
        grant = {
            "capabilities_grant": ["llm_complete", "llm_stream"],
            "llm": {
                "providers": list(llm["providers"]),
                "models": ["*"],
                "usd_per_day": "unlimited",
                "tools": ["*"],
                "n": 128,
                "share_cache": True,
                "allow": [*PERMISSIONS, {"betas": ["*"], "fields": ["*"]}],
            },
        }
        tokens = create_home(folder, upstream, extensions={"demo": grant}, llm=llm)
        asyncio.run(own_everything(folder))
        with started_daemon(folder, tokens) as daemon:
            yield daemon


@pytest.mark.soak
def test_daemon_accepts_recorded_requests(tmp_path: Path) -> None:
    """Sent on to a provider: what that answers is the recording's."""
    provider, refused = FailingProvider(), {}
    with wide_daemon(tmp_path / "home", provider) as daemon, daemon.client() as http:
        for one in requests("daemon"):
            path, record = FACE_PATHS.get(one.wire, one.path), one.record
            if one.row.methods or one.row.envelope:
                path = record["path"].split("?")[0]
            if one.wire == "gemini":
                path = "/v1beta/models/" + one.path.rpartition("/models/")[2]
            answer = (record.get("response") or "").encode()
            if record.get("response_base64"):
                answer = base64.b64decode(record["response_base64"])
            kind = record.get("content_type") or "application/json"
            provider.fail(200, answer, f"content-type: {kind}")
            asked = len(provider.requests)
            headers = {"anaphora-provider": provider_of(one), "content-type": "application/json"}
            response = http.post(path, content=one.body, headers=headers)
            if names_what_is_not_lent(one):
                assert (len(provider.requests), response.status_code) == (asked, 403), one.id
            elif len(provider.requests) == asked:
                refused[one.id] = (path, response.status_code, response.text[:300])
    assert not refused, "\n".join(map(str, refused.items()))

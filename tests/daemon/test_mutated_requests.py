"""One rich request of each wire, changed in one place at a time: what is sent is never more than what
the grant allows, at a provider of the same wire and after translation."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from support.delegation import Delegating, app_of, delegating
from support.emulated_client import BEDROCK_MODEL
from support.emulated_client import MODELS as ALL_MODELS
from support.emulated_client import WIRES as OTHER_WIRES
from support.mutations import GRANTED, MAX_TOKENS, RICH, Json, mutations

from anaphora.client.transport import HttpRequest, HttpResponse
from anaphora.daemon.values import App
from anaphora.errors import AnaphoraError, NotGranted
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.permissions.fields import read_facts
from anaphora.wire.reading import DECODE_ERRORS

pytestmark = pytest.mark.anyio

WIRES = (*OTHER_WIRES, "bedrock")
#: Of OpenAI, one that takes stop sequences.
MODELS = {
    **ALL_MODELS,
    "openai_chat": "gpt-4.1",
    "openai_responses": "gpt-4.1",
    "bedrock": BEDROCK_MODEL,
}
NAMES = {GRANTED, GRANTED + "_2"}
STRICT = {
    "tools": (GRANTED, GRANTED + "_*"),
    "max_tokens": MAX_TOKENS,
    "models": tuple(MODELS.values()),
}
LAX: dict[str, Any] = {
    **STRICT,
    "permissions": frozenset({"server_tools", "remote_mcp", "service_tiers"}),
    "fields": frozenset({"*"}),
}


class Nowhere:
    url = "http://127.0.0.1:9"


GRANTS = {"strict": STRICT, "lax": LAX}


class Refusal:
    """A response to any request: nothing of it is wanted."""

    status = 400
    headers: Mapping[str, str] = {"content-type": "application/json"}

    async def read(self) -> bytes:
        return b'{"error":{"message":"no"}}'

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield await self.read()

    async def close(self) -> None:
        pass


class KeepingTransport:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[HttpRequest] = []

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.sent.append(request)
        return Refusal()

    async def close(self) -> None:
        pass


# ── What a provider could read in what was sent ──────────────────────────────────────────────────

TEXTS = {"description", "parameters", "input_schema", "parametersjsonschema", "inputschema"}


def names_of(tools: Any) -> Iterator[str]:
    """All names in definitions of tools, in whatever case a member is written."""
    if isinstance(tools, list):
        for each in tools:
            yield from names_of(each)
    elif isinstance(tools, dict):
        for key, value in tools.items():
            own = key.casefold()
            if own == "name":
                yield str(value)
            elif own not in TEXTS:
                yield from names_of(value)


DEFINING = {"additional_tools", "tool_search_output", "tool_addition"}
TOOLS = {"tool", "tools", "toolspec", "tooladdition", "functiondeclarations", "functions"}
ARGUMENTS = {"input", "arguments", "args", "response", "json"}


def added(value: Any, lax: bool) -> Iterator[Any]:
    """The tools that messages define where a provider reads them, or, of an app without a grant for
    unknown fields, in any member that has such a name."""
    if isinstance(value, list):
        for each in value:
            yield from added(each, lax)
    elif isinstance(value, dict):
        defines = str(value.get("type")) in DEFINING
        for key, inner in value.items():
            own = key.replace("_", "").casefold()
            if own in TOOLS and (not lax or defines or own == "tooladdition"):
                yield inner
            elif key not in ARGUMENTS:
                yield from added(inner, lax)


def definitions(body: Any, lax: bool) -> Iterator[Any]:
    """The tools of a request, and those that its messages add."""
    for name in ("messages", "input", "contents"):
        yield from added(body.get(name), lax)
    names = ("tools", "functions")
    if isinstance(config := body.get("toolConfig"), dict):
        yield from (value for key, value in config.items() if key.casefold() == "tools")
    for holder in (body, body.get("additionalModelRequestFields")):
        for key, value in holder.items() if isinstance(holder, dict) else ():
            if key.casefold() in names:
                yield value


def is_function(tool: Any) -> bool:
    """Whether it is not a tool that a provider runs: those have names of their own."""
    if not isinstance(tool, dict):
        return True
    kind = tool.get("type")
    holds = {"function", "custom", "input_schema", "functionDeclarations", "function_declarations"}
    return kind in (None, "function", "custom") or bool(holds & set(tool))


LIMITS = {
    "anthropic": ("", ["max_tokens"]),
    "openai_chat": ("", ["max_tokens", "max_completion_tokens"]),
    "openai_responses": ("", ["max_output_tokens"]),
    "gemini": ("generationConfig", ["maxOutputTokens", "max_output_tokens"]),
    "bedrock": ("inferenceConfig", ["maxTokens"]),
}


def limits_of(wire: str, body: Json) -> list[Any]:
    holder, names = LIMITS[wire]
    if holder:
        body = body.get(holder) or body.get("generation_config") or {}
    return [body[name] for name in names if body.get(name) is not None]


def check_sent(request: HttpRequest, wire: str, lax: bool) -> None:
    body = json.loads(request.body)
    for tools in definitions(body, lax):
        for tool in tools if isinstance(tools, list) else [tools]:
            if not lax or is_function(tool):
                assert set(names_of(tool)) <= NAMES, tool
    if wire == "bedrock":  # Converse reads no model in the body
        model = unquote(request.path.removeprefix("/model/").removesuffix("/converse"))
    else:
        model = body.get("model") or request.path.rpartition("/models/")[2].partition(":")[0]
    assert model == MODELS[wire]
    limits = limits_of(wire, body)
    assert limits, body
    assert all(0 <= limit <= MAX_TOKENS for limit in limits), body
    config = body.get("generationConfig") or {}
    assert body.get("n") in (None, 1)
    assert config.get("candidateCount") in (None, 1)
    if not lax:
        assert not {"mcp_servers", "speed", "web_search_options"} & set(body)


async def send(
    daemon: Delegating, transport: KeepingTransport, wire: str, body: Any, target: str, app: App
) -> str:
    """Sends a request to a provider, and checks what that got. Returns what became of it."""
    model = MODELS[target]
    if "model" in RICH[wire]:
        if not isinstance(body, dict) or not isinstance(body.get("model"), str):
            return "no model"  # an endpoint refuses it, and the service is not asked
        if body["model"] == RICH[wire]["model"]:
            body = body | {"model": model}
        model = body["model"]
    transport.sent.clear()
    outcome = "answered"
    try:
        call = daemon.request(wire, body, app=app, model=model, provider=target)
        await daemon.service.complete(call)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        outcome = type(problem).__name__
    for request in transport.sent:
        check_sent(request, target, lax=app.id == "lax")
    return "sent" if transport.sent else outcome


def turns(wire: str, index: int) -> Iterator[tuple[str, str]]:
    """The target and grant of one request: the wire itself or another one, in turn."""
    others = [each for each in WIRES if each != wire]
    turn, to_other = divmod(index, 2)
    yield others[turn % len(others)] if to_other else wire, ("strict", "lax")[turn % 2]


def every(_: str, __: int) -> Iterator[tuple[str, str]]:
    yield from itertools.product(WIRES, GRANTS)


@pytest.mark.parametrize("targets", [turns, pytest.param(every, marks=pytest.mark.soak)])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_sent_is_what_the_grant_allows(
    wire: str, targets: Callable[[str, int], Iterator[tuple[str, str]]], tmp_path: Path
) -> None:
    transport, found = KeepingTransport(), Counter[str]()
    apps = {name: app_of(name, providers=MODELS, **grant) for name, grant in GRANTS.items()}
    async with delegating(
        Nowhere(), tmp_path, MODELS, app=apps["lax"], transport=transport
    ) as daemon:
        for index, (name, body) in enumerate(mutations(RICH[wire])):
            for target, grant in targets(wire, index):
                try:
                    outcome = await send(daemon, transport, wire, body, target, apps[grant])
                except AssertionError as problem:
                    where = f"{wire} to {target}, {grant} grant, {name}"
                    raise AssertionError(f"{where}: {transport.sent[-1].body!r}") from problem
                found[outcome] += 1
    assert found.total() > 900, found
    assert found["sent"] > 500, found
    assert found["NotGranted"] > 50, found
    assert "answered" not in found


#: What the first reader does not see, and a grant that does not allow it.
UNSEEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tools": ({"tools": ()}, {"tools": ("other",)}),
    "max_tokens": ({"max_tokens": None}, {"max_tokens": MAX_TOKENS - 1}),
}


@pytest.mark.parametrize("field", UNSEEN)
@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_rendered_is_checked_though_the_first_reader_missed_it(
    wire: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader that permits and the reader that renders may see different things."""

    def blind(*args: Any) -> CallFacts:
        return msgspec.structs.replace(read_facts(*args), **unseen)

    unseen, refused = UNSEEN[field]

    monkeypatch.setattr("anaphora.daemon.calls.steps.request.read_facts", blind)
    transport = KeepingTransport()
    app = app_of(providers=MODELS, **{**LAX, **refused})
    async with delegating(Nowhere(), tmp_path, MODELS, app=app, transport=transport) as daemon:
        for target in WIRES:
            if target == wire or (wire == "gemini" and ":" in MODELS[target]):
                continue  # the path of Gemini cannot name a model with a colon
            body = RICH[wire] | ({"model": MODELS[target]} if "model" in RICH[wire] else {})
            call = daemon.request(wire, body, model=MODELS[target], provider=target)
            with pytest.raises(NotGranted):
                await daemon.service.complete(call)
    assert transport.sent == []

"""Which provider, wire and operation a path means.

The five whose wires these are answer at their own paths: `/v1/messages`, `/v1/chat/completions`,
`/v1/responses`, `/v1beta/models/…`, `/api/chat`. Everybody, they too, answers under the name of the
provider, so that `http://…/deepseek` stands for `https://api.deepseek.com`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.wire import Wire

Operation: TypeAlias = Literal[
    "generate",
    "count",
    "models",
    "model",
    "stored",
    "stored_items",
    "caches",
    "cache",
    "show",
    "version",
]

#: What stands behind the root of each wire's paths, when an answer is wanted.
_TAILS = {
    "anthropic": "/messages",
    "openai_chat": "/chat/completions",
    "openai_responses": "/responses",
    "ollama": "/chat",
}
_ROOTS = {"ollama": "/api"}
#: Where the prompt's tokens are counted and nothing is answered.
_COUNTS = {"anthropic": "/messages/count_tokens", "openai_responses": "/responses/input_tokens"}

_GEMINI = re.compile(
    r"(?P<root>/v1(?:beta1?|alpha)?(?:/projects/[^/]+/locations/[^/]+)?)(?P<vertex>/publishers/google)?/"
    r"(?:(?P<collection>models|tunedModels|endpoints)(?:/(?P<model>[^/:]+)(?::(?P<method>\w+))?)?"
    r"|cachedContents(?:/(?P<cache>[^/]+))?)"
)
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    wire: str
    operation: Operation
    dialect: Dialect
    codec: Wire
    path: str
    """As the provider itself is asked."""
    name: str = ""
    """The model, stored answer or cache that the path names."""

    @property
    def speaker(self) -> str:
        """The dialect's name; empty where the wire is spoken by whom it is from."""
        home = self.provider == wire.PROVIDERS[self.wire] and not self.dialect.surface
        return "" if home else self.dialect.name


def codec_of(row: Dialect) -> Wire:
    if row.provider == wire.PROVIDERS[row.wire] and not row.surface:
        return wire.get(row.wire)
    return wire.codec_for(row)


def find(method: str, path: str, headers: Mapping[str, str]) -> Route | None:
    """What is asked there; None where nobody answers."""
    return _found(method, path, "x-goog-api-key" in headers, "anthropic-version" in headers)


@functools.lru_cache(maxsize=1024)
def _found(method: str, path: str, google: bool, anthropic: bool) -> Route | None:
    asker = "google" if google else "anthropic" if anthropic else ""
    path = "/" + path.strip("/")
    first, _, rest = path[1:].partition("/")
    if first in _providers():
        return _at(first, method, "/" + rest, asker)
    return _at("", method, path, asker)


def home(spoken: str) -> Dialect:
    """The row of the provider whose wire it is."""
    return catalog.dialects().find(wire.PROVIDERS[spoken], spoken)


@functools.cache
def _providers() -> frozenset[str]:
    return frozenset(row.provider for row in catalog.dialects().rows)


@functools.cache
def _rows(provider: str) -> tuple[tuple[str, Dialect], ...]:
    """The roots of a provider's paths; without a provider those of the five, and of Google's other
    surface, which has a path of its own."""
    rows = catalog.dialects().rows
    found = [
        (_root(row), row)
        for row in rows
        if row.wire in _TAILS
        and (row.provider == provider if provider else row.provider == wire.PROVIDERS[row.wire])
    ]
    if not provider:
        row = catalog.dialects().find("google", "openai_chat")
        found.append((_root(row), row))
    return tuple(found)


def _root(row: Dialect) -> str:
    return row.path.removesuffix(_TAILS[row.wire]) if row.path else _ROOTS.get(row.wire, "/v1")


def _at(provider: str, method: str, path: str, asker: str) -> Route | None:
    for root, row in _rows(provider):
        if not path.startswith(root + "/"):
            continue
        found = _operation(row, method, path[len(root) :])
        # Three of the five list their models at one path.
        other = found is not None and found[0] in ("models", "model") and not provider
        if found is None or (other and not _is_asked(row, asker)):
            continue
        operation, name = found
        return Route(
            provider=row.provider,
            wire=row.wire,
            operation=operation,
            dialect=row,
            codec=codec_of(row),
            path=path,
            name=name,
        )
    return _gemini(path) if provider in ("", "google") else None


def _is_asked(row: Dialect, asker: str) -> bool:
    """Whose models are meant, by the headers that only its own client sends."""
    return asker != "google" and (row.wire == "anthropic") == (asker == "anthropic")


def _operation(row: Dialect, method: str, rest: str) -> tuple[Operation, str] | None:
    """What the part of a path behind the root asks for."""
    spoken = row.wire
    if method == "POST" and rest == _TAILS[spoken]:
        return "generate", ""
    if method == "POST" and rest == _COUNTS.get(spoken):
        return "count", ""
    if spoken == "ollama":
        fixed: dict[tuple[str, str], Operation] = {
            ("GET", "/tags"): "models",
            ("POST", "/show"): "show",
            ("GET", "/version"): "version",
        }
        operation = fixed.get((method, rest))
        return (operation, "") if operation is not None else None
    if method == "GET" and rest == "/models":
        return "models", ""
    if method == "GET" and rest.startswith("/models/"):
        return "model", rest.removeprefix("/models/")
    if spoken == "openai_responses" and rest.startswith("/responses/"):
        name, _, inside = rest.removeprefix("/responses/").partition("/")
        if inside == "input_items" and method == "GET":
            return "stored_items", name
        if not inside and method in ("GET", "DELETE"):
            return "stored", name
    return None


def _gemini(path: str) -> Route | None:
    found = _GEMINI.fullmatch(path)
    if found is None:
        return None
    vertex = found["vertex"] or "/projects/" in found["root"]
    row = catalog.dialects().find("google", "gemini", "vertex" if vertex else "")
    operation: Operation | None
    if found["collection"] is None:
        operation, name = ("cache", found["cache"]) if found["cache"] else ("caches", "")
    elif found["method"] is not None:
        operation, name = _METHODS.get(found["method"]), found["model"]
    else:
        operation, name = ("model", found["model"]) if found["model"] else ("models", "")
    if operation is None:
        return None
    return Route(
        provider="google",
        wire="gemini",
        operation=operation,
        dialect=row,
        codec=codec_of(row),
        path=path,
        name=name,
    )

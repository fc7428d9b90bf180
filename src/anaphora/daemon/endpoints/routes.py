"""The paths of the endpoints: which operation of which wire a request asks for.

    route = find_route("POST", "/v1/messages", headers)
    route.wire, route.operation                           "anthropic", "generate"

Every path is matched as a whole. `/v1` may be left out or written twice, since base URLs of SDKs
have it or not; Gemini's paths begin with `/v1beta`, Ollama's with `/api`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from anaphora.daemon.store import HandleKind
from anaphora.errors import NotFound, RequestRejected

Operation: TypeAlias = Literal[
    "generate", "stream", "count", "models", "model", "create", "list", "get", "update", "delete",
    "action", "upload", "show", "version",
]  # fmt: skip

#: The wire whose errors are written at paths that belong to none.
DEFAULT_WIRE = "openai_chat"
_GEMINI = re.compile(r"/v1(?:beta|alpha)?/models/([^?]+):(\w+)")
_GEMINI_ROOT = re.compile(r"/v1(?:beta|alpha)(?=/)")
_GEMINI_COMPATIBLE = "/openai"
_GEMINI_UPLOAD = re.compile(r"/upload/v1(?:beta|alpha)?/files")
_VERSION = re.compile(r"(?:/v1){1,2}(?=/)")
#: An id in a path: no step up, no separator.
_ID = re.compile(r"(?!\.{1,2}\Z)[\w.:@-]{1,256}")
_MODEL = re.compile(r"[!-~]{1,256}")
#: Parts of a path that are none of a name.
_NO_STEPS = frozenset(("", ".", ".."))
#: Headers of Google's clients, which may use `/v1` like the others.
_GOOGLE_HEADERS = ("x-goog-api-key", "x-goog-api-client")
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "stream",
    "countTokens": "count",
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    wire: str
    operation: Operation
    path: str
    """As the provider has it."""
    name: str = ""
    """The model in the path, or the id of a stored object."""
    kind: HandleKind | None = None
    """Of stored objects."""
    rest: str = ""
    """What follows the id: `cancel`, `items/msg_1`."""


class StoredKind(msgspec.Struct, frozen=True):
    """A collection of stored objects: what may be asked of it, and of one of them."""

    kind: HandleKind
    path: str
    methods: frozenset[str]
    """Of the collection."""
    own: frozenset[str]
    """Of one object."""
    actions: re.Pattern[str]
    """`METHOD what-follows-the-id`."""


def _stored(kind: HandleKind, path: str, methods: str, own: str, actions: str = "-") -> StoredKind:
    return StoredKind(
        kind, path, frozenset(methods.split()), frozenset(own.split()), re.compile(actions)
    )


#: Stored objects by the wire whose errors and lists they use; longer paths first.
STORED: dict[str, tuple[StoredKind, ...]] = {
    "anthropic": (
        _stored(
            "batch", "/v1/messages/batches", "GET POST", "GET DELETE", "POST cancel|GET results"
        ),
        _stored("file", "/v1/files", "GET POST", "GET DELETE", "GET content"),
    ),
    "openai_responses": (
        _stored("response", "/v1/responses", "", "GET DELETE", "POST cancel|GET input_items"),
        _stored(
            "conversation",
            "/v1/conversations",
            "POST",
            "GET POST DELETE",
            r"(GET|POST) items|(GET|DELETE) items/[\w-]+",
        ),
        _stored("file", "/v1/files", "GET POST", "GET DELETE", "GET content"),
        _stored("batch", "/v1/batches", "GET POST", "GET", "POST cancel"),
        _stored(
            "container",
            "/v1/containers",
            "GET POST",
            "GET DELETE",
            r"(GET|POST) files|(GET|DELETE) files/[\w-]+|GET files/[\w-]+/content",
        ),
    ),
    "gemini": (
        _stored("cached_content", "/v1beta/cachedContents", "GET POST", "GET PATCH DELETE"),
        _stored("file", "/v1beta/files", "GET", "GET DELETE"),
        _stored("batch", "/v1beta/batches", "GET", "GET DELETE"),
    ),
}

_PLAIN: dict[tuple[str, str], tuple[str, Operation]] = {
    ("POST", "/v1/messages"): ("anthropic", "generate"),
    ("POST", "/v1/messages/count_tokens"): ("anthropic", "count"),
    ("POST", "/v1/chat/completions"): ("openai_chat", "generate"),
    ("POST", "/v1/responses"): ("openai_responses", "generate"),
    ("POST", "/v1/responses/input_tokens"): ("openai_responses", "count"),
    ("POST", "/api/chat"): ("ollama", "generate"),
    ("GET", "/api/tags"): ("ollama", "models"),
    ("POST", "/api/show"): ("ollama", "show"),
    ("GET", "/api/version"): ("ollama", "version"),
    ("GET", "/v1beta/models"): ("gemini", "models"),
}
_PATHS = frozenset(path for _, path in _PLAIN)
_PLAIN_ROUTES = {
    (method, path): Route(wire=wire, operation=operation, path=path)
    for (method, path), (wire, operation) in _PLAIN.items()
}
_STARTS = tuple(
    f"/{name}"
    for name in (
        "v1/ v1beta/ v1alpha/ api/ messages chat/completions responses models files batches"
        " conversations containers upload/"
    ).split()
)


def serves(path: str) -> bool:
    """Whether a path is an endpoint's, so that its errors are in the format of a wire."""
    return path.startswith(_STARTS)


def find_route(method: str, path: str, headers: Mapping[str, str]) -> Route:
    """The operation at a path that has no percent-encoding. Raises `NotFound`, and
    `RequestRejected` for a method that a path does not have."""
    plain = _PLAIN_ROUTES.get((method, path))
    if plain is not None:
        return plain
    path = _full_path(path)
    plain = _PLAIN_ROUTES.get((method, path))
    if plain is not None:
        return plain
    if (match := _GEMINI.fullmatch(path)) is not None:
        operation = _METHODS.get(match[2])
        if operation is None:
            raise _not_found(path)
        if method != "POST":
            raise _wrong_method(method, path)
        return Route(wire="gemini", operation=operation, path=path, name=checked_model(match[1]))
    if _GEMINI_UPLOAD.fullmatch(path):
        if method != "POST":
            raise _wrong_method(method, path)
        return Route(wire="gemini", operation="upload", path="/upload/v1beta/files", kind="file")
    if path in _PATHS and headers.get("upgrade", "").lower() == "websocket":
        # Clients that try a WebSocket first use HTTP after a 426, and try again after others.
        reason = "WebSocket is not supported here: POST the request to this path"
        raise RequestRejected(reason, status=426)
    wire = wire_of(path, headers)
    if wire == "gemini" and path.startswith("/v1/"):
        path = "/v1beta" + path[len("/v1") :]
    models = "/v1beta/models" if wire == "gemini" else "/v1/models"
    if path == models or path.startswith(models + "/"):
        if method != "GET":
            raise _wrong_method(method, path)
        name = path[len(models) + 1 :]
        operation = "model" if name else "models"
        return Route(wire=wire, operation=operation, path=path, name=name and checked_model(name))
    if (route := _stored_route(method, path, wire)) is not None:
        return route
    raise _wrong_method(method, path) if path in _PATHS else _not_found(path)


def wire_of(path: str, headers: Mapping[str, str]) -> str:
    """The wire whose format the caller of a path expects."""
    path = _full_path(path)
    if _GEMINI_ROOT.match(path) or _GEMINI.fullmatch(path) or path.startswith("/upload/"):
        return "gemini"
    if path.startswith("/api/"):
        return "ollama"
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return "anthropic"
    if not headers.keys().isdisjoint(_GOOGLE_HEADERS):
        return "gemini"
    if path.startswith(("/v1/responses", "/v1/conversations")):
        return "openai_responses"
    return DEFAULT_WIRE


def checked_model(name: str) -> str:
    """The name of a model in a path or a body."""
    steps = name.split("/") if "/" in name else (name,)
    if _MODEL.fullmatch(name) is None or not _NO_STEPS.isdisjoint(steps):
        reason = f"not a name of a model: {name[:100]!r}"
        raise RequestRejected(reason, status=400, param="model")
    return name


def _full_path(path: str) -> str:
    """The path with its version, once."""
    match = _GEMINI_ROOT.match(path)
    if match is not None:
        rest = path[match.end() :]
        if rest.startswith(_GEMINI_COMPATIBLE + "/"):
            return "/v1" + rest[len(_GEMINI_COMPATIBLE) :]
        return "/v1beta" + rest
    if path.startswith(("/api/", "/upload/")):
        return path
    match = _VERSION.match(path)
    return "/v1" + (path if match is None else path[match.end() :])


def _stored_route(method: str, path: str, wire: str) -> Route | None:
    for one in STORED.get("openai_responses" if wire == "openai_chat" else wire, ()):
        if path == one.path:
            if method not in one.methods:
                raise _wrong_method(method, path)
            operation: Operation = "create" if method == "POST" else "list"
            return Route(wire=wire, operation=operation, path=path, kind=one.kind)
        if not path.startswith(one.path + "/"):
            continue
        name, slash, rest = path[len(one.path) + 1 :].partition("/")
        if _ID.fullmatch(name) is None:
            raise _not_found(path)
        if slash:
            if one.actions.fullmatch(f"{method} {rest}") is None:
                raise _not_found(path)
            operation = "action"
        else:
            if method not in one.own:
                raise _wrong_method(method, path)
            operation = {"GET": "get", "DELETE": "delete"}.get(method, "update")  # type: ignore[assignment]
        return Route(wire=wire, operation=operation, path=path, kind=one.kind, name=name, rest=rest)
    return None


def _not_found(path: str) -> NotFound:
    return NotFound(f"there is no endpoint {path[:100]}", status=404, code="not_found_error")


def _wrong_method(method: str, path: str) -> RequestRejected:
    return RequestRejected(f"{method[:20]} is not allowed at {path[:100]}", status=405)

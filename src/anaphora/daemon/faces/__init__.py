"""The faces of all wires, and which of them answers at a path.

    face_of("anthropic").request_id_header                "request-id"

    route = find_route("POST", "/v1/messages", headers)
    route.wire, route.operation                           "anthropic", "generate"

A face defines paths, headers, the forms of errors, replies, lists and counts, and details of
requests to its providers. Paths are matched as a whole. `/v1` may be missing or doubled, since base
URLs of SDKs differ, and follow `/openai` or `/anthropic`, as at clouds. Gemini's paths begin with
`/v1beta`, Bedrock's with `/model`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from anaphora.daemon.access.handles import path_not_lent
from anaphora.errors import NotFound, RequestRejected
from anaphora.yaml_values import nearest

from .anthropic import AnthropicFace
from .bedrock import ConverseFace, InvokeFace
from .face import Face, Operation, Route, checked_model, path_not_found, wrong_method
from .gemini import GeminiFace
from .openai import OpenAIChatFace, OpenAIResponsesFace

#: The face for errors at paths that belong to none.
_DEFAULT = OpenAIChatFace()
#: The first match decides if paths and headers fit several.
FACES: dict[str, Face] = {
    face.name: face
    for face in (
        AnthropicFace(),
        _DEFAULT,
        OpenAIResponsesFace(),
        GeminiFace(),
        InvokeFace(),
        ConverseFace(),
    )
}
_VERSION = re.compile(r"(?:/openai|/anthropic)?(?:/v1){0,2}(?=/)")
#: An id in a path: no `..`, no separator.
_ID = re.compile(r"(?!\.{1,2}\Z)[\w.:@-]{1,256}")
PLAIN_ROUTES: dict[tuple[str, str], Route] = {
    (method, path): Route(wire=face.wire, operation=operation, path=path)
    for face in FACES.values()
    for (method, path), operation in face.operations.items()
}
_PATHS = frozenset(path for _, path in PLAIN_ROUTES)
STARTS = tuple(
    f"/{name}"
    for name in (
        "v1/ v1beta/ v1beta1/ v1alpha/ messages chat/completions responses models files"
        " batches conversations containers upload/ embeddings model/ openai/ anthropic/"
    ).split()
)
"""Beginnings of endpoint paths: errors there have the format of a wire."""


face_of = FACES.__getitem__
"""The face of a name: a name of `wire.WIRES`, or of a dialect with a face of its own."""


def _list_endpoints() -> str:
    listed: dict[str, None] = {}
    for face in FACES.values():
        listed |= dict.fromkeys(f"{method} {path}" for method, path in face.operations)
        listed |= dict.fromkeys(face.named_paths)
    for face in FACES.values():
        if face.models_at_root:
            models = f"GET {face.root}/models"
            listed |= dict.fromkeys((models, f"{models}/{{model}}"))
    for face in FACES.values():
        for one in face.stored:
            methods = "|".join(sorted(one.methods))
            collection = [f"{methods} {one.path}"] if methods else []
            own = f"{'|'.join(sorted(one.own))} {one.path}/{{id}}"
            listed |= dict.fromkeys((*collection, own))
    return ", ".join(listed)


ENDPOINTS = _list_endpoints()
"""All endpoints by method and path, listed in the error for an unknown path."""


def find_route(method: str, path: str, headers: Mapping[str, str]) -> Route:
    """The operation at a path that has no percent-encoding. Raises `NotFound`, which says why the
    path is not lent or lists all paths, and `RequestRejected` for a wrong method."""
    full = _full_path(path)
    if (plain := PLAIN_ROUTES.get((method, full))) is not None:
        return plain
    if (refused := path_not_lent(full)) is not None:
        raise refused
    try:
        return _find_route(method, full, headers)
    except NotFound as problem:
        near = nearest(path[:100], _PATHS)
        hint = f" (did you mean {near}?)" if near else ""
        raise problem.restated(f"{problem}{hint}; there are: {ENDPOINTS}") from None


def _find_route(method: str, path: str, headers: Mapping[str, str]) -> Route:
    for face in FACES.values():
        if (named := face.named_route(method, path)) is not None:
            return named
    if path in _PATHS and headers.get("upgrade", "").lower() == "websocket":
        # After a 426, clients that try a WebSocket first switch to HTTP; after other errors they
        # retry.
        reason = "WebSocket is not supported here: POST the request to this path"
        raise RequestRejected(reason, status=426)
    face = _face_at(path, headers)
    if path.startswith("/v1/"):
        path = face.root + path[len("/v1") :]
    models = face.root + "/models"
    if path == models or path.startswith(models + "/"):
        if method != "GET":
            raise wrong_method(method, path)
        name = path[len(models) + 1 :]
        operation: Operation = "model" if name else "models"
        name = name and checked_model(name)
        return Route(wire=face.wire, operation=operation, path=path, name=name)
    if (route := _stored_route(method, path, face)) is not None:
        return route
    raise wrong_method(method, path) if path in _PATHS else path_not_found(path)


def face_at(path: str, headers: Mapping[str, str]) -> str:
    """The face whose format the caller of a path expects."""
    return _face_at(path, headers).name


def _face_at(path: str, headers: Mapping[str, str]) -> Face:
    path = _full_path(path)
    for face in FACES.values():
        if face.own_paths.match(path):
            return face
    for face in FACES.values():
        if not face.own_headers.isdisjoint(headers):
            return face
    return next((face for face in FACES.values() if path.startswith(face.starts)), _DEFAULT)


def _full_path(path: str) -> str:
    """The path with its version exactly once."""
    for face in FACES.values():
        if (full := face.full_path(path)) is not None:
            return full
    match = _VERSION.match(path)
    return "/v1" + (path if match is None else path[match.end() :])


def _stored_route(method: str, path: str, face: Face) -> Route | None:
    wire = face.wire
    for one in face.stored:
        if path == one.path:
            if method not in one.methods:
                raise wrong_method(method, path)
            operation: Operation = "create" if method == "POST" else "list"
            return Route(wire=wire, operation=operation, path=path, kind=one.kind)
        if not path.startswith(one.path + "/"):
            continue
        name, slash, rest = path[len(one.path) + 1 :].partition("/")
        if _ID.fullmatch(name) is None:
            raise path_not_found(path)
        if slash:
            if one.actions.fullmatch(f"{method} {rest}") is None:
                raise path_not_found(path)
            operation = "action"
        else:
            if method not in one.own:
                raise wrong_method(method, path)
            operation = "delete" if method == "DELETE" else "get"
        return Route(wire=wire, operation=operation, path=path, kind=one.kind, name=name, rest=rest)
    return None

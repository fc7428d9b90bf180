"""The endpoints and fields of providers that the daemon does not pass on, and what apps do instead.

A path is answered with 404, a field with 403, both with the sentence. docs/endpoints.md lists them.
"""

from __future__ import annotations

import re

from anaphora.errors import NotFound, NotGranted

_BATCHES = (
    "batches are not passed on, since their bill comes up to a day later: send the calls one by"
    " one, or the batch with a key of the provider"
)
_CONVERSATIONS = (
    "conversation objects are not passed on: name the last response as previous_response_id, or"
    " send the history"
)
_CONTAINERS = (
    "containers are not passed on, as their cost has no bound: code runs in a new one if the"
    " request names none"
)
_BACKGROUND = (
    "background responses are not passed on, since their bill comes only when they are fetched:"
    " stream the response"
)
_CACHED = (
    "cached contents are not passed on: send their text with each request, and Gemini caches equal"
    " beginnings by itself"
)
_UPLOADS = "uploads in parts are not passed on: send the file to /v1/files"
_INVOKE = "InvokeModel is passed on with the bodies of Claude alone: use /model/{model}/converse"

NOT_LENT = {
    "/v1/messages/batches": _BATCHES,
    "/v1/batches": _BATCHES,
    "/v1beta/batches": _BATCHES,
    "/v1beta/models/{model}:batchGenerateContent": _BATCHES,
    "/v1/conversations": _CONVERSATIONS,
    "conversation": _CONVERSATIONS,
    "/v1/containers": _CONTAINERS,
    "container": _CONTAINERS,
    "/v1/responses/{id}/cancel": _BACKGROUND,
    "background": _BACKGROUND,
    "/v1beta/cachedContents": _CACHED,
    "cachedContent": _CACHED,
    "/v1/uploads": _UPLOADS,
    "/model/{model}/invoke": _INVOKE,
}
"""Sentences by path, or by field of a body. The last path is lent for models of Anthropic."""

INVOKE = "/model/{model}/invoke"
_PATHS = [what for what in NOT_LENT if what.startswith("/") and what != INVOKE]
_PATH = re.compile(
    "|".join(f"({re.sub(r'{[a-z]+}', '[^/]+', what)})(?:/.*)?" for what in _PATHS), re.DOTALL
)
#: Fields by kind of stored object.
_FIELDS = {
    "conversation": "conversation",
    "container": "container",
    "cached_content": "cachedContent",
}


def path_not_lent(path: str) -> NotFound | None:
    """The error at a path of the table, which begins with its version."""
    match = _PATH.fullmatch(path)
    return (
        None if match is None or match.lastindex is None else not_lent(_PATHS[match.lastindex - 1])
    )


def not_lent(what: str) -> NotFound:
    return NotFound(NOT_LENT[what], status=404, code="not_found_error")


def check_kind(kind: str, param: str) -> None:
    """Raises `NotGranted` for a stored object, named at `param`, of a kind that is not lent."""
    if (field := _FIELDS.get(kind)) is not None:
        raise NotGranted(f"{param}: {NOT_LENT[field]}", param=param)


def check_background(background: bool) -> None:
    if background:
        raise NotGranted(f"background: {NOT_LENT['background']}", param="background")

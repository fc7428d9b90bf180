"""Requests that count the tokens of a prompt, at the providers that have an endpoint for it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.catalog import Dialect, names

from .reading import Members, encode_members, object_members, request_error
from .tables import request_table


class CountRequest(NamedTuple):
    path: str
    body: bytes


#: The wires' own paths, after those of requests or for the model.
_PATHS = {
    "anthropic": "{path}/count_tokens",
    "openai_responses": "{path}/input_tokens",
    "gemini": "{path}:countTokens",
    "bedrock": "/model/{model}/count-tokens",
}
#: The members of a request that Vertex AI counts.
_VERTEX = ("contents", "systemInstruction", "tools", "generationConfig")


def count_request(
    wire: str, dialect: Dialect | None, model: str, path: str, body: bytes
) -> CountRequest | None:
    """The request that counts the tokens of the one with this path and body; None if the provider
    counts none. `model` is the one that the provider knows."""
    own = wire if dialect is None else dialect.envelope or wire
    count_path = _PATHS.get(wire, "") if dialect is None else dialect.count_path
    if own not in _BODIES or not count_path:
        return None
    counted = _BODIES[own](object_members(body, "$", request_error), model, dialect)
    if own in ("bedrock", "invoke"):
        from .bedrock.params import quoted_model

        # Inference profiles count no tokens, and their models do.
        model = quoted_model(names.foundation_model(model))
    count_path = count_path.replace("{path}", path.partition(":")[0]).replace("{model}", model)
    return CountRequest(count_path, counted)


def _accepted(wire: str, members: Members) -> Members:
    fields = request_table(wire).fields
    return {name: raw for name, raw in members.items() if name in fields and fields[name].counted}


def _messages(members: Members, model: str, dialect: Dialect | None) -> bytes:
    accepted = _accepted("anthropic", members)
    for name, value in {} if dialect is None else dialect.constants.items():
        accepted.setdefault(name, Raw(dumps(value)))
    return encode_members({"model": Raw(string(model)), **accepted})


def _responses(members: Members, *_: object) -> bytes:
    return encode_members(_accepted("openai_responses", members))


def _gemini(members: Members, model: str, dialect: Dialect | None) -> bytes:
    if dialect is not None:
        return encode_members({name: members[name] for name in _VERTEX if name in members})
    inner = {"model": Raw(string(f"models/{model}")), **members}
    return encode_members({"generateContentRequest": Raw(encode_members(inner))})


def _converse(members: Members, *_: object) -> bytes:
    return b'{"input":{"converse":%b}}' % encode_members(_accepted("bedrock", members))


def _invoke(members: Members, *_: object) -> bytes:
    sent = base64.b64encode(encode_members(members)).decode()
    return dumps({"input": {"invokeModel": {"body": sent}}})


_BODIES: dict[str, Callable[[Members, str, Dialect | None], bytes]] = {
    "anthropic": _messages,
    "openai_responses": _responses,
    "gemini": _gemini,
    "bedrock": _converse,
    "invoke": _invoke,
}

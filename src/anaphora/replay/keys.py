"""The lookup key of a recorded exchange: a digest of the request.

Two requests have the same key when they have the same method, provider, path, query without
credentials, model and body. Headers are not in the key: they contain credentials.

Bodies are compared as JSON: the order of members and white space do not count. In calls of a model,
cache markers do not count (the wire's `split` removes them, and the role of Gemini's system
instruction), nor do the fields in `IDENTIFIERS`, which name a session, a user or a cache and do not
change the answer. Other bodies, and JSON with more than a hundred levels or a duplicate member, are
compared by their bytes; forms with files without their random boundary.

The key is computed before secrets are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from blake3 import blake3

from anaphora import catalog, wire
from anaphora.client.transport.decoding import Decompressor, InvalidCompression
from anaphora.errors import AnaphoraError
from anaphora.rendered import Plan
from anaphora.wire import Wire
from anaphora.wire.cloud_paths import unread_model, wire_of
from anaphora.wire.cutting import cut

from .fixture import Fixture
from .rules import MatchRules

#: Part of every key; changes with the way keys are computed.
KEY_VERSION = 1

#: Fields of a body that are not compared; `[]` stands for the elements of a list. They name
#: sessions, users and caches, or the lifetime of a cache.
IDENTIFIERS = (
    "metadata.user_id",
    "client_metadata",
    "user",
    "user_id",
    "safety_identifier",
    "session_id",
    "request_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options.mode",
    "prompt_cache_options.ttl",
    "prompt_cache_options.comparison_response_id",
    "input[].internal_chat_message_metadata_passthrough",
)

#: Parameters of a query that hold a credential.
CREDENTIAL_PARAMETERS = frozenset(
    "key api_key api-key apikey access_token token auth authorization sig signature".split()
)

#: Suffixes of the paths of requests with a prompt, and their wire.
_ENDINGS = (
    ("/messages", "anthropic"),
    ("/messages/count_tokens", "anthropic"),
    ("/chat/completions", "openai_chat"),
    ("/responses", "openai_responses"),
    ("/responses/input_tokens", "openai_responses"),
    (":generatecontent", "gemini"),
    (":streamgeneratecontent", "gemini"),
)
_BOUNDARY = re.compile(r'multipart/[^;]+;.*?boundary="?([^";,\s]+)', re.IGNORECASE)
#: The largest size of a decompressed request, in bytes.
_LARGEST = 64 * 1024 * 1024
#: Levels of JSON that are compared; a more deeply nested body is compared by its bytes.
_DEEPEST = 100


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request that is recorded or looked up, credentials included. Its repr shows none."""

    method: str
    provider: str = ""
    """A provider of the catalog; empty if it is not known."""
    path: str
    """Below the provider's base URL, without the query."""
    query: str = ""
    headers: Mapping[str, str] = {}
    """By their names in lower case."""
    body: bytes = b""

    @classmethod
    def of(cls, fixture: Fixture) -> ReplayRequest:
        """The recorded request, without its headers."""
        return cls(
            method=fixture.method,
            provider=fixture.provider,
            path=fixture.path,
            query=fixture.query,
            body=fixture.request,
        )

    def __repr__(self) -> str:
        return f"<ReplayRequest {self.method} {self.path}, {len(self.body)} bytes>"


class ComparedRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request without the parts that are not compared."""

    method: str
    provider: str
    path: str
    model: str = ""
    query: list[tuple[str, str]] = []
    body: Any = None
    """As JSON values; None if it is not JSON."""
    digest: str = ""
    """Of a body that is not JSON."""

    @property
    def operation(self) -> tuple[str, str, bool]:
        """Method, path and whether it streams. Answers to different operations differ in form."""
        stream = isinstance(self.body, dict) and bool(self.body.get("stream"))
        return self.method, self.path, stream


class RequestKey(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """64 characters of lower-case hex."""
    model: str
    replaced: dict[str, str]
    """Texts replaced everywhere by match rules, with their placeholders."""


def key_of(
    request: ReplayRequest, rules: MatchRules, known: Mapping[str, str] | None = None
) -> RequestKey:
    """The key of a request. `known` are further texts to replace everywhere, with their
    placeholders."""
    return key_of_compared(compared_request(request), rules, known)


def key_of_compared(
    compared: ComparedRequest, rules: MatchRules, known: Mapping[str, str] | None = None
) -> RequestKey:
    compared, replaced = with_placeholders(compared, rules, known)
    return RequestKey(key=_digest(compared), model=compared.model, replaced=replaced)


def exact_digest(request: ReplayRequest) -> str:
    """A digest of the exact request without its credentials. A request with this digest has the key
    of the recorded one; it is much cheaper than `key_of`."""
    query = sorted(_query(request)) if request.query else []
    encoding = request.headers.get("content-encoding", "")
    parts = [KEY_VERSION, request.method.upper(), request.provider, request.path, query, encoding]
    return blake3(msgspec.json.encode(parts) + b"\n" + request.body).hexdigest()


def _query(request: ReplayRequest) -> Iterator[tuple[str, str]]:
    for name, value in parse_qsl(request.query, keep_blank_values=True):
        if name.lower() not in CREDENTIAL_PARAMETERS:
            yield name, value


def _digest(compared: ComparedRequest) -> str:
    parts = [
        KEY_VERSION,
        compared.method,
        compared.provider,
        compared.path,
        compared.query,
        compared.model,
        compared.digest,
        compared.body,
    ]
    return blake3(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def with_placeholders(
    compared: ComparedRequest, rules: MatchRules, known: Mapping[str, str] | None = None
) -> tuple[ComparedRequest, dict[str, str]]:
    """The request after the rules are applied, and the texts that they replaced everywhere."""
    body, replaced = rules.apply(compared.body, known)
    return msgspec.structs.replace(compared, body=body), replaced


def compared_request(request: ReplayRequest) -> ComparedRequest:
    compared = ComparedRequest(
        method=request.method.upper(),
        provider=request.provider,
        path=request.path,
        query=sorted(_query(request)),
    )
    body = _decoded(request)
    try:
        members = msgspec.json.decode(body) if body else None
        is_json = not _is_deep(members) and not _has_member_twice(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        is_json = False
    if not is_json:
        digest = blake3(_plain(request, body)).hexdigest()
        return msgspec.structs.replace(compared, digest=digest)
    model = ""
    if isinstance(members, dict):
        model = str(members.get("model") or "")
        codec = _codec(request)
        if codec is not None:
            try:
                rendered = cut(codec, body, request.path)
                members = msgspec.json.decode(codec.assemble(rendered, Plan()).body.join())
                model = rendered.model
            except (AnaphoraError, msgspec.DecodeError):
                pass  # an invalid request; it is recorded with the provider's error
        for place in _PLACES if model else ():
            _remove(members, place)
    return msgspec.structs.replace(compared, model=model, body=members)


def _codec(request: ReplayRequest) -> Wire | None:
    """The wire of a request with a prompt, as its provider uses it."""
    path = unquote(request.path).rstrip("/")
    low = path.lower()
    name = next((name for ending, name in _ENDINGS if low.endswith(ending)), None) or wire_of(path)
    if name is None or request.method.upper() != "POST" or unread_model(path):
        return None
    row = catalog.dialects().at_path(request.provider, name, path)
    return wire.get(name) if row is None else wire.codec_for(row)


def _decoded(request: ReplayRequest) -> bytes:
    """The body without its content encoding, if that is known."""
    decompressor = Decompressor.of(request.headers.get("content-encoding"))
    if decompressor is None:
        return request.body
    try:
        body = decompressor.feed(request.body, _LARGEST)
        decompressor.finish()
    except InvalidCompression:
        return request.body
    return body if len(body) <= _LARGEST else request.body


def _plain(request: ReplayRequest, body: bytes) -> bytes:
    """A body that is not JSON, with a constant boundary instead of a random one."""
    found = _BOUNDARY.match(request.headers.get("content-type", ""))
    if found is None:
        return body
    return body.replace(b"--" + found[1].encode("latin-1", "replace"), b"--boundary")


def _is_deep(value: Any) -> bool:
    """Whether a value is nested too deeply to be compared by its fields."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _has_member_twice(body: bytes) -> bool:
    """Whether an object has a duplicate member: parsers disagree about which one counts."""
    try:
        json.loads(body or b"null", object_pairs_hook=_unique)
    except _MemberTwice:
        return True
    return False


class _MemberTwice(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _MemberTwice


_PLACES = tuple(tuple(place.replace("[]", ".[]").split(".")) for place in IDENTIFIERS)


def _remove(value: Any, place: tuple[str, ...]) -> None:
    """Removes a field from a body, and objects that are empty without it."""
    first, *rest = place
    if first == "[]":
        for item in value if isinstance(value, list) else ():
            _remove(item, tuple(rest))
    elif isinstance(value, dict) and first in value:
        if not rest:
            del value[first]
        else:
            _remove(value[first], tuple(rest))
            if value[first] == {}:
                del value[first]

"""Google's Gemini API, with its `cachedContents`, and the same API on Vertex."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from anaphora import catalog, wire
from anaphora.cache.simulator import Outcome
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.exchange import (
    EmulatorResponse,
    ResponseChunk,
    decode_object,
    decode_value,
)
from anaphora.emulator.journal import Billing, ModelFacts
from anaphora.emulator.replies import GeneratedReply
from anaphora.emulator.replies.text import IdGenerator, SeededRandom, join_seed
from anaphora.emulator.strict import rejected
from anaphora.emulator.strict.gemini import CHECKS
from anaphora.errors import Forbidden, Upstream
from anaphora.prompt import Call, Reasoning
from anaphora.rendered import CacheHandle
from anaphora.tokens import Counts, for_model
from anaphora.values import Part, Reply, Thinking, ToolCall, Usage
from anaphora.wire.cutting import cut
from anaphora.wire.gemini.reply import write_candidate, write_content
from anaphora.wire.gemini.types import camel

from .files import GeminiFiles
from .host import (
    CompleteBody,
    EmulatorRoute,
    Host,
    Operation,
    RoutedRequest,
    Thought,
    model_limits,
    opaque,
    thinking_text,
)
from .stored import StoredObjects

_PATH = re.compile(
    r"(?P<root>/v1(?:beta1?|alpha)?(?:/projects/[^/]+/locations/[^/]+)?)(?P<vertex>/publishers/google)?/"
    r"(?:(?P<collection>models|tunedModels|endpoints)(?:/(?P<model>[^/:]+)(?::(?P<method>\w+))?)?"
    r"|cachedContents(?:/(?P<cache>[^/]+))?)"
)
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
_JSON = "application/json; charset=UTF-8"
#: Lifetime of a cached content whose request names none, in seconds.
_DEFAULT_TTL = 3600.0
#: A century: later dates cannot be written.
_LONGEST_TTL = 100 * 365 * 86_400.0
_MAX_CONTENTS = 10_000
_CACHED_FIELDS = ("systemInstruction", "tools", "toolConfig", "contents")
#: Stands for a request's own contents while the tokens before it are counted.
_PLACEHOLDER = b'{"role":"user","parts":[{"text":"."}]}'
_SECONDS = re.compile(r"(\d+(?:\.\d{1,9})?)s\Z")


class GeminiHost(Host):
    wire = "gemini"
    checks = CHECKS
    content_type = _JSON
    choices_field = "candidates"

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._contents: StoredObjects[CachedContentResource] = StoredObjects(
            "", lambda _: 0, _MAX_CONTENTS, 0
        )
        self._files = GeminiFiles(ids)

    # ── Routes and keys ──────────────────────────────────────────────────────────────────────────

    def route(self, method: str, path: str) -> EmulatorRoute | None:
        """The route of a whole path, in which methods follow a colon."""
        operation: Operation | None
        if (found := self._files.operation(method, path)) is not None:
            dialect = catalog.dialects().find("google", self.wire, "")
            return EmulatorRoute(self, dialect, wire.codec_for(dialect), found[0], path, found[1])
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        if match["collection"] is None:
            operation, name = ("cache", match["cache"]) if match["cache"] else ("caches", "")
        elif match["method"] is not None:
            operation, name = _METHODS.get(match["method"]), match["model"]
        else:
            operation, name = ("model", match["model"]) if match["model"] else ("models", "")
        if operation is None or (operation in ("model", "models") and method != "GET"):
            return None
        surface = "vertex" if "/projects/" in match["root"] else ""
        if match["vertex"] and not surface:
            surface = "express"  # a key instead of a project
        dialect = catalog.dialects().find("google", self.wire, surface)
        path = path.replace(":countTokens", ":generateContent")
        return EmulatorRoute(self, dialect, wire.codec_for(dialect), operation, path, name)

    def workspace(self, request: RoutedRequest, keys: frozenset[str] | None) -> str:
        found = self._files.workspace(request.query)
        return super().workspace(request, keys) if found is None else found

    def missing_key(self, auth: str) -> Upstream:
        return Forbidden("the request has no API key", status=403, code="PERMISSION_DENIED")

    # ── Requests and replies ─────────────────────────────────────────────────────────────────────

    def complete_body(self, request: RoutedRequest) -> CompleteBody:
        """The cached content that a request names, followed by its own contents."""
        fields = request.fields
        inner = fields.get("generateContentRequest")
        if request.route.operation == "count" and inner is not None:
            fields = decode_object(bytes(inner))
        named = fields.get("cachedContent", fields.get("cached_content"))
        if named is None:
            return CompleteBody(request.body if inner is None else bytes(inner))
        content = self._get(request, str(decode_value(named, "cachedContent")))
        own = {camel(name): bytes(raw) for name, raw in fields.items()}
        own.pop("cachedContent", None)
        contents = _elements(own.pop("contents", b"[]"))
        held = CacheHandle(content.name, content.chunks, "")
        return CompleteBody(_body(content.fields, contents, own), (), held, content.model)

    def is_stream(self, request: RoutedRequest, call: Call) -> bool:
        return ":streamGenerateContent" in request.path

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if wanted is None:
            return None, 0
        if wanted.display == "summarized":
            return Thinking(thinking_text(random), provider=self.wire), 0
        return None, random.between(16, 64)

    def sign_calls(
        self, parts: tuple[Part, ...], profile: Profile, seed: bytes
    ) -> tuple[Part, ...]:
        """Of several calls in one reply only the first is signed."""
        first = next((at for at, part in enumerate(parts) if isinstance(part, ToolCall)), None)
        if first is None or not profile.refuses("unsigned_calls"):
            return parts
        signature = opaque(SeededRandom(join_seed(b"signature") + seed))
        extras = {self.wire: dumps({"thoughtSignature": signature}).decode()}
        signed = msgspec.structs.replace(parts[first], extras=extras)
        return (*parts[:first], signed, *parts[first + 1 :])

    def usage(
        self, outcome: Outcome, facts: ModelFacts, replies: Sequence[GeneratedReply]
    ) -> Usage:
        usage = super().usage(outcome, facts, replies)
        return usage if usage.read else msgspec.structs.replace(usage, read=None)

    def write_choice(self, reply: Reply, index: int) -> bytes:
        return write_candidate(reply, {}, write_content(reply.message), index)

    def edit_stream(self, request: RoutedRequest, reply: Reply, response: EmulatorResponse) -> None:
        """Without `alt=sse` a stream is one JSON array."""
        if request.query.get("alt") == "sse":
            return
        for index, chunk in enumerate(response.chunks):
            data = chunk.data.removeprefix(b"data: ").strip()
            chunk.data = (b",\n" if index else b"[") + data
        response.chunks.append(ResponseChunk(0.0, b"]"))
        response.headers["content-type"] = _JSON

    def count_body(self, tokens: int) -> bytes:
        return dumps({"totalTokens": tokens})

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        return {
            "name": f"models/{profile.id}",
            "displayName": profile.id,
            "supportedGenerationMethods": ["generateContent", "countTokens", "createCachedContent"],
            **model_limits(profile, "inputTokenLimit", "outputTokenLimit"),
        }

    # ── Cached contents ──────────────────────────────────────────────────────────────────────────

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        now, route = request.now, request.route
        if route.operation in ("upload", "files", "file"):
            return self._files.handle(request)
        if route.operation == "caches":
            created = request.method == "POST"
            return dumps(self._create(request) if created else self._list(request))
        content = self._get(request, route.name)
        facts = self.billing.facts(route.provider, self.wire, content.model)
        simulator = self.billing.simulator(facts)
        if request.method == "DELETE":
            self._contents.delete(request.workspace, _id(content.name))
            simulator.release(content.name, at=now)
            return b"{}"
        if request.method == "PATCH":
            expires = _expiry(request.fields, now)
            if expires is None:
                raise rejected("only ttl and expireTime can be changed")
            content.expires = expires
            content.resource |= {"updateTime": _date(now), "expireTime": _date(expires)}
            simulator.extend(content.name, at=now, seconds=expires - now)
        return dumps(content.resource)

    def _create(self, request: RoutedRequest) -> dict[str, Any]:
        now, route = request.now, request.route
        own = {camel(name): bytes(raw) for name, raw in request.fields.items()}
        if "model" not in own:
            raise rejected("model is required", param="model")
        model = str(request.value("model")).rpartition("/")[2]
        fields = {name: own[name] for name in _CACHED_FIELDS if name in own}
        expires = _expiry(request.fields, now) or now + _DEFAULT_TTL
        path = f"/v1beta/models/{model}:generateContent"
        rendered = cut(route.codec, _body(fields, [_PLACEHOLDER], {}), path)
        facts, chunks = self.billing.facts(route.provider, self.wire, model), len(rendered) - 1
        if not chunks:
            raise rejected("the content to cache is empty", param="contents")
        tokens = Counts(for_model(rendered, facts.profile)).tokens(chunks)
        parent = route.path.partition("/cachedContents")[0].strip("/").partition("/")[2]
        resource: dict[str, Any] = {
            "name": f"{parent}/".lstrip("/") + f"cachedContents/{self.ids.next().lower()}",
            "model": f"models/{model}",
            "createTime": _date(now),
            "updateTime": _date(now),
            "expireTime": _date(expires),
            "usageMetadata": {"totalTokenCount": tokens},
        }
        if "displayName" in own:
            resource["displayName"] = str(decode_value(own["displayName"], "displayName"))
        content = CachedContentResource(resource, model, fields, chunks, expires)
        simulator = self.billing.simulator(facts)
        simulator.hold(content.name, tokens, at=now, seconds=expires - now)
        self._contents.add(request.workspace, _id(content.name), content)
        return resource

    def _get(self, request: RoutedRequest, name: str) -> CachedContentResource:
        """A cached content by name. The error is the same for an expired and an unknown one."""
        content = self._contents.find(request.workspace, _id(name))
        if content is None or content.expires <= request.now:
            reason = f"no cached content {_id(name)}, or no permission to see it"
            raise Forbidden(reason, status=403, code="PERMISSION_DENIED")
        return content

    def _list(self, request: RoutedRequest) -> dict[str, Any]:
        own = reversed(self._contents.list(request.workspace))
        live = [content.resource for content in own if content.expires > request.now]
        return {"cachedContents": live}


class CachedContentResource(msgspec.Struct, eq=False):
    """A stored `cachedContents` resource; `resource` is its form in the API."""

    resource: dict[str, Any]
    model: str
    fields: dict[str, bytes]
    """The cached fields of its request, unchanged."""
    chunks: int
    expires: float

    @property
    def name(self) -> str:
        return str(self.resource["name"])


def _expiry(body: Mapping[str, msgspec.Raw], now: float) -> float | None:
    """The end of a lifetime; None if the request names none."""
    own = {camel(name): raw for name, raw in body.items()}
    if "ttl" in own:
        ttl = decode_value(own["ttl"], "ttl")
        match = _SECONDS.match(ttl) if isinstance(ttl, str) else None
        if match is None or not 0 < float(match[1]) <= _LONGEST_TTL:
            raise rejected("ttl must be a number of seconds such as 300s", param="ttl")
        return now + float(match[1])
    if "expireTime" not in own:
        return None
    text = decode_value(own["expireTime"], "expireTime")
    try:
        expires = datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        reason = "expireTime must be a date such as 2026-11-14T09:30:00Z"
        raise rejected(reason, param="expireTime") from None
    if expires <= now:
        raise rejected("expireTime is in the past", param="expireTime")
    return expires


def _body(fields: Mapping[str, bytes], contents: list[bytes], own: dict[str, bytes]) -> bytes:
    """A request of cached fields, then `contents`, then the request's own fields."""
    merged = {name: raw for name, raw in fields.items() if name != "contents"} | own
    cached = _elements(fields.get("contents", b"[]"))
    merged["contents"] = b"[" + b",".join([*cached, *contents]) + b"]"
    return b"{" + b",".join(dumps(name) + b":" + raw for name, raw in merged.items()) + b"}"


def _elements(raw: bytes) -> list[bytes]:
    """The elements of a list; a single object is a list of one."""
    try:
        if raw[:1] == b"{":
            return [raw]
        return list(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))
    except msgspec.DecodeError as problem:
        raise rejected(str(problem), param="contents") from None


def _id(name: str) -> str:
    return name.rpartition("/")[2]


def _date(seconds: float) -> str:
    date = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

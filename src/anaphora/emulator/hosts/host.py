"""The behaviour of a provider's host that depends on its wire.

`Host` has the defaults; the other modules of this package override them, one for each wire. An
engine makes its own hosts, which hold the objects that the provider would store.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from blake3 import blake3

from anaphora.cache.simulator import Outcome
from anaphora.cache.verdict import SentCall
from anaphora.canonical import dumps
from anaphora.catalog import Dialect, Profile
from anaphora.emulator.exchange import JSON, SSE, EmulatorRequest, EmulatorResponse
from anaphora.emulator.journal import Billing, JournalEntry, ModelFacts, UsageWindow
from anaphora.emulator.replies import GeneratedReply
from anaphora.emulator.replies.text import IdGenerator, SeededRandom, sentences
from anaphora.emulator.strict import WireChecks
from anaphora.errors import ContextOverflow, Unauthenticated, Upstream
from anaphora.prompt import Call, Reasoning
from anaphora.rendered import CacheHandle, Rendered
from anaphora.values import Part, Reply, ReplyStart, StopReason, Text, Thinking, Usage
from anaphora.wire import Wire

Operation: TypeAlias = Literal[
    "generate", "count", "models", "model",
    "files", "file", "file_content", "batches", "batch", "batch_cancel", "batch_results",
    "stored", "stored_items", "websocket", "model_delete",
    "caches", "cache", "upload", "embed",
]  # fmt: skip
"""The purpose of a route. All but the first four belong to one wire: see `Host.handle`."""

Thought: TypeAlias = tuple[Thinking | None, int]
"""The reasoning that is shown, and the tokens of reasoning that is not."""

#: Creation date of every model: the catalog has none, and clients expect one.
MODELS_CREATED = "2026-01-01T00:00:00Z"
#: Local servers, which need no key.
_LOCAL = "http://localhost"
#: Providers whose replies say nothing of their cache.
_UNREPORTED = ("ollama",)
_KEY_HEADERS = ("x-api-key", "api-key")
_CREDENTIAL = re.compile(r"Credential=([^/,\s]{1,256})/")


class EmulatorRoute(msgspec.Struct, frozen=True):
    """The provider, host and operation of a path."""

    host: Host
    dialect: Dialect
    codec: Wire
    operation: Operation
    path: str
    """The path at the provider itself."""
    name: str = ""
    """The model, or the stored object, that the path names."""

    @property
    def provider(self) -> str:
        return self.dialect.provider


class RoutedRequest(EmulatorRequest, frozen=True, kw_only=True, dict=True):
    route: EmulatorRoute
    host: Host
    entry: JournalEntry

    @property
    def workspace(self) -> str:
        return self.entry.workspace

    def with_body(self, body: bytes, **others: Any) -> RoutedRequest:
        """A copy with another body and other fields, without cached fields of the old body."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return RoutedRequest(**fields | {"body": body, **others})


class CompleteBody(msgspec.Struct, frozen=True):
    """A request's body, completed with the content that the provider stores for it."""

    body: bytes
    items: tuple[bytes, ...] = ()
    """Responses and Anthropic's threads: the input items, or messages, of the whole chain."""
    held: CacheHandle | None = None
    """Gemini: the cached content at the beginning of the prompt."""
    held_model: str = ""
    """Gemini: the model of the cached content."""


class ReplyContext(msgspec.Struct, frozen=True, kw_only=True):
    """Input of `Host.extra_fields`."""

    request: RoutedRequest
    call: Call
    reply: GeneratedReply
    sent: SentCall
    earlier: SentCall | None
    """The call that the request asks to be compared with, while it is kept."""
    dropped: tuple[str, ...] = ()
    """The paths of thinking that was dropped from the request."""


class Host:
    """Default behaviour of a wire's host."""

    wire: ClassVar[str]
    surface: ClassVar[str] = ""
    """The surface of the dialects that it serves; empty: all without a host of their own."""
    checks: ClassVar[WireChecks]
    root: ClassVar[str] = "/v1"
    generate_path: ClassVar[str] = ""
    count_path: ClassVar[str | None] = None
    reply_id_prefix: ClassVar[str] = ""
    call_id_prefix: ClassVar[str] = ""
    script_call_id_prefix: ClassVar[str] = "call_"
    content_type: ClassVar[str] = JSON
    stream_type: ClassVar[str] = SSE
    prewarm_stop: ClassVar[StopReason] = "end"
    refusal_stop: ClassVar[StopReason] = "refusal"
    choices_field: ClassVar[str | None] = None
    """The list of replies, if a request may ask for several."""
    reports_writes: ClassVar[bool] = False
    """Cache writes are reported even if nothing is marked."""
    reports_reasoning: ClassVar[bool] = False
    """Reasoning is counted even if there is none."""
    key_error_code: ClassVar[str | None] = None
    overloaded_code: ClassVar[str | None] = None
    spend_cap_code: ClassVar[str | None] = None

    run: Callable[[RoutedRequest, str, bytes], EmulatorResponse]
    """Answers a request of a batch, given by path and body."""
    batch_seconds: float = 0.0
    """How long batches take."""

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        self.billing = billing
        self.ids = ids

    # ── Routes and keys ──────────────────────────────────────────────────────────────────────────

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        """The operation at a path below the root, and the name in it."""
        if method == "POST" and path == self.generate_path:
            return "generate", ""
        if method == "POST" and path == self.count_path:
            return "count", ""
        if method == "GET" and path == "/models":
            return "models", ""
        if method == "GET" and path.startswith("/models/"):
            return "model", path.removeprefix("/models/")
        return None

    def workspace(self, request: RoutedRequest, keys: frozenset[str] | None) -> str:
        """The workspace of a request's API key; raises the provider's error for a bad key."""
        dialect = request.route.dialect
        key = _api_key(request, dialect)
        if not key and dialect.base_url.startswith(_LOCAL):
            return "local"
        if not key and dialect.cloud is not None and dialect.cloud.kind == "aws":
            code = "MissingAuthenticationTokenException"
            raise Unauthenticated("Missing Authentication Token", status=403, code=code)
        if not key:
            raise self.missing_key(dialect.auth)
        if keys is not None and key not in keys:
            reason = "the API key is not known"
            raise Unauthenticated(reason, status=401, code=self.key_error_code)
        return blake3(key.encode()).hexdigest(8)

    def missing_key(self, auth: str) -> Upstream:
        header = auth if auth in _KEY_HEADERS else "Authorization, as Bearer"
        reason = f"no API key: send it in the header {header}"
        return Unauthenticated(reason, status=401, code=self.key_error_code)

    def headers(self, request: RoutedRequest, window: UsageWindow | None) -> dict[str, str]:
        """The request id and rate-limit headers of a response."""
        return {}

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────

    def complete_body(self, request: RoutedRequest) -> CompleteBody:
        return CompleteBody(request.body)

    def is_stream(self, request: RoutedRequest, call: Call) -> bool:
        return call.params.stream

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        """The response, or its JSON body, of an operation that only some wires have."""
        raise NotImplementedError

    def keep(self, request: RoutedRequest, items: tuple[bytes, ...], reply: Reply) -> None:
        """Stores a reply, if the provider stores replies."""

    def rewrite(self, request: RoutedRequest) -> RoutedRequest:
        """A request of another endpoint that generates, as a request of the wire."""
        return request

    def finish(
        self, request: RoutedRequest, items: tuple[bytes, ...], response: EmulatorResponse
    ) -> None:
        """Changes the response to a request of another endpoint in place."""

    # ── Replies ──────────────────────────────────────────────────────────────────────────────────

    def generate_thinking(self, call: Call, profile: Profile, random: SeededRandom) -> Thought:
        wanted = call.params.reasoning
        if wanted is not None and (wanted.mode == "disabled" or wanted.effort == "none"):
            return None, 0
        return self.thinking(wanted, profile, random)

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        """The reasoning of a reply, unless it is disabled."""
        if wanted is None:
            return None, 0
        return Thinking(thinking_text(random), provider=self.wire), 0

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        return Thinking(text, provider=self.wire), 0

    def sign_calls(
        self, parts: tuple[Part, ...], profile: Profile, seed: bytes
    ) -> tuple[Part, ...]:
        """The parts of a reply, with signed tool calls if the provider requires signatures."""
        return parts

    def bind_thinking(
        self, parts: tuple[Part, ...], profile: Profile, prompt: Rendered
    ) -> tuple[Part, ...]:
        """The parts of a reply, with thinking bound to the prompt if the provider does so."""
        return parts

    def unbound_thinking(
        self, request: RoutedRequest, profile: Profile, prompt: Rendered
    ) -> tuple[bytes, tuple[str, ...]] | None:
        """The body without thinking that is bound to another prompt, and the paths of the dropped
        blocks; None without such blocks. Raises if the provider rejects it."""
        return None

    def without_earlier_thinking(self, complete: CompleteBody, profile: Profile) -> bytes | None:
        """The body without the thinking of earlier turns, as the model gets it; None if
        unchanged."""
        return None

    def usage(
        self, outcome: Outcome, facts: ModelFacts, replies: Sequence[GeneratedReply]
    ) -> Usage:
        output = reasoning = 0
        for reply in replies:
            tokens, thought = reply.tokens(facts.profile)
            output, reasoning = output + tokens, reasoning + thought
        if facts.profile.provider in _UNREPORTED:
            return Usage(uncached=outcome.total, output=output)
        shown = Thinking in map(type, replies[0].parts)
        return Usage(
            uncached=outcome.uncached,
            read=outcome.read,
            # Providers without markers report no writes.
            written=outcome.written if self.reports_writes or facts.rules.slots.value else None,
            output=output,
            reasoning=reasoning if reasoning or shown or self.reports_reasoning else None,
        )

    def detailed_usage(self, request: RoutedRequest, facts: ModelFacts, usage: Usage) -> Usage:
        """The counts with those that only this provider has."""
        return usage

    def text_part(self, call: Call, text: str) -> Text:
        """The text of a generated reply."""
        return Text(text)

    def reply_model(self, model: str) -> str:
        """The model that a reply names, for the one that was called."""
        return model

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        """Fields of a reply beside its message and counts."""
        return {}

    def write_choice(self, reply: Reply, index: int) -> bytes:
        """A reply after the first, in `choices_field`."""
        raise NotImplementedError

    def stream_usage(self, request: RoutedRequest, usage: Usage) -> Usage:
        """The counts that a stream reports; none if the request has to ask for them, and does
        not."""
        return usage

    def split_stream(self, written: bytes) -> list[bytes]:
        """The events of a written stream that have data."""
        return [data + b"\n\n" for data in written.split(b"\n\n") if data]

    def edit_stream(self, request: RoutedRequest, reply: Reply, response: EmulatorResponse) -> None:
        """Changes a written stream in place."""

    def overflow_stream(
        self, request: RoutedRequest, head: ReplyStart, problem: ContextOverflow
    ) -> EmulatorResponse | None:
        """The stream that tells that the prompt is too long; None: a response with its status
        tells it."""
        return None

    # ── Other bodies ─────────────────────────────────────────────────────────────────────────────

    def count_body(self, tokens: int) -> bytes:
        return dumps({"input_tokens": tokens})

    def list_models(self, profiles: Sequence[Profile]) -> bytes:
        return dumps({"models": [self.model_fields(profile) for profile in profiles]})

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        raise NotImplementedError


def _api_key(request: EmulatorRequest, dialect: Dialect) -> str:
    """The key from the header or query field where the provider expects it. A signed request has an
    access key."""
    headers, auth = request.headers, dialect.auth
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if dialect.cloud is not None and dialect.cloud.kind == "aws" and scheme != "Bearer":
        signed = _CREDENTIAL.search(token)
        if signed is not None:
            return signed[1]
    token = token.strip() if scheme.lower() == "bearer" else ""
    if auth in _KEY_HEADERS:
        return headers.get(auth) or token
    if auth == "x-goog-api-key":
        return headers.get(auth) or request.query.get("key", "") or token
    return token or (headers.get("x-api-key", "") if "/messages" in request.path else "")


def opaque(random: SeededRandom) -> str:
    """A stand-in for bytes that only the provider can read."""
    return base64.b64encode(bytes(random.below(256) for _ in range(48))).decode()


def thinking_text(random: SeededRandom) -> str:
    return sentences(random, 8, 20)


def model_limits(profile: Profile, context: str, output: str) -> dict[str, int]:
    figures = {context: profile.context_tokens, output: profile.output_tokens}
    return {name: figure.value for name, figure in figures.items() if figure is not None}


# ── Cache diagnostics ────────────────────────────────────────────────────────────────────────────


def changed_param(
    earlier: SentCall, later: SentCall, reasons: Iterable[tuple[str, str]]
) -> str | None:
    """The reason of the first parameter that differs; `reasons` is in the provider's order."""
    before, after = (dict(sent.rendered.envelope.cache_params) for sent in (earlier, later))
    changed = (why for name, why in reasons if before.get(name) != after.get(name))
    return next(changed, None)


def cached_tokens(usage: Usage | None) -> int:
    """Tokens in the cache after a call, by its bill."""
    return 0 if usage is None else (usage.read or 0) + (usage.written_total or 0)


def read_tokens(usage: Usage | None) -> int:
    return 0 if usage is None else usage.read or 0

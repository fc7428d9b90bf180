"""The behaviour of the daemon that depends on a wire, beside its codec.

`Face` has the defaults, which are OpenAI's forms; the other modules of this package override them.
A question about a wire is an attribute or a method here: nothing else in the daemon compares the
names of wires.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from anaphora.canonical import dumps
from anaphora.catalog.api_limits import output_limits
from anaphora.client.target import Target
from anaphora.daemon.store import HandleKind
from anaphora.daemon.values import GrantedModel
from anaphora.errors import NotFound, RequestRejected, Upstream
from anaphora.values import Event, Reply, Thinking, Usage
from anaphora.wire.reading import Members, encode_members

from .framing import SSE_ENDS, StreamFrame

Operation: TypeAlias = Literal[
    "generate", "stream", "count", "models", "model", "create", "list", "get", "update", "delete",
    "action", "upload", "show", "version", "embed",
]  # fmt: skip

Operations: TypeAlias = Mapping[tuple[str, str], Operation]
"""By method and path."""

Kept: TypeAlias = tuple[HandleKind, str, int | None]
"""Kind, id, and the tokens that a request is billed for when it refers to it."""

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
#: Creation date of every model: the catalog has none, and clients expect one.
MODELS_CREATED = "2026-01-01T00:00:00Z"
MODELS_CREATED_SECONDS = 1_767_225_600
_NEVER = re.compile(r"(?!)")
_MODEL = re.compile(r"[!-~]{1,256}")
#: Parts of a path that are none of a name.
_NO_STEPS = frozenset(("", ".", ".."))


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The operation of a wire at a path."""

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


def stored_kind(
    kind: HandleKind, path: str, methods: str, own: str, actions: str = "-"
) -> StoredKind:
    return StoredKind(
        kind, path, frozenset(methods.split()), frozenset(own.split()), re.compile(actions)
    )


class Face:
    """One wire in the daemon: the defaults."""

    wire: ClassVar[str]

    # ── Paths ────────────────────────────────────────────────────────────────────────────────────

    root: ClassVar[str] = "/v1"
    """What paths begin with."""
    models_at_root: ClassVar[bool] = True
    """Its models are listed at `/models` below the root."""
    operations: ClassVar[Operations] = {}
    """Those of models and stored objects are found by the beginning of their paths."""
    stored: ClassVar[tuple[StoredKind, ...]] = ()
    """Longer paths first."""
    own_paths: ClassVar[re.Pattern[str]] = _NEVER
    """Beginnings of paths that no other provider has,"""
    own_headers: ClassVar[frozenset[str]] = frozenset()
    """headers that no other provider's clients send, which decide at shared paths,"""
    starts: ClassVar[tuple[str, ...]] = ()
    """and beginnings of paths that are this wire's where no such header is sent."""

    @property
    def generate_path(self) -> str:
        """The path of requests that name their model in the body."""
        paths = (path for (_, path), what in self.operations.items() if what == "generate")
        return next(paths, "")

    def full_path(self, path: str) -> str | None:
        """A path of this wire that does not begin with `/v1`, with its version."""
        return None

    named_paths: ClassVar[tuple[str, ...]] = ()
    """The paths of `named_route`, for errors."""

    def named_route(self, method: str, path: str) -> Route | None:
        """The route of a path that names a model and a method."""
        return None

    # ── Headers ──────────────────────────────────────────────────────────────────────────────────

    request_id_header: ClassVar[str] = "x-request-id"
    """Where the provider's SDK looks for the id of a request."""
    version_header: ClassVar[str] = ""
    """A date that goes upstream,"""
    default_version: ClassVar[str] = ""
    """and the one that is sent where there is none."""
    beta_header: ClassVar[str] = ""
    """A list of betas, each of which the grant must name."""

    # ── Errors ───────────────────────────────────────────────────────────────────────────────────

    prompt_field: ClassVar[str] = "messages"
    unknown_model_status: ClassVar[int] = 404

    def own_error(self, error: Upstream) -> Upstream:
        """An error in the words by which the provider's clients know it."""
        return error

    def stream_error_code(self, error: Upstream) -> str | None:
        """The code of another wire's error in the middle of a stream."""
        return None

    # ── Requests of apps ─────────────────────────────────────────────────────────────────────────

    keeps_objects: ClassVar[bool] = True
    """Requests may name stored objects."""
    comparison: ClassVar[tuple[str, str]] = ("", "")
    """Where a request names an earlier response that it is only compared with."""
    stream_default: ClassVar[bool] = False
    """A request that does not say so asks for a stream."""
    streams_as_list: ClassVar[bool] = False
    """A stream is one JSON list, unless the query asks for events."""

    def model_of(self, route: Route, value: Mapping[str, Any]) -> str | None:
        """The model that a call asks for; None where a stored prompt decides it."""
        return route.name or model_in(value.get("model"))

    def is_stream(self, route: Route, value: Mapping[str, Any]) -> bool:
        stream = value.get("stream")
        if stream is None:
            return self.stream_default
        if not isinstance(stream, bool):
            raise RequestRejected("stream: must be true or false", status=400, param="stream")
        return stream

    # ── Replies ──────────────────────────────────────────────────────────────────────────────────

    reply_type: ClassVar[str] = JSON
    stream_type: ClassVar[str] = SSE
    event_ends: ClassVar[tuple[bytes, ...]] = SSE_ENDS
    reply_id_prefix: ClassVar[str] = ""
    """Of the ids that replies without one get; empty: none."""
    reasoning: ClassVar[Thinking] = Thinking()
    """What the reasoning of another provider is written as, but for its text."""
    reasoning_field: ClassVar[str | None] = None
    shows_call_ids: ClassVar[bool] = True
    """Tool calls of another provider keep their ids."""
    orders_parts: ClassVar[bool] = False
    """The parts of a stream follow each other."""
    ends_texts_late: ClassVar[bool] = False
    """The texts of a stream end with the reply."""

    def event_writer(self, write: Callable[[Event], bytes]) -> Callable[[Event], bytes]:
        """`write`, for events of another wire."""
        return write

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        """What changes the bytes of a stream. `asks_usage`: the caller of Chat asked for a chunk
        with the usage. `passes`: the bytes are the provider's."""
        return None

    def counted_body(self, body: bytes) -> bytes:
        """The request whose tokens a request asks for."""
        return body

    def count_fields(self, tokens: int) -> dict[str, Any]:
        """The answer to a request for the tokens of a prompt."""
        return {"input_tokens": tokens}

    def model_row(self, one: GrantedModel) -> dict[str, Any]:
        return {
            "id": one.model,
            "object": "model",
            "created": MODELS_CREATED_SECONDS,
            "owned_by": one.provider,
        }

    def models_body(self, rows: list[dict[str, Any]]) -> bytes:
        return dumps({"object": "list", "data": rows})

    def model_body(self, one: GrantedModel) -> bytes:
        return dumps(self.model_row(one))

    # ── Stored objects ───────────────────────────────────────────────────────────────────────────

    keepers: ClassVar[tuple[str, ...]] = ()
    """Wires of the providers that keep the objects of this one."""
    gone_is_forbidden: ClassVar[bool] = False
    """An object that the provider has deleted is answered with 403."""
    holds_results_in_files: ClassVar[bool] = False

    def kept_objects(
        self, request: Mapping[str, Any], reply: Reply, usage: Usage
    ) -> Iterator[Kept]:
        """The objects that a provider keeps of the reply to a request."""
        return iter(())

    def stored_list(
        self, kind: HandleKind, ids: list[str], objects: list[msgspec.Raw], after: str
    ) -> dict[str, Any]:
        """A page of stored objects; the next one begins after the id `after`, empty for the last
        page."""
        return {
            "object": "list",
            "data": objects,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": bool(after),
        }

    # ── Requests to providers ────────────────────────────────────────────────────────────────────

    model_in_path: ClassVar[bool] = False
    """The path of a request names the model, not its body."""
    limit_place: ClassVar[tuple[str, str]]
    """The object that holds the limit of the output, empty for the body, and its name there."""
    limit_names: ClassVar[tuple[str, ...]] = ()
    """Fields that hold the limit, where there is more than one."""
    choices_field: ClassVar[str] = "n"
    tool_limit_field: ClassVar[str] = "max_uses"
    """The limit of the calls of server tools."""
    usage_on_request: ClassVar[bool] = False
    """A stream reports its usage only with `stream_options.include_usage`."""
    budgets_thinking: ClassVar[bool] = False
    """Thinking that is switched on needs a budget."""
    count_path: ClassVar[str] = ""
    """What follows the path of a request whose tokens are counted; empty: they are not."""
    counted_fields: ClassVar[frozenset[str]] = frozenset()
    """The fields of a request that a count takes."""

    def path_to(self, model: str, *, stream: bool) -> str:
        """The path of a request to a model, where the path names it."""
        raise NotImplementedError

    def count_request(self, model: str, members: Members, path: str) -> tuple[str, bytes] | None:
        """Path and body of a request for the tokens of another; None where there is none."""
        if not self.count_path:
            return None
        counted = {name: raw for name, raw in members.items() if name in self.counted_fields}
        return path + self.count_path, encode_members(counted)

    def repaired(self, members: Members) -> Mapping[str, bytes]:
        """Fields that the provider's own SDK writes as other wires do not take them."""
        return {}

    def smallest_requests(
        self, target: Target, members: Members, *, runs_tools: bool
    ) -> Iterator[Members]:
        """A request again, as the smallest call that refreshes its cached prefix: without an
        answer, then with the shortest. None where reads do not refresh, or nothing is billed.
        `runs_tools`: even a short answer may run tools of the provider."""
        return iter(())

    def thinks_unseen(self, *, reasons: bool, shown: bool, counted: bool) -> bool:
        """Whether a reply that broke off may be billed for thinking that did not arrive: its model
        reasons, some thinking was shown, or its tokens were counted."""
        return reasons and not counted


def model_in(value: Any) -> str:
    """The name of a model in a body."""
    if not isinstance(value, str) or not value:
        raise RequestRejected("model: must be the name of a model", status=400, param="model")
    return checked_model(value)


def checked_model(name: str) -> str:
    """The name of a model in a path or a body."""
    steps = name.split("/") if "/" in name else (name,)
    if _MODEL.fullmatch(name) is None or not _NO_STEPS.isdisjoint(steps):
        reason = f"not a name of a model: {name[:100]!r}"
        raise RequestRejected(reason, status=400, param="model")
    return name


def path_not_found(path: str) -> NotFound:
    return NotFound(f"there is no endpoint {path[:100]}", status=404, code="not_found_error")


def wrong_method(method: str, path: str) -> RequestRejected:
    return RequestRejected(f"{method[:20]} is not allowed at {path[:100]}", status=405)


def model_limits(one: GrantedModel, context: str, output: str) -> dict[str, Any]:
    """The limits of a model that are known, under these names."""
    limits = {context: one.context, output: one.max_output}
    return {name: value for name, value in limits.items() if value is not None}


# ── Members of requests ──────────────────────────────────────────────────────────────────────────


def without(members: Members, *names: str) -> Members:
    return {name: value for name, value in members.items() if name not in names}


def json_of(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def value_of(members: Members, name: str) -> object:
    raw = members.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def shortest(target: Target) -> msgspec.Raw:
    """The smallest limit of the output that the provider takes."""
    return json_of(output_limits(target.endpoint.base_wire).least_tokens)


def prewarm(target: Target) -> str | None:
    """How the provider is asked for a call without an answer."""
    figure = target.rules.prewarm
    return None if figure is None else figure.value

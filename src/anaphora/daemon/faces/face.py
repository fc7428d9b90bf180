"""The daemon's behaviour that depends on a wire, besides its codec.

`Face` has the defaults, which are OpenAI's forms; the other modules of this package override them.
Everything that differs by wire is an attribute or method here: nothing else in the daemon compares
wire names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from anaphora.canonical import dumps
from anaphora.daemon.store import HandleKind
from anaphora.daemon.values import GrantedModel
from anaphora.errors import NotFound, RequestRejected, Upstream
from anaphora.prompt import Call
from anaphora.values import Event, Reply, Thinking, Usage
from anaphora.wire.reading import Members

from .framing import StreamFrame, WholeEvents, WholeFrames

Operation: TypeAlias = Literal[
    "generate", "stream", "count", "models", "model", "create", "list", "get", "delete",
    "action", "upload", "embed",
]  # fmt: skip

Operations: TypeAlias = Mapping[tuple[str, str], Operation]
"""By method and path."""

Kept: TypeAlias = tuple[HandleKind, str, int | None]
"""Kind, id, and the tokens billed to a request that refers to it."""

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
#: Creation date of every model: the catalog has none, and clients expect one.
MODELS_CREATED = "2026-01-01T00:00:00Z"
MODELS_CREATED_SECONDS = 1_767_225_600
_NEVER = re.compile(r"(?!)")
_MODEL = re.compile(r"[!-~]{1,256}")
#: Parts of a path that cannot be in a model's name.
_NO_STEPS = frozenset(("", ".", ".."))


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The operation of a wire at a path."""

    wire: str
    operation: Operation
    path: str
    """The path at the provider."""
    name: str = ""
    """The model in the path, or the id of a stored object."""
    kind: HandleKind | None = None
    """The kind of stored objects."""
    rest: str = ""
    """The path after the id: `content`."""
    form: str = ""
    """The dialect in which the caller writes and reads; empty: the wire itself."""
    face: str = ""
    """The name of the face: the form or the wire."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "face", self.form or self.wire)


class StoredKind(msgspec.Struct, frozen=True):
    """A collection of stored objects, and the requests allowed on it and on its objects."""

    kind: HandleKind
    path: str
    methods: frozenset[str]
    """Methods of the collection."""
    own: frozenset[str]
    """Methods of one object."""
    actions: re.Pattern[str]
    """`METHOD what-follows-the-id`."""


def stored_kind(
    kind: HandleKind, path: str, methods: str, own: str, actions: str = "-"
) -> StoredKind:
    return StoredKind(
        kind, path, frozenset(methods.split()), frozenset(own.split()), re.compile(actions)
    )


class Face:
    """One wire in the daemon. Holds the defaults."""

    wire: ClassVar[str]
    form: ClassVar[str] = ""
    """The dialect of the wire that its clients use; empty: none."""

    @property
    def name(self) -> str:
        return self.form or self.wire

    # ── Paths ────────────────────────────────────────────────────────────────────────────────────

    root: ClassVar[str] = "/v1"
    """The beginning of its paths."""
    models_at_root: ClassVar[bool] = True
    """Its models are listed at `/models` under the root."""
    operations: ClassVar[Operations] = {}
    """Routes by path. Those of models and stored objects are found by the beginning of the path."""
    stored: ClassVar[tuple[StoredKind, ...]] = ()
    """Longer paths first."""
    own_paths: ClassVar[re.Pattern[str]] = _NEVER
    """Beginnings of paths that only this provider has,"""
    own_headers: ClassVar[frozenset[str]] = frozenset()
    """headers that only its clients send, which decide at shared paths,"""
    starts: ClassVar[tuple[str, ...]] = ()
    """and beginnings of paths that are this wire's if no such header is sent."""

    @property
    def generate_path(self) -> str:
        """The path of requests that name their model in the body."""
        paths = (path for (_, path), what in self.operations.items() if what == "generate")
        return next(paths, "")

    def full_path(self, path: str) -> str | None:
        """The path with this wire's version, for a path that does not begin with `/v1`."""
        return None

    named_paths: ClassVar[tuple[str, ...]] = ()
    """The paths of `named_route`, for errors."""

    def named_route(self, method: str, path: str) -> Route | None:
        """The route of a path that names a model and a method."""
        return None

    # ── Headers ──────────────────────────────────────────────────────────────────────────────────

    request_id_header: ClassVar[str] = "x-request-id"
    """The header in which the provider's SDK looks for the request id."""
    version_header: ClassVar[str] = ""
    """The header of a version date that goes upstream,"""
    default_version: ClassVar[str] = ""
    """and the date sent if the request has none."""
    beta_header: ClassVar[str] = ""
    """The header with a list of betas, which the grant must name."""

    # ── Errors ───────────────────────────────────────────────────────────────────────────────────

    prompt_field: ClassVar[str] = "messages"
    unknown_model_status: ClassVar[int] = 404

    def own_error(self, error: Upstream) -> Upstream:
        """An error in the words by which the provider's clients recognize it."""
        return error

    def stream_error_code(self, error: Upstream) -> str | None:
        """The code of another wire's error in the middle of a stream."""
        return None

    # ── Requests of apps ─────────────────────────────────────────────────────────────────────────

    keeps_objects: ClassVar[bool] = True
    """Requests may name stored objects."""
    comparison: ClassVar[tuple[str, str]] = ("", "")
    """The field that names an earlier response for diagnostics only."""
    streams_as_list: ClassVar[bool] = False
    """A stream is one JSON list, unless the query requests events."""

    def model_of(self, route: Route, value: Mapping[str, Any]) -> str | None:
        """The requested model; None if a stored prompt decides it."""
        return route.name or model_in(value.get("model"))

    def plain_request(self, route: Route, members: Members) -> tuple[Members, Mapping[str, str]]:
        """A request whose path has a name, as the wire's own provider takes it: its members, and
        headers for members that are headers there."""
        return members, {}

    def is_stream(self, route: Route, value: Mapping[str, Any]) -> bool:
        if route.operation == "stream":
            return True
        stream = value.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise RequestRejected("stream: must be true or false", status=400, param="stream")
        return bool(stream)

    # ── Replies ──────────────────────────────────────────────────────────────────────────────────

    reply_type: ClassVar[str] = JSON
    stream_type: ClassVar[str] = SSE
    reply_id_prefix: ClassVar[str] = ""
    """Prefix of ids given to replies without one; empty: none is given."""
    reasoning: ClassVar[Thinking] = Thinking()
    """The fields, besides its text, with which another provider's reasoning is written."""
    reasoning_field: ClassVar[str | None] = None
    shows_call_ids: ClassVar[bool] = True
    """Tool calls of another provider keep their ids."""
    orders_parts: ClassVar[bool] = False
    """The parts of a stream must follow each other."""
    ends_texts_late: ClassVar[bool] = False
    """The texts of a stream end only with the reply."""

    def event_writer(self, write: Callable[[Event], bytes]) -> Callable[[Event], bytes]:
        """The function that writes events of another wire."""
        return write

    def whole_events(self) -> WholeEvents | WholeFrames:
        """Passes complete events of a provider's stream."""
        return WholeEvents()

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        """The frame for the bytes of a stream. `asks_usage`: the caller of Chat requested a chunk
        with the usage. `passes`: the bytes are the provider's."""
        return None

    def counted_body(self, body: bytes) -> bytes:
        """The request inside a token count request."""
        return body

    def count_fields(self, tokens: int) -> dict[str, Any]:
        """The answer to a token count request."""
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
    """Wires of providers that store this wire's objects."""
    gone_is_forbidden: ClassVar[bool] = False
    """The provider answers 403 for a deleted object."""

    def kept_objects(
        self, request: Mapping[str, Any], reply: Reply, usage: Usage
    ) -> Iterator[Kept]:
        """The objects that a provider stores with the reply to a request."""
        return iter(())

    def stored_list(self, ids: list[str], objects: list[msgspec.Raw], after: str) -> dict[str, Any]:
        """A page of stored objects. The next page begins after the id `after`, empty on the last
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
    """The path names the model, not the body."""
    model_field: ClassVar[str] = "model"
    """The field that names the model, which a body may repeat if the path names it."""
    limit_place: ClassVar[tuple[str, str]]
    """The object with the output limit, empty for the body, and the limit's name in it."""
    limit_names: ClassVar[tuple[str, ...]] = ()
    """All fields that can hold the limit, if there are several."""
    choices_field: ClassVar[str] = "n"
    usage_on_request: ClassVar[bool] = False
    """A stream reports its usage only with `stream_options.include_usage`."""
    always_thinks: ClassVar[bool] = False
    """Some models refuse requests that switch thinking off."""

    def path_to(self, model: str, *, stream: bool) -> str:
        """The path of a request to a model, with its name if this wire's paths have it."""
        raise NotImplementedError

    def repaired(self, call: Call) -> Call:
        """The call without what the provider's SDK adds and other wires reject."""
        return call


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
    """The known limits of a model, under these names."""
    limits = {context: one.context, output: one.max_output}
    return {name: value for name, value in limits.items() if value is not None}

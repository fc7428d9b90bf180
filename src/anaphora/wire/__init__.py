"""Wires: codecs of the providers' protocols, in both directions.

Every wire is a package with the same ten names; `wire.get("anthropic")` returns one.

    render(call, profile, previous=None) -> Rendered     parse(body) -> Call
    assemble(rendered, plan) -> Request                  provider
    read_reply(body) -> Reply                            write_reply(reply) -> bytes
    reader() -> bytes in, events out                     writer() -> events in, bytes out
    read_error(status, headers, body) -> Upstream        write_error(error) -> status, headers, body

`splice(body, plan, wire="anthropic")` adds the markers of a plan to a request.

`detect(body)` names the wire of a request: by its structure or, if that fits several wires, by its
model.

`cutting.cut(codec, body)` returns a request that another program wrote as chunks.

`parse` and `reader` also take the path that a request was sent to, which may name the model;
`reader` also takes the model itself, which decides how Converse counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

import msgspec

from anaphora.errors import InvalidRequest, Upstream

if TYPE_CHECKING:
    from anaphora.catalog import Dialect, Profile
    from anaphora.prompt import Call
    from anaphora.rendered import Plan, Rendered, Request
    from anaphora.values import Event, Reply

    from .splicing import SplicedRequest

__all__ = ["codec_for", "detect", "get", "names", "splice"]

#: All wires by name, with the name of the provider's API.
WIRES: dict[str, str] = {
    "anthropic": "Anthropic Messages",
    "openai_chat": "OpenAI Chat Completions",
    "openai_responses": "OpenAI Responses",
    "gemini": "Gemini generateContent",
    "bedrock": "Amazon Bedrock Converse",
}

#: The provider whose models a wire serves by default.
PROVIDERS: dict[str, str] = {
    "anthropic": "anthropic",
    "openai_chat": "openai",
    "openai_responses": "openai",
    "gemini": "google",
    "bedrock": "bedrock",
}


class WireFeatures(msgspec.Struct, frozen=True):
    """Facts about a wire that clients need besides its codec."""

    requires_max_tokens: bool = False
    max_temperature: float = 2.0
    stores_responses: bool = False
    """A stored response can be continued."""
    prewarms: bool = False
    """A call can write the cache without producing a reply."""
    adds_breakpoints: bool = False
    """The provider marks the last message by itself, unless the cache mode is explicit."""
    batches: Literal["inline", "file"] | None = None
    """How the wire's own provider takes a batch: the requests in one body, or in a file that is
    uploaded first; None: it has no batches."""
    tool_limit_field: str = "max_uses"
    """The field that limits the calls of a server tool."""
    unseen_thinking: Literal["uncounted", "unshown", "shown"] = "uncounted"
    """When an incomplete reply may be billed for thinking that did not arrive: none was counted;
    none was counted or shown; some was shown, which is a summary."""


_FEATURES = {
    "bedrock": WireFeatures(max_temperature=1.0),
    "anthropic": WireFeatures(
        requires_max_tokens=True,
        max_temperature=1.0,
        prewarms=True,
        batches="inline",
        unseen_thinking="shown",
    ),
    "openai_chat": WireFeatures(batches="file", unseen_thinking="unshown"),
    "openai_responses": WireFeatures(
        stores_responses=True,
        prewarms=True,
        adds_breakpoints=True,
        batches="file",
        tool_limit_field="max_tool_calls",
        unseen_thinking="unshown",
    ),
}


class Reader(Protocol):
    """Reads a stream: returns each event as soon as it is complete, and always a last one."""

    def feed(self, data: bytes) -> list[Event]: ...
    def close(self) -> list[Event]: ...


class Writer(Protocol):
    def write(self, event: Event) -> bytes: ...


class Wire(Protocol):
    """The codec of one protocol."""

    @property
    def provider(self) -> str: ...
    def render(
        self, call: Call, profile: Profile, previous: Rendered | None = None
    ) -> Rendered: ...
    def assemble(self, rendered: Rendered, plan: Plan) -> Request: ...
    def parse(self, body: bytes, path: str = "", first: int = 0) -> Call: ...
    def read_reply(self, body: bytes) -> Reply: ...
    def write_reply(self, reply: Reply, created: float | None = None) -> bytes: ...
    def reader(self, path: str = "") -> Reader: ...
    def writer(self) -> Writer: ...
    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: Any = None
    ) -> Upstream: ...
    def write_error(self, error: Upstream) -> tuple[int, dict[str, str], bytes]: ...


def get(name: str) -> Wire:
    """The wire of that name, imported on first use.

    A provider's name stands for its dialect of the wire it uses: `deepseek`, or
    `deepseek/anthropic` if it has several.
    """
    if name in WIRES:
        return cast(Wire, import_module(f"anaphora.wire.{name}"))
    return codec_for(dialect_of(name))


def codec_for(dialect: Dialect) -> Wire:
    """The variant of a wire that one provider implements."""
    from .dialect import DialectCodec

    if dialect.wire not in WIRES:
        known = ", ".join(WIRES)
        raise InvalidRequest(f"no wire {dialect.wire!r}; there are {known}", path="dialect.wire")
    codec = import_module(f"anaphora.wire.{dialect.wire}")
    if dialect.envelope == "invoke":
        from .dialect.invoke import InvokeCodec

        return InvokeCodec(codec, dialect)
    return DialectCodec(codec, dialect)


def host_marks(call: Call, origin: str, target: str) -> Call:
    """Convert a gateway's markers in a Chat call into the caller's marks, if the call goes to
    another wire. Chat itself has no markers: it reads them as unknown fields. `origin` and `target`
    are wires or dialects."""
    if base_of(origin) != "openai_chat" or base_of(target) == "openai_chat":
        return call
    from .dialect.requests import host_marks as marked

    return marked(call)


def dialect_of(name: str) -> Dialect:
    """The dialect of a name like `deepseek` or `deepseek/anthropic`."""
    from anaphora.catalog import dialects

    provider, *rest = name.split("/", 2)
    rows = dialects()
    if not any(provider in (row.provider, row.known_as) for row in rows.rows):
        known = ", ".join(dict.fromkeys(row.provider for row in rows.rows))
        raise InvalidRequest(
            f"{name!r} is neither a wire ({', '.join(WIRES)}) nor one of the providers {known}",
            path="wire",
        )
    return rows.find(provider, *rest)


def splice(
    body: bytes,
    plan: Plan,
    *,
    wire: str,
    path: str = "",
    replace: bool = False,
    slots: int | None = None,
) -> SplicedRequest:
    """A request with the markers of a plan, rendered from what `parse` reads in its bytes.

    `wire` is a name that `get` takes. Markers of the request stay, and count towards `slots`; with
    `replace` only the plan's remain. A provider without markers gets none, with a notice.
    """
    from .cutting import cut
    from .splicing import check_unambiguous
    from .splicing import splice as splice_markers

    check_unambiguous(body)
    codec = get(wire)
    return splice_markers(codec, cut(codec, body, path), plan, replace=replace, slots=slots)


def provider_of(name: str) -> str:
    """The provider of a wire or dialect."""
    return PROVIDERS[name] if name in PROVIDERS else dialect_of(name).provider


def base_of(name: str) -> str:
    """The wire of a wire or dialect."""
    return name if name in WIRES else dialect_of(name).wire


def features(name: str) -> WireFeatures:
    """The features of the wire of that name (not of a dialect)."""
    return _FEATURES.get(name, WireFeatures())


def names() -> dict[str, str]:
    """All names that `get` takes, with a description."""
    from anaphora.catalog import dialects

    known = dict(WIRES)
    for row in dialects().rows:
        description = f"{WIRES.get(row.wire, row.wire)} of {row.provider}"
        known.setdefault(row.provider, description)
        known.setdefault(row.name, description)
    return known


# ── Recognising a request ─────────────────────────────────────────────────────────────────────────

_CHAT_FIELDS = set(
    "frequency_penalty logit_bias logprobs max_completion_tokens modalities n parallel_tool_calls"
    " presence_penalty reasoning_effort response_format seed stop stream_options".split()
)
_ANTHROPIC_FIELDS = set(
    "system stop_sequences top_k output_config output_format cache_control".split()
)
_CHAT_PARTS = {"image_url", "input_audio", "file", "refusal"}
_ANTHROPIC_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}


class DetectedWire(NamedTuple):
    name: str
    guess: str = ""
    """Why this wire was chosen, if the request fits several."""


def detect(body: bytes) -> str:
    """The name of the wire; `InvalidRequest` if the request has fields of more than one."""
    return detect_wire(body).name


def detect_wire(body: bytes, model: str | None = None) -> DetectedWire:
    """The wire, and why it was chosen. `model` is for a request that names none.

    A plain request fits Anthropic and Chat Completions: it is Anthropic's if the model is, and
    Chat's otherwise."""
    from .reading import DECODE_ERRORS, decode_reason

    try:
        request = msgspec.json.decode(body)
    except DECODE_ERRORS as problem:
        raise InvalidRequest(f"not JSON: {decode_reason(problem, body)}") from None
    if not isinstance(request, dict):
        raise InvalidRequest("expected a JSON object")
    for field, wire in (("input", "openai_responses"), ("contents", "gemini")):
        if field in request:
            return DetectedWire(wire)
    if not isinstance(request.get("messages"), list):
        raise InvalidRequest("no `messages`, `input` or `contents`: not a request of a known wire")
    chat, anthropic = _signs_of_chat(request), _signs_of_anthropic(request)
    if chat and anthropic:
        reason = "it has fields of both anthropic and openai_chat"
        raise InvalidRequest(reason)
    messages = _objects(request["messages"][:1])
    # Anthropic takes no system message first.
    if chat or anthropic or (messages and messages[0].get("role") == "system"):
        return DetectedWire("anthropic" if anthropic else "openai_chat")
    return _by_model(request.get("model") or model)


def _by_model(model: Any) -> DetectedWire:
    from anaphora.catalog import maker_of

    maker = maker_of(model) if isinstance(model, str) else None
    name = "anthropic" if maker == "anthropic" else "openai_chat"
    reason = "most providers take it" if maker is None else f"{model[:100]} is a model of {maker}"
    return DetectedWire(name, f"read as {name}, since {reason}")


def _signs_of_chat(request: dict[str, Any]) -> bool:
    messages = _objects(request["messages"])
    return (
        bool(_CHAT_FIELDS & set(request))
        or any("function" in t and "input_schema" not in t for t in _objects(request.get("tools")))
        or any(m.get("role") in ("developer", "tool") or "tool_calls" in m for m in messages)
        or any(part.get("type") in _CHAT_PARTS for part in _parts(messages))
    )


def _signs_of_anthropic(request: dict[str, Any]) -> bool:
    return (
        bool(_ANTHROPIC_FIELDS & set(request))
        or any("input_schema" in tool for tool in _objects(request.get("tools")))
        or any(
            part.get("type") in _ANTHROPIC_BLOCKS or "cache_control" in part
            for part in _parts(_objects(request["messages"]))
        )
    )


def _parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for message in messages for part in _objects(message.get("content"))]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

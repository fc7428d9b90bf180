"""Calls that are rendered and read on several wires in turn, and what survives."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from support import call_views as views
from support.features import FEATURES
from support.outcomes import Sent, Target, fields, is_about, outcome, plain, read, send

from anaphora.prompt import Call
from anaphora.values import (
    Bytes,
    Document,
    Image,
    Message,
    Notice,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)


class Thing(NamedTuple):
    """A view that is compared before and after. `feature` is the row of the matrix with the wires
    that support it; without one, all do."""

    name: str
    view: views.View
    feature: str = ""
    about: str = ""


def _images(kind: type) -> views.View:
    return lambda call: [
        part.source
        if isinstance(part.source, Bytes)
        else part.source.url
        if isinstance(part.source, Url)
        else None
        for part in views.parts_of(call)
        if isinstance(part, Image) and isinstance(part.source, kind)
    ]


def _texts(call: Call) -> list[tuple[str, str]]:
    """The role and text of each part, in order."""
    return [
        (message.role, part.text)
        for message in call.ir.body_chat()
        for part in message.parts
        if isinstance(part, Text)
    ]


def _order(call: Call) -> list[Any]:
    """Texts, images, calls and results in the order they come; without images by URL, which some
    wires leave out."""
    kept = (Text, Image, ToolCall, ToolResult)
    messages = call.ir.body_chat()
    found = [part for message in messages for part in message.parts if isinstance(part, kept)]
    parts = [p for p in found if not isinstance(p, Image) or not isinstance(p.source, Url)]
    return [part.text if isinstance(part, Text) else type(part).__name__ for part in parts]


def _errors(call: Call) -> list[str]:
    return [
        part.call_id for part in views.parts_of(call) if isinstance(part, ToolResult) and part.error
    ]


def _param(path: str, feature: str) -> Thing:
    return Thing(feature, views.param(path), feature, f"params.{path}")


#: The path prefix of notices on parts of messages.
_PARTS = "conversation["

THINGS = (
    Thing("the system prompt", lambda call: call.ir.system_field().strip()),
    Thing("texts", _texts),
    Thing("the order of things", _order, "image bytes", _PARTS),
    Thing("calls", views.parts(ToolCall, "id", "name", "arguments")),
    Thing("results", views.results),
    Thing("tools", views.tools("name", "description", "schema")),
    Thing("images as bytes", _images(Bytes), "image bytes", _PARTS),
    Thing("images by URL", _images(Url), "image by URL", _PARTS),
    Thing("documents", views.sources(Document), "PDF bytes", _PARTS),
    Thing("tool errors", _errors, "tool error flag", _PARTS),
    Thing(
        "thinking",
        views.parts(Thinking, "text", "signature"),
        "thinking replayed, another's",
        _PARTS,
    ),
    Thing("the mode of choice", views.mode, "tool choice required", "params.tool_choice"),
    Thing(
        "the name of the schema", views.name_of_schema, "name of the schema", "params.output.name"
    ),
    Thing("the cache key", views.cache("key"), "cache key", "cache.key"),
    _param("tool_choice.name", "forced tool"),
    _param("tool_choice.parallel", "parallel calls off"),
    _param("output.schema", "output schema"),
    _param("reasoning.effort", "effort `low`"),
    _param("reasoning.mode", "thinking off"),
    _param("max_tokens", "max tokens"),
    _param("temperature", "temperature"),
    _param("top_p", "top_p"),
    _param("top_k", "top_k"),
    _param("stop", "stop sequences"),
    _param("seed", "seed"),
    _param("n", "n"),
    _param("frequency_penalty", "frequency penalty"),
    _param("presence_penalty", "presence penalty"),
    _param("verbosity", "verbosity"),
    _param("user", "user id"),
    _param("metadata", "metadata"),
    _param("store", "store"),
    _param("stream", "a stream"),
)

_FEATURES = {feature.name: feature for feature in FEATURES}


@functools.cache
def supports(target: Target, wire_name: str, thing: str) -> bool:
    """Whether the target sends the feature without a notice, in an otherwise plain call."""
    if not thing:
        return True
    feature = _FEATURES[thing]
    return outcome(target, feature, feature.make(wire_name))[:2] == ("sent", ())


class Journey(NamedTuple):
    call: Call
    """The call as read from the last request."""
    sent: tuple[Sent, ...]
    """The requests, in order."""

    @property
    def notices(self) -> list[Notice]:
        return [notice for sent in self.sent for notice in sent.notices]


def travel(call: Call, stops: Iterable[Target]) -> Journey:
    sent = []
    for stop in stops:
        sent.append(send(stop, call))
        call = read(stop, sent[-1])
    return Journey(call, tuple(sent))


def joined_texts(message: Message) -> Message:
    """The message as a host that takes no lists gets it."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    if len(texts) < 2 or any(isinstance(part, Image | Document) for part in message.parts):
        return message
    place = next(i for i, part in enumerate(message.parts) if isinstance(part, Text))
    parts: list[Part] = [part for part in message.parts if not isinstance(part, Text)]
    parts.insert(place, Text("\n\n".join(texts)))
    return msgspec.structs.replace(message, parts=tuple(parts))


def check(call: Call, stops: Sequence[tuple[Target, str]]) -> None:
    """A feature that all stops support survives them; every loss has a notice."""
    if any(stop.name == "deepseek/openai_chat" for stop, _ in stops):
        call = msgspec.structs.replace(call, ir=call.ir.revised(joined_texts))
    journey = travel(call, [stop for stop, _ in stops])
    in_headers = any(
        _headers(stop, sent) for (stop, _), sent in zip(stops, journey.sent, strict=True)
    )
    for thing in THINGS:
        before, after = thing.view(call), thing.view(journey.call)
        if before == after:
            continue
        noticed = any(is_about(notice, thing.about) for notice in journey.notices)
        by_header = thing.name == "the cache key" and in_headers
        assert noticed or by_header, f"{thing.name}: lost in silence: {before} became {after}"
        supported = all(supports(stop, wire_name, thing.feature) for stop, wire_name in stops)
        assert by_header or not supported, f"{thing.name}: all support it: {before} became {after}"


def _headers(stop: Target, sent: Sent) -> set[tuple[str, str]]:
    """The headers that a plain call does not have; they cannot be read from a body."""
    return {*sent.headers} - {*plain(stop).headers}


def leaks(call: Call, through: Sequence[Target], last: Target) -> set[str]:
    """The fields of the last request that would not be there had the call come straight. System
    text that came in `instructions` stays there: the field is no other provider's."""
    journey = travel(call, through)
    arrived = {*fields(send(last, journey.call).body)} - {"instructions"}
    return arrived - {*fields(send(last, call).body)}

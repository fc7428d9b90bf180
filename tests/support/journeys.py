"""Calls that go over several wires, one after the other, and what is left of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from support import call_views as see
from support.features import FEATURES
from support.outcomes import Sent, Target, fields, is_about, outcome, plain, read, send

from anaphora.prompt import Call
from anaphora.values import (
    Bytes,
    Document,
    Image,
    Notice,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)


class Thing(NamedTuple):
    """What is compared before and after. `feature` is the row of the matrix that says which wires
    can say it; without one, all can."""

    name: str
    see: see.See
    feature: str = ""
    about: str = ""


def _images(kind: type) -> see.See:
    return lambda call: [
        part.source
        if isinstance(part.source, Bytes)
        else part.source.url
        if isinstance(part.source, Url)
        else None
        for part in see.parts_of(call)
        if isinstance(part, Image) and isinstance(part.source, kind)
    ]


def _texts(call: Call) -> list[tuple[str, str]]:
    """Who says what, in order."""
    return [
        (message.role, part.text)
        for message in call.ir.body_chat()
        for part in message.parts
        if isinstance(part, Text)
    ]


def _order(call: Call) -> list[Any]:
    """Texts, images, calls and results in the order they come."""
    kept = (Text, Image, ToolCall, ToolResult)
    messages = call.ir.body_chat()
    parts = [part for message in messages for part in message.parts if isinstance(part, kept)]
    return [part.text if isinstance(part, Text) else type(part).__name__ for part in parts]


def _errors(call: Call) -> list[str]:
    return [
        part.call_id for part in see.parts_of(call) if isinstance(part, ToolResult) and part.error
    ]


def _param(path: str, feature: str) -> Thing:
    return Thing(feature, see.param(path), feature, f"params.{path}")


#: Where notices on parts of messages are.
_PARTS = "conversation["

THINGS = (
    Thing("the system prompt", lambda call: call.ir.system_field().strip()),
    Thing("texts", _texts),
    Thing("the order of things", _order, "image bytes", _PARTS),
    Thing("calls", see.parts(ToolCall, "id", "name", "arguments")),
    Thing("results", see.results),
    Thing("tools", see.tools("name", "description", "schema")),
    Thing("images as bytes", _images(Bytes), "image bytes", _PARTS),
    Thing("images by URL", _images(Url), "image by URL", _PARTS),
    Thing("documents", see.sources(Document), "PDF bytes", _PARTS),
    Thing("tool errors", _errors, "tool error flag", _PARTS),
    Thing(
        "thinking", see.parts(Thinking, "text", "signature"), "thinking replayed, another's", _PARTS
    ),
    Thing("the mode of choice", see.mode, "tool choice required", "params.tool_choice"),
    Thing("the name of the schema", see.name_of_schema, "name of the schema", "params.output.name"),
    Thing("the cache key", see.cache("key"), "cache key", "cache.key"),
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
def can_say(target: Target, spoken: str, thing: str) -> bool:
    """Whether it comes through there without a remark, when nothing else is asked for."""
    if not thing:
        return True
    feature = _FEATURES[thing]
    return outcome(target, feature, feature.make(spoken))[:2] == ("sent", ())


class Journey(NamedTuple):
    call: Call
    """What the last one heard,"""
    sent: tuple[Sent, ...]
    """and what each was sent."""

    @property
    def told(self) -> list[Notice]:
        return [notice for sent in self.sent for notice in sent.notices]


def travel(call: Call, stops: Iterable[Target]) -> Journey:
    sent = []
    for stop in stops:
        sent.append(send(stop, call))
        call = read(stop, sent[-1])
    return Journey(call, tuple(sent))


def check(call: Call, stops: Sequence[tuple[Target, str]]) -> None:
    """What all stops can say comes through all of them; what does not come through is told."""
    journey = travel(call, [stop for stop, _ in stops])
    in_headers = any(
        _headers(stop, sent) for (stop, _), sent in zip(stops, journey.sent, strict=True)
    )
    for thing in THINGS:
        before, after = thing.see(call), thing.see(journey.call)
        if before == after:
            continue
        told = any(is_about(notice, thing.about) for notice in journey.told)
        by_header = thing.name == "the cache key" and in_headers
        assert told or by_header, f"{thing.name}: lost in silence: {before} became {after}"
        sayable = all(can_say(stop, spoken, thing.feature) for stop, spoken in stops)
        assert by_header or not sayable, f"{thing.name}: all can say it: {before} became {after}"


def _headers(stop: Target, sent: Sent) -> set[tuple[str, str]]:
    """What is said in headers only cannot be read in a body."""
    return {*sent.headers} - {*plain(stop).headers}


def leaks(call: Call, through: Sequence[Target], last: Target) -> set[str]:
    """The fields of the last request that would not be there had the call come straight. System
    text that came in `instructions` stays there: the field is no other provider's."""
    journey = travel(call, through)
    arrived = {*fields(send(last, journey.call).body)} - {"instructions"}
    return arrived - {*fields(send(last, call).body)}

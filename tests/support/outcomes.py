"""The outcome of a call on a wire, found by rendering it and reading it back."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace
from support.feature import Feature
from support.feature_calls import base

from anaphora import catalog, wire
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call
from anaphora.rendered import Plan
from anaphora.values import Notice

Fate: TypeAlias = Literal["sent", "changed", "left out", "refused", "silent loss"]

#: A wire supports what a provider's best model accepts; a silent loss is never hidden.
_ORDER: tuple[Fate, ...] = ("silent loss", "sent", "changed", "left out", "refused")


class Target(NamedTuple):
    """A wire or dialect by its name, a provider and its model."""

    name: str
    provider: str
    model: str


class Sent(NamedTuple):
    """A call as it goes over the wire."""

    body: bytes
    path: str
    headers: tuple[tuple[str, str], ...]
    notices: tuple[Notice, ...]


class Outcome(NamedTuple):
    """The fate of a feature, with the codes of notices or the path of the error."""

    fate: Fate
    codes: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """The fields and headers that stand in the request because of it."""


def send(target: Target, call: Call) -> Sent:
    codec = wire.get(target.name)
    retargeted = replace(call, model=target.model)
    rendered = codec.render(retargeted, catalog.profile(target.provider, target.model))
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    request = codec.assemble(rendered, plan)
    return Sent(request.body.join(), request.path, request.headers, rendered.notices)


def read(target: Target, sent: Sent) -> Call:
    return wire.get(target.name).parse(sent.body, sent.path)


@functools.cache
def plain(target: Target) -> Sent:
    """The request of a call without special features."""
    return send(target, base())


def outcome(target: Target, feature: Feature, call: Call) -> Outcome:
    """The outcome of a feature of that call."""
    plain_request = plain(target)
    try:
        sent = send(target, call)
    except InvalidRequest as problem:
        return Outcome("refused", (problem.path,))
    came = feature.view(read(target, sent))
    notices = [notice for notice in sent.notices if notice not in plain_request.notices]
    codes = tuple(dict.fromkeys(notice.code for notice in notices))
    headers = tuple(
        f"header {key}" for key, _ in sorted({*sent.headers} - {*plain_request.headers})
    )
    places = (*_new_fields(plain_request.body, sent.body), *headers)
    if came == feature.view(call) or headers:
        return Outcome("sent", codes, places)
    if not any(is_about(notice, feature.about) for notice in notices):
        return Outcome("silent loss")
    return Outcome("left out" if _nothing(came) else "changed", codes, places)


@functools.cache
def made_outcome(target: Target, feature: Feature, wire_name: str) -> Outcome:
    """The outcome of a feature of the call that is made for a wire: several tests ask for it."""
    return outcome(target, feature, feature.make(wire_name))


def best(found: Sequence[Outcome]) -> tuple[Outcome, bool]:
    """The best of several outcomes, and whether all are the same."""
    top = min(found, key=lambda one: (_ORDER.index(one.fate), len(one.codes)))
    return top, len({one[:2] for one in found}) == 1


def is_about(notice: Notice, path: str) -> bool:
    """A notice on the whole tells of its members, one on a member of the whole."""
    found = notice.path
    return bool(found) and (path.startswith(found) or found.startswith(path))


def _nothing(seen: Any) -> bool:
    """Whether it is empty: no value, and no list or object that holds one."""
    if isinstance(seen, list | tuple):
        return all(map(_nothing, seen))
    return seen in (None, False, "", {})


def _new_fields(plain_request: bytes, body: bytes) -> list[str]:
    """The paths at which a body differs from the plain one."""
    before = _fields_of_plain(plain_request)
    return [path for path, value in fields(body).items() if value != before.get(path)]


@functools.cache
def _fields_of_plain(body: bytes) -> dict[str, list[Any]]:
    return fields(body)


def fields(body: bytes) -> dict[str, list[Any]]:
    """The values of a body by path; elements of lists have no number."""
    found: dict[str, list[Any]] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and value:
            for inner in value:
                walk(inner, path + "[]")
        else:
            found.setdefault(path, []).append(value)

    walk(json.loads(body), "")
    return found

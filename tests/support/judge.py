"""An independent judge of requests: reads a body without the code of any wire, and tells whether the
bytes that are sent hold the same as those that an app wrote.

    for body in disagreements("anthropic"):
        print(body.name, body.reasons)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from anaphora import wire as wires
from anaphora.errors import AnaphoraError
from anaphora.rendered import Plan
from anaphora.wire.cutting import check_kept, cut

from .rich_bodies import PATHS, RICH, Json, changed_bodies

_MARKERS = ("cache_control", "prompt_cache_breakpoint", "cachePoint")
_LISTS = ("messages", "contents", "input")
#: Where an object is the app's own.
_OPAQUE = ("arguments", "args", "input_schema", "parameters", "parametersJsonSchema", "response")
#: Values that a form of a request has and another one leaves out.
_FORMS = frozenset(
    "text input_text output_text message function auto default ephemeral explicit user system "
    "developer object 5m 30m success item_reference".split()
) | {""}


class Seen(NamedTuple):
    """What a body holds."""

    values: Counter[Any]
    """Texts and numbers of all objects, but for those of the path and of markers."""
    markers: Counter[str]
    tools: tuple[str, ...]
    """The names of functions, in order."""
    roles: tuple[str, ...]
    """In order; successive equal ones once."""


class SeenBody(NamedTuple):
    """A body, and in what the sent one differs from it."""

    name: str
    reasons: tuple[str, ...]


def seen(body: Json) -> Seen:
    values, markers, tools = Counter[Any](), Counter[str](), list[str]()

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in _MARKERS and isinstance(inner, dict):
                    own = {k: v for k, v in inner.items() if k != "ttl" and v is not None}
                    markers[
                        json.dumps({"type": "default", **own} if key == "cachePoint" else own)
                    ] += 1
                else:
                    walk(inner, key)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, name)
        elif value is not None and not isinstance(value, bool) and str(value) not in _FORMS:
            shown = value if isinstance(value, str) else f"{value:g}"
            values[shown] += name != "role"

    walk({key: value for key, value in body.items() if key not in ("model", "modelId")}, "")
    for tool in _objects(body.get("tools") or (body.get("toolConfig") or {}).get("tools")):
        own = _declared(tool) or [tool.get("function") or tool.get("toolSpec") or tool]
        tools += [str(each.get("name")) for each in _objects(own) if each.get("name")]
    roles: list[str] = []
    listed = next((body[name] for name in _LISTS if name in body), None)
    for message in _objects([{"role": "user"}] if isinstance(listed, str) else listed):
        role = message.get("role") or ("user" if "contents" in body else None)
        if role and (not roles or roles[-1] != role):
            roles.append(role)
    return Seen(values, markers, tuple(tools), tuple(roles))


def _declared(tool: Json) -> Any:
    return tool.get("functionDeclarations") or tool.get("function_declarations")


def _objects(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def differences(wire: str, body: Json) -> Iterator[str]:
    """In what the bytes that are sent differ; nothing for a body that is refused."""
    codec, path = wires.get(wire), PATHS[wire]
    try:
        rendered = cut(codec, json.dumps(body).encode(), path)
        check_kept(rendered)
        plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
        sent = seen(json.loads(codec.assemble(rendered, plan).body.join()))
    except AnaphoraError:
        return
    told = seen(body)
    for name in Seen._fields:
        one, two = getattr(told, name), getattr(sent, name)
        if isinstance(one, Counter):
            one, two = one - two, two - one
        if one != two:
            yield f"{name}: {one} is sent as {two}"
    if rendered.marks and len(rendered.marks) > sum(told.markers.values()):
        yield "more marks than markers"


def disagreements(wire: str) -> Iterator[SeenBody]:
    """All changed bodies of a wire."""
    for name, body in (("as it is", RICH[wire]), *changed_bodies(wire)):
        yield SeenBody(name, tuple(differences(wire, body)))

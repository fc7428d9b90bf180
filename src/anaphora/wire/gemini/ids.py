"""Ids for calls and results that came without: pairing needs them, the wire does not get them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from anaphora.values import Extras, Part, Role, ToolCall, ToolResult

from .naming import FORM
from .parts import MADE_ID


def with_ids(contents: Iterable[tuple[Role, list[Part]]]) -> list[tuple[Role, tuple[Part, ...]]]:
    """The contents with an id for every call, by position, and for every result the id of the
    first unanswered call of the same function."""
    waiting: dict[str | None, deque[str]] = {}
    done: list[tuple[Role, tuple[Part, ...]]] = []
    for index, (role, parts) in enumerate(contents):
        for at, part in enumerate(parts):
            if type(part) is ToolCall:
                if not part.id:
                    parts[at] = call = made(part, f"{index}_{at}")
                    waiting.setdefault(call.name, deque()).append(call.id)
            elif type(part) is ToolResult and not part.call_id:
                calls = waiting.get(part.name)
                call_id = calls.popleft() if calls else f"call_{index}_{at}"
                extras = without_id(part.extras)
                parts[at] = ToolResult(call_id, part.content, part.error, part.name, extras)
        done.append((role, tuple(parts)))
    return done


def made(call: ToolCall, place: str) -> ToolCall:
    """The call with an id that is never sent."""
    return ToolCall(f"call_{place}", call.name, call.arguments, without_id(call.extras))


def without_id(extras: Extras | None) -> Extras:
    """The extras, which now also say that there was no id."""
    form = (extras or {}).get(FORM)
    if form is None:
        return {**(extras or {}), **MADE_ID}
    return {**(extras or {}), FORM: MADE_ID[FORM][:-1] + "," + form[1:]}

"""Ids for calls and results that came without: pairing needs them, the wire does not get them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from anaphora.values import Extras, Part, Role, ToolCall, ToolResult

from .naming import FORM
from .parts import MADE_ID


def with_ids(contents: Iterable[tuple[Role, list[Part]]]) -> list[tuple[Role, tuple[Part, ...]]]:
    """The contents with an id for every call, by position, and for every result the id of the
    first unanswered call of the same function."""
    waiting: dict[str | None, deque[ToolCall]] = {}
    done: list[tuple[Role, tuple[Part, ...]]] = []
    for index, (role, parts) in enumerate(contents):
        for at, part in enumerate(parts):
            if isinstance(part, ToolCall):
                if not part.id:
                    parts[at] = call = made(part, f"{index}_{at}")
                    waiting.setdefault(call.name, deque()).append(call)
            elif isinstance(part, ToolResult) and not part.call_id:
                parts[at] = _answered(part, f"{index}_{at}", waiting)
        done.append((role, tuple(parts)))
    return done


def made(call: ToolCall, place: str) -> ToolCall:
    """The call with an id that is never sent."""
    extras = {**(call.extras or {}), **MADE_ID}
    return msgspec.structs.replace(call, id=f"call_{place}", extras=extras)


def _answered(
    part: ToolResult, place: str, waiting: dict[str | None, deque[ToolCall]]
) -> ToolResult:
    calls = waiting.get(part.name)
    call_id = calls.popleft().id if calls else f"call_{place}"
    extras = {**(part.extras or {}), **_without_id(part.extras)}
    return msgspec.structs.replace(part, call_id=call_id, extras=extras)


def _without_id(extras: Extras | None) -> Extras:
    form = (extras or {}).get(FORM)
    if form is None:
        return MADE_ID
    return {FORM: MADE_ID[FORM][:-1] + "," + form[1:]}

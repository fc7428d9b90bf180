"""What a streamed chunk says in fields that have no name here.

Few chunks say anything of the kind (Azure's filters do), so all are decoded without looking for it,
and those that turn out to hold more are taken apart. Fields of the chunk, of a choice and of a call
are carried along. Those of the delta itself are left out with a notice: they would go back to the
host as fields of the message, and hosts refuse those.
"""

from __future__ import annotations

import msgspec

from anaphora.wire.unnamed import Members, encoded, members_of, take_unnamed

from .stream_choice import CallDelta, ChoiceDelta, Delta, FunctionDelta

_raws = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_index = msgspec.json.Decoder(int | None).decode


class UnnamedOfChoice(msgspec.Struct, frozen=True):
    index: int
    beside: Members
    delta: Members
    calls: list[tuple[Members, Members]]
    """Of each call, and of its function."""


def take_apart(
    payload: bytes, known: tuple[str, ...]
) -> tuple[bytes, Members, list[UnnamedOfChoice]]:
    """A chunk without its unnamed fields; those of the chunk, and those of its choices."""
    chunk = members_of(payload)
    if chunk is None:
        return payload, {}, []
    top = _said(take_unnamed(chunk, known))
    choices, unnamed = [], []
    for raw in _list(chunk.get("choices")):
        members = members_of(raw)
        if members is None:
            choices.append(raw)
            continue
        unnamed.append(_of_choice(members))
        choices.append(msgspec.Raw(encoded(members)))
    if "choices" in chunk and unnamed:
        chunk["choices"] = msgspec.Raw(msgspec.json.encode(choices))
    return encoded(chunk), top, unnamed


def _of_choice(members: Members) -> UnnamedOfChoice:
    beside = _said(take_unnamed(members, ChoiceDelta.__struct_fields__))
    delta = members_of(members["delta"]) if "delta" in members else None
    index = _index(members["index"]) if "index" in members else None
    if delta is None:
        return UnnamedOfChoice(index or 0, beside, {}, [])
    inner = _said(take_unnamed(delta, Delta.__struct_fields__))
    calls, of_calls = [], []
    for raw in _list(delta.get("tool_calls")):
        call = members_of(raw)
        if call is None:
            calls.append(raw)
            continue
        outer, inside = _said(take_unnamed(call, CallDelta.__struct_fields__)), Members()
        function = members_of(call["function"]) if "function" in call else None
        if function is not None:
            inside = _said(take_unnamed(function, FunctionDelta.__struct_fields__))
            call["function"] = msgspec.Raw(encoded(function))
        of_calls.append((outer, inside))
        calls.append(msgspec.Raw(encoded(call)))
    if calls:
        delta["tool_calls"] = msgspec.Raw(msgspec.json.encode(calls))
    members["delta"] = msgspec.Raw(encoded(delta))
    return UnnamedOfChoice(index or 0, beside, inner, of_calls)


def _list(raw: msgspec.Raw | None) -> list[msgspec.Raw]:
    return [] if raw is None else _raws(raw) or []


def _said(members: Members) -> Members:
    """Without those that are null, which say what a missing field says."""
    return {name: raw for name, raw in members.items() if bytes(raw) != b"null"}

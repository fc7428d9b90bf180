"""Lowers the limit of the output to `max_tokens` of the grant, under `over_max_tokens: clamp`.

    clamped = clamp_request(call, facts, grant)      None if it stays within the grant
    clamped.call, clamped.facts, clamped.notice

Providers require a limit above the
thinking budget, so a request whose limit would fall to the budget or below is refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from anaphora.daemon.access.grants import LlmGrant
from anaphora.errors import NotGranted
from anaphora.prompt import Call
from anaphora.values import Notice
from anaphora.wire.parts import own_members
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.reading import decode_elements, decode_members, encode_members

from .translation import spelling, with_members

_STEP = re.compile(r"\w+")


class ClampedRequest(NamedTuple):
    call: Call
    facts: CallFacts
    notice: Notice


def clamp_request(call: Call, facts: CallFacts, grant: LlmGrant) -> ClampedRequest | None:
    """The call of a request with all its limits within the grant. None if it needs no change, or
    the grant refuses instead. Raises `NotGranted` if the thinking budget does not fit."""
    most = grant.max_tokens
    if most is None or grant.over_max_tokens != "clamp":
        return None
    over = [param for param, tokens in facts.limits if tokens > most]
    asked, field = facts.max_tokens, facts.max_tokens_field
    if not over or asked is None:
        return None
    _check_budget(facts.budget, most, asked, field)
    params, extras = call.params, call.extras
    if params.max_tokens is not None and params.max_tokens > most:
        params = replace(params, max_tokens=most)
    members = own_members(extras, facts.wire)
    for param in over:
        name, *steps = _STEP.findall(param)
        held = spelling(members, name)
        if held is not None:  # one that the wire does not know as the limit
            members[held] = msgspec.Raw(_with_limit(bytes(members[held]), steps, most))
            extras = {**(extras or {}), facts.wire: encode_members(members).decode()}
    return ClampedRequest(
        replace(call, params=params, extras=extras),
        replace(facts, max_tokens=most),
        _notice(asked, most, field),
    )


def clamp_call(call: Call, grant: LlmGrant) -> tuple[Call, Notice] | None:
    """`clamp_request` for a call of JSON-RPC."""
    params, most = call.params, grant.max_tokens
    asked = params.max_tokens
    if most is None or asked is None or asked <= most or grant.over_max_tokens != "clamp":
        return None
    budget = None if params.reasoning is None else params.reasoning.budget_tokens
    _check_budget(budget or 0, most, asked, "max_tokens")
    changed = replace(call, params=replace(params, max_tokens=most))
    return changed, _notice(asked, most, "max_tokens")


def _notice(asked: int, most: int, field: str) -> Notice:
    text = f"{field} was {asked} and lowered to {most}, max_tokens of the grant"
    return Notice("max_tokens_clamped", text, field)


def _check_budget(budget: int, most: int, asked: int, field: str) -> None:
    if budget < most:
        return
    reason = (
        f"{field} is {asked} and max_tokens of the grant is {most}, which is not above the thinking"
        f" budget of {budget}: the limit cannot be lowered; ask for a smaller budget, or raise"
        " max_tokens of the grant"
    )
    raise NotGranted(reason, param=field)


def _with_limit(raw: bytes, steps: list[str], most: int) -> bytes:
    """The JSON of a field, whose value at `steps` (members, and positions in lists) is `most`."""
    if not steps:
        return b"%d" % most
    step, *rest = steps
    if raw.lstrip()[:1] == b"[":
        elements = [bytes(each) for each in decode_elements(raw)]
        elements[int(step)] = _with_limit(elements[int(step)], rest, most)
        return b"[" + b",".join(elements) + b"]"
    members = decode_members(raw)
    name = spelling(members, step) or step
    return with_members(raw, members, {name: _with_limit(bytes(members[name]), rest, most)})

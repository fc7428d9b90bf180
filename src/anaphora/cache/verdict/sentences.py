"""A verdict as one sentence."""

from __future__ import annotations

from decimal import Decimal

from .values import Change, ChangeKind, Diagnosis, Verdict

_HAPPENED: dict[ChangeKind, str] = {
    "key_order": "the same JSON has its keys in another order",
    "whitespace": "only white space changed",
    "spelling": "the same value is spelt otherwise",
    "order": "the same items stand in another order",
    "tool_added": "a tool was added",
    "tool_removed": "a tool was removed",
    "tool_moved": "a tool moved",
    "block_added": "a block was added",
    "block_removed": "a block was removed",
    "block_moved": "a block moved",
    "message_added": "a message was put in between",
    "message_dropped": "a message was dropped",
    "message_moved": "a message moved",
    "image_added": "an image was added",
    "image_gone": "an image is gone",
    "date": "a date changed",
    "clock": "a clock time changed",
    "uuid": "a UUID changed",
    "nonce": "an id or nonce changed",
    "counter": "a number changed",
    "text_edited": "the text was edited",
    "value_changed": "a value changed",
}


def change_said(change: Change) -> str:
    named = f" ({change.detail})" if change.detail and change.detail != change.label else ""
    where = f"at byte {change.offset:,} in {change.label} ({change.path})"
    return f"{_HAPPENED[change.kind]}{named} {where}"


def money_said(cost_usd: Decimal | None) -> str:
    return "dollars unknown" if cost_usd is None else f"{amount_said(cost_usd)} lost"


def amount_said(cost_usd: Decimal) -> str:
    if cost_usd >= 1:
        return f"${cost_usd:.2f}"
    return f"${cost_usd:.4f}" if cost_usd >= Decimal("0.0001") else f"${cost_usd:.2g}"


def sentence(verdict: Verdict) -> str:
    said = _outcome(verdict)
    if verdict.causes:
        said += f", because {verdict.causes[0].said}"
        if more := len(verdict.causes) - 1:
            said += f" (and {more} more reason{'s' if more > 1 else ''})"
    said += "."
    if verdict.lost:
        money = money_said(verdict.cost_usd)
        paid = "are" if verdict.billed is None else "were"
        said += f" {verdict.lost:,} tokens {paid} paid for again: {money}."
    if verdict.diagnosis is not None:
        said += f" {_provider(verdict.diagnosis, verdict.agrees)}"
    return said


def _outcome(verdict: Verdict) -> str:
    read = verdict.predicted if verdict.billed is None else verdict.billed
    by_rules = " (by the rules; there is no bill)" if verdict.billed is None else ""
    left = verdict.left
    match verdict.result:
        case "first":
            return "First: no call before it"
        case "hit" if not left:
            odd = "though the call before left none"
            return f"Hit: {read or 0:,} tokens were read, {odd}{by_rules}"
        case "hit" if verdict.total is not None:
            saved = _saved(verdict.saved)
            return f"Hit: {read or 0:,} of {verdict.total:,} tokens read{saved}{by_rules}"
        case "hit":
            return f"Hit: {read or 0:,} tokens were read, all that the call before left{by_rules}"
        case "partial":
            return f"Partial: {read or 0:,} of {left or 0:,} tokens were read{by_rules}"
        case "miss":
            if not left:
                return f"Miss: nothing was read, and nothing had been left to read{by_rules}"
            return f"Miss: none of {left:,} tokens were read{by_rules}"


def _saved(saved: Decimal | None) -> str:
    return "" if saved is None or saved <= 0 else f", saved {amount_said(saved)}"


def _provider(diagnosis: Diagnosis, agrees: bool | None) -> str:
    missed = f" ({diagnosis.tokens:,} tokens)" if diagnosis.tokens is not None else ""
    said = f"The provider says {diagnosis.word}{missed}"
    if agrees is None:
        return f"{said}, which neither confirms nor denies it."
    return (
        f"{said}, which agrees." if agrees else f"{said}, which disagrees with what is seen here."
    )

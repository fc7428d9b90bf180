"""docs/wire-normalisations.md: how the bytes that are sent differ from those that an app wrote, made
from the recorded exchanges."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator

import msgspec

from anaphora import catalog, wire
from anaphora.errors import InvalidRequest
from anaphora.rendered import Plan
from anaphora.wire.cutting import check_kept, cut
from anaphora.wire.dialect.addresses import names_model

from .exchanges import FILE
from .roundtrip import DEFAULTS, NO_PARAMETERS, NULLS, Rules, difference, normalise, remove
from .roundtrip import RecordedExchange as Exchange
from .roundtrip.other_exchanges import OTHER, _is_completion
from .roundtrip.rules import RULES

_LISTS = "The API reads a text as a list with one block of text."
_OMITTED = "The API documents the value as its default."
_ROLES = "The API joins neighbours of one role."
#: Every difference, and why no provider reads the request differently.
WHY = {
    NULLS: "The API reads `null` as a missing field.",
    "null means the same as a missing option": "The API reads `null` as a missing field.",
    DEFAULTS: _OMITTED,
    NO_PARAMETERS: "A function without a schema takes no arguments.",
    "text content is a list with one text block": _LISTS,
    "text content is a list with one text part": f"{_LISTS} Only for models that take breakpoints:"
    " elsewhere a text stays a text, since some hosts refuse lists.",
    "text content is a list with one part": _LISTS,
    "text input is a list with one message": "The API reads a text as one message of the user.",
    "a tool result's text is a list with one text block": _LISTS,
    "neighbours of one role are one message": f"{_ROLES} Converse refuses them for some models.",
    "a marker without a TTL lives five minutes": "Five minutes are the documented default.",
    "a breakpoint without a TTL gets the request's": "The request's TTL is the documented default.",
    "an item without a type is a message or a reference": "The type is optional for these items.",
    "blank instructions are left out": "Empty instructions are none.",
    "functions have a type": "`function` is the documented default.",
    "with parallel_tool_calls, tool_choice auto is added": "`auto` is the documented default.",
    "tool choice any is required": "Mistral's name for `required`, which it takes as well.",
    "streams always report usage": "The usage comes in an event of its own, which apps that did"
    " not ask for it do not get from the daemon.",
    "the model is in the path": "The path names the model; the API ignores the field.",
    "the path names the model": "The path names the model; the API ignores the field.",
    "the system instruction has no role": "The API ignores the role of a system instruction.",
    "snake_case is camelCase": "Protobuf's JSON takes both names.",
    "a single element is a list of one": "Protobuf's JSON takes both forms.",
    "bytes are in standard base64": "Protobuf's JSON takes both alphabets.",
    "thinking levels are in capitals": "The API's enum is read in either case.",
}  # fmt: skip
_HEAD = """# Bytes that differ

A request that another program wrote is parsed once and sent as it is rendered again: what was
checked is what is sent. Everything that a provider reads stays as it was: texts, also blank ones,
reasoning, calls and schemas byte for byte, the role and the place of every message, markers with
their unknown members, and unknown fields. What cannot be kept is refused, with its path. `watch`
without `--fix` passes the bytes through.

The bytes may differ in white space, in the order of members inside one object, in the spelling of
escapes and numbers outside of schemas and arguments, and in the forms below. They are not reported
as changes of a prompt. The lists are made from {count:,} recorded requests.
"""


def recorded() -> Iterator[Exchange]:
    for name in ("exchanges.jsonl.gz", "clouds.jsonl.gz"):
        with gzip.open(FILE.with_name(name)) as lines:
            yield from (msgspec.json.decode(line, type=Exchange, strict=False) for line in lines)


def found_in(exchange: Exchange) -> tuple[str, list[str]] | None:
    """The path to the first difference that no rule allows, and the rules that were needed; None
    for an exchange that is no call."""
    name = exchange.wire_name
    if exchange.wire in OTHER or name not in wire.WIRES or _is_completion(exchange):
        return None
    row = catalog.dialects().at_host(exchange.host, name, exchange.path)
    codec, edits = wire.get(name), RULES[name].request
    if row is not None:
        codec, edits = wire.codec_for(row), RULES[name].for_dialect(row) | edits
        if names_model(row):
            edits = {"the path names the model": [remove("", "model")]} | edits
    allowed: Rules = {rule: edit for rule, edit in edits.items() if rule in WHY}
    try:
        rendered = cut(codec, exchange.request.encode(), exchange.path)
    except InvalidRequest:
        return ("", []) if exchange.status >= 400 else ("$", [])
    check_kept(rendered)
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    sent = msgspec.json.decode(codec.assemble(rendered, plan).body.join())
    received = msgspec.json.decode(exchange.request)
    ours, theirs = normalise(sent, allowed), normalise(received, allowed)
    needed = [rule for rule in allowed if ours.get(rule, 0) != theirs.get(rule, 0)]
    return difference(received, sent), needed


def page() -> str:
    """Raises `AssertionError` for a request that differs in another way."""
    seen: dict[str, Counter[str]] = {name: Counter() for name in wire.WIRES}
    count = 0
    for exchange in recorded():
        result = found_in(exchange)
        if result is not None:
            assert not result[0], (exchange.wire, exchange.id, result)
            seen[exchange.wire_name].update(result[1])
            count += 1
    lines = [_HEAD.format(count=count)]
    for name, title in wire.WIRES.items():
        lines += [f"\n## {title}\n", "| form | requests | why it means the same |", "|---|---|---|"]
        lines += [f"| {rule} | {seen[name][rule]} | {WHY[rule]} |" for rule in sorted(seen[name])]
    return "\n".join(lines) + "\n"

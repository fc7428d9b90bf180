"""What every wire's envelope does the same way."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import astuple

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema
from anaphora.rendered import Envelope
from anaphora.values import Extras, Notice

from .fields import UNREADABLE
from .foreign import foreign_extras

#: A schema's name when nobody gave it one: nothing is lost with it.
_UNNAMED = OutputSchema("{}").name

#: Envelopes that are kept of each wire; each holds no more than a call's parameters.
_KEPT = 8

ANTHROPIC_TIERS = ("standard_only",)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Envelopes:
    """The last few of a wire: calls of an app mostly differ in what they say, not in how.

    Only those whose parameters are numbers and words: among other values there are some that look
    the same as bytes, and one of them may be refused.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[tuple[type, ...], Envelope], ...] = ()

    def find(self, call: Call, source: object, last: Envelope | None) -> Envelope | None:
        """The last turn's, or another that was made of the same."""
        if last is not None and last.source == source:
            return last
        kinds = _kinds(call)
        if kinds is not None:
            for known, envelope in self._known:
                if known == kinds and envelope.source == source:
                    return envelope
        return None

    def keep(self, call: Call, envelope: Envelope) -> Envelope:
        if (kinds := _kinds(call)) is not None:
            self._known = (kinds, envelope), *self._known[: _KEPT - 1]
        return envelope


_WORDS = frozenset({type(None), bool, int, float, str})


def _kinds(call: Call) -> tuple[type, ...] | None:
    """The types of everything that an envelope is made of, where all of it is numbers and words;
    else None."""
    if call.extras is not None or call.ir.continuation is not None:
        return None
    said = (*astuple(call.params), *astuple(call.ir.cache))
    kinds = tuple(map(type, said))
    for kind, value in zip(kinds, said, strict=True):
        if kind not in _WORDS and value != ():
            return None
    return kinds


def exactly(call: Call) -> object:
    """Parameters, extras and cache options as bytes: unlike `==` on the values, this tells 1 from
    1.0 and one order of metadata from another."""
    try:
        return _encode((call.params, call.extras, call.ir.cache, call.ir.continuation))
    except UnicodeEncodeError:
        return object()  # a lone surrogate, and equal to nothing


def foreign_fields(call: Call, wire: str) -> list[Notice]:
    """Fields of the request that came along for another wire."""
    return foreign_extras(call.extras, wire, "extras")


def with_extras(
    fields: dict[str, bytes], extras: Extras | None, wire: str, taken: tuple[str, ...]
) -> bytes:
    """Members that end a body: what is said here, then what came along for this wire.

    An object may be said in part here and have come along in part. What is said twice is an error:
    nobody could tell which of the two the provider would take. `taken` are the fields that the
    body has already.
    """
    if extras is None or wire not in extras:
        return _members(fields)
    path = f"extras.{wire}"
    for name, came in _object(extras[wire], path).items():
        if name in taken:
            raise InvalidRequest("the call says this already; take it out", path=f"{path}.{name}")
        said = fields.get(name)
        fields[name] = bytes(came) if said is None else _merged(said, came, f"{path}.{name}")
    return _members(fields)


def _merged(said: bytes, came: msgspec.Raw, path: str) -> bytes:
    if said[:1] == b"{" and bytes(came)[:1] == b"{":
        whole, more = _object(said, path), _object(came, path)
        if not (twice := whole.keys() & more.keys()):
            return b"{" + _members(whole | more)[1:] + b"}"
        path = f"{path}.{min(twice)}"
    raise InvalidRequest(
        "a parameter of the call says this already; take one of them out", path=path
    )


def _members(fields: Mapping[str, bytes | msgspec.Raw]) -> bytes:
    return b"".join(b"," + string(name) + b":" + bytes(raw) for name, raw in fields.items())


def _object(text: str | bytes | msgspec.Raw, path: str) -> dict[str, msgspec.Raw]:
    try:
        return _decode(text)
    except UNREADABLE as problem:
        raise InvalidRequest(f"not a JSON object: {problem}", path=path) from None


def earlier_of(call: Call, providers: tuple[str, ...]) -> str | None:
    """The id of the response to compare with, when it is one of these providers'."""
    earlier = call.ir.cache.compare_with
    return earlier.id if earlier is not None and earlier.provider in providers else None


def foreign_earlier(call: Call, providers: tuple[str, ...]) -> list[Notice]:
    """A response to compare with that another provider gave."""
    earlier = call.ir.cache.compare_with
    if earlier is None or earlier.provider in providers:
        return []
    why = f"a response of {earlier.provider}'s means nothing here; left out"
    return [Notice("cache_option_left_out", why, "cache.compare_with")]


def foreign_tier(call: Call) -> list[Notice]:
    """A service tier that only Anthropic has. Hosts that speak like OpenAI have tiers of their
    own, so any other is sent as it is."""
    if call.params.service_tier not in ANTHROPIC_TIERS:
        return []
    return [
        Notice("param_left_out", "that tier is Anthropic's own; left out", "params.service_tier")
    ]


def only_the_schema(output: OutputSchema | None) -> list[Notice]:
    """What may go with an output schema, where a provider takes the schema and nothing else."""
    if output is None:
        return []
    told = []
    if output.name != _UNNAMED:
        told.append(("name", "an output schema has no name here"))
    if output.description is not None:
        told.append(("description", "an output schema has no description here"))
    if output.strict is False:
        told.append(("strict", "an output schema is always strict here"))
    return [
        Notice("param_left_out", f"{why}; left out", f"params.output.{field}")
        for field, why in told
    ]


def continuation_left_out(call: Call) -> list[Notice]:
    """A response that another provider stored cannot be continued here."""
    if call.ir.continuation is None:
        return []
    return [
        Notice(
            "continuation_left_out",
            "a stored response cannot be continued here: only the messages of this call are sent,"
            " and what the response holds beyond them is not",
            "continuation",
        )
    ]

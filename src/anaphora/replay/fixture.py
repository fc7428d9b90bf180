"""One recorded exchange, and the JSON file that holds it.

    {
    "schema_version": 1,
    "key": "3f9a…",
    "number": 0,
    "exact": "",
    …
    "pieces": [
    [0.21, "event: message_start\\ndata: …"],
    [0.35, {"base64": "/w=="}]
    ],
    …
    }

Bodies are JSON strings, which keep every byte of UTF-8 text; other bytes are base64. Each field and
each piece is on its own line, for readable diffs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from blake3 import blake3

from anaphora.canonical import dumps
from anaphora.errors import FixtureIntegrityFailed, InvalidRequest, OtherSchema

SCHEMA_VERSION = 1

#: Names in lower case, duplicates kept, in the order they were sent.
FixtureHeaders: TypeAlias = tuple[tuple[str, str], ...]

_KEY = re.compile(r"[0-9a-f]{64}")
_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FAILURES = ("", "connect", "send", "first_byte", "body", "idle")


class FixturePiece(msgspec.Struct, frozen=True):
    """A part of a response's body, and when it came: seconds after the request was sent."""

    seconds: float
    data: bytes


class Fixture(msgspec.Struct, frozen=True, kw_only=True):
    """A request and the response to it, without secrets and content encoding. `redact.fixture_of`
    makes one of a received exchange."""

    key: str
    """Lookup key of the exchange: a digest in lower-case hex, 64 characters."""
    number: int = 0
    """The place among the fixtures with this key; `FixtureStore.add` sets it."""
    exact: str = ""
    """The exact digest, in the same form; empty if none was computed. The same request finds this
    key by it without a comparison."""
    provider: str = ""
    model: str = ""
    method: str = "POST"
    path: str = ""
    query: str = ""
    request: bytes = b""
    """The request's body, for messages about how another request differs."""
    status: int = 200
    """0 if no response began."""
    headers: FixtureHeaders = ()
    """The response's headers."""
    pieces: tuple[FixturePiece, ...] = ()
    """The response's body in the parts in which it arrived."""
    failure: str = ""
    """How far the exchange got when the connection failed (`errors.Phase`); empty: complete."""
    recorded: float = 0.0
    """Seconds since 1970."""
    altered: bool = False
    """Redaction changed the body of the request or of the response."""
    raw_hash: str = ""
    """BLAKE3 of the stored response body; computed by default."""
    variables: dict[str, str] = {}
    """The place and the day of the recorded run (`variables.py`), as far as the request or the
    response names them."""

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise InvalidRequest("must be 64 lower-case hex digits", path="key")
        if self.exact and not _KEY.fullmatch(self.exact):
            raise InvalidRequest("must be 64 lower-case hex digits", path="exact")
        if self.failure not in _FAILURES:
            raise InvalidRequest(f"must be one of {', '.join(_FAILURES[1:])}", path="failure")
        if not self.raw_hash:
            msgspec.structs.force_setattr(self, "raw_hash", blake3(self.payload).hexdigest())

    def __repr__(self) -> str:
        return f"<Fixture {self.key[:12]} {self.number} {self.method} {self.path} {self.status}>"

    @property
    def payload(self) -> bytes:
        """The response's body."""
        return joined_pieces(self.pieces)


def joined_pieces(pieces: Iterable[FixturePiece]) -> bytes:
    return b"".join([piece.data for piece in pieces])


class _Base64(msgspec.Struct, frozen=True):
    """Bytes that are not UTF-8 text; the codec reads and writes them as base64."""

    base64: bytes


_Body: TypeAlias = str | _Base64
B = TypeVar("B")


class _StoredFixture(msgspec.Struct, Generic[B], kw_only=True):
    """The file's fields, in their order. The request's body, which may be long, is decoded only
    when needed."""

    schema_version: int
    key: str
    number: int = 0
    exact: str = ""
    provider: str = ""
    model: str = ""
    method: str = "POST"
    path: str = ""
    query: str = ""
    request: B = ""  # type: ignore[assignment]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[tuple[float, _Body], ...] = ()
    failure: str = ""
    recorded: float = 0.0
    altered: bool = False
    raw_hash: str
    variables: dict[str, str] = {}


class _Version(msgspec.Struct):
    schema_version: int


_decoder = msgspec.json.Decoder(_StoredFixture[_Body])
_response_decoder = msgspec.json.Decoder(_StoredFixture[msgspec.Raw])
_version = msgspec.json.Decoder(_Version)


def beginning(key: str, number: int, exact: str) -> bytes:
    """The first lines of the fixture's file."""
    return (
        f'{{\n"schema_version": {SCHEMA_VERSION},\n"key": "{key}",\n"number": {number},\n'
        f'"exact": "{exact}",\n'
    ).encode()


def to_file(fixture: Fixture) -> bytes:
    lines = [
        b'"%b": %b' % (name.encode(), _lines(value) if name == "pieces" else dumps(value))
        for name, value in _fields(fixture).items()
    ]
    return beginning(fixture.key, fixture.number, fixture.exact) + b",\n".join(lines) + b"\n}\n"


def _fields(fixture: Fixture) -> dict[str, Any]:
    """The stored fields after those of `beginning`."""
    fields = {name: getattr(fixture, name) for name in Fixture.__struct_fields__[3:]}
    fields["request"] = _stored(fixture.request)
    fields["pieces"] = [(round(each.seconds, 6), _stored(each.data)) for each in fixture.pieces]
    if not fixture.variables:
        del fields["variables"]
    return fields


def _lines(pieces: Sequence[Any]) -> bytes:
    return b"[\n" + b",\n".join(map(dumps, pieces)) + b"\n]" if pieces else b"[]"


def _stored(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": msgspec.to_builtins(data)}


def from_file(data: bytes, place: str, *, request: bool = True) -> Fixture:
    """The fixture in a file; `place` is the file's name for errors. Without `request`, the body of
    the request is left out."""
    try:
        decoder: msgspec.json.Decoder[Any] = _decoder if request else _response_decoder
        stored: _StoredFixture[Any] = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        check_version(data, place)
        raise FixtureIntegrityFailed(f"{place}: not a fixture: {problem}") from None
    if stored.schema_version > SCHEMA_VERSION:
        raise OtherSchema(place, version=stored.schema_version, known=SCHEMA_VERSION)
    if reason := _response_problem(stored):
        raise FixtureIntegrityFailed(f"{place}: not a fixture: {reason}")
    fields = msgspec.structs.asdict(stored)
    del fields["schema_version"]
    fields["pieces"] = tuple(FixturePiece(seconds, _bytes(body)) for seconds, body in stored.pieces)
    fields["request"] = _bytes(stored.request) if request else b""
    try:
        fixture = Fixture(**fields)
    except InvalidRequest as problem:
        raise FixtureIntegrityFailed(f"{place}: not a fixture: {problem}") from None
    if blake3(fixture.payload).hexdigest() != fixture.raw_hash:
        raise FixtureIntegrityFailed(f"{place}: raw_hash is not the hash of the response's body")
    return fixture


def _response_problem(stored: _StoredFixture[Any]) -> str:
    """Why a server cannot send the response; empty if it can."""
    if stored.status and not 200 <= stored.status <= 999:
        return f"a response does not have status {stored.status}"
    # Joined and searched once: this runs for every response that is served.
    names = [name for name, _ in stored.headers]
    if not all(names) or not _HEADER_NAMES.fullmatch("".join(names)):
        return "the name of a header is not valid"
    values = "".join([value for _, value in stored.headers])
    if not values.isprintable() and _CONTROL.search(values):
        return "a header has a control character"
    return ""


def check_version(data: bytes, place: str) -> None:
    """Raises for a file of a newer version, whose other fields may be unknown here."""
    try:
        version = _version.decode(data).schema_version
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    if version > SCHEMA_VERSION:
        raise OtherSchema(place, version=version, known=SCHEMA_VERSION)


def _bytes(body: _Body) -> bytes:
    return body.encode() if isinstance(body, str) else body.base64

"""Removes secrets from exchanges before they are stored.

    redaction = Redaction(secrets=[key], patterns=[r"acme-[0-9]{12}"])
    fixture = fixture_of(exchange…, redaction=redaction)

Secrets are the given ones and the credentials of the exchange itself: authentication headers,
cookies, and `?key=`. They are found plain, JSON-escaped, percent-encoded and base64-encoded,
also across pieces of a stream. Keys of well-known providers are found by their form. Patterns are
regular expressions over the plain bytes.

Compressed bodies are stored decompressed.
"""

from __future__ import annotations

import base64
import binascii
import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import unquote_plus

import msgspec

from anaphora.client.transport.decoding import (
    InvalidCompression,
    UnknownCompression,
    any_decompressor,
    encodings,
)
from anaphora.errors import InvalidRequest, Parse
from anaphora.redaction import MASK, Redactor, is_placeholder

from .fixture import Fixture, FixtureHeaders, FixturePiece, joined_pieces
from .rules import user_pattern, without_surrogates
from .secret_forms import (
    SecretForm,
    edited_body,
    secret_patterns,
    spread_edits,
    strings_by_index,
    strings_by_name,
)

#: A range of bytes, and its replacement.
Edit: TypeAlias = tuple[int, int, bytes]

_MASK = MASK.encode()

#: Headers whose value is a credential.
_SECRET_HEADERS = frozenset(
    "authorization proxy-authorization cookie set-cookie set-cookie2 x-api-key api-key apikey"
    " x-goog-api-key x-auth-token x-access-token x-amz-security-token x-csrf-token".split()
)
_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:api[-_]?key|key|(?:access|auth|id|refresh|security|session|bearer)?[-_]?token"
    r"|secret|password|passwd|credentials?|auth|authorization|cookie|sig|signature)$",
    re.IGNORECASE,
)
#: Headers that describe the body's encoding and length, and the connection; a replayed response
#: has its own.
NOT_STORED = frozenset(
    "content-encoding content-length transfer-encoding connection keep-alive"
    " proxy-authenticate te trailer upgrade".split()
)

#: Keys of providers and services: prefix, and pattern of the rest.
_SHAPES = (
    (b"sk- pk- rk- csk- nvapi- pplx- glpat- xai-", rb"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}"),
    (b"gsk_ hf_ r8_ tgp_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", rb"[A-Za-z0-9_]{20,}"),
    (b"xoxa- xoxb- xoxp- ya29.", rb"[A-Za-z0-9_-]{20,}"),
    (b"AIza", rb"[A-Za-z0-9_-]{35}"),
    (b"AKIA ASIA", rb"[A-Z0-9]{16}"),
)
#: The beginning for a quick search, and the pattern; a key does not begin within a word.
KNOWN_KEYS = tuple(
    (start, re.compile(b"%b(?<![A-Za-z0-9_-]%b)%b" % (re.escape(start), re.escape(start), rest)))
    for starts, rest in _SHAPES
    for start in starts.split()
)

#: `Bearer `, `Basic `, `ApiKey `
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s+")
_PARAMETER = re.compile(r"([^&=?#]+)=([^&#]*)")
#: A value in a header that is a URL with a key.
_URL_KEY = re.compile(
    r"([?&](?:[\w.-]*[-_.])?(?:key|api[-_]?key|token|sig(?:nature)?)=)[^&\s\"'<>]+", re.IGNORECASE
)


class Redaction:
    """Secrets and patterns that are replaced by `<secret>`."""

    def __init__(self, secrets: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        """Values that are no secrets, such as `none`, are ignored."""
        self._given = tuple(patterns)
        self._secrets = tuple(dict.fromkeys(each for each in secrets if not is_placeholder(each)))
        self._forms = _forms(self._secrets)
        self._patterns = [_pattern(each) for each in self._given]
        self._errors = Redactor(self._secrets)
        self._last: Redaction | None = None
        """With the credentials of the last request: the next one usually has the same."""

    def __repr__(self) -> str:
        return f"<Redaction of {len(self._secrets)} secrets, {len(self._given)} patterns>"

    def with_credentials(self, headers: FixtureHeaders, query: str = "") -> Redaction:
        """A redaction that also removes the credentials in these headers and this query."""
        found = [*_header_secrets(headers), *_query_secrets(query)]
        new = [
            each
            for each in dict.fromkeys(found)
            if each not in self._secrets and not is_placeholder(each)
        ]
        if not new:
            return self
        secrets = (*self._secrets, *new)
        if self._last is None or self._last._secrets != secrets:
            self._last = made = copy.copy(self)
            made._secrets, made._errors, made._last = secrets, Redactor(secrets), None
            made._forms = [*self._forms, *_forms(new)]
        return self._last

    def headers(self, headers: FixtureHeaders) -> FixtureHeaders:
        return tuple((name, self._header(name, value)) for name, value in headers)

    def _header(self, name: str, value: str) -> str:
        if name.lower() in _SECRET_HEADERS or _SECRET_NAME.search(name):
            return MASK
        return self.text(_URL_KEY.sub(rf"\g<1>{MASK}", value))

    def query(self, query: str) -> str:
        """Masks credential parameters such as `key=…`, and all secrets."""

        def masked(parameter: re.Match[str]) -> str:
            name = unquote_plus(parameter[1])
            secret = bool(_SECRET_NAME.search(name)) and bool(parameter[2])
            return f"{parameter[1]}={MASK}" if secret else parameter[0]

        return self.text(_PARAMETER.sub(masked, query))

    def text(self, text: str) -> str:
        return self.body(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def body(self, data: bytes) -> bytes:
        (piece,) = self.pieces([FixturePiece(0.0, data)])
        return piece.data

    def error_body(self, data: bytes) -> bytes:
        """The body of an error, which may show a part of the key."""
        data = self.body(data)
        try:
            return self._errors(data.decode()).encode()
        except UnicodeDecodeError:
            return data

    def pieces(
        self, pieces: Sequence[FixturePiece], *, stream: bool = False
    ) -> tuple[FixturePiece, ...]:
        """The pieces of a body. A secret that spans two pieces is replaced in the first one; with
        `stream`, also one that spans events of a stream."""
        pieces = edited(pieces, self._edits(b"".join([each.data for each in pieces])))
        if stream:
            for groups in (strings_by_name, strings_by_index):
                data = b"".join([each.data for each in pieces])
                pieces = edited(pieces, spread_edits(data, groups(data), self._edits))
        return tuple(pieces)

    def _edits(self, data: bytes) -> list[Edit]:
        found = [
            (*match.span(), form.mask or _MASK)
            for form in self._forms
            for match in form.pattern.finditer(data)
        ]
        known = [pattern for start, pattern in KNOWN_KEYS if start in data]
        found += [(*match.span(), _MASK) for pattern in known for match in pattern.finditer(data)]
        if self._patterns:
            found += self._pattern_edits(data)
        return without_overlap(found)

    def _pattern_edits(self, data: bytes) -> Iterator[Edit]:
        # Each invalid byte becomes one character, so offsets stay the same.
        text = without_surrogates(data.decode("utf-8", "surrogateescape")).encode()
        for pattern in self._patterns:
            spans = (match.span() for match in pattern.finditer(text))
            yield from ((begin, end, _MASK) for begin, end in spans if end > begin)


def _pattern(text: str) -> Any:
    try:
        return user_pattern(text)
    except ValueError as problem:
        raise InvalidRequest(f"{text!r}: {problem}", path="patterns") from None


def _forms(secrets: Iterable[str]) -> list[SecretForm]:
    return [form for secret in secrets for form in secret_patterns(secret)]


def without_overlap(edits: list[Edit]) -> list[Edit]:
    """The edits in order; overlapping ones are merged."""
    merged: list[Edit] = []
    for start, end, text in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if merged and start < merged[-1][1]:
            before = merged[-1]
            if end > before[1]:
                merged[-1] = (before[0], end, _MASK)
        else:
            merged.append((start, end, text))
    return merged


def edited(pieces: Sequence[FixturePiece], edits: Sequence[Edit]) -> Sequence[FixturePiece]:
    """The pieces after edits of their concatenation. A replacement of bytes that span several
    pieces goes into the first of them."""
    if not edits:
        return pieces
    made: list[FixturePiece] = []
    begin, index = 0, 0
    for piece in pieces:
        data = bytearray()
        end, place = begin + len(piece.data), begin
        while index < len(edits) and edits[index][0] < end:
            first, last, text = edits[index]
            if first >= begin:
                data += piece.data[place - begin : first - begin] + text
            place = min(last, end)
            if last > end:
                break
            index += 1
        data += piece.data[place - begin :]
        made.append(FixturePiece(piece.seconds, bytes(data)))
        begin = end
    return made


def fixture_of(
    fixture: Fixture,
    *,
    request_headers: FixtureHeaders = (),
    redaction: Redaction,
) -> Fixture:
    """The fixture to store for a received exchange: decompressed, and without secrets; the key
    stays. Raises `Parse` if the response has an unknown compression, and so cannot be searched for
    secrets."""
    cookies = tuple(each for each in fixture.headers if each[0].lower() == "set-cookie")
    redaction = redaction.with_credentials(request_headers, fixture.query)
    redaction = redaction.with_credentials(cookies)
    encoding = _header(fixture.headers, "content-encoding")
    received = decoded(fixture.pieces, encoding)
    remove = partial(redaction.pieces, stream=True)
    stored = tuple(edited_body(fixture.headers, received, remove))
    if fixture.status >= 400:
        stored = _error_pieces(redaction, stored)
    sent = _request_body(fixture.request, _header(request_headers, "content-encoding"))
    request = b"" if sent is None else redaction.body(sent)
    altered = joined_pieces(stored) != joined_pieces(received) or request != sent
    kept = tuple(each for each in fixture.headers if each[0].lower() not in NOT_STORED)
    return msgspec.structs.replace(
        fixture,
        provider=redaction.text(fixture.provider),
        model=redaction.text(fixture.model),
        path=redaction.text(fixture.path),
        query=redaction.query(fixture.query),
        request=request,
        headers=redaction.headers(kept),
        pieces=stored,
        altered=altered,
        raw_hash="",
    )


def _error_pieces(
    redaction: Redaction, pieces: tuple[FixturePiece, ...]
) -> tuple[FixturePiece, ...]:
    data = joined_pieces(pieces)
    shown = redaction.error_body(data)
    return pieces if shown == data else (FixturePiece(pieces[-1].seconds, shown),)


def _request_body(body: bytes, encoding: str) -> bytes | None:
    """None for an unknown encoding: the body is not stored."""
    if not is_decodable(encoding):
        return None
    return joined_pieces(decoded([FixturePiece(0.0, body)], encoding))


def _header(headers: FixtureHeaders, name: str) -> str:
    return ", ".join(value for each, value in headers if each.lower() == name)


def _header_secrets(headers: FixtureHeaders) -> Iterable[str]:
    for name, value in headers:
        name = name.lower()
        if name == "cookie":
            yield from (each.partition("=")[2].strip() for each in value.split(";"))
        elif name == "set-cookie":
            yield value.partition(";")[0].partition("=")[2].strip()
        elif name in _SECRET_HEADERS or _SECRET_NAME.search(name):
            value = value.strip()
            scheme = _SCHEME.match(value)
            secret = value[scheme.end() :] if scheme else value
            yield value if is_placeholder(secret) else secret
            if scheme and scheme[1].lower() == "basic":
                yield _password(secret)


def _password(credentials: str) -> str:
    """The password of Basic authentication; without one the user, as which some services take a
    key."""
    try:
        user, _, password = base64.b64decode(credentials.strip()).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return password or user


def _query_secrets(query: str) -> Iterable[str]:
    for parameter in _PARAMETER.finditer(query):
        if _SECRET_NAME.search(unquote_plus(parameter[1])):
            yield unquote_plus(parameter[2])


#: A decompressed body beyond this is not recorded.
_MOST_BYTES = 256 * 2**20


def is_decodable(encoding: str) -> bool:
    try:
        for name in encodings(encoding):
            any_decompressor(name)
    except UnknownCompression:
        return False
    return True


def decoded(pieces: Sequence[FixturePiece], encoding: str) -> tuple[FixturePiece, ...]:
    """The pieces after decompression. Raises `Parse` for an encoding that is not known here, and
    for broken data; a body that ends early is decoded as far as it goes."""
    for name in reversed(encodings(encoding)):
        feed = _decoder(name)
        left = _MOST_BYTES
        made = []
        for piece in pieces:
            try:
                data = feed(piece.data, left)
            except InvalidCompression as problem:
                raise Parse(f"not recorded: content-encoding {name}: {problem}") from None
            left -= len(data)
            if left < 0:
                raise Parse(f"not recorded: the body is larger than {_MOST_BYTES >> 20} MB")
            if data:
                made.append(FixturePiece(piece.seconds, data))
        pieces = made
    return tuple(pieces)


def _decoder(name: str) -> Callable[[bytes, int], bytes]:
    try:
        return any_decompressor(name).feed
    except UnknownCompression:
        raise Parse(
            f"not recorded: the body has content-encoding {name}, which cannot be read here and may"
            " hold a secret; ask for gzip"
        ) from None

"""Addresses in responses that lead past the proxy: what a program sends there is not seen."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from anaphora.client.transport.decoding import Decompressor, InvalidCompression
from anaphora.traffic.calls import RelayedCall
from anaphora.values import Notice

#: Headers that hold an address, and what is sent there.
_HEADERS = {
    "x-goog-upload-url": "the upload goes",
    "location": "a client that follows the redirect goes",
}
#: Members of a JSON body that hold an address, and what is read there.
_MEMBERS = {"results_url": "the results of the batch come"}
#: Only short bodies hold one: those of batches.
_LONGEST = 1024 * 1024
_CODE = "bypasses_proxy"


class _Addresses(msgspec.Struct):
    results_url: str | None = None


_decode = msgspec.json.Decoder(_Addresses).decode


def bypass_notices(call: RelayedCall) -> tuple[Notice, ...]:
    """A notice for each address in a response that is not the proxy's."""
    found = [(value, what) for name, value in call.response_headers if (what := _HEADERS.get(name))]
    found += [(value, _MEMBERS[name]) for name, value in _in_body(call)]
    notices = []
    for address, what in found:
        host = _host(address)
        if host:
            message = f"{what} to {host} directly, past the proxy"
            notices.append(Notice(_CODE, message.replace("come to", "come from")))
    return tuple(notices)


def _host(address: str) -> str:
    """The host of an absolute address; the rest may hold a token."""
    try:
        return urlsplit(address).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _in_body(call: RelayedCall) -> list[tuple[str, str]]:
    if not call.pieces or "batch" not in call.path:
        return []
    body = b"".join(piece.data for piece in call.pieces)
    if len(body) > _LONGEST:
        return []
    decompressor = Decompressor.of(dict(call.response_headers).get("content-encoding"))
    try:
        if decompressor is not None:
            body = decompressor.feed(body, _LONGEST)
        address = _decode(body).results_url
    except (InvalidCompression, msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return [] if address is None else [("results_url", address)]

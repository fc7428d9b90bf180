"""Claude at Bedrock's own address, as a call of the Messages API.

`InvokeModel` has Anthropic's format with two differences: the model is in the path, and a stream is
AWS's binary event stream, in which each event contains one of Anthropic's. `Converse` has its own
format (converse.py). Both are converted for the judge; the request and the response are not
changed.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from anaphora.traffic.calls import Headers, header_of

from . import converse

PROVIDER, WIRE, PATH = "bedrock", "anthropic", "/v1/messages"
CONTENT_TYPE = "application/vnd.amazon.eventstream"
_HOSTS = ("bedrock-runtime*.*.amazonaws.com", "bedrock-runtime*.*.amazonaws.com.cn")
#: The model may be an ARN with slashes, decoded or not.
_CALL = re.compile(
    r"/model/(.+)/(invoke|invoke-with-response-stream|converse|converse-stream)\Z", re.DOTALL
)
#: In a model's id: the region at the start of an inference profile, and the version at the end.
_REGION = re.compile(r"\A(?:[a-z]{2,6}|us-gov)\.(?=anthropic\.)")
_VERSION = re.compile(r"(?:-\d{8})?-v\d+(?::\d+)?\Z")
#: Lengths and checksum before an event's headers, and the checksum after its payload.
_PRELUDE, _CHECKSUM = struct.Struct(">III"), 4
#: The type of a header whose value is text; events have no others.
_TEXT_HEADER, _SIZE = 7, struct.Struct(">H")

#: Headers and scheme of signed requests.
_SIGNED_HEADERS = ("x-amz-content-sha256", "signature", "signature-input")
_SIGNED_SCHEME = "AWS4-"


class _Payload(msgspec.Struct):
    bytes: str = ""


class _Event(msgspec.Struct):
    type: str = ""


_payload = msgspec.json.Decoder(_Payload).decode
_event = msgspec.json.Decoder(_Event).decode


class BedrockCall(NamedTuple):
    """A call of Claude: the model by the catalog's name, and whether it is one of Converse."""

    model: str
    converses: bool

    def request(self, body: bytes) -> bytes:
        """The body in Anthropic's format; an invalid one is returned unchanged."""
        return converse.as_messages(body, self.model) if self.converses else self._named(body)

    def response(self, data: bytes, content_type: str) -> bytes:
        if not content_type.startswith(CONTENT_TYPE):
            return converse.as_message(data, self.model) if self.converses else data
        if self.converses:
            return converse.as_events(frames(data), self.model)
        return invoked_events(data)

    def _named(self, body: bytes) -> bytes:
        rest = body.lstrip()
        if not rest.startswith(b"{"):
            return body
        comma = b"" if rest[1:].lstrip().startswith(b"}") else b","
        return b'{"model":' + msgspec.json.encode(self.model) + comma + rest[1:]


def is_host(host: str) -> bool:
    return any(fnmatchcase(host, known) for known in _HOSTS)


def is_signed(headers: Headers) -> bool:
    """Whether a request carries a signature of its body, which a change would invalidate."""
    by_aws = header_of(headers, "authorization").startswith(_SIGNED_SCHEME)
    return by_aws or any(name in _SIGNED_HEADERS for name, _ in headers)


def call_at(path: str) -> BedrockCall | None:
    """The call of Claude at a path; None for any other path."""
    found = _CALL.search(path)
    if found is None:
        return None
    model = _REGION.sub("", unquote(found[1]).rpartition("/")[2])
    if not model.startswith("anthropic."):
        return None
    return BedrockCall(_VERSION.sub("", model), found[2].startswith("converse"))


def invoked_events(data: bytes) -> bytes:
    """The event stream of InvokeModel as server-sent events, up to the first invalid event."""
    events = []
    for _, payload in frames(data):
        try:
            event = base64.b64decode(_payload(payload).bytes, validate=True)
            name = _event(event).type
        except (msgspec.DecodeError, UnicodeError, binascii.Error):
            break
        events.append(b"event: %b\ndata: %b\n\n" % (name.encode(), event))
    return b"".join(events)


def frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Type and payload of each event in a binary stream, up to one that is incomplete."""
    at = 0
    while at + _PRELUDE.size <= len(data):
        size, headers, _ = _PRELUDE.unpack_from(data, at)
        if size < _PRELUDE.size + headers + _CHECKSUM or at + size > len(data):
            return
        start = at + _PRELUDE.size
        kind = _header(data[start : start + headers], b":event-type")
        yield kind, data[start + headers : at + size - _CHECKSUM]
        at += size


def _header(data: bytes, wanted: bytes) -> str:
    """A header of an event; empty if it has none of that name."""
    at = 0
    while at < len(data):
        value = at + 1 + data[at]
        name, value = data[at + 1 : value], value + 3
        if value > len(data) or data[value - 3] != _TEXT_HEADER:
            return ""
        (size,) = _SIZE.unpack_from(data, value - 2)
        if name == wanted:
            return data[value : value + size].decode(errors="replace")
        at = value + size
    return ""

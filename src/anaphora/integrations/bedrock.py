"""Claude at Bedrock's own address, as a call of the Messages API.

`InvokeModel` has Anthropic's format but for two things: the model is in the path, and a stream is
AWS's binary event stream, in which each event holds one of Anthropic's. Both are undone for the
judge; the request and the response are not changed.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from fnmatch import fnmatchcase
from urllib.parse import unquote

import msgspec

from anaphora.traffic.calls import Headers, header_of

PROVIDER, WIRE, PATH = "bedrock", "anthropic", "/v1/messages"
CONTENT_TYPE = "application/vnd.amazon.eventstream"
_HOSTS = ("bedrock-runtime*.*.amazonaws.com", "bedrock-runtime*.*.amazonaws.com.cn")
_INVOKE = re.compile(r"/model/([^/]+)/invoke(?:-with-response-stream)?\Z")
#: Of a model's id: the region that an inference profile begins with, and the version at its end.
_REGION = re.compile(r"\A(?:[a-z]{2,6}|us-gov)\.(?=anthropic\.)")
_VERSION = re.compile(r"(?:-\d{8})?-v\d+(?::\d+)?\Z")
#: Lengths and checksum before an event's headers, and the checksum after its payload.
_PRELUDE, _CHECKSUM = struct.Struct(">III"), 4

#: Headers and scheme of signed requests.
_SIGNED_HEADERS = ("x-amz-content-sha256", "signature", "signature-input")
_SIGNED_SCHEME = "AWS4-"


class _Payload(msgspec.Struct):
    bytes: str = ""


class _Event(msgspec.Struct):
    type: str = ""


_payload = msgspec.json.Decoder(_Payload).decode
_event = msgspec.json.Decoder(_Event).decode


def is_host(host: str) -> bool:
    return any(fnmatchcase(host, known) for known in _HOSTS)


def is_signed(headers: Headers) -> bool:
    """Whether a request carries a signature of its body, which a change would invalidate."""
    by_aws = header_of(headers, "authorization").startswith(_SIGNED_SCHEME)
    return by_aws or any(name in _SIGNED_HEADERS for name, _ in headers)


def model_in(path: str) -> str | None:
    """The model of a call of Claude, by the catalog's name; None for any other path."""
    found = _INVOKE.search(path)
    if found is None:
        return None
    model = _REGION.sub("", unquote(found[1]).rpartition("/")[2])
    return _VERSION.sub("", model) if model.startswith("anthropic.") else None


def with_model(body: bytes, model: str) -> bytes:
    """The body in Anthropic's form; anything but an object is returned unchanged."""
    rest = body.lstrip()
    if not rest.startswith(b"{"):
        return body
    comma = b"" if rest[1:].lstrip().startswith(b"}") else b","
    return b'{"model":' + msgspec.json.encode(model) + comma + rest[1:]


def as_events(data: bytes) -> bytes:
    """A binary event stream as server-sent events. What cannot be read ends it."""
    events = []
    at = 0
    while at + _PRELUDE.size <= len(data):
        size, headers, _ = _PRELUDE.unpack_from(data, at)
        if size < _PRELUDE.size + headers + _CHECKSUM or at + size > len(data):
            break
        payload = data[at + _PRELUDE.size + headers : at + size - _CHECKSUM]
        at += size
        try:
            event = base64.b64decode(_payload(payload).bytes, validate=True)
            name = _event(event).type
        except (msgspec.DecodeError, UnicodeError, binascii.Error):
            break
        events.append(b"event: %b\ndata: %b\n\n" % (name.encode(), event))
    return b"".join(events)

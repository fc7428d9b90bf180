"""Claude at the addresses of Bedrock and Vertex AI, as a call of the Messages API.

`InvokeModel` has Anthropic's format with two differences: the model is in the path, and a stream is
AWS's binary event stream, in which each event contains one of Anthropic's. `Converse` has its own
format (converse.py). At Vertex only the model is in the path. All are converted for the judge; the
request and the response are not changed. Calls of other models at Bedrock are counted, and not
judged.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from anaphora.traffic.calls import Headers, header_of
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder

from . import converse

BEDROCK, WIRE = "bedrock", "anthropic"
_HOSTS = ("bedrock-runtime*.*.amazonaws.com", "bedrock-runtime*.*.amazonaws.com.cn")
#: The model may be an ARN with slashes, decoded or not.
_AT_BEDROCK = re.compile(
    r"/model/(.+)/(invoke|invoke-with-response-stream|converse|converse-stream)\Z", re.DOTALL
)
_AT_VERTEX = re.compile(
    r"/publishers/anthropic/models/(?!count-tokens:)([^/:@]+)[^/:]*:(?:rawP|streamRawP)redict\Z"
)
#: Of a model's id: the region that an inference profile begins with, and the version at its end.
_REGION = re.compile(r"\A(?:[a-z]{2,6}|us-gov)\.(?=anthropic\.)")
_VERSION = re.compile(r"(?:-\d{8})?-v\d+(?::\d+)?\Z")

#: Headers and scheme of signed requests.
_SIGNED_HEADERS = ("x-amz-content-sha256", "signature", "signature-input")
_SIGNED_SCHEME = "AWS4-"


class _Payload(msgspec.Struct):
    bytes: str = ""


class _Event(msgspec.Struct):
    type: str = ""


_payload = msgspec.json.Decoder(_Payload).decode
_event = msgspec.json.Decoder(_Event).decode


class CloudCall(NamedTuple):
    """A call of a model by the catalog's name, and the format of its body."""

    model: str
    form: Literal["messages", "converse", "other"]
    provider: str = ""
    """Whose rules and prices hold, if not those of the address."""

    @property
    def path(self) -> str:
        """The path of Anthropic's API; empty if the call cannot be read as one."""
        return "" if self.form == "other" else "/v1/messages"

    @property
    def why_unread(self) -> str:
        """Why it is not judged; empty if it can be."""
        return "only calls of Claude are read at Bedrock" if self.form == "other" else ""

    def request(self, body: bytes) -> bytes:
        """The body in Anthropic's form; what cannot be read is returned unchanged."""
        converses = self.form == "converse"
        return converse.as_messages(body, self.model) if converses else self._named(body)

    def response(self, data: bytes, content_type: str) -> bytes:
        converses = self.form == "converse"
        if not content_type.startswith(CONTENT_TYPE):
            return converse.as_message(data, self.model) if converses else data
        return converse.as_events(frames(data), self.model) if converses else invoked_events(data)

    def _named(self, body: bytes) -> bytes:
        rest = body.lstrip()
        if not rest.startswith(b"{"):
            return body
        comma = b"" if rest[1:].lstrip().startswith(b"}") else b","
        return b'{"model":' + msgspec.json.encode(self.model) + comma + rest[1:]


def is_bedrock(host: str) -> bool:
    return any(fnmatchcase(host, known) for known in _HOSTS)


def is_signed(headers: Headers) -> bool:
    """Whether a request carries a signature of its body, which a change would invalidate."""
    by_aws = header_of(headers, "authorization").startswith(_SIGNED_SCHEME)
    return by_aws or any(name in _SIGNED_HEADERS for name, _ in headers)


def call_at(path: str) -> CloudCall | None:
    """The call of a model at a path; None for any other path."""
    path = unquote(path)
    if (found := _AT_VERTEX.search(path)) is not None:
        return CloudCall(found[1], "messages", "anthropic")
    if (found := _AT_BEDROCK.search(path)) is None:
        return None
    model = _REGION.sub("", found[1].rpartition("/")[2])
    if not model.startswith("anthropic."):
        return CloudCall(model, "other")
    converses = found[2].startswith("converse")
    return CloudCall(_VERSION.sub("", model), "converse" if converses else "messages")


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
    for frame in FrameDecoder().feed(data):
        yield frame.headers.get(":event-type", ""), frame.payload

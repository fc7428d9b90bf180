"""Codec of Bedrock's Converse: `POST /model/{model}/converse` and `/converse-stream`."""

from __future__ import annotations

from anaphora.wire.rendering import assemble

from .errors import meant_path, read_error, write_error
from .parse import parse
from .render import render
from .reply import read_reply, write_reply
from .stream import StreamReader as reader
from .writer import StreamWriter as writer

#: Its models are served by default.
provider = "bedrock"

__all__ = [
    "assemble",
    "meant_path",
    "parse",
    "provider",
    "read_error",
    "read_reply",
    "reader",
    "render",
    "write_error",
    "write_reply",
    "writer",
]

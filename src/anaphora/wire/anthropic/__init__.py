"""Codec of Anthropic Messages: `POST /v1/messages`."""

from __future__ import annotations

from anaphora.wire.rendering import assemble

from .parse import parse
from .render import render
from .reply import read_error, read_reply, write_error
from .stream import StreamReader as reader
from .writer import StreamWriter as writer
from .writer import write_reply

#: Its models are served by default.
provider = "anthropic"

__all__ = [
    "assemble",
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

"""Codec of OpenAI Responses: `POST /v1/responses`."""

from __future__ import annotations

from anaphora.wire.errors import read_error, write_error
from anaphora.wire.rendering import assemble

from .parse import parse
from .render import render
from .reply import read_reply
from .stream import StreamReader as reader
from .writer import StreamWriter as writer
from .writer import write_reply

#: Its models are served by default.
provider = "openai"

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

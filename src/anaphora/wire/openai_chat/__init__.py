"""Codec of OpenAI Chat Completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from anaphora.wire.errors import read_error, write_error
from anaphora.wire.rendering import assemble

from .parse import parse
from .render import render
from .reply import StreamWriter as writer
from .reply import read_reply, write_reply
from .stream import StreamReader as reader

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

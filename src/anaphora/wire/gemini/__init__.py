"""Codec of Gemini: `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`."""

from __future__ import annotations

from .errors import read_error, write_error
from .parse import parse
from .render import assemble, prelude, read_held, render
from .reply import StreamWriter as writer
from .reply import read_reply, write_reply
from .stream import StreamReader as reader

#: Its models are served by default.
provider = "google"

__all__ = [
    "assemble",
    "parse",
    "prelude",
    "provider",
    "read_error",
    "read_held",
    "read_reply",
    "reader",
    "render",
    "write_error",
    "write_reply",
    "writer",
]

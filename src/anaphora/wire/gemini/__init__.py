"""Codec of Gemini: `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`."""

from __future__ import annotations

from .errors import read_error, write_error
from .parse import parse
from .render import assemble, prelude, read_held, render
from .reply import StreamWriter as writer
from .reply import read_reply, write_reply
from .split import split
from .stream import StreamReader as reader

__all__ = [
    "assemble",
    "parse",
    "prelude",
    "read_error",
    "read_held",
    "read_reply",
    "reader",
    "render",
    "split",
    "write_error",
    "write_reply",
    "writer",
]

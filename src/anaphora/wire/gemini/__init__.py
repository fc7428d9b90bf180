"""Gemini, both ways: `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`."""

from __future__ import annotations

from .failure import read_error, write_error
from .held import assemble, prelude, read_held
from .parse import parse
from .reply import read_reply, write_reply
from .request import render
from .split import split
from .stream_reader import StreamReader as reader
from .stream_writer import StreamWriter as writer

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

"""Codec of Ollama's own chat: `POST /api/chat`, streams as newline-delimited JSON."""

from __future__ import annotations

from anaphora.wire.rendering import assemble

from .parse import parse
from .render import render
from .reply import read_error, read_reply, write_error, write_reply
from .split import split
from .stream import StreamReader as reader
from .stream import StreamWriter as writer

__all__ = [
    "assemble",
    "parse",
    "read_error",
    "read_reply",
    "reader",
    "render",
    "split",
    "write_error",
    "write_reply",
    "writer",
]

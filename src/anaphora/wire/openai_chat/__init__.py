"""Codec of OpenAI Chat Completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from anaphora.wire.errors import read_error, write_error
from anaphora.wire.rendering import assemble

from .parse import parse
from .render import render
from .reply import StreamWriter as writer
from .reply import read_reply, write_reply
from .split import split
from .stream import StreamReader as reader

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

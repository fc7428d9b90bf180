"""Codec of OpenAI Responses: `POST /v1/responses`."""

from __future__ import annotations

from anaphora.wire.errors import read_error, write_error
from anaphora.wire.rendering import assemble

from .parse import parse
from .render import render
from .reply import read_reply
from .split import split
from .stream import StreamReader as reader
from .writer import StreamWriter as writer
from .writer import write_reply

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

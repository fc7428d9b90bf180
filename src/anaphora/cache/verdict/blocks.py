"""The JSON in a chunk: its glue dropped, what it leaves open closed."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from anaphora.rendered import Chunk

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[\[\]{}]', re.DOTALL)
_CLOSERS = {b"{": b"}", b"[": b"]"}

UNREADABLE: Any = object()


class Block(msgspec.Struct, frozen=True):
    """What a chunk says."""

    raw: bytes
    """The block itself, without the message around it."""
    outer: bytes
    """The same with the opening of its message, where it has one."""

    @property
    def value(self) -> Any:
        return _decoded(self.raw)

    @property
    def whole(self) -> Any:
        return _decoded(self.outer)


def block_of(chunk: Chunk) -> Block:
    return cut(chunk.data)


def cut(data: bytes) -> Block:
    """Chunks begin with what closes the message before, and end inside their own."""
    # A glue that ends a string (Ollama's system text) begins with its quote.
    start = 1 if data[:2] in (b'"}', b'"]') else 0
    stack: list[tuple[bytes, int]] = []
    quote = b""
    for token in _TOKEN.finditer(data, start):
        said = token.group()
        if said in (b"{", b"["):
            stack.append((said, token.end()))
        elif said in (b"}", b"]"):
            if stack:
                stack.pop()
            else:
                start = token.end()
        elif not token.group(1):
            quote = b'"'
    closers = b"".join(_CLOSERS[said] for said, _ in reversed(stack))
    outer = data[start:].lstrip(b", \t\r\n") + quote + closers
    inside = data[stack[-1][1] :] if stack else data[start:]
    return Block(inside.lstrip(b", \t\r\n") + quote, outer)


def _decoded(raw: bytes) -> Any:
    """A value; members without their braces are an object, several values a list."""
    for text in (raw, b"{" + raw + b"}", b"[" + raw + b"]"):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return UNREADABLE


def bare(raw: bytes) -> bytes:
    """JSON without white space between its tokens."""
    return b"".join(
        piece if piece[:1] == b'"' else b"".join(piece.split())
        for piece in re.findall(rb'"(?:[^"\\]|\\.)*"?|[^"]+', raw, re.DOTALL)
    )

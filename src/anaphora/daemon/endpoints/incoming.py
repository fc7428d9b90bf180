"""Bodies of JSON as they arrive: declared as what they are, within limits, and decompressed.

data = await read_json_bytes(exchange)
body = await read_object(exchange, off_loop, app.id)
"""

from __future__ import annotations

import asyncio

from anaphora.daemon.off_loop import LARGE, OffLoop
from anaphora.serving.exchange import HttpExchange

from .body import JsonBody, check_json_type, decompressed_pieces, parse_object


async def read_json_bytes(exchange: HttpExchange) -> bytes:
    """The body without its content encoding. Raises `RequestRejected` where it is declared as
    something else than JSON, before any of it is read, and `TooLarge`."""
    check_json_type(exchange.headers)
    body = await exchange.read_body()
    encoding = exchange.headers.get("content-encoding")
    return body if encoding is None else await _decompressed(exchange, body, encoding)


async def _decompressed(exchange: HttpExchange, body: bytes, encoding: str) -> bytes:
    """Others are answered meanwhile. What it becomes counts as unread, too."""
    pieces: list[bytes] = []
    size = 0
    for piece in decompressed_pieces(body, encoding, exchange.max_body):
        pieces.append(piece)
        size += len(piece)
        if exchange.account is not None:
            exchange.account.add(len(piece))
        if size > LARGE:
            size = 0
            await asyncio.sleep(0)
    return b"".join(pieces)


async def read_object(
    exchange: HttpExchange, off_loop: OffLoop, app: str, default: bytes = b""
) -> JsonBody:
    """The object in a body; `default` where that is empty. Raises as `read_json_bytes` does, and
    `RequestRejected` for what is no object."""
    data = await read_json_bytes(exchange) or default
    if len(data) <= LARGE:
        body = parse_object(data)
    else:
        body = await off_loop.run(app, lambda: parse_object(data, by_pieces=True))
    exchange.end_reading()
    return body

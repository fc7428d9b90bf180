"""The audit log: rows a second, what a call pays for its row, and how fast a log is verified.

    python bench/audit.py [--rows N] [--turns N]

"rows a second": appended by one thread and committed in groups, each with an fsync. "a call's
part": the CPU that a call spends before it goes on, against the CPU of a whole call with a
transport that answers at once; the row is made and written by the log's thread. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from anaphora import AsyncClient
from anaphora.audit import AuditEnvelope, AuditLog, verify
from anaphora.audit.envelope import AuditBlock, AuditUsage
from anaphora.client.observe import EndedCall
from anaphora.client.transport import HttpRequest
from anaphora.values import Notice

BODY = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "Rome is a city. " * 20}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 40, "cache_read_input_tokens": 2000, "output_tokens": 90},
    }
).encode()


class Answer:
    status = 200
    headers: Mapping[str, str] = {"request-id": "req_1"}

    async def read(self) -> bytes:
        return BODY

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield BODY

    async def close(self) -> None:
        pass


class AtOnce:
    """A transport that answers at once."""

    async def send(self, outgoing: HttpRequest) -> Answer:  # noqa: ARG002
        return Answer()

    async def close(self) -> None:
        pass


class TimedLog(AuditLog):
    """Adds up the CPU that calls spend in it."""

    spent = 0.0

    def call_ended(self, call: EndedCall) -> tuple[Notice, ...]:
        begun = time.thread_time()
        try:
            return super().call_ended(call)
        finally:
            self.spent += time.thread_time() - begun


def envelope(number: int) -> AuditEnvelope:
    """A row as of a call with a dozen tools."""
    blocks = tuple(
        AuditBlock(label=f"tool {index}", kind="tool", tokens=120, digest=f"{index:032x}")
        for index in range(12)
    )
    return AuditEnvelope(
        at=1_800_000_000.0 + number,
        provider="anthropic",
        model="claude-sonnet-4-5",
        request_id=f"req_{number}",
        prompt_hash=f"{number:064x}",
        raw_hash=f"{number:064x}",
        usage=AuditUsage(uncached=40, read=2000, written={"5m": 90}, output=90),
        cost_nano_usd=2_460_000,
        blocks=blocks,
    )


def rows_a_second(path: Path, count: int) -> tuple[float, float]:
    """Appended and committed, and verified."""
    rows = [envelope(number) for number in range(count)]
    with AuditLog(path) as log:
        begun = time.perf_counter()
        for row in rows:
            log.append(row)
        log.flush()
        took = time.perf_counter() - begun
    begun = time.perf_counter()
    checked = verify(path).rows
    return count / took, checked / (time.perf_counter() - begun)


async def turns(log: TimedLog | None, count: int) -> float:
    """Microseconds of CPU a turn of a growing conversation, in this thread."""
    provider = {"wire": "anthropic", "key": {"env": "KEY"}, "model": "claude-sonnet-4-5"}
    config = {"providers": {"p": provider}}
    async with AsyncClient.from_config(
        config, environ={"KEY": "any"}, transport=AtOnce(), audit=log
    ) as client:
        chat = client.session("p", system="You are terse. " * 500)
        for _ in range(20):
            await chat.send("Which cities?")
        if log is not None:
            log.spent = 0.0
        begun = time.thread_time()
        for _ in range(count):
            await chat.send("Which cities do you know there, and which of them are large?")
        return (time.thread_time() - begun) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="The audit log.")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=300)
    options = parser.parse_args()
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        written, verified = rows_a_second(Path(folder) / "audit", options.rows)
        result["files_rows_per_second"] = round(written)
        result["files_verified_per_second"] = round(verified)
        print(f"{written:,.0f} rows/s written, {verified:,.0f} rows/s verified")
        bare = min(asyncio.run(turns(None, options.turns)) for _ in range(3))
        appended = []
        for number in range(3):
            with TimedLog(Path(folder) / f"calls-{number}") as log:
                asyncio.run(turns(log, options.turns))
                appended.append(log.spent / options.turns * 1e6)
        print(f"\na call takes {bare:,.0f} µs of CPU, its part of the log {min(appended):,.1f} µs")
        result["append_us"] = round(min(appended), 1)
        result["append_us_vs_call"] = round(min(appended) / bare, 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""The calls of a fleet as a Parquet file."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import IO, Any

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.errors import MissingExtra

#: Rows of one group in a Parquet file.
_GROUP = 10_000

#: The columns of a call, and their types.
_OF_CALL = {
    "at": "timestamp",
    "epoch": "int64",
    "app": "string",
    "node": "string",
    "adapter": "string",
    "provider": "string",
    "system": "string",
    "wire": "string",
    "model": "string",
    "answered_by": "string",
    "request_id": "string",
    "response_id": "string",
    "operation": "string",
    "prompt_hash": "string",
    "raw_hash": "string",
    "outcome": "string",
    "status": "int64",
    "stop_reason": "string",
    "streamed": "bool",
    "attempts": "int64",
    "first": "double",
    "seconds": "double",
    "queued": "double",
    "uncached": "int64",
    "read": "int64",
    "written": "int64",
    "output": "int64",
    "reasoning": "int64",
    "predicted": "int64",
    "cost_nano_usd": "int64",
    "output_nano_usd": "int64",
    "saved_nano_usd": "int64",
    "unbilled_nano_usd": "int64",
    "verdict": "string",
    "cause": "string",
    "broke": "bool",
    "change": "string",
    "changed": "string",
    "lost": "int64",
    "lost_nano_usd": "int64",
    "notices": "strings",
    "labels": "strings",
    "conversation": "string",
    "turn": "int64",
    "automatic": "string",
    "blocks": "blocks",
}
COLUMNS = {
    **_OF_CALL,
    "place": "string",
    "program": "string",
    "loss_cause": "string",
    "loss_tokens": "int64",
    "loss_nano_usd": "int64",
    "idle": "double",
}
"""The columns of the file, and their types."""
_OF_USAGE = frozenset(("uncached", "read", "output", "reasoning"))


def write_parquet(rows: Iterable[dict[str, Any]], file: IO[bytes]) -> None:
    """Writes rows of `COLUMNS`. Raises `MissingExtra`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingExtra(
            "Parquet needs pyarrow; install it with: pip install 'anaphora[fleet]'", extra="fleet"
        ) from None
    block = pa.struct(
        [
            ("label", pa.string()),
            ("kind", pa.string()),
            ("chunks", pa.int64()),
            ("tokens", pa.int64()),
            ("marker", pa.bool_()),
            ("ttl", pa.string()),
            ("digest", pa.string()),
        ]
    )
    types = {
        "int64": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "strings": pa.list_(pa.string()),
        "blocks": pa.list_(block),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        group: list[dict[str, Any]] = []
        for values in rows:
            values["at"] = datetime.datetime.fromtimestamp(values["at"], datetime.UTC)
            group.append(values)
            if len(group) == _GROUP:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
                group = []
        writer.write_table(pa.Table.from_pylist(group, schema=schema))


def values_of(call: AuditEnvelope) -> dict[str, Any]:
    """The columns of a call."""
    values: dict[str, Any] = {}
    for name in _OF_CALL:
        if name == "written":
            values[name] = None if call.usage.written is None else call.usage.written_total
        elif name in _OF_USAGE:
            values[name] = getattr(call.usage, name)
        elif name == "blocks":
            values[name] = [msgspec.structs.asdict(block) for block in call.blocks]
        else:
            values[name] = getattr(call, name)
    return values

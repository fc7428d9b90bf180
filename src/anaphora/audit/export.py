"""The calls of a log in other formats: JSON lines, CSV, Parquet. Streamed one by one, or in
batches."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import msgspec

from anaphora.errors import MissingExtra
from anaphora.wording import visible, visible_json

from .envelope import AuditEnvelope, StoredRow

ExportFormat: TypeAlias = Literal["jsonl", "csv", "parquet"]

#: Rows of one group in a Parquet file.
_GROUP = 10_000

#: The columns of CSV and Parquet, and their types in Parquet. Lists are JSON text in CSV.
COLUMNS: dict[str, str] = {
    "seq": "int64",
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
    "hash": "string",
}
_OF_USAGE = frozenset(("uncached", "read", "output", "reasoning"))


def export_lines(calls: Iterable[tuple[StoredRow, AuditEnvelope]]) -> Iterator[bytes]:
    """JSON lines: the rows of the calls as they are stored."""
    for row, _ in calls:
        yield row.line + b"\n"


def export_csv(calls: Iterable[tuple[StoredRow, AuditEnvelope]]) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")

    def taken() -> bytes:
        data = text.getvalue().encode()
        text.seek(0)
        text.truncate()
        return data

    writer.writerow(COLUMNS)
    yield taken()
    for row, call in calls:
        values = values_of(call, row)
        writer.writerow(_cell(values[name], kind) for name, kind in COLUMNS.items())
        yield taken()


def export_parquet(calls: Iterable[tuple[StoredRow, AuditEnvelope]], file: Path) -> int:
    """Writes a Parquet file and returns the number of rows. Raises `MissingExtra`."""
    return write_parquet((values_of(call, row) for row, call in calls), file)


def write_parquet(
    rows: Iterable[dict[str, Any]],
    file: Path | IO[bytes],
    columns: dict[str, str] = COLUMNS,
    extra: str = "parquet",
) -> int:
    """Writes rows with these columns (`COLUMNS` and others); returns their number. `extra` is named
    by the error if pyarrow is missing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingExtra(
            f"Parquet needs pyarrow; install it with: pip install 'anaphora[{extra}]'", extra=extra
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
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    count = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        group: list[dict[str, Any]] = []
        for values in rows:
            values["at"] = datetime.datetime.fromtimestamp(values["at"], datetime.UTC)
            group.append(values)
            if len(group) == _GROUP:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
                count, group = count + len(group), []
        writer.write_table(pa.Table.from_pylist(group, schema=schema))
    return count + len(group)


def values_of(call: AuditEnvelope, row: StoredRow | None = None) -> dict[str, Any]:
    """The columns of a call; a call that is not in a log has neither number nor hash."""
    values: dict[str, Any] = {}
    for name in COLUMNS:
        if name in ("seq", "hash"):
            values[name] = getattr(row, name, None)
        elif name == "written":
            values[name] = None if call.usage.written is None else call.usage.written_total
        elif name in _OF_USAGE:
            values[name] = getattr(call.usage, name)
        elif name == "blocks":
            values[name] = [msgspec.structs.asdict(block) for block in call.blocks]
        else:
            values[name] = getattr(call, name)
    return values


def _cell(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "timestamp":
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    if kind in ("strings", "blocks"):
        return visible_json(msgspec.json.encode(value)).decode()
    text = str(value)
    # A spreadsheet would run a name that begins like a formula, even after white space.
    is_formula = kind == "string" and text.lstrip()[:1] in ("=", "+", "-", "@")
    shown = visible(text, keep="\t")
    return f"'{shown}" if is_formula else shown

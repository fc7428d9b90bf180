"""The rows of an audit log.

    call       one call: an `AuditEnvelope`
    start      a writer has opened the log; `epoch` counts them
    recovery   the previous writer was killed, and left something unfinished
    stop       the writer has closed the log
    segment    the first row of a file, with the hash of the last row before it
    lost       calls whose rows could not be written
    pruned     rows that were deleted on purpose, with the hash of the last one

No row holds text of a prompt or a response, or a key: names and codes pass through `code`, `word`
and `label`; texts of providers never reach a row.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.errors import ChainBroken, OtherSchema
from anaphora.values import Ttl

#: The row version that this package writes, and the newest that it reads.
SCHEMA_VERSION = 1

Outcome: TypeAlias = str
"""`ok`, or the class of the error. Of a call whose daemon was killed: `interrupted` if it was
under way, and `unknown` if it had ended without a bill."""

_CODE = re.compile(r"[a-z][a-z0-9_.]{0,63}")


class AuditUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Token counts of the bill; None: not reported, which is not 0."""

    uncached: int | None = None
    read: int | None = None
    written: dict[str, int] | None = None
    """By TTL; `unsplit` if the provider gave only a sum."""
    output: int | None = None
    reasoning: int | None = None

    @property
    def written_total(self) -> int:
        return sum(self.written.values()) if self.written else 0

    @property
    def input(self) -> int:
        return (self.uncached or 0) + (self.read or 0) + self.written_total


class AuditBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One block of the prompt, or several chunks between two markers."""

    label: str
    kind: str
    """`tool`, `system`; `messages` for those of a segment."""
    chunks: int = 1
    tokens: int
    marker: bool = False
    """A cache marker ends the block."""
    ttl: Ttl | None = None
    """The marker's."""
    digest: str = ""
    """BLAKE3 with the log's key: of the block's bytes, or, if it has several chunks, of its run
    from the beginning to the end of the block."""


class OwnFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a daemon's app as the app may see it: tokens read from other apps' entries in a
    shared cache do not count as read."""

    usage: AuditUsage = AuditUsage()
    cost_nano_usd: int | None = None
    saved_nano_usd: int | None = None
    unbilled_nano_usd: int | None = None
    """None: the same as in the row."""


class KilledNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A daemon that was killed before it had written the row of a call."""

    node: str
    epoch: int
    """Epoch of the log's writer at that time."""


class AuditRow(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="row", tag="row"
):
    """Base of the rows. The log adds `schema_version`, `seq` and `hash`."""

    at: float
    """Seconds since 1970; of a call, when it began."""
    epoch: int = 0
    """The epoch of the writer, counted from 1."""


class AuditEnvelope(AuditRow, frozen=True, kw_only=True, tag="call"):
    """One call, without its prompt and its response."""

    app: str = ""
    group: str = ""
    """The app's group at the time; empty: none."""
    budget: str = ""
    """The id of the narrowed token that made the call, and of its budget; empty: a token of the
    app."""
    budget_label: str = ""
    node: str = ""
    adapter: str = "client"
    """The `adapter_id`; `client` for calls of a client, `proxy` for relayed calls."""
    provider: str = ""
    system: str = ""
    """The provider's name: `anthropic`, `openai`, …"""
    wire: str = ""
    model: str
    answered_by: str | None = None
    request_id: str | None = None
    """The provider's."""
    response_id: str | None = None
    call_id: str = ""
    """The id of the request at the daemon."""
    method: str = ""
    """The method or path by which an app called the daemon."""
    ignored: tuple[str, ...] = ()
    """Names of params that the daemon ignored."""
    repeats: int = 1
    """How many identical refusals of one minute this row stands for."""
    operation: str = "chat"
    prompt_hash: str = ""
    """For an adapter's call, its `prompt_hash`; otherwise BLAKE3 with the log's key."""
    raw_hash: str = ""
    """BLAKE3 of the response as received; empty if there was none."""
    outcome: Outcome = "ok"
    status: int | None = None
    stop_reason: str | None = None
    streamed: bool = False
    attempts: int = 1
    first: float | None = None
    """Seconds until the response began."""
    seconds: float = 0.0
    """Seconds until it was complete or failed."""
    queued: float = 0.0
    """Seconds of waiting for rate limits."""
    usage: AuditUsage = AuditUsage()
    predicted: int | None = None
    """Tokens that should have been read from the cache."""
    cost_nano_usd: int | None = None
    """None: unknown, which is not 0."""
    output_nano_usd: int | None = None
    """The part of the cost that is output."""
    saved_nano_usd: int | None = None
    unbilled_nano_usd: int = 0
    """Charged to an app in addition, for attempts that were sent and have no bill: an estimate if
    part of a response arrived, else the maximum cost of the attempt."""
    own: OwnFigures | None = None
    """The figures that the app sees, if they differ because it read other apps' cache entries."""
    verdict: str | None = None
    cause: str | None = None
    broke: bool = False
    """Something cached was not read, because the prompt or a parameter had changed."""
    change: str | None = None
    """The kind of change that broke the prefix."""
    changed: str | None = None
    """The label of the block with that change; of a first call whose tools differ from those of the
    call before, the fields."""
    lost: int = 0
    """Tokens that could have been read and were billed again."""
    lost_nano_usd: int | None = None
    notices: tuple[str, ...] = ()
    """Their codes."""
    labels: tuple[str, ...] = ()
    """The application's labels of this call."""
    automatic: Ttl | None = None
    """The TTL of an automatic breakpoint that was requested."""
    conversation: str = ""
    """Id of its conversation; empty if unknown."""
    turn: int = 0
    """Its number within the conversation."""
    blocks: tuple[AuditBlock, ...] = ()
    recovered: KilledNode | None = None
    """Set if the daemon that made the call was killed: the row is made from the ledger, and has no
    data on prompt, response and verdict."""

    @property
    def billed_model(self) -> str:
        """The requested model, or another known one that answered instead."""
        return catalog.answering_model(self.system, self.model, self.answered_by or "")


class StartRow(AuditRow, frozen=True, kw_only=True, tag="start"):
    app: str = ""
    node: str = ""
    version: str = ""
    """Of this package."""
    key_id: str = ""
    """Digests of rows with the same id can be compared."""


class RecoveryRow(AuditRow, frozen=True, kw_only=True, tag="recovery"):
    reason: Literal["unfinished_row", "not_closed"]
    """`not_closed`: the log ended with a complete row, but its writer was killed; rows that were
    not committed are missing."""
    bytes: int = 0
    """Bytes of the unfinished row, which was removed."""


class StopRow(AuditRow, frozen=True, kw_only=True, tag="stop"):
    pass


class SegmentRow(AuditRow, frozen=True, kw_only=True, tag="segment"):
    segment: int
    prev: str
    """The hash of the row before."""


class LostRow(AuditRow, frozen=True, kw_only=True, tag="lost"):
    rows: int
    reason: str
    """The class of the error, such as `OSError ENOSPC`."""


class CorrectionRow(AuditRow, frozen=True, kw_only=True, tag="correction"):
    """An administrator's correction of a call's cost in the ledger."""

    app: str
    node: str = ""
    by: str
    """The user who ran the command."""
    entry: str
    """The id of the ledger's entry."""
    correction: str
    """The id of the entry with the difference."""
    call_id: str
    """The id of the request at the daemon."""
    before_nano_usd: int
    after_nano_usd: int
    reason: str


class Boundary(msgspec.Struct, frozen=True):
    """The last of several rows that can be pruned together, and its hash."""

    through: int
    hash: str
    segment: int = 0


class PrunedRow(AuditRow, frozen=True, kw_only=True, tag="pruned"):
    keep_days: float
    boundaries: tuple[Boundary, ...]
    """One for each deleted segment."""


AnyRow: TypeAlias = (
    AuditEnvelope
    | StartRow
    | RecoveryRow
    | StopRow
    | SegmentRow
    | LostRow
    | CorrectionRow
    | PrunedRow
)


class StoredRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as stored in a log."""

    schema_version: int
    seq: int
    hash: str
    content: AnyRow
    line: bytes
    """The bytes that the hash covers, and the hash."""


class RowNumber(msgspec.Struct, frozen=True):
    """The fields that the log adds to each row."""

    schema_version: int
    seq: int
    hash: str = ""


encode = msgspec.json.Encoder().encode
_decode_content = msgspec.json.Decoder(AnyRow).decode
decode_number = msgspec.json.Decoder(RowNumber).decode


def decode(line: bytes, place: str = "") -> StoredRow:
    """The row of a line. Raises `OtherSchema`, or `ChainBroken` if it is not a row."""
    try:
        numbered = decode_number(line)
        if numbered.schema_version > SCHEMA_VERSION:
            where = place or f"row {numbered.seq:,}"
            raise OtherSchema(where, version=numbered.schema_version, known=SCHEMA_VERSION)
        content = _decode_content(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ChainBroken(f"not a row of an audit log: {error}", row=0, place=place) from None
    return StoredRow(
        schema_version=numbered.schema_version,
        seq=numbered.seq,
        hash=numbered.hash,
        content=content,
        line=line,
    )


def code(text: str) -> str:
    """One of our codes; `other` for any other text."""
    return text if _CODE.fullmatch(text) else "other"

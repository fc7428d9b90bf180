"""Results and the state of a fan-out in files, so that a run can be continued after a crash.

    NAME.results.jsonl    a line for each prompt that was answered or failed, as they come; in the
                          order of the prompts once all are there
    NAME.state.jsonl      what else the next run has to know: batches that were submitted, and what
                          was spent on calls without a result

Lines are only appended, and a line that is cut off is dropped by the next run. Only the user can
read the files. A result belongs to the request with the same content, at any position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from anaphora.client.response import Record, Response
from anaphora.client.structured import Structured
from anaphora.errors import InvalidRequest, Io, OtherSchema, Parse
from anaphora.values import Reply, StopReason, Usage, from_json, to_json

from .values import FanOutItem

_VERSION = 1
#: Fields with the position of a prompt, which may differ in the next run.
_PLACES = ("index", "line", "id")


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a call's record that a file keeps."""

    provider: str
    system: str
    wire: str
    host: str
    model: str
    at: float
    seconds: float
    first: float | None = None
    streamed: bool = False
    stop_reason: StopReason | None = None
    request_id: str | None = None
    response_id: str | None = None
    answered_by: str | None = None
    cost_usd: Decimal | None = None
    saved: Decimal | None = None


_FIELDS = KeptRecord.__struct_fields__


class KeptResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the results that has a response."""

    key: str
    record: KeptRecord
    reply: msgspec.Raw
    raw_hash: str = ""

    def response(self, output: Structured[Any] | None) -> Response[Any]:
        reply = from_json(bytes(self.reply), Reply)
        record = Record(usage=reply.usage, **msgspec.structs.asdict(self.record))
        parsed = None if output is None else output.parse_reply(reply)
        return Response(reply=reply, record=record, raw_hash=self.raw_hash, parsed=parsed)


class SubmittedBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch at the provider, and the keys of its requests."""

    id: str = ""
    """Empty while it is being submitted, and if the run was killed before it knew the id."""
    mark: str = ""
    """Chosen by the run: finds the batch without its id."""
    provider: str
    """The id in the configuration."""
    keys: tuple[str, ...]
    at: float


class _StateLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int | None = None
    batch: SubmittedBatch | None = None
    collected: str | None = None
    """The id of a batch whose results are in the file of results."""
    refused: str | None = None
    """The mark of a batch that the provider does not have."""
    spent: Decimal | None = None
    """On calls without a result: a warm-up, a reply that could not be used, and about what calls
    cost that were interrupted."""
    warmup: bool = False
    usage: Usage | None = None


class _AnyLine(msgspec.Struct, frozen=True):
    key: str = ""
    error: msgspec.Raw = msgspec.Raw(b"null")


class KeptResults:
    """The files of one fan-out. Locked while they are open: two runs would pay twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state_path = state_path(path)
        self.batches: dict[str, SubmittedBatch] = {}
        self.unconfirmed: dict[str, SubmittedBatch] = {}
        """By mark: batches that the provider may have."""
        self.spent = Decimal(0)
        self.warmup_usd = Decimal(0)
        self.usages: list[Usage] = []
        self._results: dict[str, KeptResult] = {}
        self._state = _open(self.state_path)
        try:
            self._lock()
            self._read_state()
            self._file = _open(path)
        except BaseException:
            os.close(self._state)
            raise
        try:
            self._read_results()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._state, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Io(f"{self.path}: another run writes to it") from None

    def _read_state(self) -> None:
        known = None
        for number, data in _lines(self._state):
            try:
                line = msgspec.json.decode(data, type=_StateLine)
            except msgspec.DecodeError as problem:
                raise Parse(f"{self.state_path}:{number}: {problem}") from None
            known = line.version or known
            if line.version is not None and line.version > _VERSION:
                raise OtherSchema(str(self.state_path), version=line.version, known=_VERSION)
            if line.batch is not None:
                self._add_batch(line.batch)
            if line.collected is not None:
                self.batches.pop(line.collected, None)
            if line.refused is not None:
                self.unconfirmed.pop(line.refused, None)
            if line.spent is not None:
                self.spent += line.spent
                self.warmup_usd += line.spent if line.warmup else 0
            if line.usage is not None:
                self.usages.append(line.usage)
        if known is None:
            self._append_state(_StateLine(version=_VERSION))

    def _read_results(self) -> None:
        for number, data in _lines(self._file):
            try:
                line = msgspec.json.decode(data, type=_AnyLine)
                if not line.key:
                    raise InvalidRequest(
                        "has no key: this is not a file of results; choose another name",
                        path=f"{self.path}:{number}",
                    )
                if bytes(line.error) == b"null":
                    self._results[line.key] = msgspec.json.decode(data, type=KeptResult)
            except msgspec.DecodeError as problem:
                raise InvalidRequest(
                    f"is not a result ({problem}); choose another name, or remove the line",
                    path=f"{self.path}:{number}",
                ) from None

    def response(self, key: str, output: Structured[Any] | None) -> Response[Any] | None:
        """The response of an earlier run; None if there is none that can be used."""
        kept = self._results.get(key)
        if kept is None:
            return None
        try:
            return kept.response(output)
        except Parse:
            return None

    def add(self, item: FanOutItem[Any], labels: Mapping[str, Any]) -> None:
        _append(self._file, result_line(item, labels), self.path)

    def add_spent(
        self, cost_usd: Decimal | None, *, warmup: bool = False, usage: Usage | None = None
    ) -> None:
        self._append_state(_StateLine(spent=cost_usd, warmup=warmup, usage=usage))

    def add_batch(self, batch: SubmittedBatch) -> None:
        """Before it is submitted, and again with its id."""
        self._add_batch(batch)
        self._append_state(_StateLine(batch=batch))

    def _add_batch(self, batch: SubmittedBatch) -> None:
        if batch.id:
            self.unconfirmed.pop(batch.mark, None)
            self.batches[batch.id] = batch
        else:
            self.unconfirmed[batch.mark] = batch

    def refused(self, mark: str) -> None:
        self.unconfirmed.pop(mark, None)
        self._append_state(_StateLine(refused=mark))

    def collected(self, batch: str) -> None:
        self.batches.pop(batch, None)
        self._append_state(_StateLine(collected=batch))

    def put_in_order(self, keys: Sequence[str], labels: Sequence[Mapping[str, Any]]) -> None:
        """Writes the results in the order of the prompts: the last line of each, with the prompt's
        current label. Results of other prompts stay at the end."""
        found: dict[str, dict[str, Any]] = {}
        for _, data in _lines(self._file):
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            key = msgspec.json.decode(fields["key"], type=str)
            found[key] = {name: fields[name] for name in fields if name not in _PLACES}
        ordered = [
            {**label, **found.pop(key)}
            for key, label in zip(keys, labels, strict=True)
            if key in found
        ]
        lines = [to_json(fields) + b"\n" for fields in (*ordered, *found.values())]
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        fresh = _open(temporary)
        try:
            _write(fresh, b"".join(lines))
            os.fsync(fresh)
            temporary.replace(self.path)
        except OSError as problem:
            os.close(fresh)
            temporary.unlink(missing_ok=True)
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None
        os.close(self._file)
        self._file = fresh

    def _append_state(self, line: _StateLine) -> None:
        _append(self._state, to_json(line), self.state_path)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._state)


def state_path(results: Path) -> Path:
    """`questions.results.jsonl` -> `questions.state.jsonl`."""
    name = results.name.removesuffix(".jsonl").removesuffix(".results")
    return results.with_name(f"{name}.state.jsonl")


def result_line(item: FanOutItem[Any], labels: Mapping[str, Any]) -> bytes:
    """A line of the results: the fields that describe the prompt, then its outcome."""
    fields: dict[str, Any] = {**labels, "key": item.key}
    response = item.response
    if response is None:
        error = item.error
        fields["error"] = {
            "type": type(error).__name__,
            "message": str(error),
            "status": getattr(error, "status", None),
            "retryable": getattr(error, "retryable", False),
        }
        if item.cost_usd is not None:
            fields["cost_usd"] = item.cost_usd
        partial: Reply | None = getattr(error, "partial", None)
        if partial is not None:  # it was paid for, and does not match the output
            fields |= {"text": partial.text, "reply": msgspec.Raw(to_json(partial))}
        return to_json(fields)
    record = KeptRecord(**{name: getattr(response.record, name) for name in _FIELDS})
    fields |= {
        "text": response.text,
        "cost_usd": response.cost_usd,
        "record": record,
        "reply": msgspec.Raw(to_json(response.reply)),
        "raw_hash": response.raw_hash,
    }
    return to_json(fields)


def _open(path: Path) -> int:
    """The file, made for the user alone. One that others can read is made private: replies are
    written to it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o600)
        os.fchmod(file, 0o600)
    except OSError as problem:
        raise Io(f"{path}: cannot be written: {problem.strerror}") from None
    return file


def _lines(file: int) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers. An incomplete last line is removed."""
    with os.fdopen(os.dup(file), "rb") as opened:
        opened.seek(0)
        end = 0
        for number, line in enumerate(opened, 1):
            if not line.endswith(b"\n"):
                os.ftruncate(file, end)
                return
            end += len(line)
            if line.strip():
                yield number, line.rstrip(b"\n")


def _append(file: int, line: bytes, path: Path) -> None:
    size = os.fstat(file).st_size
    try:
        _write(file, line + b"\n")
    except OSError as problem:
        os.ftruncate(file, size)  # a full disk leaves no half line
        raise Io(f"{path}: cannot be written: {problem.strerror}") from None


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]

"""Cuts a request into chunks of its own bytes: the part of `split` that all wires share.

A wire reads its own objects into `SplitBlock`s and `SplitMessage`s; a `RequestSplit` joins them
into runs. Key order and the spelling of numbers and strings stay, so that bills and misses are
computed from the bytes that were sent. Only markers are removed (they become marks), and white
space between the outermost fields.

    request = RequestSplit(MEMO, body)
    model = request.take_model()
    request.add_section("tools", request.take("tools"), cut_tools)
    request.add_messages(request.take_elements("messages"), read_message, lead=..., close=...)
    return request.finish(request.envelope(model, PATH, headers, cache_params), wire=WIRE, ...)

A turn costs what it adds: sections and messages that an earlier request had are not cut again for
as long as its logs are in use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from sys import intern
from typing import Any, TypeAlias, cast
from weakref import ref

import msgspec

from anaphora.canonical import encode_text
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Rendered
from anaphora.rendered.request_log import LogColumns, RequestLog
from anaphora.values import CachePolicy, Section, SegmentRole, Ttl

from .elements import DIGEST, DecodedBody, ListElements, SplitInput, digest_of, long_hash
from .memo import Memo
from .reading import (
    DECODE_ERRORS,
    Members,
    decode_text,
    decode_value,
    encode_members,
    list_elements,
    object_members,
    request_error,
)
from .walking import Walk

#: How many results of each remembered reader are kept; system prompts may be long.
TOOL_LISTS, SYSTEM_PROMPTS, PARAM_SETS = 64, 16, 64

#: A run cut from a request, and the marks in it, counted from its first chunk.
SplitSection: TypeAlias = tuple[ChunkRun, tuple[Mark, ...]]

#: The source of a log of messages: the digest of each message, after those of other elements of
#: their list; how many bytes these are; the marks with the index of their message, counted from the
#: log's first chunk; and the digest of all messages together (empty if it was not needed).
_Source: TypeAlias = tuple[bytes, int, list[tuple[int, Mark]], bytes]
#: Stored with the log of a section: its run without the log, its markers, and the run of the last
#: request with the same bytes, so that facts computed for that run are reused.
_KnownSection: TypeAlias = tuple[ChunkRun, tuple[Mark, ...], "ref[ChunkRun]"]

#: Inside the closing brace: where most blocks take a marker.
BEFORE_BRACE = -1
NULL = msgspec.Raw(b"null")


class SplitBlock(msgspec.Struct, frozen=True, gc=False):
    """A block of a request without its markers: a chunk without the glue before it."""

    kind: Kind
    data: bytes
    splice: int | None = None
    """The offset of a marker, counted from its end; None: it takes none."""
    marks: Sequence[tuple[int | None, Ttl]] = ()
    """The markers it had: their offset in `data` (None: at the splice), and TTL."""


class SplitMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a request. One without blocks leaves no trace."""

    role: str
    """The wire role, which determines the glue between this message and the next."""
    opening: bytes
    """Its bytes up to the first block."""
    blocks: Sequence[SplitBlock]


class CutMessages:
    """The chunks of messages."""

    __slots__ = ("_first_message", "_glue", "_joins", "_place", "_raws", "_read")

    def __init__(
        self,
        raws: Sequence[msgspec.Raw],
        read: Callable[[msgspec.Raw, str], SplitMessage],
        glue: Callable[[str], bytes],
        joins: Callable[[str, str], bool] | None,
        place: str,
        first_message: int,
    ) -> None:
        """See `RequestSplit.add_messages`."""
        self._raws = raws
        self._read = read
        self._glue = glue
        self._joins = joins
        self._place = place
        self._first_message = first_message

    def add(
        self,
        append: LogAppend,
        last: str | None,
        end: int,
        marks: list[tuple[int, Mark]],
        lead: bytes = b"",
    ) -> str | None:
        """Adds the messages up to `end`, and their marks. `last` is the role of the message before
        them; returns that of the last one."""
        joins, glue, count = self._joins, self._glue, append.first_chunk
        for index, raw in enumerate(self._raws[append.first_message : end], append.first_message):
            path = f"$.{self._place}[{self._first_message + index}]"
            message, before = self._read(raw, path), b","
            role = message.role if type(message.role) is not str else intern(message.role)
            for position, block in enumerate(message.blocks):
                opens = None
                if position == 0 and (
                    joins is None or last is None or role != last or not joins(role, last)
                ):
                    before = message.opening if last is None else glue(last) + message.opening
                    opens = last = role
                for offset, ttl in block.marks:
                    if offset is not None:
                        offset += len(before) + (0 if count else len(lead))
                    marks.append((index, Mark(count, ttl, offset)))
                append.chunk(block.kind, before + block.data, block.splice, opens)
                before = b","
                count += 1
            append.end_message(intern(f"m{index}"))  # the same text in all logs
        return last

    def text(self, log: ChunkLog, first: int, end: int) -> bytes:
        """The text of the messages from one up to another, which `log` has."""
        count = log.message_ends[first - 1] if first else 0
        append = LogAppend(count, first)
        self.add(append, log.role_of(count - 1) if count else None, end, [])
        return b"".join([data for _, _, data in append.chunks])


def _section_text(
    raw: bytes,
    cut: Callable[[bytes], SplitSection | None],
    log: ChunkLog,  # noqa: ARG001
    first: int,  # noqa: ARG001
    end: int,  # noqa: ARG001
) -> bytes:
    section = cut(raw)
    if section is None:
        return b""
    whole = section[0].log
    return whole.slice(0, whole.start(len(whole)))


def _all_read(log: ChunkLog, first: int, end: int) -> bytes:  # noqa: ARG001
    """The source of a text that was read whole."""
    return b""


class RequestSplit:
    """One request that is being cut. Runs are added in hash order; fields that are not taken become
    the envelope."""

    def __init__(self, memo: Memo, body: SplitInput) -> None:
        self._memo = memo
        self._elements: ListElements | None = None
        if isinstance(body, DecodedBody):
            self._elements = body.elements
            body = body.members
        self._whole = self._elements is None
        """Logs keep their text, and share it. Otherwise each request has its own, so that it can
        be remembered without."""
        self.members: Members = (
            dict(body) if isinstance(body, dict) else object_members(body, "$", request_error)
        )
        self.runs: list[ChunkRun] = []
        self.marks: list[Mark] = []
        self.count = 0
        """How many chunks there are so far."""

    def take(self, name: str) -> bytes:
        """Remove and return a field; `null` if it is missing."""
        return bytes(self.members.pop(name, NULL))

    def take_elements(self, name: str) -> Sequence[msgspec.Raw]:
        if self._elements is not None and self._elements.name == name:
            del self.members[name]
            return self._elements.raws
        return list_elements(self.members.pop(name, NULL), f"$.{name}", request_error)

    def take_model(self) -> str:
        model = required_text(self.members, "model", "$")
        del self.members["model"]
        return model

    def add_section(
        self, name: str, raw: bytes, cut: Callable[[bytes], SplitSection | None]
    ) -> ChunkRun | None:
        """Add the run that `cut` makes of a field, unless it is None or the field is missing."""
        if raw == b"null":
            return None
        known, key = self._memo.sections, (name, self._whole, digest_of(memoryview(raw)))
        log = known.get(key)
        if log is not None:
            known_section: _KnownSection = log.source  # type: ignore[assignment]
            bare, marks, last = known_section
            run = last()
            if run is None:
                if not self._whole:
                    source = partial(_section_text, raw, cut)
                    of_request = RequestLog(log, 0, log.start(len(log)), b"", source)
                run = msgspec.structs.replace(bare, log=log if self._whole else of_request)
                log.source = bare, marks, ref(run)
        else:
            section = cut(raw)
            if section is None:
                return None
            run, marks = section
            log = run.log
            if not self._whole:
                text, log = log.slice(0, log.start(len(log))), LogColumns.of_log(log)
                run = msgspec.structs.replace(run, log=RequestLog(log, 0, 0, text, _all_read))
            # Without the log: a log that refers to itself would not be released.
            log.source = msgspec.structs.replace(run, log=cast(Any, None)), marks, ref(run)
            known[key] = log
        self.add_run(run, marks)
        return run

    def add_run(self, run: ChunkRun, marks: Sequence[Mark] = ()) -> None:
        if marks:
            first = self.count
            self.marks += [Mark(first + mark.chunk, mark.ttl, mark.splice) for mark in marks]
        self.runs.append(run)
        self.count += run.count

    def add_messages(
        self,
        raws: Sequence[msgspec.Raw],
        read: Callable[[msgspec.Raw, str], SplitMessage],
        *,
        lead: bytes,
        glue: Callable[[str], bytes],
        close: Callable[[str], bytes],
        joins: Callable[[str, str], bool] | None = None,
        context: Hashable = None,
        first_message: int = 0,
        place: str = "messages",
        blocks: str = "content",
    ) -> ChunkRun | None:
        """Add the messages, unless they have no blocks. `read` takes a message and its path; `glue`
        and `close` take the wire role before them; `joins` tells whether a role continues the
        message of the role before it. `context` is anything else that affects the chunks."""
        log, known, (digests, skipped), whole = self._known_messages(raws, context, place)
        source: _Source = log.source  # type: ignore[assignment]
        marks = [each for each in source[2] if each[0] < known] if source[2] else []
        count = log.message_ends[known - 1] if known else 0
        cut = CutMessages(raws, read, glue, joins, place, first_message)
        append = LogAppend(count, known)
        last = cut.add(append, log.role_of(count - 1) if count else None, len(raws), marks, lead)
        count += len(append.chunks)
        if last is None:
            return None
        if known < len(raws):
            grown = log.append(append)
            grown.source = digests, skipped, marks, whole
            if grown is not log or not known:
                first = digests[skipped : skipped + DIGEST]
                self._memo.messages[context, self._whole, first] = grown
            log = grown
        if self._elements is not None:
            self._elements.notes.log = ref(log), self._memo, context
            begin = log.ends[append.first_chunk - 1] if append.first_chunk else 0
            text = b"".join([data for _, _, data in append.chunks])
            # What was read whole needs no body.
            log = RequestLog(log, known, begin, text, cut.text if known else _all_read)
        run = ChunkRun(
            "messages",
            log,
            count,
            role=SegmentRole.CONVERSATION,
            lead=lead,
            close=close(last),
            source=self._memo.placeholders(len(raws)),
            first_message=first_message,
            place=place,
            blocks=blocks,
        )
        self.add_run(run, [mark for _, mark in marks] if marks else ())
        return run

    def _known_messages(
        self, raws: Sequence[msgspec.Raw], context: Hashable, place: str
    ) -> tuple[ChunkLog, int, tuple[bytes, int], bytes]:
        """The log that begins with the most of these messages, how many of them it has, the digest
        of each (see `_Source`), and of all together."""
        if self._elements is not None and self._elements.name == place:
            return self._known_elements(self._elements, len(raws), context)
        first = digest_of(raws[0]) if raws else b""
        log = self._memo.messages.get((context, self._whole, first)) if first else None
        if log is None:
            log = ChunkLog() if self._whole else LogColumns()
            log.source = b"", 0, [], b""
            digests = first + b"".join(map(digest_of, raws[1:]))
            return log, 0, (digests, 0), _hash_of(raws).digest()
        source: _Source = log.source  # type: ignore[assignment]
        known, _, _, whole = source
        count = len(known) // DIGEST
        state = _hash_of(raws[:count])
        if len(raws) >= count and state.digest() == whole:
            # Mostly a conversation has grown: its messages are hashed together.
            digests = known + b"".join(map(digest_of, raws[count:]))
            for raw in raws[count:]:
                state.update(raw)
            return log, count, (digests, 0), state.digest()
        digests = first + b"".join(map(digest_of, raws[1:]))
        return log, _agreeing(known, digests), (digests, 0), _hash_of(raws).digest()

    def _known_elements(
        self, elements: ListElements, count: int, context: Hashable
    ) -> tuple[ChunkLog, int, tuple[bytes, int], bytes]:
        """`_known_messages` for the last `count` elements of a list whose digests are kept."""
        digests = elements.notes.digests
        skipped = len(digests) - DIGEST * count
        own = digests[skipped:]
        log, of = None, elements.notes.log
        if of is not None and of[1] is self._memo and of[2] == context:
            log = of[0]()
        if log is None and own:
            log = self._memo.messages.get((context, self._whole, own[:DIGEST]))
        if log is None:
            log = LogColumns()
            log.source = b"", 0, [], b""
            return log, 0, (digests, skipped), b""
        source: _Source = log.source
        known, before, _, _ = source
        return log, _agreeing(known[before:], own), (digests, skipped), b""

    def envelope(
        self,
        model: str,
        path: str,
        headers: tuple[tuple[str, str], ...],
        cache_params: Callable[[bytes], tuple[tuple[str, bytes], ...]],
        *,
        before_runs: bytes = b",",
    ) -> Envelope:
        """The model, and the fields that were not taken. `cache_params` takes an object of both."""
        rest = encode_members(self.members)[1:-1]
        head, tail = b'{"model":' + encode_text(model), (b"," + rest if rest else b"") + b"}"
        return Envelope(
            source=None,
            path=path,
            headers=headers,
            head=head + before_runs,
            tail=tail,
            cache_params=cache_params(head + tail),
        )

    def finish(self, envelope: Envelope, *, wire: str, model: str, **fields: Any) -> Rendered:
        """The request as chunks; `fields` are further ones of `Rendered`."""
        return Rendered(
            wire=wire,
            model=model,
            runs=tuple(self.runs),
            cacheable=self.count,
            envelope=envelope,
            marks=tuple(self.marks),
            **fields,
        )


def _agreeing(known: bytes, digests: bytes) -> int:
    """The number of equal digests at the beginning."""
    size = min(len(known), len(digests))
    if digests.startswith(known) or known.startswith(digests):
        return size // DIGEST
    differ = (
        at for at in range(0, size, DIGEST) if not known.startswith(digests[at : at + DIGEST], at)
    )
    return next(differ) // DIGEST


def _hash_of(raws: Sequence[msgspec.Raw]) -> Any:
    """The hash of concatenated objects or texts, which end unambiguously. They are not joined
    first: for long data the hash would release the GIL."""
    state = long_hash(b"")
    for raw in raws:
        state.update(raw)
    return state


def cut_section(
    section: Section,
    blocks: Sequence[SplitBlock],
    labels: Sequence[str],
    *,
    lead: bytes,
    close: bytes = b"",
    glue: bytes = b",",
    place: str = "",
    paths: tuple[str, ...] = (),
) -> SplitSection | None:
    """The run of the tools or system blocks of a request, of any kinds; None if there are none."""
    if not blocks:
        return None
    append = LogAppend()
    kind = Kind.TOOL if section == "tools" else Kind.SYSTEM
    for index, block in enumerate(blocks):
        append.chunk(kind, glue + block.data if index else block.data, block.splice)
    log = ChunkLog.of(append, list(labels), [CachePolicy.NONE] * len(labels))
    run = ChunkRun(
        section,
        log,
        len(log),
        lead=lead,
        close=close,
        source=tuple(labels),
        place=place,
        paths=paths,
    )
    marks = [Mark(index, ttl) for index, block in enumerate(blocks) for _, ttl in block.marks]
    return run, tuple(marks)


def cut_tools(walk: Walk, raw: bytes, lead: bytes, close: bytes) -> SplitSection | None:
    """The run of tools, unchanged and without markers."""
    labels: list[str] = []
    blocks: list[SplitBlock] = []
    for index, tool in enumerate(walk.tools(raw, "$.tools")):
        name = walk.function_name(tool) or (tool.type if not walk.table.function else "")
        labels.append(f"tool {name}" if name else f"tools{index}")
        blocks.append(SplitBlock(Kind.TOOL, bytes(tool.raw)))
    return cut_section("tools", blocks, labels, lead=lead, close=close)


def required_text(members: Members, name: str, path: str) -> str:
    """A required member, which must be a text; `path` is that of its object."""
    if name not in members:
        raise request_error("is missing", f"{path}.{name}")
    try:
        return decode_text(members[name])
    except DECODE_ERRORS:
        text: str = decode_value(members[name], str, f"{path}.{name}", request_error)
        return text

"""What a turn adds to a log of chunks, built apart and then appended at once."""

from __future__ import annotations

from anaphora.values import Notice

from .kind import Kind


class LogAppend:
    """Chunks in the order in which they are rendered, and the messages that they come from."""

    __slots__ = (
        "contextual",
        "first_chunk",
        "first_message",
        "ids",
        "kinds",
        "message_ends",
        "notices",
        "opens",
        "pieces",
        "roles",
        "splices",
    )

    def __init__(self) -> None:
        self.first_chunk = 0
        self.first_message = 0
        """Where in the log it goes: positions count from the log's beginning."""
        self.pieces: list[bytes] = []
        self.splices: list[int | None] = []
        """Counted back from the end of each."""
        self.kinds: list[Kind] = []
        self.message_ends: list[int] = []
        self.ids: list[str] = []
        self.opens: list[int] = []
        self.roles: list[str] = []
        self.notices: list[tuple[int, Notice]] = []
        self.contextual = False

    @property
    def message(self) -> int:
        """The index of the source message that is being added."""
        return self.first_message + len(self.ids)

    def chunk(self, kind: Kind, data: bytes, splice: int | None) -> None:
        """One chunk, glue and all. `splice` counts back from its end: -1 is inside the closing
        brace, 0 behind it, None where no marker may go."""
        self.pieces.append(data)
        self.splices.append(splice)
        self.kinds.append(kind)

    def item(self, role: str, kind: Kind, data: bytes, splice: int | None) -> None:
        """One chunk that begins a message on the wire."""
        self.opens.append(self.first_chunk + len(self.pieces))
        self.roles.append(role)
        self.pieces.append(data)
        self.splices.append(splice)
        self.kinds.append(kind)

    def open(self, role: str) -> None:
        """The next chunk begins a message on the wire."""
        self.opens.append(self.first_chunk + len(self.pieces))
        self.roles.append(role)

    def end_message(self, message_id: str) -> None:
        """All chunks of a source message are in."""
        self.ids.append(message_id)
        self.message_ends.append(self.first_chunk + len(self.pieces))

    def notice(self, notice: Notice) -> None:
        """A remark on the source message that is being added."""
        self.notices.append((self.message, notice))

    def places(self, start: int) -> tuple[list[int], list[int]]:
        """Where each chunk ends, and where its marker goes, when the first begins at `start`."""
        ends: list[int] = []
        splices: list[int] = []
        for data, splice in zip(self.pieces, self.splices, strict=True):
            start += len(data)
            ends.append(start)
            splices.append(-1 if splice is None else start + splice)
        return ends, splices

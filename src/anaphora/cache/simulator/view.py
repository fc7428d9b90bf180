"""What a simulator needs to know of a request, prompts given as token counts, and what is saved of
a conversation so that another process can continue it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
)

import msgspec
from msgspec import Meta

from anaphora.catalog import CacheRules, LookbackUnit
from anaphora.rendered import ChunkRun, Kind, Mark
from anaphora.values import Section, Ttl

from .slot_predictor import SavedTemplate

if TYPE_CHECKING:
    from .prompt import RenderedPrompt

RESULT = Kind.TOOL_RESULT  # access to an enum member is slow, and every turn needs it
MODEL_KINDS = (Kind.TOOL_CALL, Kind.THINKING)
_RUN_KINDS = (Kind.TOOL_CALL, Kind.TOOL_RESULT)

PromptView: TypeAlias = "RenderedPrompt | TokenRuns"
"""A request as the simulator reads it."""

KeyOf: TypeAlias = Callable[[int], Hashable]
"""The key of the cache entry that ends with a block, by the block's position."""


#: Bytes of an entry key that are common to one account under the same parameters.
SALT = 16


def salt_of(key: Hashable) -> Hashable:
    """That part of an entry key."""
    if isinstance(key, bytes):
        return key[:SALT]
    return key[0] if isinstance(key, tuple) else None


class MadeCall(NamedTuple):
    """A call that was made: when, and what is known of its reply."""

    at: float
    readable: float
    """From when what it wrote can be read."""
    lives_from: float
    """From when the lifetime of what it read and wrote counts."""
    since: float
    """When the response began; the request, if that is not known."""
    reasoning: int | None
    """Tokens of hidden reasoning in the reply; None: not known."""


def is_from_model(run: ChunkRun, index: int) -> bool:
    """Whether the model wrote a chunk of a run."""
    if run.section != "messages":
        return False
    log = run.log
    # Some wires send tool calls and reasoning outside of any message.
    if log.kinds[index] in MODEL_KINDS:
        return True
    return log.role_of(index) in ("assistant", "model")


class TokenBlock(msgspec.Struct, frozen=True, eq=False):
    """What a simulator asks of a block; blocks of traces have the same attributes."""

    kind: Kind = Kind.TEXT
    section: Section = "messages"
    from_model: bool = False
    data: bytes = b""


Block = TypeVar("Block")


class PlayedBlocks(Generic[Block]):
    """The blocks of a growing prompt and the keys of the prefixes that they end. The calls of a
    conversation share them: each has the first ones."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.keys: list[int] = []

    def add(self, identity: Hashable, block: Block) -> int:
        """The key of the prefix that ends with the block."""
        key = hash((self.keys[-1] if self.keys else 0, identity))
        self.blocks.append(block)
        self.keys.append(key)
        return key

    def copy(self, count: int) -> PlayedBlocks[Block]:
        """A copy of the first ones."""
        copied: PlayedBlocks[Block] = PlayedBlocks()
        copied.blocks, copied.keys = self.blocks[:count], self.keys[:count]
        return copied


class TokenRuns:
    """The prompt of one call, whose blocks are given by identity and size: for traces, logs of
    counts, and experiments."""

    size = 0

    def __init__(
        self,
        played: PlayedBlocks[Any],
        tokens: Callable[[int], int],
        *,
        leading: int,
        markers: tuple[Mark, ...] = (),
        automatic: Ttl | None = None,
        cache_params: Mapping[str, bytes] = {},
        held: int = 0,
        handle: str = "",
        count: int | None = None,
    ) -> None:
        """The first `count` of the blocks, or all. `tokens` are those up to the end of each one,
        `leading` is the last one before the messages."""
        self._keys = played.keys
        self._blocks: list[TokenBlock] = played.blocks
        self._count = len(played.keys) if count is None else count
        self.tokens_at = tokens
        self.leading = leading
        self.markers = markers
        self.automatic = automatic
        self.cache_params = cache_params
        self.held = held
        self.handle = handle

    @classmethod
    def given(
        cls,
        blocks: Sequence[tuple[Hashable, int]],
        *,
        kinds: Sequence[Kind] | None = None,
        sections: Sequence[Section] | None = None,
        from_model: Sequence[bool] | None = None,
        texts: Sequence[bytes] | None = None,
        **options: Any,
    ) -> Self:
        """`texts` are the bytes of the blocks, if a cache that works on tokens is to find out
        how far two different blocks agree."""
        played: PlayedBlocks[TokenBlock] = PlayedBlocks()
        for index, (identity, _) in enumerate(blocks):
            block = TokenBlock(
                Kind.TEXT if kinds is None else kinds[index],
                "messages" if sections is None else sections[index],
                from_model is not None and from_model[index],
                b"" if texts is None else texts[index],
            )
            played.add(identity, block)
        tokens = list(itertools.accumulate(tokens for _, tokens in blocks))
        lead = itertools.takewhile(lambda block: block.section != "messages", played.blocks)
        return cls(played, tokens.__getitem__, leading=sum(1 for _ in lead) - 1, **options)

    def __len__(self) -> int:
        return self._count

    @property
    def total(self) -> int:
        return self.tokens(self._count - 1)

    def key(self, position: int) -> Hashable:
        return self._keys[position]

    def tokens(self, position: int) -> int:
        return 0 if position < 0 else self.tokens_at(position)

    def kind(self, position: int) -> Kind:
        return self._blocks[position].kind

    def section(self, position: int) -> Section:
        return self._blocks[position].section

    def data(self, position: int) -> bytes:
        return self._blocks[position].data

    def texts(self, begin: int) -> list[bytes]:
        return [self.data(position) for position in range(begin, len(self))]

    def tokens_within(self, position: int, size: int) -> int:
        """The tokens before the byte `size` of a block."""
        before, length = self.tokens(position - 1), len(self.data(position))
        return before + (self.tokens(position) - before) * size // length if length else before

    def from_model(self, position: int) -> bool:
        return self._blocks[position].from_model

    def can_mark(self, position: int) -> bool:
        return self.kind(position) is not Kind.THINKING

    def is_trailing_system(self, _: int) -> bool:
        return False

    def turn_ends(self) -> Iterator[int]:
        """Each block counts as a message."""
        next_kind: Kind | None = None
        for position in range(len(self) - 1, self.leading, -1):
            kind = self.kind(position)
            inside_run = kind is RESULT and next_kind is RESULT
            if not self.from_model(position) and not inside_run:
                yield position
            next_kind = kind


def _run_steps(kinds: Iterable[Kind]) -> Iterator[int]:
    """The steps up to each block; a run of tool calls or results is one step."""
    steps, last = 0, None
    for kind in kinds:
        steps += kind not in _RUN_KINDS or kind is not last
        last = kind
        yield steps


def tool_run_positions(prompt: PromptView, marker: int, reach: int) -> Iterator[int]:
    """The positions from a marker back; a run of tool calls or results counts as one step."""
    positions = range(marker, -1, -1)
    for position, steps in zip(positions, _run_steps(map(prompt.kind, positions)), strict=True):
        if steps > reach:
            return
        yield position


def lookback_steps(kinds: Iterable[Kind], unit: LookbackUnit) -> int:
    """How many steps a look-back takes over these blocks, from the marker back."""
    return max(_run_steps(kinds), default=0) if unit == "tool_runs" else len(list(kinds))


def request_boundaries(rules: CacheRules, prompt: PromptView, marks: tuple[Mark, ...]) -> list[int]:
    """The boundaries of the request itself, deepest first: its first and latest markers, and where
    the provider places breakpoints itself, the ends of earlier turns and of the system prompt."""
    explicit = [marker.chunk for marker in prompt.markers]
    first = rules.lookback_first.value if rules.lookback_first is not None else 0
    latest = rules.lookback_positions.value if rules.lookback_positions is not None else 0
    positions = set(explicit[:first]) | set(explicit[-latest:] if latest else ())
    if prompt.automatic is not None:
        positions |= {marker.chunk for marker in marks}
        earlier = rules.automatic_lookback.value if rules.automatic_lookback is not None else 0
        # The latest turn end is where the provider's own breakpoint is.
        positions |= set(itertools.islice(prompt.turn_ends(), earlier + 1)) | {prompt.leading}
    return sorted(positions - {-1}, reverse=True)


def automatic_position(rules: CacheRules, prompt: PromptView) -> int | None:
    """Where the provider places its own breakpoint."""
    where = rules.automatic_breakpoint.value
    if where == "last_message":
        end = next(prompt.turn_ends(), prompt.leading)
        return end if end >= 0 else None
    if where != "last_block":
        return None
    position = len(prompt) - 1
    while position >= 0 and not prompt.can_mark(position):
        position -= 1
    return position if position >= 0 else None


# ── Saved for another process ─────────────────────────────────────────────────────────────────────

#: Entries, times and units that are saved: the latest.
MOST_SAVED = 64

Position = Annotated[int, Meta(ge=0, lt=1 << 40)]
Time = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Seconds since the epoch; finite."""


class SavedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry that was written at a marker, of this prompt or an earlier one."""

    key: bytes
    ttl: Ttl
    expires: Time
    readable: Time


class SavedCache(msgspec.Struct, frozen=True):
    """Positions count blocks of the prompt that it was saved with."""

    entries: tuple[SavedEntry, ...] = ()
    used: Time = 0.0
    times: tuple[tuple[Position, Time], ...] = ()
    """The last position of earlier calls, and from when it can be read."""
    units: tuple[Position, ...] = ()
    reply_cached: bool | None = None
    """Whether the reply to it is cached as well; None: not saved."""
    slots: Annotated[int, Meta(ge=0, le=1024)] = 0
    keeps_evicted: bool = False
    template: SavedTemplate | None = None

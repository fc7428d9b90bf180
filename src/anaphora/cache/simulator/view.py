"""Requests as a simulator sees them: prompts given as token counts, the keys of cache entries, and
the part of a conversation that is saved so that another process can continue it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
)

import msgspec
from blake3 import blake3
from msgspec import Meta

from anaphora.bounded import BoundedMap
from anaphora.catalog import CacheRules
from anaphora.catalog.cache_rules import LookbackUnit
from anaphora.rendered import Kind, Mark
from anaphora.values import Section, Ttl

from .prompt import RESULT, RenderedPrompt

_RUN_KINDS = (Kind.TOOL_CALL, Kind.TOOL_RESULT)

KeyOf: TypeAlias = Callable[[int], Hashable]
"""The key of the cache entry that ends with a block, by the block's position."""


_SECTIONS: tuple[Section, ...] = ("tools", "system", "messages")
#: Beginnings whose parameters are remembered.
_REMEMBERED = 10_000
#: Bytes of an entry key that are common to one account under the same parameters.
SALT = 16


def salt_of(key: Hashable) -> Hashable:
    """The common part of entry keys."""
    if isinstance(key, bytes):
        return key[:SALT]
    return key[0] if isinstance(key, tuple) else None


class TokenBlock(msgspec.Struct, frozen=True, eq=False):
    """The attributes of a block that a simulator uses; blocks of traces have them as well."""

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


PromptView: TypeAlias = RenderedPrompt | TokenRuns
"""A request as the simulator reads it."""


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
    """The position of the provider's own breakpoint."""
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


class ScopedKeys:
    """Keys of cache entries: the prefix, whose account it is, and the parameters that invalidate
    its section. Equal prefixes under other parameters are other entries."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._params = BoundedMap[Hashable, Mapping[str, bytes]](_REMEMBERED)
        self._last: tuple[Mapping[str, bytes], Hashable, dict[Section, bytes]] | None = None
        """The last parameters and scope, and their salts: mostly the same from call to call."""
        self._common: Mapping[str, bytes] = {}
        """One object for all conversations with the same parameters."""

    def __len__(self) -> int:
        return len(self._params)

    def of(self, prompt: PromptView, scope: Hashable) -> KeyOf:
        last, params = self._last, prompt.cache_params
        # 1 and True are equal, but not the same scope.
        same = last is not None and scope == last[1] and type(scope) is type(last[1])
        if last is not None and same and (params is last[0] or params == last[0]):
            salts = last[2]
        else:
            if params:
                salts = {section: self._salt(params, section, scope) for section in _SECTIONS}
            else:
                salts = _plain_salts(repr(scope))
            self._last = params, scope, salts
        prefix_key, leading, messages = prompt.key, prompt.leading, salts["messages"]

        def key_of(position: int) -> Hashable:
            key = prefix_key(position)
            salt = messages if position > leading else salts[prompt.section(position)]
            # Smaller than a tuple, and hashed faster.
            return salt + key if type(key) is bytes else (salt, key)

        return key_of

    def remember(self, prompt: PromptView, scope: Hashable) -> None:
        """Records the parameters of a call, by how its prompt begins."""
        if len(prompt):
            key, params = (scope, prompt.key(0)), prompt.cache_params
            known = self._params.use(key)
            if known is not params and known != params:
                if self._common != params:
                    self._common = params
                self._params[key] = self._common

    def changed(self, prompt: PromptView, scope: Hashable) -> str:
        """The invalidating parameters that differ from the last call that began like this one."""
        last = self._params.get((scope, prompt.key(0))) if len(prompt) else None
        if last is None:
            return ""
        params = prompt.cache_params
        names = sorted(name for name in {*last, *params} if last.get(name) != params.get(name))
        return ", ".join(name for name in names if self._invalidated(name))

    def _salt(self, params: Mapping[str, bytes], section: Section, scope: Hashable) -> bytes:
        """Scope and the parameters that invalidate the section."""
        parts = [repr(scope).encode(errors="replace")]
        for name, value in sorted(params.items()):
            if section in self._invalidated(name):
                parts.append(b"%s\0%d\0" % (name.encode(), len(value)) + value)
        return blake3(b"".join(parts)).digest(SALT)

    def _invalidated(self, name: str) -> tuple[Section, ...]:
        return self._rules.voided_by(name)  # type: ignore[arg-type]


def _plain_salts(scope: str) -> dict[Section, bytes]:
    """Those of a scope without parameters: one for all sections."""
    salt = blake3(scope.encode(errors="replace")).digest(SALT)
    return dict.fromkeys(_SECTIONS, salt)

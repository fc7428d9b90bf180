"""What a simulator needs to know of a request, and prompts given as token counts."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from anaphora.rendered import Kind, Mark
from anaphora.values import Section, Ttl

KeyOf: TypeAlias = Callable[[int], Hashable]
"""The key of the cache entry that ends with a block, by the block's position."""


class PromptView(ABC):
    """What a simulator needs to know of a request. Positions count blocks from 0."""

    markers: tuple[Mark, ...] = ()
    """In hash order."""
    automatic: Ttl | None = None
    """The provider places one more marker itself."""
    held: int = 0
    """How many leading blocks are stored under `handle`."""
    handle: str = ""
    cache_params: Mapping[str, bytes] = {}
    """The parameters that affect the cache, by the names of the rules."""
    leading: int = -1
    """The last block before the messages; -1 where there is none."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def key(self, position: int) -> Hashable:
        """Identifies the prefix that ends with this block."""

    @abstractmethod
    def tokens(self, position: int) -> int:
        """The tokens of the prefix that ends with this block; 0 for position -1."""

    @abstractmethod
    def kind(self, position: int) -> Kind: ...

    @abstractmethod
    def section(self, position: int) -> Section: ...

    @abstractmethod
    def from_model(self, position: int) -> bool:
        """Whether the model wrote the block."""

    @abstractmethod
    def can_mark(self, position: int) -> bool: ...

    @abstractmethod
    def turn_ends(self) -> Iterator[int]:
        """Where user messages and runs of tool results end, latest first."""

    @property
    def total(self) -> int:
        return self.tokens(len(self) - 1)

    def data(self, position: int) -> bytes:  # noqa: ARG002
        """The block's bytes, where they are known."""
        return b""


class TokenRuns(PromptView):
    """A prompt of blocks given by identity and size, for traces and experiments."""

    def __init__(
        self,
        blocks: Sequence[tuple[Hashable, int]],
        *,
        markers: tuple[Mark, ...] = (),
        automatic: Ttl | None = None,
        kinds: Sequence[Kind] | None = None,
        sections: Sequence[Section] | None = None,
        cache_params: Mapping[str, bytes] | None = None,
        from_model: Sequence[bool] | None = None,
        held: int = 0,
        handle: str = "",
    ) -> None:
        self._keys: list[int] = []
        key = 0
        for identity, _ in blocks:
            key = hash((key, identity))
            self._keys.append(key)
        self._tokens = list(itertools.accumulate(tokens for _, tokens in blocks))
        self._kinds = kinds
        self._sections = sections
        self._from_model = from_model
        self.markers = markers
        self.automatic = automatic
        self.cache_params = cache_params or {}
        self.held = held
        self.handle = handle
        before_messages = itertools.takewhile(
            lambda index: self.section(index) != "messages", range(len(self))
        )
        self.leading = sum(1 for _ in before_messages) - 1

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, position: int) -> Hashable:
        return self._keys[position]

    def tokens(self, position: int) -> int:
        return 0 if position < 0 else self._tokens[position]

    def kind(self, position: int) -> Kind:
        return Kind.TEXT if self._kinds is None else self._kinds[position]

    def section(self, position: int) -> Section:
        return "messages" if self._sections is None else self._sections[position]

    def from_model(self, position: int) -> bool:
        return self._from_model is not None and self._from_model[position]

    def can_mark(self, position: int) -> bool:
        return self.kind(position) is not Kind.THINKING

    def turn_ends(self) -> Iterator[int]:
        """Each block counts as a message."""
        next_kind: Kind | None = None
        for position in range(len(self) - 1, self.leading, -1):
            kind = self.kind(position)
            inside_run = kind is Kind.TOOL_RESULT and next_kind is Kind.TOOL_RESULT
            if not self.from_model(position) and not inside_run:
                yield position
            next_kind = kind

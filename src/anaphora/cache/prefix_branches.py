"""The chunks of remembered calls as a tree, whose branches are conversations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from typing import TypeAlias

from anaphora.rendered.log import KEY

from .compared_prompt import keys_from
from .simulator.prompt import RenderedPrompt, deepest_known

#: Every so many chunks of a branch are found by their keys, and its first one.
_EVERY = 16


class Branch:
    """Consecutive chunks, from their fork off another branch on."""

    __slots__ = ("_first", "_keys", "begin", "end", "forked", "opened", "parent", "uses")

    def __init__(self, parent: Branch | None, begin: int, opened: tuple[int, int]) -> None:
        self.parent = parent
        self.begin = self.end = begin
        self.opened = opened
        """The last position and the number of the call that opened it."""
        self.forked = begin
        """The last position at which another branch begins."""
        self._keys = bytearray()
        """The keys one after the other, which may be those of a log, and"""
        self._first = begin
        """the position that they begin at."""
        self.uses: list[tuple[int, int]] = []
        """Last positions and numbers of calls: the later, the less deep."""

    def key(self, position: int) -> bytes:
        start = KEY * (position - self._first)
        return bytes(self._keys[start : start + KEY]) if position < self.end else b""

    def grow(self, prompt: RenderedPrompt) -> None:
        """Adds the rest of a prompt, which has all of its chunks."""
        last = len(prompt.placed_runs) - 1
        if last >= 0 and prompt.placed_runs[last][1] <= self.begin:
            self._keys, self._first = prompt.chain_of(last), prompt.placed_runs[last][1]
        else:
            kept = self._keys[KEY * (self.begin - self._first) : KEY * (self.end - self._first)]
            self._keys, self._first = kept + keys_from(prompt, self.end), self.begin
        self.end = max(self.end, prompt.count)

    def cut(self, begin: int) -> Branch:
        """A branch of the chunks from there on, which this one loses."""
        aside = Branch(self, begin, self.opened)
        aside._keys, aside._first, aside.end = self._keys, self._first, self.end
        self.end = begin
        return aside

    def found_by(self, begin: int) -> list[bytes]:
        """The keys by which chunks from `begin` on are found."""
        found = range(begin + -(begin + 1) % _EVERY, self.end, _EVERY)
        keys = [self.key(begin)] if begin == self.begin < self.end else []
        if found:
            keys += map(self.key, found)
        return keys

    def use(self, position: int, number: int) -> None:
        while self.uses and self.uses[-1][0] <= position:
            self.uses.pop()
        self.uses.append((position, number))


Place: TypeAlias = tuple[int, "Branch | None"]
"""The deepest known chunk of a prompt, and its branch."""

CallEnd: TypeAlias = tuple[Branch, int, bytes]
"""The branch of a call, how many chunks it has, and the key of the last one."""


class BranchTree:
    """The chunks of calls that may continue each other, by their keys."""

    __slots__ = ("_calls", "_found", "ends", "size")

    def __init__(self, calls: Container[int]) -> None:
        """`calls` are the numbers of the remembered calls."""
        self._calls = calls
        self._found: dict[bytes, Branch] = {}
        """Branches by their first chunks, and by every `_EVERY`th one of a prompt."""
        self.ends: dict[bytes, int] = {}
        """The last call that ends with a chunk."""
        self.size = 0
        """How many chunks."""

    def deepest(self, prompt: RenderedPrompt) -> Place:
        """The deepest chunk that an earlier prompt had."""
        found, key, count = self._found, prompt.key, prompt.count
        steps = deepest_known(
            count // _EVERY, lambda step: key(_EVERY * step + _EVERY - 1) in found
        )
        position = _EVERY * (steps + 1) - 1
        branch = found[key(position)] if steps >= 0 else None
        compared: Branch | None = None
        while position + 1 < count:
            if branch is not None and branch is not compared:
                compared, last = branch, min(count, branch.end) - 1
                if last > position and branch.key(last) == key(last):
                    position = last  # mostly a prompt has all of a branch
                    continue
            following = key(position + 1)
            if branch is None or branch.key(position + 1) != following:
                forked = found.get(following)
                if forked is None:
                    break
                branch = forked
            position += 1
        return position, branch

    def latest(self, branch: Branch | None, position: int) -> tuple[int, int, Branch | None]:
        """The last remembered call that sent the chunks up to a position, else up to the next
        position before it, and the branch of that. 0 if there is none."""
        while branch is not None:
            index = bisect_right(branch.uses, -position, key=lambda use: -use[0])
            for reached, number in branch.uses[max(0, index - 1) :]:
                if number in self._calls:
                    return min(position, reached), number, branch
            position, branch = branch.begin - 1, branch.parent
        return -1, 0, None

    def uses(self, branch: Branch | None, position: int) -> Iterator[tuple[int, int]]:
        """The last calls that sent the chunks up to a position and those before it: positions and
        numbers, the deepest first, each later than the one before."""
        last = 0
        while branch is not None:
            for reached, number in branch.uses:
                if number > last:
                    last = number
                    yield min(position, reached), number
            position, branch = branch.begin - 1, branch.parent

    def insert(self, number: int, prompt: RenderedPrompt, place: Place) -> tuple[int, CallEnd]:
        """Adds the chunks of a call that are new; returns how many there are, and where the call
        ends. Its branch and all before it are in use."""
        position, branch = place
        count = prompt.count
        begin = position + 1
        if branch is not None and begin < branch.end <= count and branch.forked <= begin:
            self._set_aside(branch, begin)
        elif branch is None or begin < min(count, branch.end):
            if branch is not None:
                branch.forked = max(branch.forked, begin)
            branch = Branch(branch, begin, (count - 1, number))
        end = branch.end
        if end < count:
            branch.grow(prompt)
        self._found.update(dict.fromkeys(branch.found_by(end), branch))
        self.size += branch.end - end
        key = prompt.key(count - 1) if count else b""
        if count:
            self.ends[key] = number
        used: Branch | None = branch
        deepest = count - 1
        while used is not None:
            used.use(deepest, number)
            deepest, used = used.begin - 1, used.parent
        return branch.end - end, (branch, count, key)

    def _set_aside(self, branch: Branch, begin: int) -> None:
        """Move the end of a branch to a new branch. So a conversation whose end changes at every
        call stays one branch, and a lookup does not pass through all earlier ends."""
        aside = branch.cut(begin)
        self._found.update(dict.fromkeys(aside.found_by(begin), aside))
        aside.uses = [use for use in branch.uses if use[0] >= begin]
        branch.uses = branch.uses[len(aside.uses) :]
        if aside.uses and (not branch.uses or branch.uses[0][0] < begin - 1):
            branch.uses.insert(0, (begin - 1, aside.uses[-1][1]))
        branch.opened = min(branch.opened[0], begin - 1), branch.opened[1]
        branch.forked = begin

    def forget(self, number: int, end: CallEnd, prompt: Callable[[], RenderedPrompt]) -> int:
        """Drops the chunks that only a forgotten call used; returns how many there were. `prompt`
        makes that of the call, for a branch that was cut since."""
        before = self.size
        branch: Branch | None
        branch, count, key = end
        if self.ends.get(key) == number:
            del self.ends[key]
        if branch.begin >= count or branch.key(count - 1) != key:
            position, branch = self.deepest(prompt())
            if position + 1 < count:
                branch = None
        while branch is not None and self._trim(branch):
            branch = branch.parent
        return before - self.size

    def _trim(self, branch: Branch) -> bool:
        """Drop the chunks that no remembered call uses; returns whether there were any."""
        uses, end = branch.uses, branch.end
        while uses and uses[0][1] not in self._calls:
            del uses[0]
        needed = max(branch.begin, uses[0][0] + 1) if uses else branch.begin
        for key in branch.found_by(needed):
            if self._found.get(key) is branch:
                del self._found[key]
        branch.end = min(end, needed)
        self.size -= end - branch.end
        return end > needed or not uses

"""Finds the earlier call that a prompt continues, and their common prefix.

    index: PrefixIndex[SentCall] = PrefixIndex()
    earlier = index.add(rendered, call, hints=hints_of(headers, body))
    earlier.call, earlier.chunks, earlier.continues

Calls are told apart by the clients' hints, then by the longest common beginning, tools and system
prompt included. Each chunk has a digest of everything up to it, so the longest beginning is found
by galloping back from the end of the prompt, and a call takes time only for its new chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from anaphora.rendered import Rendered

from .compared_prompt import (
    CallHints,
    KnownConversation,
    RecentConversations,
    begins_like,
    block_hashes,
    common_chunks,
    group_salt,
    is_edit,
    message_chunks,
    run_hashes,
    scope_salt,
)
from .kept_texts import KeptTexts
from .prefix_branches import Branch, BranchTree, CallEnd, Place
from .simulator import RenderedPrompt
from .simulator.prompt import UNMARKED

#: What a call takes besides its text, and each of its runs and chunks, which the calls of a
#: conversation share.
_CALL_BYTES, _RUN_BYTES, _CHUNK_BYTES = 3500, 2500, 130

Call = TypeVar("Call")


class EarlierCall(msgspec.Struct, Generic[Call], frozen=True, eq=False, kw_only=True):
    """The earlier call that a prompt is compared with."""

    call: Call
    continues: bool
    """The same conversation. Otherwise a new one that begins like the earlier call: only the common
    beginning can be compared."""
    chunks: int
    """How many leading chunks the two share."""
    latest: Call
    """The last call that sent these chunks: each use keeps a cache entry alive."""


class _Remembered(msgspec.Struct, Generic[Call], eq=False, kw_only=True):
    number: int
    call: Call
    rendered: Rendered
    kept: RenderedPrompt | None
    """The prompt, if others may have replaced the keys in its logs."""
    hints: CallHints
    conversation: KnownConversation
    ends: tuple[tuple[bytes, CallEnd], ...] = ()
    """The salts of its chunks' keys, and where it ends in the tree of each."""
    reply: tuple[Hashable, str] | None
    before: int
    """The call whose messages it continues; 0 if there is none."""
    runs: int
    """How many of its runs count in the memory: none, once a later call continues it."""

    @property
    def prompt(self) -> RenderedPrompt:
        return self.kept or RenderedPrompt(self.rendered, UNMARKED)


class _Lookup(msgspec.Struct, Generic[Call], eq=False):
    prompt: RenderedPrompt
    hints: CallHints
    places: dict[bytes, Place]
    """The deepest known chunk, by the salt of the keys: among calls with the same hints, then in
    the whole scope."""
    continued: _Remembered[Call] | None = None
    earlier: EarlierCall[Call] | None = None


class PrefixIndex(Generic[Call]):
    """Recent calls by their beginnings. A call may be any object of the caller's: it is stored and
    returned. Not for use by several threads at once.

    The least recent calls are forgotten first. Of each conversation the last two calls are kept.
    """

    def __init__(
        self,
        most_calls: int = 4096,
        most_bytes: int = 64 * 1024 * 1024,
        *,
        drop_text: Callable[[Call, Rendered], tuple[Call, Rendered]] | None = None,
        most_memory: int | None = None,
    ) -> None:
        """`most_bytes` limits the texts of all remembered calls. Calls are forgotten then or, if
        there is `drop_text`, lose the text that can be dropped: it returns the call with the prompt
        that it is given, and that prompt. `most_memory` limits what they take besides."""
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._drop_text = drop_text
        self._most_memory = most_memory
        self._texts = KeptTexts()
        self._number = 0
        self._calls: OrderedDict[int, _Remembered[Call]] = OrderedDict()
        self._trees: dict[bytes, BranchTree] = {}
        """The chunks, by the salt that separates scopes and hints."""
        self._chunks = self._runs = 0
        self._replies: dict[tuple[Hashable, str], int] = {}
        self._conversations: dict[bytes, RecentConversations] = {}
        self._last_lookup: tuple[Rendered, Hashable, CallHints, int, _Lookup[Call]] | None = None
        """The last result of `find`: mostly the same prompt is added next."""

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def size(self) -> int:
        """The bytes of the remembered texts."""
        return self._texts.size

    @property
    def memory(self) -> int:
        """The bytes that the remembered calls take besides, about."""
        runs = _RUN_BYTES * self._runs
        return _CALL_BYTES * len(self._calls) + runs + _CHUNK_BYTES * self._chunks

    def calls(self) -> list[Call]:
        """The remembered calls, the least recent first."""
        return [each.call for each in self._calls.values()]

    def find(
        self, rendered: Rendered, *, scope: Hashable = None, hints: CallHints | None = None
    ) -> EarlierCall[Call] | None:
        """The earlier call that this one continues, else one with the same beginning, else None.

        Calls of different scopes are never compared. A scope is the owner of a cache, such as
        account, provider and model; None stands for the prompt's wire and model.
        """
        scope, hints = _scope(rendered, scope), hints or CallHints()
        found = self._look_up(RenderedPrompt(rendered, UNMARKED), scope, hints)
        self._last_lookup = rendered, scope, hints, self._number, found
        return found.earlier

    def last_call(
        self, rendered: Rendered, *, scope: Hashable = None, hints: CallHints | None = None
    ) -> Call | None:
        """The last call of the same scope and hints, whatever its prompt."""
        scope, hints = _scope(rendered, scope), hints or CallHints()
        salt = scope_salt(scope)
        if hints.conversation or hints.user:
            salt = group_salt((scope, hints.conversation, hints.user))
        recent = self._conversations.get(salt)
        return None if not recent else self._calls[recent.latest.tip].call

    def last_uses(
        self, rendered: Rendered, *, scope: Hashable = None, hints: CallHints | None = None
    ) -> list[tuple[Call, int]]:
        """The last calls that sent a prompt's beginnings, in any conversation, and how many chunks
        each shares: the deepest first. Free after `find` with the same prompt."""
        if self._last_lookup is None or self._last_lookup[0] is not rendered:
            self.find(rendered, scope=scope, hints=hints)
        assert self._last_lookup is not None
        salt = scope_salt(_scope(rendered, scope))
        position, branch = self._last_lookup[4].places[salt]
        tree, calls = self._trees.get(salt), self._calls
        uses = () if tree is None else tree.uses(branch, position)
        return [(calls[number].call, at + 1) for at, number in uses if number in calls]

    def add(
        self,
        rendered: Rendered,
        call: Call,
        *,
        scope: Hashable = None,
        hints: CallHints | None = None,
        reply_id: str = "",
        prompt: RenderedPrompt | None = None,
    ) -> EarlierCall[Call] | None:
        """Remember a call; returns the result of `find`. Indexes of one call can share `prompt`."""
        scope, hints = _scope(rendered, scope), hints or CallHints()
        last, self._last_lookup = self._last_lookup, None
        if last is not None and last[0] is rendered and last[1:4] == (scope, hints, self._number):
            found, compared = last[4], last[4].prompt if prompt is None else prompt
        else:
            compared = RenderedPrompt(rendered, UNMARKED) if prompt is None else prompt
            found = self._look_up(compared, scope, hints)
        continued, earlier = found.continued, found.earlier
        self._number += 1
        conversation, before, known = KnownConversation(), 0, compared.leading + 1
        if continued is not None and earlier is not None:
            if earlier.chunks > known and compared.count > len(continued.rendered):
                # This call contains the content of earlier ones, unless it is an edit beside them.
                before = continued.number
                self._forget(continued.before)
            if continued.hints == found.hints:
                conversation, known = continued.conversation, max(known, earlier.chunks)
        blocks = block_hashes(compared, known)
        conversation.tip = self._number
        if prompt is None:
            compared.hashed = None
        new = self._calls[self._number] = _Remembered(
            number=self._number,
            call=call,
            rendered=rendered,
            kept=None if rendered.can_drop_text else compared,
            hints=found.hints,
            conversation=conversation,
            reply=(scope, reply_id) if reply_id else None,
            before=before,
            runs=len(rendered.runs),
        )
        self._runs += new.runs
        if continued is not None:
            self._runs -= continued.runs
            continued.runs = 0
        for salt, place in found.places.items():
            self._conversations.setdefault(salt, RecentConversations()).use(conversation, blocks)
            tree = self._trees.setdefault(salt, BranchTree(self._calls))
            added, end = tree.insert(new.number, compared, place)
            self._chunks += added
            new.ends = (*new.ends, (salt, end))
        if new.reply is not None:
            self._replies[new.reply] = new.number
        self._texts.add(new.number, rendered)
        while len(self._calls) > self._most_calls:
            self._forget(next(iter(self._calls)))
        self.shrink(self._most_bytes, self._most_memory)
        return earlier

    def shrink(self, most_bytes: int, most_memory: int | None = None) -> None:
        """Reduces the texts to so many bytes, and what is remembered besides."""
        while most_memory is not None and self.memory > most_memory and len(self._calls) > 1:
            self._forget(next(iter(self._calls)))
        while (found := self._texts.oldest(most_bytes)) is not None:
            number, leading = found
            old = self._calls[number]
            if self._drop_text is None or not old.rendered.can_drop_text:
                self._forget(number)
                continue
            if number == self._number:
                break  # it may be needed for the verdict
            for run in old.rendered.runs:
                run_hashes(run)
            bare = old.prompt.without_text(leading=leading)
            old.call, old.rendered = self._drop_text(old.call, bare)
            self._texts.drop(number, leading=leading)

    # ── Finding ──────────────────────────────────────────────────────────────────────────────────

    def _look_up(self, prompt: RenderedPrompt, scope: Hashable, hints: CallHints) -> _Lookup[Call]:
        previous = None
        if hints.previous_reply:
            previous = self._calls.get(self._replies.get((scope, hints.previous_reply), 0))
            hints = CallHints(conversation=hints.conversation, user=hints.user)
        places: dict[bytes, Place] = {}
        if hints.conversation or hints.user:
            salt = group_salt((scope, hints.conversation, hints.user))
            places[salt] = self._deepest(prompt, salt)
        salt = scope_salt(scope)
        places[salt] = self._deepest(prompt, salt)
        found = _Lookup(prompt, hints, places, previous or self._continued(prompt, hints, places))
        if found.continued is not None:
            call = found.continued.call
            position, tree = places[salt][0], self._trees.get(salt)
            if tree is not None and tree.ends.get(prompt.key(position)) == found.continued.number:
                chunks = position + 1  # the whole of that call
            else:
                chunks = common_chunks(prompt, found.continued.prompt)
            found.earlier = EarlierCall(call=call, continues=True, chunks=chunks, latest=call)
        else:
            found.earlier = self._same_beginning(prompt, salt, places[salt])
        return found

    def _deepest(self, prompt: RenderedPrompt, salt: bytes) -> Place:
        tree = self._trees.get(salt)
        return (-1, None) if tree is None else tree.deepest(prompt)

    def _continued(
        self, prompt: RenderedPrompt, hints: CallHints, places: dict[bytes, Place]
    ) -> _Remembered[Call] | None:
        """The call before this one in its conversation."""
        for salt, place in places.items():
            found = self._extended(prompt, salt, place) if place[0] > prompt.leading else None
            if found is None or not found.hints.agrees(hints):
                found = self._repeated(prompt, salt, place[0], hints)
            found = found or self._edited(prompt, salt, place, hints)
            if found is not None:
                return found
        return None

    def _extended(
        self, prompt: RenderedPrompt, salt: bytes, place: Place
    ) -> _Remembered[Call] | None:
        """The call whose whole prompt this one begins with, else one that differs at its end."""
        position, branch = place
        whole = self._calls.get(self._trees[salt].ends.get(prompt.key(position), 0))
        if whole is not None:
            return whole
        position, latest, _ = self._latest(salt, branch, position)
        held = 0 if latest is None else message_chunks(latest.prompt)
        shared = position - prompt.leading
        return latest if held < message_chunks(prompt) and held <= 2 * shared else None

    def _repeated(
        self, prompt: RenderedPrompt, salt: bytes, position: int, hints: CallHints
    ) -> _Remembered[Call] | None:
        """The call with tools and system prompt like this one's, most of whose messages this one
        repeats after a difference at `position`."""
        recent = self._conversations.get(salt)
        if recent is None:
            return None
        shared = max(0, position - prompt.leading)
        rest = block_hashes(prompt, prompt.leading + 1 + shared)
        found: list[tuple[int, int, _Remembered[Call]]] = []
        for conversation in recent.with_any(rest):
            tip = self._calls[conversation.tip]
            other = tip.prompt
            known = block_hashes(other, other.leading + 1) | recent.added(conversation)
            other.hashed, common = None, len(rest & known)
            most_common = min(len(rest), max(1, message_chunks(other) - shared))
            if 2 * common >= most_common and tip.hints.agrees(hints):
                found.append((common, tip.number, tip))
        for _, _, tip in sorted(found, key=lambda each: each[:2], reverse=True):
            if begins_like(prompt, tip.prompt):
                return tip
        return None

    def _edited(
        self, prompt: RenderedPrompt, salt: bytes, place: Place, hints: CallHints
    ) -> _Remembered[Call] | None:
        """The last call with the same beginning, if this one edits a long block of it."""
        position, branch = place
        latest = self._latest(salt, branch, position)[1]
        if branch is None and salt in self._conversations:
            latest = self._calls[self._conversations[salt].latest.tip]
        if latest is None or not latest.hints.agrees(hints):
            return None
        return latest if is_edit(prompt, latest.prompt, position + 1) else None

    def _same_beginning(
        self, prompt: RenderedPrompt, salt: bytes, place: Place
    ) -> EarlierCall[Call] | None:
        """The first call that sent the longest common beginning, while it is remembered."""
        position, latest, branch = self._latest(salt, place[1], place[0])
        if latest is None:
            return None
        tree, key = self._trees[salt], prompt.key(position)
        first = self._calls.get(tree.ends.get(key, 0))
        if first is None and branch is not None and branch.opened[0] >= position:
            first = self._calls.get(branch.opened[1])
        return EarlierCall(
            call=latest.call if first is None else first.call,
            continues=False,
            chunks=position + 1,
            latest=latest.call,
        )

    def _latest(
        self, salt: bytes, branch: Branch | None, position: int
    ) -> tuple[int, _Remembered[Call] | None, Branch | None]:
        """The last remembered call that sent the chunks up to a position, else up to the next
        position before it, and the branch of that."""
        if branch is None:
            return -1, None, None
        reached, number, branch = self._trees[salt].latest(branch, position)
        return reached, self._calls.get(number), branch

    def _forget(self, number: int) -> None:
        old = self._calls.pop(number, None)
        if old is None:
            return
        self._texts.drop(number, leading=True)
        self._runs -= old.runs
        if old.reply is not None and self._replies.get(old.reply) == number:
            del self._replies[old.reply]
        for salt, end in old.ends:
            tree, recent = self._trees[salt], self._conversations.get(salt)
            if recent is not None and old.conversation.tip == number:
                recent.drop(old.conversation)
                if not recent:
                    del self._conversations[salt]
            self._chunks -= tree.forget(number, end, lambda: old.prompt)
            if not tree.size:
                del self._trees[salt]


def _scope(rendered: Rendered, scope: Hashable) -> Hashable:
    return (rendered.wire, rendered.model) if scope is None else scope

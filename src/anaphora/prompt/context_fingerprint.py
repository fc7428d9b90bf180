"""ContextFingerprint: what a later render of the same context may reuse.

It compares what was meant (slots and turns). The stricter one, over what goes on the wire, is
`anaphora.cache.WireFingerprint`.
"""

from __future__ import annotations

import msgspec
from blake3 import blake3

from anaphora.values import Conversation, to_json


class ContextFingerprint(msgspec.Struct, frozen=True, eq=False):
    """Both system slots and the turns; the state turn does not count."""

    system_stable: str
    system_knowledge: str
    turns: Conversation

    def extends(self, other: ContextFingerprint) -> bool:
        """Everything of `other` can be reused: equal system slots, and its turns begin ours."""
        return self._same_system(other) and self.turns.extends(other.turns)

    def common_turn_prefix(self, other: ContextFingerprint) -> int:
        """How many leading turns agree. None count when a system slot differs: it stands before
        all of them."""
        return self.turns.common_prefix(other.turns) if self._same_system(other) else 0

    @property
    def digest(self) -> str:
        """BLAKE3 over slots and turns, ids left out. Turns hashed before are not hashed again."""
        slots = blake3(msgspec.json.encode([self.system_stable, self.system_knowledge]))
        slots.update(_turns_digest(self.turns))
        return slots.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextFingerprint):
            return NotImplemented
        return len(self.turns) == len(other.turns) and self.extends(other)

    __hash__ = None  # type: ignore[assignment]

    def _same_system(self, other: ContextFingerprint) -> bool:
        return (
            self.system_stable == other.system_stable
            and self.system_knowledge == other.system_knowledge
        )


#: The name of the same type in the document that describes `RenderedContext`.
PrefixFingerprint = ContextFingerprint


def _turns_digest(turns: Conversation) -> bytes:
    """A running hash lives with the conversation; only a view older than it starts anew."""
    hashed, running = turns.memo.get("turns_digest", (0, None))
    if running is None or hashed > len(turns):
        hashed, running = 0, blake3()
    else:
        running = running.copy()
    for message in turns[hashed:]:
        running.update(to_json((message.role, message.parts)))
    turns.memo["turns_digest"] = (len(turns), running)
    digest: bytes = running.digest()
    return digest

"""Caches without markers: every prompt is kept, and the next one that begins alike reads it."""

from __future__ import annotations

import msgspec

from anaphora.catalog import CacheRules
from anaphora.rendered import Kind
from anaphora.values import TTL_SECONDS

from .account import Salted
from .outcome import Outcome, Reason, Span, spans_of
from .prefixes import MOST, Chain, Match, Prefixes, mark, unit_before
from .prompt import Prompt


class Found(msgspec.Struct, frozen=True):
    """How far an earlier prompt agrees, how much of that can be read, and why not more."""

    match: Match
    reach: int
    """The deepest position that can be read; -1 where none can."""
    reason: Reason
    detail: str = ""


class UnmarkedCache:
    """Prefixes in granules (`granules`), or whole units that were persisted before (`units`)."""

    def __init__(self, rules: CacheRules, most: int | None = None) -> None:
        self._rules = rules
        self._units = rules.automatic_breakpoint.value == "units"
        along = rules.output_cached
        self._output_cached = along is not None and along.value
        # A server of one's own says so: the last token is computed, for its output comes next.
        self._spared = 1 if rules.isolation.value == "server" else 0
        ttl = rules.default_ttl
        ttls = rules.ttls.value
        self._life = TTL_SECONDS[ttl.value if ttl is not None else ttls[0]] if ttls else 0
        self._seen = Prefixes(MOST if most is None else most)

    def __len__(self) -> int:
        return len(self._seen)

    def predict(self, prompt: Prompt, salted: Salted, at: float) -> tuple[Outcome, Found]:
        found = self._find(prompt, salted, at)
        return self._spans(prompt, found), found

    def lose(self, prompt: Prompt, found: Found) -> tuple[Outcome, Found]:
        """The same when what was there is not found; that it was said before, the tree knows."""
        lost = Found(found.match, -1, "lost")
        return self._spans(prompt, lost), lost

    def commit(
        self, prompt: Prompt, salted: Salted, found: Found, at: float, readable: float
    ) -> None:
        chain = self._seen.add(prompt, salted, found.match, at, readable)
        if chain is not None and self._units:
            mark(chain, len(prompt) - 1)
            if 0 <= found.match.position < len(prompt) - 1:
                # A beginning that two prompts share is noticed, and kept from then on.
                mark(chain, found.match.position)
        self._seen.purge(at, 2 * self._life)

    def _find(self, prompt: Prompt, salted: Salted, at: float) -> Found:
        match = self._seen.match(prompt, salted)
        chain, position = match.chain, match.position
        reason: Reason = "new"
        detail = ""
        while chain is not None and position >= 0:
            age = at - chain.used(position)
            if age > self._life:
                reason, detail = "expired", f"{age - self._life:.0f} s ago"
            else:
                readable = chain.readable(position, at)
                if readable >= chain.begin:
                    reach = self._kept(prompt, chain, readable)
                    return Found(match, reach, "not_persisted" if reach < readable else "new")
                reason = "not_readable_yet"
            position, chain = chain.begin - 1, chain.parent
        # What is dead is as good as never seen.
        return Found(Match(-1, None) if reason == "expired" else match, -1, reason, detail)

    def _kept(self, prompt: Prompt, chain: Chain, position: int) -> int:
        """What of a readable prefix the provider kept, the answer behind it included where it is
        cached along."""
        if position == chain.end - 1 and self._output_cached:
            answered = position
            while answered + 1 < len(prompt) and prompt.spoken(answered + 1):
                answered += 1
            # Only inside a tool loop is an answer sent back with the reasoning that led to it, so
            # only there does the next prompt go on where the answer's unit ended.
            loop = prompt.kind(position) is Kind.TOOL_RESULT or (
                answered + 1 < len(prompt) and prompt.kind(answered + 1) is Kind.TOOL_RESULT
            )
            if answered > position and (loop or not self._units):
                return answered
        return unit_before(chain, position) if self._units else position

    def _spans(self, prompt: Prompt, found: Found) -> Outcome:
        total = prompt.total if len(prompt) else 0
        reach = prompt.tokens(found.reach)
        granule = self._rules.granule_tokens.value
        read = min(reach, max(0, total - self._spared)) // granule * granule
        if read < max(1, self._rules.minimum_tokens.value):
            read = 0
        short: Reason = "not_whole_granule" if read else "below_minimum"
        return Outcome(
            spans_of(
                Span(0, read, "read", "found"),
                Span(read, reach, "uncached", short),
                Span(reach, total, "uncached", found.reason, None, found.detail),
            )
        )

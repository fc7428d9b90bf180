"""Taking the turns: render, plan, assemble, fingerprint, and compare with what went before."""

from __future__ import annotations

import msgspec

from anaphora import cache, catalog, tokens
from anaphora.rendered import ChunkLog, Plan, Rendered
from anaphora.wire import anthropic

from .calls import MODEL, calls
from .report import Break, Marker, Report, Turn


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was taken."""

    number: int
    rendered: Rendered
    plan: Plan
    certificate: cache.WireFingerprint
    body_bytes: int

    def readable(self, later: cache.WireFingerprint) -> int:
        """How much of this turn's prompt a later one can read: caches hold what ends at a
        breakpoint, so the last one within their common beginning counts."""
        common = later.common_prefix(self.certificate)
        ends = (self.rendered.offset(mark.chunk + 1) for mark in self.plan.marks)
        return max((end for end in ends if end <= common), default=0)


def play() -> Report:
    """Takes every turn of the story."""
    profile = catalog.profile("anthropic", MODEL)
    rules = catalog.rules("anthropic", MODEL, wire="anthropic")
    sent: list[_Sent] = []
    turns: list[Turn] = []
    meter = _Meter()
    for number, (event, call) in enumerate(calls(), 1):
        rendered = anthropic.render(call, profile, sent[-1].rendered if sent else None)
        plan = cache.plan(rendered, rules)
        this = _Sent(
            number=number,
            rendered=rendered,
            plan=plan,
            certificate=cache.fingerprint(rendered),
            body_bytes=len(anthropic.assemble(rendered, plan).body),
        )
        turns.append(_turn(event, this, sent, meter, profile))
        sent.append(this)
    return Report(
        wire=rendered.wire,
        model=MODEL,
        turns=tuple(turns),
        serialised_bytes=sum(turn.serialised_bytes for turn in turns),
        body_bytes=sum(turn.body_bytes for turn in turns),
        read_price=rules.read_price.value,
        write_prices={ttl: price.value for ttl, price in rules.write_price.items()},
    )


def _turn(
    event: str, this: _Sent, sent: list[_Sent], meter: _Meter, profile: catalog.Profile
) -> Turn:
    rendered, certificate = this.rendered, this.certificate
    extended = next((s for s in reversed(sent) if certificate.extends(s.certificate)), None)
    against = extended or (sent[-1] if sent else None)
    reused = against.readable(certificate) if against else 0
    prompt = rendered.offset(len(rendered))
    envelope = this.body_bytes - prompt
    broken = against is not None and extended is None
    return Turn(
        turn=this.number,
        event=event,
        markers=tuple(_marker(rendered, mark.chunk, mark.ttl) for mark in this.plan.marks),
        body_bytes=this.body_bytes,
        reused_bytes=reused,
        added_bytes=certificate.size - reused,
        volatile_bytes=prompt - certificate.size,
        envelope_bytes=envelope,
        serialised_bytes=meter.new_bytes(rendered) + envelope,
        fingerprint=certificate.hex,
        extends=extended.number if extended else None,
        broken=_break(certificate, against, reused, profile) if broken and against else None,
        notices=tuple(str(notice) for notice in (*rendered.notices, *this.plan.notices)),
    )


def _marker(rendered: Rendered, index: int, ttl: str) -> Marker:
    chunk = rendered.chunk(index)
    return Marker(chunk.message_id or chunk.label, chunk.path, ttl)


def _break(
    certificate: cache.WireFingerprint, against: _Sent, reused: int, profile: catalog.Profile
) -> Break:
    difference = certificate.first_difference(against.certificate)
    assert difference is not None
    lost = against.certificate.size - reused
    estimate = tokens.estimate(lost, profile)
    return Break(
        since_turn=against.number,
        offset=difference.offset,
        label=difference.label,
        path=difference.path,
        before=difference.before,
        after=difference.after,
        rewritten_bytes=lost,
        rewritten_tokens=estimate.tokens,
        tokens_error=estimate.error,
    )


class _Meter:
    """Counts what rendering wrote: a log only grows, so what it held before was not written again.
    The glue between runs is written every time."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[ChunkLog, int]] = {}

    def new_bytes(self, rendered: Rendered) -> int:
        new = 0
        for run in rendered.runs:
            _, written = self._seen.get(id(run.log), (run.log, 0))
            new += len(run.lead) + run.log.size - written
            # Held here, so that its id keeps meaning this log.
            self._seen[id(run.log)] = (run.log, run.log.size)
        return new

"""A whole answer in a notebook: what was said, what became of the cache, how often it was sent."""

from __future__ import annotations

from anaphora.cache.verdict.html import verdict_html
from anaphora.values.html import box, faint, notices_html, reply_html

from .response import Response

__all__ = ["answered_html", "reply_html", "verdict_html"]


def answered_html(answered: Response) -> str:
    record = answered.record
    told = [record.provider, f"{record.seconds:.2f} s"]
    if len(record.attempts) > 1:
        told.append(f"{len(record.attempts)} attempts")
    if record.cost_usd is not None:
        told.append(f"${record.cost_usd.normalize():f}")
    remarks = [notice for notice in record.notices if notice not in answered.reply.notices]
    verdict = "" if record.verdict is None else verdict_html(record.verdict)
    shown = reply_html(answered.reply) + verdict
    return box(shown, faint(" · ".join(told)), notices_html(remarks))

"""Where two prompts part ways. What they share in memory is not looked at."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

from anaphora.cache.prefix import common_bytes, shared_chunks
from anaphora.rendered import ChunkLog, ChunkRun, Kind, Rendered

from .values import Sent

#: Enough to recognise a place by.
_BEFORE, _AFTER = 16, 40


def extent(sent: Sent) -> int:
    """How many leading chunks the cache can have kept of a call: up to its last marker, and all
    that may be reused where the provider ends prefixes by itself, or where nothing is marked."""
    plan, rendered = sent.marks, sent.rendered
    if plan.automatic is not None or not plan.marks:
        return rendered.cacheable
    return min(rendered.cacheable, max(mark.chunk for mark in plan.marks) + 1)


def parting(earlier: Rendered, later: Rendered, chunks: int) -> int | None:
    """The first byte in which the later prompt differs from so many chunks of the earlier one; None
    when it begins with all of them."""
    if shared_chunks(later, earlier) >= chunks:
        return None
    size = earlier.offset(chunks)
    offset = common_bytes(later.data(), earlier.data(chunks))
    return None if offset >= size else offset


def begins_with(later: Rendered, earlier: Rendered) -> bool:
    """Whether the later prompt shares in memory all that may be reused of the earlier one. Quick,
    and no proof of the contrary: bytes may be the same all the same."""
    return shared_chunks(later, earlier) >= earlier.cacheable


def excerpt(rendered: Rendered, offset: int) -> str:
    """A few characters around a byte, in the chunk that holds it."""
    if offset >= rendered.size:
        return ""
    chunk = rendered.at_offset(offset)
    at = offset - rendered.offset(chunk)
    data = rendered.chunk(chunk).data
    begin = max(0, at - _BEFORE)
    while 0 < begin < at and data[begin] & 0xC0 == 0x80:
        begin += 1  # not in the middle of a character
    return shown(data, begin, at + _AFTER)


_SECRETS = re.compile(
    rb"(?i)\b(?:sk|pk|rk|xai|gsk|ghp|gho|glpat|hf|AIza|AKIA|xox[abp])[-_]?[A-Za-z0-9_\-]{12,}"
    rb"|\b(?:bearer|basic)\s+[^\s\"\\]{8,}"
    rb"|\beyJ[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]+)*"
    rb"|(?:api[-_ ]?key|authorization|password|secret|token)[\"'\\]*\s*[:=]\s*[\"'\\]*"
    rb"(?:bearer\s+|basic\s+)?[^\s\"'\\,}]{6,}"
)

#: No key is longer.
_LONGEST = 4096


def shown(data: bytes, begin: int, end: int) -> str:
    """Some of a text, without what looks like a key: a prompt may hold one, and an excerpt is for
    everybody. A key is known by how it begins, so one that begins before the excerpt counts."""
    pieces, done = [], begin
    first = max(0, begin - _LONGEST)
    for found in _SECRETS.finditer(data, first, min(len(data), end + _LONGEST)):
        if found.end() > done and found.start() < end:
            pieces += [data[done : max(done, found.start())], b"[redacted]"]
            done = found.end()
    return b"".join([*pieces, data[done:end]]).decode(errors="ignore")


# ── Images ───────────────────────────────────────────────────────────────────────────────────────

_IMAGE = re.compile(
    rb'"type"\s*:\s*"(?:image|image_url|input_image)"|"(?:images)"\s*:\s*\[\s*"'
    rb'|"mime_?[tT]ype"\s*:\s*"image/'
)

#: Of each log: how many of its chunks were looked at, and which first shows an image.
_images: WeakKeyDictionary[ChunkLog, tuple[int, int | None]] = WeakKeyDictionary()


def shows_image(rendered: Rendered) -> bool:
    """Whether any message holds an image. Every chunk is looked at once, by whoever asks first."""
    return any(_first_image(run) for run in rendered.runs if run.section == "messages")


def _first_image(run: ChunkRun) -> bool:
    seen, found = _images.get(run.log, (0, None))
    if found is None and seen < run.count:
        log = run.log
        for at in range(seen, run.count):
            if log.kinds[at] is Kind.IMAGE or _IMAGE.search(log.slice(log.start(at), log.ends[at])):
                found = at
                break
        _images[log] = (run.count, found)
    return found is not None and found < run.count

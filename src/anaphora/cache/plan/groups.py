"""Prompts that will be sent together, grouped by the beginnings that they share.

    groups = group_prompts(prompts, rules)     of one model, in the order of the prompts
    groups[3]                                  the longest beginning that prompt 3 shares
    group.parent                               the beginning that the group shares with others

A beginning is a group if it is long enough to be cached, can end with a marker if the provider
needs one, and at least two prompts have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
from blake3 import blake3

from anaphora.cache.prefix_difference import common_length
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Ttl

from .marking import falling_ttls, hash_order, markable_chunk

#: A longer beginning is a group of its own if it adds at least this many tokens: a group costs a
#: wait.
_LEAST_GAIN = 256

_Beginning: TypeAlias = tuple[int, bytes]
"""The chunks, and the digest of everything that a cache depends on."""


class PrefixGroup(msgspec.Struct, eq=False, kw_only=True):
    """Prompts with the same beginning."""

    chunks: int
    """The chunks of the beginning. If a cache works on tokens, it may end inside the next."""
    tokens: int
    parent: PrefixGroup | None = None
    members: list[int] = []
    """The prompts with this beginning, those of smaller groups in it included."""
    children: list[PrefixGroup] = []
    key: bytes = b""
    """Differs between groups: at providers that route by a key, each group has its own."""

    def line(self) -> tuple[PrefixGroup, ...]:
        """The groups that it is part of, the largest first, and itself."""
        above = () if self.parent is None else self.parent.line()
        return (*above, self)


def group_prompts(prompts: Sequence[Rendered], rules: CacheRules) -> list[PrefixGroup | None]:
    """The smallest group of each prompt; None if it shares nothing that can be cached."""
    paths = [list(_beginnings(prompt, rules)) for prompt in prompts]
    shared = Counter(beginning for path in paths for beginning in path)
    found: dict[_Beginning, PrefixGroup] = {}
    groups: list[PrefixGroup | None] = []
    marks = rules.slots.value > 0
    for index, (prompt, path) in enumerate(zip(prompts, paths, strict=True)):
        group = None
        counts = Counts(prompt)
        for beginning in _ends(path, shared):
            known = found.get(beginning)
            if known is None:
                known = _group(prompt, counts, beginning, group, rules, marks=marks)
                if known is None:
                    continue
                found[beginning] = known
                if group is not None:
                    group.children.append(known)
            known.members.append(index)
            group = known
        groups.append(group)
    if rules.caches_tokens and not marks:
        _group_inside_chunks(prompts, groups, rules)
    _split_by_key(groups, rules)
    return groups


def beginning_key(prompt: Rendered, chunks: int, rules: CacheRules) -> bytes:
    """Identifies the first chunks of a prompt, with everything else that a cache depends on."""
    return _settings(prompt, rules) + prompt.digest(chunks)


def _beginnings(prompt: Rendered, rules: CacheRules) -> Iterator[_Beginning]:
    """Each beginning of a prompt. Parameters that a cache depends on are part of all of them."""
    settings = _settings(prompt, rules)
    for chunk in range(1, prompt.cacheable + 1):
        yield chunk, settings + prompt.digest(chunk)


def _ends(path: list[_Beginning], shared: Counter[_Beginning]) -> Iterator[_Beginning]:
    """The beginnings after which prompts differ, the shortest first."""
    for index, beginning in enumerate(path):
        count = shared[beginning]
        if count < 2:
            return
        if index + 1 == len(path) or shared[path[index + 1]] < count:
            yield beginning


def _group(
    prompt: Rendered,
    counts: Counts,
    beginning: _Beginning,
    parent: PrefixGroup | None,
    rules: CacheRules,
    *,
    marks: bool,
) -> PrefixGroup | None:
    chunks: int | None = beginning[0]
    if marks:
        chunk = markable_chunk(prompt, beginning[0] - 1) if prompt.markers else None
        chunks = None if chunk is None else chunk + 1
    if chunks is None:
        return None
    tokens = counts.tokens(chunks)
    if not rules.minimum_tokens.value <= tokens <= rules.longest_prefix:
        return None
    if parent is not None and tokens - parent.tokens < _LEAST_GAIN:
        return None
    return PrefixGroup(chunks=chunks, tokens=tokens, parent=parent, key=beginning[1])


def _settings(prompt: Rendered, rules: CacheRules) -> bytes:
    params = [
        name.encode() + b"=" + value
        for name, value in prompt.envelope.cache_params
        if name == "model" or rules.voided_by(name)  # type: ignore[arg-type]
    ]
    return b"\0".join(sorted(params))


def _group_inside_chunks(
    prompts: Sequence[Rendered], groups: list[PrefixGroup | None], rules: CacheRules
) -> None:
    """If a cache works on tokens, prompts also share the beginning of a block: a long text with
    another question at its end."""
    for members, tokens in list(shared_inside_chunks(prompts, groups, rules)):
        parent = groups[members[0]]
        new = PrefixGroup(
            chunks=0 if parent is None else parent.chunks,
            tokens=tokens,
            parent=parent,
            members=members,
            key=_settings(prompts[members[0]], rules) + b"%d" % members[0],
        )
        if parent is not None:
            parent.children.append(new)
        for member in members:
            groups[member] = new


def shared_inside_chunks(
    prompts: Sequence[Rendered], groups: Sequence[PrefixGroup | None], rules: CacheRules
) -> Iterator[tuple[list[int], int]]:
    """Prompts whose next block after the group's beginning also begins the same, and the tokens up
    to the difference."""
    alone: dict[tuple[bytes, int, int], list[tuple[bytes, int]]] = {}
    for index, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        chunks = 0 if group is None else group.chunks
        if chunks < prompt.cacheable:
            place = _settings(prompt, rules), id(group), chunks
            alone.setdefault(place, []).append((prompt.chunk(chunks).data, index))
    for (_, _, chunks), rest in alone.items():
        rest.sort()
        members: list[int] = []
        for (data, index), following in zip(rest, [*rest[1:], None], strict=True):
            members.append(index)
            if following is not None:
                common = common_length(data, following[0])
                if _inside(prompts[index], groups[index], common, rules) is not None:
                    continue
            if len(members) > 1:
                first, last = (
                    prompts[each].chunk(chunks).data for each in members[:: len(members) - 1]
                )
                common = common_length(first, last)
                tokens = _inside(prompts[members[0]], groups[members[0]], common, rules)
                if tokens is not None:
                    yield members, tokens
            members = []


def _inside(
    prompt: Rendered, group: PrefixGroup | None, common: int, rules: CacheRules
) -> int | None:
    """The tokens that are cached of a beginning which ends inside a block."""
    chunks, before = (0, 0) if group is None else (group.chunks, group.tokens)
    tokens = rules.whole_granules(Counts(prompt).before(prompt.offset(chunks) + common))
    return tokens if tokens - before >= _LEAST_GAIN else None


def _split_by_key(groups: list[PrefixGroup | None], rules: CacheRules) -> None:
    """A provider that routes by a key sends a limited number of calls per minute to the host with
    the entry: further calls are groups of their own, with another key."""
    limit = rules.key_requests
    if limit is None or not limit.value:
        return
    roots = {id(root): root for group in groups if group is not None for root in group.line()[:1]}
    for root in roots.values():
        if len(root.members) <= limit.value:
            continue
        kept = set(root.members[: limit.value])
        for start in range(limit.value, len(root.members), limit.value):
            part = PrefixGroup(
                chunks=root.chunks,
                tokens=root.tokens,
                members=root.members[start : start + limit.value],
                key=root.key + b"-%d" % (start // limit.value),
            )
            for member in part.members:
                groups[member] = part
        for group in _subtree(root):
            group.members = [member for member in group.members if member in kept]


def _subtree(group: PrefixGroup) -> Iterator[PrefixGroup]:
    yield group
    for child in group.children:
        yield from _subtree(child)


def warming_pays(group: PrefixGroup, rules: CacheRules, ttl: Ttl | None, *, extra: int = 0) -> bool:
    """Whether it costs less to write the beginning once and read it afterwards than to send all
    prompts of the group at once. `extra` are additional calls that read it: a pre-warm."""
    read, write = rules.read_price.value, 1.0
    if ttl is not None:
        write = rules.writing(ttl)
    missed = 0.0 if rules.missed is None else rules.missed.value
    new = group.tokens - (0 if group.parent is None else group.parent.tokens)
    later = len(group.members) - 1 + extra
    warmed = new * (write + later * ((1 - missed) * read + missed * write))
    return warmed < new * len(group.members)


def shared_plan(
    rendered: Rendered, planned: Plan, group: PrefixGroup, rules: CacheRules, ttl: Ttl | None
) -> Plan:
    """The plan of a prompt in a group: a marker at the end of each shared beginning, and those that
    the prompt itself requests. Nothing else is written: no other call would read it."""
    if ttl is None:
        if rendered.key_place is None:
            return planned
        key = blake3(group.line()[0].key).hexdigest(length=16)
        return msgspec.structs.replace(planned, key=key)
    own = {mark.chunk: mark for mark in planned.marks}
    slots = rules.slots.value
    if planned.automatic is not None:
        slots -= rules.automatic_slots.value
    # The longest beginnings first: a shorter one is read as part of them.
    for each in reversed(group.line()):
        if each.chunks - 1 not in own and len(own) < slots:
            own[each.chunks - 1] = Mark(each.chunks - 1, ttl)
    marks = sorted(own.values(), key=hash_order)
    if rules.longer_ttl_first.value:
        marks = falling_ttls(rendered, marks, set(), [])
    return msgspec.structs.replace(planned, marks=tuple(marks))


def group_ttl(rendered: Rendered, rules: CacheRules, seconds: float) -> Ttl | None:
    """The shortest lifetime of a marker that outlives so many seconds without a call, or else the
    longest; None if no marker is set."""
    if not rules.slots.value or not rendered.markers:
        return None
    ttls = sorted(rendered.markers, key=TTL_SECONDS.__getitem__)
    return next((ttl for ttl in ttls if TTL_SECONDS[ttl] > seconds), ttls[-1])

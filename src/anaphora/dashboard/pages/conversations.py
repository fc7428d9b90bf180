"""The list of conversations, newest first, and the page of one: a bar per turn, the markers, and
every break down to the text that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import htpy

from anaphora.audit.envelope import AuditEnvelope
from anaphora.cache.verdict.advice import cause_name, what_to_do
from anaphora.dashboard.charts import prediction, turn_bars
from anaphora.dashboard.figures import (
    NOTHING,
    call_cost,
    count,
    local_time,
    lost,
    lost_usd,
    name,
    percent,
    plain_name,
    reported,
    seconds,
    short_id,
    spent,
    unless_zero,
)
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.plot import bar
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import (
    Heading,
    anchor,
    card,
    conversation_url,
    empty,
    facts,
    more,
    numbers,
    result_tag,
    share_cell,
    table,
    tag,
    unpriced_note,
)
from anaphora.dashboard.values import ConversationRow, ShownCall, ShownConversation
from anaphora.wording import counted

from .overview import headline, no_calls

_MOST_ROWS = 100


class ConversationsPage:
    def __init__(self, source: PastCalls, *, start: htpy.Node = None) -> None:
        """`start` says how to send a first call."""
        self._source = source
        self._start = start

    def content(self, request: PageRequest, site: Site) -> PageContent:
        request.refuse_below()
        rows = self._source.conversations(request.view, _MOST_ROWS)
        shown: htpy.Node = no_calls(site, request.view, self._start, request.path)
        if rows:
            shown = _conversations(rows, site)
        main = [
            htpy.div(".title")[htpy.h1["Conversations"]],
            htpy.div("#conversations")[shown],
        ]
        return PageContent(title="Conversations", main=main, live=("conversations",))


def _conversations(rows: Sequence[ConversationRow], site: Site) -> htpy.Element:
    apps = any(row.app for row in rows)
    headings = [Heading("Conversation"), Heading("Last call")]
    headings += [Heading("App")] * apps + [Heading("Model")]
    headings += numbers("Calls", "Input", "Read", "Spent", "Breaks", "Lost", "Errors")
    cells = [_cells(row, site, apps) for row in rows]
    about = f"The newest {_MOST_ROWS}." if len(rows) >= _MOST_ROWS else None
    return card(
        "Conversations",
        table("Conversations", headings, cells),
        unpriced_note(row.sums for row in rows),
        about=about,
    )


def _cells(row: ConversationRow, site: Site, apps: bool) -> list[htpy.Node]:
    sums = row.sums
    cells: list[htpy.Node] = [
        [
            htpy.a(href=conversation_url(site, row.id))[short_id(row.id, 16)],
            row.side_call and [" ", tag("side call")],
        ],
        local_time(row.ended),
    ]
    if apps:
        cells.append(name(row.app))
    return [
        *cells,
        [name(row.model), htpy.div(".dim")[name(row.provider)]],
        count(sums.calls),
        count(sums.input),
        share_cell(sums.read_share),
        spent(sums),
        unless_zero(sums.breaks),
        lost_usd(sums) if sums.lost else NOTHING,
        unless_zero(sums.failed),
    ]


# ── One conversation ─────────────────────────────────────────────────────────────────────────────

#: Breaks shown in full, the newest; the table has all of them.
_MOST_BREAKS = 50
_MOST_BLOCKS = 60
_MOST_TURNS = 100
#: Characters of an excerpt.
_MOST_TEXT = 4_000
NO_TEXT = "an audit log holds no text"


class ConversationSource(Protocol):
    """What a page of one conversation needs of a `PastCalls`."""

    def conversation(self, id: str) -> ShownConversation | None: ...


class ConversationPage:
    def __init__(self, source: ConversationSource, *, no_text: str = NO_TEXT) -> None:
        """`no_text` says why excerpts are missing, if they are."""
        self._source = source
        self._no_text = no_text

    def content(self, request: PageRequest, site: Site) -> PageContent:
        id = request.path.partition("/")[2]
        shown = self._source.conversation(id) if id else None
        if shown is None:
            return _missing(id, site)
        title = f"Conversation {plain_name(shown.row.id, 16)}"
        main = [
            htpy.p[htpy.a(href=site.url("conversations"))["All conversations"]],
            htpy.h1["Conversation ", short_id(shown.row.id, 24)],
            htpy.div("#conversation")[
                conversation(shown, self._no_text, everything=request.query.get("turns") == "all")
            ],
        ]
        return PageContent(title=title, main=main, live=("conversation",), filters=False)


def conversation(
    shown: ShownConversation, no_text: str = NO_TEXT, *, everything: bool = True
) -> htpy.Node:
    """The whole conversation, also in reports; without `everything` the newest turns."""
    row, calls = shown.row, shown.calls
    return [
        htpy.p(".dim")[
            [row.app and [name(row.app), " · "]],
            name(row.model),
            [row.provider and [" · ", name(row.provider)]],
            " · ",
            local_time(row.began),
            " to ",
            local_time(row.ended),
            row.side_call and [" ", tag("side call")],
        ],
        headline(row.sums),
        shown.left_out > 0
        and htpy.p(".notice")[f"{counted(shown.left_out, 'earlier call')} are not shown here."],
        turn_bars(calls),
        _breaks(calls, no_text),
        _prompt(calls),
        _turns(calls, None if everything else _MOST_TURNS),
    ]


def _missing(id: str, site: Site) -> PageContent:
    main = [
        htpy.div(".title")[htpy.h1["Conversation not found"]],
        empty(
            "There is no such conversation here",
            ["It may be older than the calls that are kept: ", short_id(id, 40)],
            htpy.a(".button", href=site.url("conversations"))["All conversations"],
        ),
    ]
    return PageContent(title="Conversation not found", main=main, status=404, filters=False)


def _breaks(calls: Sequence[ShownCall], no_text: str) -> htpy.Element:
    broke = [shown for shown in calls if _is_break(shown)]
    if not broke:
        return card(
            "Breaks and other losses", htpy.p(".dim")["No cached tokens were billed again."]
        )
    left = len(broke) - _MOST_BREAKS
    return card(
        "Breaks and other losses",
        [_break(shown, no_text) for shown in broke[-_MOST_BREAKS:]],
        left > 0 and htpy.p(".dim")[f"{counted(left, 'earlier one')} in the table of turns"],
    )


def _break(shown: ShownCall, no_text: str) -> htpy.Element:
    """Where a prefix broke, why, the cost, and both texts if they may be shown."""
    call = shown.call
    cause = call.change or call.cause or "unknown"
    pairs: list[tuple[str, htpy.Node]] = [("Cause", name(cause_name(cause)))]
    if call.changed:
        pairs.append(("Block", name(call.changed)))
    if shown.field:
        pairs.append(("Field", htpy.code[name(shown.field, 200)]))
    if shown.position is not None:
        pairs.append(("Position", f"character {count(shown.position)} of that field"))
    pairs.append(("Billed again", lost(call.lost, call.lost_nano_usd)))
    if advice := what_to_do(cause) or what_to_do(call.cause or ""):
        pairs.append(("What to do", advice))
    return htpy.article(
        ".card.break",
        id=f"break-{shown.id}",
        tabindex="-1",
        aria_label=f"Break in turn {call.turn}",
    )[
        htpy.h3[
            htpy.a(href=f"#{anchor(shown)}")[f"Turn {count(call.turn)}"],
            " ",
            result_tag(call),
            " ",
            htpy.span(".dim")[local_time(call.at, "second")],
        ],
        shown.sentence and htpy.p[name(shown.sentence, 2_000)],
        facts(pairs),
        _excerpts(shown, no_text) if call.changed or shown.excerpts or shown.field else None,
    ]


def _excerpts(shown: ShownCall, no_text: str) -> htpy.Element:
    if shown.excerpts is None:
        return htpy.p(".dim")[f"The text is not shown here: {no_text}."]
    before, after = (text[:_MOST_TEXT] for text in shown.excerpts)
    start, end = _common(before, after)
    pieces = (("Before", before, htpy.del_), ("After", after, htpy.ins))
    return htpy.dl(".excerpts")[
        [
            htpy.div[
                htpy.dt[title],
                htpy.dd[
                    htpy.bdi(".excerpt")[
                        text[:start],
                        mark[text[start : len(text) - end]] if start + end < len(text) else None,
                        text[len(text) - end :] if end else None,
                    ]
                ],
            ]
            for title, text, mark in pieces
        ]
    ]


def _common(before: str, after: str) -> tuple[int, int]:
    """How many characters two texts share at their beginning and at their end."""
    most = min(len(before), len(after))
    start = next((at for at in range(most) if before[at] != after[at]), most)
    end = 0
    while end < most - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end


def _prompt(calls: Sequence[ShownCall]) -> htpy.Element | None:
    """The blocks of the latest prompt in their order, and the markers between them."""
    call = next((shown.call for shown in reversed(calls) if shown.call.blocks), None)
    if call is None:
        return None
    total = sum(max(block.tokens, 0) for block in call.blocks)
    headings = [
        Heading("Block"),
        Heading("Kind"),
        *numbers("Tokens"),
        Heading("Share of the prompt"),
    ]
    headings.append(Heading("Cache marker at its end"))
    rows: list[Sequence[htpy.Node]] = [
        [
            name(block.label),
            name(block.kind),
            count(block.tokens),
            htpy.div[
                bar([("calls", block.tokens)], whole=total),
                percent(block.tokens / total if total else None),
            ],
            tag(f"marker, {block.ttl or 'default TTL'}", "good") if block.marker else NOTHING,
        ]
        for block in call.blocks[:_MOST_BLOCKS]
    ]
    left = len(call.blocks) - _MOST_BLOCKS
    automatic = (
        call.automatic
        and htpy.p(".dim")[f"An automatic breakpoint was also requested (TTL {call.automatic})."]
    )
    return card(
        f"Prompt of turn {count(call.turn)}",
        table("Blocks of the latest prompt", headings, rows),
        more(left, "block"),
        automatic,
        about="In the order in which the provider hashes them. Tokens are estimates.",
    )


def _turns(calls: Sequence[ShownCall], most: int | None) -> htpy.Element:
    headings = [Heading("Turn"), Heading("Time")]
    headings += numbers(
        "Read", "Predicted", "Written", "Fresh", "Output", "Cost", "Markers", "Took"
    )
    headings.append(Heading("Result"))
    listed = calls if most is None else calls[-most:]
    ids = [anchor(shown) for shown in listed]
    rows = [_turn(shown) for shown in listed]
    earlier = htpy.p(".actions")[
        f"The newest {counted(len(listed), 'turn')} of {count(len(calls))}.",
        htpy.a(".button", href="?turns=all")["Show all turns"],
    ]
    return card(
        "Turns",
        table("Turns", headings, rows, ids=ids),
        earlier if len(listed) < len(calls) else None,
    )


def _turn(shown: ShownCall) -> list[htpy.Node]:
    call, usage = shown.call, shown.call.usage
    predicted = prediction(shown)
    return [
        f"Turn\N{NO-BREAK SPACE}{count(call.turn)}",
        local_time(call.at, "second"),
        reported(usage.read),
        reported(None if predicted is None else predicted.read),
        reported(usage.written_total if usage.written is not None else None),
        reported(usage.uncached),
        reported(usage.output),
        call_cost(call),
        _markers(call),
        seconds(call.seconds) if call.seconds else NOTHING,
        htpy.div(".result")[
            htpy.div[result_tag(call)],
            _verdict(shown),
        ],
    ]


def _verdict(shown: ShownCall) -> htpy.Node:
    if _is_break(shown):
        return htpy.div[htpy.a(href=f"#break-{shown.id}")["Show the break"]]
    return shown.sentence and htpy.div[name(shown.sentence, 400)]


def _is_break(shown: ShownCall) -> bool:
    return shown.call.broke or shown.call.lost > 0


def _markers(call: AuditEnvelope) -> str:
    marked = sum(block.marker for block in call.blocks)
    return (count(marked) if marked else NOTHING) + (" + automatic" if call.automatic else "")

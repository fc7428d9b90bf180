"""The dashboard's data of apps, from grants, ledger and tokens; of providers, from connection state
and the audit log; and of conversations, with the text around their breaks if the operator has
enabled that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from anaphora.client.pool import ProviderPool
from anaphora.daemon.access.grants import AppGrant
from anaphora.daemon.access.identity import ADMIN, Directory
from anaphora.daemon.calls.behind import MOST_TEXTS, CallTexts
from anaphora.daemon.store import EntryQuery, Spent, TokenRow
from anaphora.daemon.store.interface import Store
from anaphora.dashboard.pages.conversations import ConversationPage
from anaphora.dashboard.past_calls.source import LogCalls, PastCalls
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.values import (
    AppRow,
    BudgetRow,
    CorrectionOfCall,
    ProviderRow,
    ShownCall,
    ShownConversation,
    TokenState,
    View,
)

#: Maximum seconds that a page waits for the event loop.
_LOOP_TIMEOUT = 30.0
#: Maximum number of corrections on an app's page; the command lists all.
_MOST_CORRECTIONS = 20


class AppRecords:
    """Rows of apps. Called from threads other than the event loop's."""

    def __init__(
        self,
        directory: Directory,
        store: Store,
        source: LogCalls,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        hides_reads: Callable[[str], bool],
    ) -> None:
        """`hides_reads` tells whether cache reads of other apps are hidden from an app."""
        self._hides_reads = hides_reads
        self._directory = directory
        self._store = store
        self._source = source
        self._loop = loop
        self._clock = clock

    def all(self, view: View) -> list[AppRow]:
        """Apps with a grant or a token that match the view's filter."""
        denied = self._source.denied(view)
        return [replace(row, denied=denied.get(row.id, {})) for row in self.spent(view.app)]

    def one(self, app: str, view: View) -> AppRow | None:
        denied = self._source.denied(replace(view, app=app))
        rows = self.spent(app)
        if not rows:
            return None
        of_app = asyncio.run_coroutine_threadsafe(self._of_app(app), self._loop)
        corrections, narrowed = of_app.result(_LOOP_TIMEOUT)
        return replace(
            rows[0], denied=denied.get(app, {}), corrections=corrections, narrowed=narrowed
        )

    async def _of_app(self, app: str) -> tuple[list[CorrectionOfCall], list[BudgetRow]]:
        return await self._corrections(app), await self._budgets(app)

    async def _budgets(self, app: str) -> list[BudgetRow]:
        return [
            BudgetRow(
                token=token_state(one.token),
                label=one.token.label,
                limit_nano_usd=one.token.nano_usd or 0,
                spent_nano_usd=one.spent,
                held_nano_usd=one.held,
            )
            for one in await self._store.budgets(app, since=self._clock())
            if one.token.revoked is None
        ]

    async def _corrections(self, app: str) -> list[CorrectionOfCall]:
        query = EntryQuery(app=app, corrections=True, limit=_MOST_CORRECTIONS)
        return [
            CorrectionOfCall(
                entry=one.corrects,
                request_id=one.request_id,
                day=one.day,
                at=one.settled_at,
                added_nano_usd=one.billed,
                reason=one.reason,
            )
            for one in await self._store.entries(query)
        ]

    def own(self, app: str, view: View) -> AppRow | None:
        """The row as the app may see it. Its spend is computed without reads of other apps' cache
        writes, and differs from what it is charged."""
        row = self.one(app, view)
        if row is None:
            return None
        source, now = self._source.for_app(app), self._clock()
        today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        day, month = (
            source.overview(View(since=since.timestamp(), until=now, app=app)).total.cost_nano_usd
            for since in (today, today.replace(day=1))
        )
        narrowed = row.narrowed
        if narrowed and self._hides_reads(app):
            narrowed = [replace(one, spent_nano_usd=None) for one in narrowed]
        return replace(row, today_nano_usd=day, month_nano_usd=month, narrowed=narrowed)

    def spent(self, app: str | None = None) -> list[AppRow]:
        """Spend of all apps or one, without refused calls."""
        return asyncio.run_coroutine_threadsafe(self._rows(app), self._loop).result(_LOOP_TIMEOUT)

    async def _rows(self, wanted: str | None) -> list[AppRow]:
        grants, tokens = self._directory.grants.apps, dict[str, list[TokenRow]]()
        for row in self._directory.tokens():
            if row.app != ADMIN:
                tokens.setdefault(row.app, []).append(row)
        now = self._clock()
        if wanted is None:
            spent = await self._store.spent_by_app(now)
        elif wanted in grants or wanted in tokens:
            spent = {wanted: await self._store.spent(wanted, now)}
        else:
            return []
        return [
            self._row(app, grants.get(app), tokens.get(app, ()), spent.get(app, Spent(day="")))
            for app in sorted({*grants, *tokens})
            if wanted in (None, app)
        ]

    def _row(
        self, app: str, grant: AppGrant | None, tokens: Sequence[TokenRow], spent: Spent
    ) -> AppRow:
        row = AppRow(
            id=app,
            granted=grant is not None,
            today_nano_usd=spent.today,
            month_nano_usd=spent.month,
            held_nano_usd=spent.held,
            tokens=[token_state(each) for each in tokens],
        )
        if grant is None:
            return row
        llm = grant.llm
        return replace(
            row,
            group=grant.group,
            capabilities=sorted(grant.capabilities),
            missing=sorted(grant.missing),
            providers=llm.providers,
            models=llm.models,
            day_limit=llm.nano_usd_per_day,
            month_limit=llm.nano_usd_per_month,
            requests_per_minute=llm.requests_per_minute,
            tokens_per_minute=llm.tokens_per_minute,
        )


def token_state(row: TokenRow) -> TokenState:
    return TokenState(id=row.id, created=row.created, expires=row.expires, revoked=row.revoked)


class ProviderRecords:
    """Rows of providers. Called from threads other than the event loop's."""

    def __init__(
        self, pool: ProviderPool, source: LogCalls, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._pool = pool
        self._source = source
        self._loop = loop

    def all(self, view: View) -> list[ProviderRow]:
        """The providers of llm.yaml, and those of the view's calls that are not in it."""
        rows = {row.name: row for row in self._source.providers(view)}
        found = asyncio.run_coroutine_threadsafe(self._states(view.provider), self._loop)
        states = found.result(_LOOP_TIMEOUT)
        unused = ProviderRow(name="", breaker="unused")
        made = []
        for name in sorted({*rows, *states}):
            row, state = rows.get(name) or ProviderRow(name=name), states.get(name, unused)
            made.append(replace(row, breaker=state.breaker, headroom=state.headroom))
        return made

    async def _states(self, wanted: str | None) -> dict[str, ProviderRow]:
        """Breakers and limits, read in the event loop, where calls change them."""
        now = time.monotonic()
        states = {}
        for name in self._pool.providers:
            endpoint = self._pool.called(name)
            if wanted not in (None, name):
                continue
            row = ProviderRow(name=name, breaker="unused")
            if endpoint is not None:
                state, left = endpoint.breaker.state(now), endpoint.headroom(now)
                row = ProviderRow(name=name, breaker=state, headroom=left)
            states[name] = row
        return states


SWITCHED_OFF = (
    "the daemon keeps no text. With `ui: {show_text: true}` in the daemon section of llm.yaml it"
    " keeps that of later breaks in memory"
)
NOT_KEPT = (
    f"it is kept in memory only, of the latest {MOST_TEXTS:,} breaks since the daemon was started"
    " or the setting was switched on"
)


class TextConversationPage:
    """A conversation with the text around its breaks, for administrators."""

    def __init__(self, source: PastCalls, texts: CallTexts) -> None:
        self._texts = texts
        self._with_text = ConversationPage(_WithTexts(source, texts), no_text=NOT_KEPT)
        self._without = ConversationPage(source, no_text=SWITCHED_OFF)

    def content(self, request: PageRequest, site: Site) -> PageContent:
        page = self._with_text if self._texts.allowed else self._without
        return page.content(request, site)


class _WithTexts:
    """Conversations with the kept text of their breaks."""

    def __init__(self, source: PastCalls, texts: CallTexts) -> None:
        self._source = source
        self._texts = texts

    def conversation(self, id: str) -> ShownConversation | None:
        shown = self._source.conversation(id)
        if shown is None:
            return None
        return replace(shown, calls=[self._with_text(call) for call in shown.calls])

    def _with_text(self, shown: ShownCall) -> ShownCall:
        text = self._texts.find(shown.call.call_id) if shown.call.broke else None
        if text is None:
            return shown
        return replace(shown, field=text.field, position=text.position, excerpts=text.excerpts)

"""The page of a conversation with the text around its breaks, where the operator has switched that
on."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.daemon.calls.steps.audit import MOST_TEXTS, BreakTexts
from anaphora.dashboard.pages.conversation import ConversationPage
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.values import CallSource, ShownCall, ShownConversation

SWITCHED_OFF = (
    "the daemon keeps no text. With `ui: {show_text: true}` in the daemon section of llm.yaml it"
    " keeps that of later breaks in memory"
)
NOT_KEPT = (
    f"it is kept in memory only, of the latest {MOST_TEXTS:,} breaks since the daemon was started"
    " or the setting was switched on"
)


class TextConversationPage:
    """For administrators."""

    def __init__(self, source: CallSource, texts: BreakTexts) -> None:
        self._texts = texts
        self._with_text = ConversationPage(_WithTexts(source, texts), no_text=NOT_KEPT)
        self._without = ConversationPage(source, no_text=SWITCHED_OFF)

    def content(self, request: PageRequest, site: Site) -> PageContent:
        page = self._with_text if self._texts.allowed else self._without
        return page.content(request, site)


class _WithTexts:
    """Conversations with the kept text of their breaks."""

    def __init__(self, source: CallSource, texts: BreakTexts) -> None:
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

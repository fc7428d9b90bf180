"""Which calls a view or a search means."""

from __future__ import annotations

from anaphora.audit.envelope import AuditEnvelope

from .values import CallOutcome, CallQuery, View


def is_found(call: AuditEnvelope, query: CallQuery) -> bool:
    """Whether a search finds a call."""
    return (
        _in_view(call, query.view)
        and has_outcome(call, query.outcome)
        and has_text(call, query.text.casefold())
    )


def _in_view(call: AuditEnvelope, view: View) -> bool:
    return (
        view.since <= call.at < view.until
        and matches(view, call.app, call.provider, call.billed_model)
        and (view.label is None or has_label(call, view.label))
    )


def matches(view: View, app: str, provider: str, model: str) -> bool:
    """Whether the filters of a view, but for its label, allow these names."""
    return (
        view.app in (None, app)
        and view.provider in (None, provider)
        and view.model in (None, model)
    )


def has_label(call: AuditEnvelope, label: str) -> bool:
    return any(block.label == label for block in call.blocks)


def has_outcome(call: AuditEnvelope, outcome: CallOutcome) -> bool:
    match outcome:
        case "":
            return True
        case "ok":
            return call.outcome == "ok"
        case "failed":
            return call.outcome != "ok"
        case "broke":
            return call.broke


def has_text(call: AuditEnvelope, text: str) -> bool:
    """`text` is casefolded, and part of a name or an id."""
    if not text:
        return True
    ids = call.call_id, call.request_id, call.response_id
    fields = call.app, call.provider, call.model, call.answered_by, call.cause, *ids
    return any(field and text in field.casefold() for field in fields)

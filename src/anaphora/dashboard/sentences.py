"""Verdicts in words: the outcome of a call in an audit log, why tokens were paid again, and
advice."""

from __future__ import annotations

from types import MappingProxyType

from anaphora.analysis.lint import RULES
from anaphora.audit.envelope import AuditEnvelope
from anaphora.cache.verdict.values import CHANGES
from anaphora.wording import counted

_RESULTS = {
    "first": "First call: nothing cached yet.",
    "hit": "Read what was cached.",
    "partial": "Read a part of what was cached",
    "miss": "Read nothing of what was cached",
    "unknown": "Read less than was cached, and the recording does not show why.",
}
#: The causes of verdicts in words.
_CAUSES = MappingProxyType(
    {
        "changed": "the prompt changed",
        "history_edited": "an earlier message was changed or removed",
        "compaction": "the history was compacted",
        "resumed": "the session was resumed or forked",
        "side_call": "a side call has nothing of its conversation to read",
        "marker_on_volatile": "the marker is on content that changes",
        "marker_on_trailing_system": "the last marker was on a system message at the end",
        "model_changed": "the model changed",
        "parameter_changed": "a parameter that the cache depends on changed",
        "images_changed": "the first image was added, or the last removed",
        "other_key": "the cache key changed",
        "other_route": "the call went to another host, account or workspace",
        "expired": "the cache entry expired",
        "not_yet_visible": "the write of the previous call was not readable yet",
        "lookback_exceeded": "the last write is farther from a marker than the look-back",
        "below_minimum": "the previous prompt was below the minimum",
        "above_maximum": "the previous prompt's first marker was beyond the maximum",
        "no_marker": "there was no cache marker",
        "thinking_dropped": "the provider drops thinking at a user turn",
        "not_persisted": "the provider caches whole units only, and none ended there",
        "evicted": "another conversation has taken the server's slot",
        "provider_side": "the loss is on the provider's side",
        "unknown": "the cause is unknown",
    }
)
_SAME_JSON = "write JSON with sorted keys and one spelling, from one serializer"
_SAME_TOOLS = "send the same tools in the same order with every call; restrict them by tool choice"
_APPEND = "keep the history unchanged and append to it"
#: By the cause, or by the kind of change if that is known.
_ADVICE = MappingProxyType(
    {
        "date": RULES["volatile-date"].fix,
        "clock": RULES["volatile-clock"].fix,
        "uuid": RULES["volatile-uuid"].fix,
        "nonce": RULES["volatile-nonce"].fix,
        "counter": RULES["volatile-counter"].fix,
        "order": RULES["unordered-list"].fix,
        "text_edited": RULES["changes-between-samples"].fix,
        "value_changed": RULES["changes-between-samples"].fix,
        "changed": RULES["changes-between-samples"].fix,
        "block_changed": RULES["changes-between-samples"].fix,
        "key_order": _SAME_JSON,
        "whitespace": _SAME_JSON,
        "spelling": _SAME_JSON,
        "tool_added": _SAME_TOOLS,
        "tool_removed": _SAME_TOOLS,
        "tool_moved": _SAME_TOOLS,
        "block_added": "put blocks that come and go after everything stable",
        "block_removed": "put blocks that come and go after everything stable",
        "block_moved": "keep the blocks in one order, the stable ones first",
        "message_added": _APPEND,
        "message_moved": _APPEND,
        "message_dropped": "shorten the history rarely and by much, not a little every turn",
        "image_added": _APPEND,
        "image_gone": _APPEND,
        "history_edited": _APPEND,
        "compaction": "shorten the history rarely and by much, not a little every turn",
        "resumed": "resume with the same model and tools, before the entry expires",
        "marker_on_volatile": RULES["wasted-marker"].fix,
        "marker_on_trailing_system": "put the marker on the last user or tool message instead",
        "model_changed": "keep one model for each conversation",
        "parameter_changed": "keep parameters the same within a conversation",
        "images_changed": "keep images in the history, or send none",
        "other_key": RULES["cache-key-changes"].fix,
        "other_route": "send the calls of a conversation to one host and account",
        "expired": "use a longer TTL, or send a call before the entry expires",
        "not_yet_visible": "wait for the first response before sending calls with the same prefix",
        "lookback_exceeded": "add a marker closer to the last write",
        "below_minimum": RULES["too-short"].fix,
        "above_maximum": "add a cache marker nearer to the beginning",
        "no_marker": "add a cache marker at the end of the stable part",
        "evicted": "give the server more slots, or keep each conversation on its slot",
        "provider_side": "nothing in the requests: report it to the provider if it continues",
        "unknown": "run the program under `anaphora watch`, which compares the requests",
    }
)


def cause_words(cause: str) -> str:
    """A cause or a kind of change in words; unknown codes unchanged."""
    return CHANGES.get(cause) or _CAUSES.get(cause) or cause.replace("_", " ")


def what_to_do(cause: str) -> str:
    """Advice; empty if there is none."""
    return _ADVICE.get(cause, "")


def sentence_of(call: AuditEnvelope) -> str:
    """The verdict or the error in words. A row has only codes and names, so it cannot contain text
    of a prompt."""
    if call.outcome != "ok":
        return _error(call)
    if call.verdict is None:
        return ""
    if call.verdict == "first" and call.changed:
        return f"Not cached: tools differ from the call before: {call.changed}."
    text = _RESULTS.get(call.verdict, call.verdict.replace("_", " ").capitalize())
    reason = _reason(call)
    if not call.lost and not call.broke:
        if call.verdict == "miss":
            text = f"Not cached: {reason}" if reason else "Not cached"
        return text if text.endswith(".") else f"{text}."
    paid = f"; {counted(call.lost, 'token')} paid again" if call.lost else ""
    return f"{text.removesuffix('.')}{f': {reason}' if reason else ''}{paid}."


def _reason(call: AuditEnvelope) -> str:
    if call.broke and call.changed:
        return f"{cause_words(call.change or 'changed')} in {call.changed}"
    return cause_words(call.cause) if call.cause else ""


def _error(call: AuditEnvelope) -> str:
    text = call.outcome if call.status is None else f"{call.outcome} (status {call.status})"
    if call.repeats != 1:
        text += f", {call.repeats:,} times within a minute"
    elif call.attempts > 1:
        text += f" after {counted(call.attempts, 'attempt')}"
    return f"{text}."

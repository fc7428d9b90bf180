"""HTML for notebooks: how Jupyter shows a `Response`, a `Reply` and a `Verdict`.

Loaded when a notebook calls `_repr_html_`; colours come from the page, so that it works on light
and dark themes. Text from outside is escaped; nothing is loaded and no script runs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from functools import partial

from anaphora.cache.verdict import Change, Result, Verdict
from anaphora.client.response import Response
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Notice,
    Opaque,
    Part,
    Refusal,
    Reply,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)
from anaphora.wording import counted, visible

_BOX = (
    "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:.5em .75em;margin:.25em 0;"
    "max-width:60em;color:inherit;background:rgba(128,128,128,.06)"
)
#: `isolate`: direction marks affect only their own text.
_TEXT = (
    "white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;max-height:40em;"
    "overflow-y:auto;margin:.15em 0"
)
_CODE = f"{_TEXT};font-family:monospace;font-size:.92em"
_FAINT = "opacity:.7;font-size:.88em"
#: Readable on white and on black.
_COLOURS: dict[Result, str] = {
    "first": "#808080",
    "hit": "#2e9e5b",
    "partial": "#c98a1b",
    "not_cacheable": "#888888",
    "miss": "#d9534f",
    "unknown": "#888888",
}


def html_of(value: object) -> str:
    """The HTML of a `Response`, a `Reply` or a `Verdict`."""
    match value:
        case Response():
            return _response(value)
        case Reply():
            return _reply(value)
        case Verdict():
            return _verdict(value)
    raise TypeError(f"no HTML for {type(value).__name__}")


def _response(response: Response) -> str:
    record = response.record
    summary = [record.provider, f"{record.seconds:.2f} s"]
    if len(record.attempts) > 1:
        summary.append(f"{counted(len(record.attempts), 'attempt')}")
    if record.cost_usd is not None:
        summary.append(f"${record.cost_usd.normalize():f}")
    notices = [notice for notice in record.notices if notice not in response.reply.notices]
    verdict = "" if record.verdict is None else _verdict(record.verdict)
    return _box(_reply(response.reply), verdict, _faint(" · ".join(summary)), _notices(notices))


def _reply(reply: Reply) -> str:
    stop: str = reply.stop_reason
    if stop == "other":
        stop = reply.stop_reason_raw or stop
    summary = " · ".join((reply.model, stop, *_usage(reply.usage)))
    return _box(*map(_part, reply.message.parts), _faint(summary), _notices(reply.notices))


def _usage(usage: Usage) -> list[str]:
    """The counts that are known."""
    counts = (
        (usage.input, "in"),
        (usage.read or None, "of them read from the cache"),
        (usage.written_total or None, "written to it"),
        (usage.output, "out"),
    )
    return [f"{count:,} {label}" for count, label in counts if count is not None]


def _notices(notices: Iterable[Notice]) -> str:
    return "".join(_faint(f"{notice.code}: {notice}") for notice in notices)


def _part(part: Part) -> str:
    match part:
        case Text(text=text):
            return _prose(text)
        case Refusal(text=text):
            return _faint("declined") + _prose(text)
        case Thinking(text=text):
            return _folded("thinking", _prose(text)) if text else _faint("thinking, not shown")
        case ToolCall(name=name, arguments=arguments):
            return _faint(f"calls {name}") + _code(arguments)
        case ToolResult(call_id=call_id, content=content):
            result = _code(content) if isinstance(content, str) else "".join(map(_part, content))
            return _faint(f"result of {call_id}") + result
        case Image(source=source) | Document(source=source) | Audio(source=source):
            return _faint(f"{type(part).__name__.lower()}: {_source(source)}")
        case Opaque(provider=provider, kind=kind, json=json):
            return _folded(f"{kind} ({provider})", _code(json))


def _source(source: Source) -> str:
    """A description: loading the URL would inform its owner."""
    match source:
        case Bytes(data=data, media_type=media_type):
            return f"{media_type}, {counted(len(data), 'byte')}"
        case Url(url=url):
            return url
        case FileId(provider=provider, id=name):
            return f"{name} at {provider}"


def _verdict(verdict: Verdict) -> str:
    dot = f'<b style="color:{_COLOURS[verdict.result]}">●</b>'
    sentence = f"<div>{dot} {_escaped(verdict.describe(excerpts=False))}</div>"
    also = "".join(_faint(f"also: {cause.text}") for cause in verdict.other_causes)
    if verdict.remedy is not None:
        also += _faint(str(verdict.remedy))
    return _box(sentence, _figures(verdict), also, _change(verdict.change))


def _figures(verdict: Verdict) -> str:
    tokens = (
        ("cached by the call before", verdict.left),
        ("expected to be read", verdict.predicted),
        ("read, as billed", verdict.billed),
        ("paid again" if verdict.left else "could have been read", verdict.lost or None),
    )
    money = (("lost", verdict.cost_usd), ("saved", verdict.saved))
    rows = [(name, f"{counted(count, 'token')}") for name, count in tokens if count is not None]
    rows += [(name, f"${amount.normalize():f}") for name, amount in money if amount is not None]
    return _table(rows) if rows else ""


def _change(change: Change | None) -> str:
    if change is None:
        return ""
    title = change.place
    texts = _faint("before") + _code(change.before) + _faint("after") + _code(change.after)
    return _folded(title, texts)


def _escaped(text: object) -> str:
    """Escaped for HTML text or a quoted attribute, control characters as escapes."""
    return html.escape(visible(str(text), keep="\n\r\t"), quote=True)


def _box(*pieces: str) -> str:
    return f'<div style="{_BOX}">{"".join(pieces)}</div>'


def _prose(text: object, style: str = _TEXT) -> str:
    return f'<div style="{style}">{_escaped(text)}</div>'


_code = partial(_prose, style=_CODE)
_faint = partial(_prose, style=_FAINT)


def _folded(title: object, inside: str) -> str:
    """Closed until it is clicked; `inside` is HTML."""
    return f'<details><summary style="{_FAINT}">{_escaped(title)}</summary>{inside}</details>'


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cell = "text-align:left;padding:.1em .8em .1em 0;border:0;background:none"
    lines = (
        f'<tr style="background:none"><td style="{cell};opacity:.7">{_escaped(name)}</td>'
        f'<td style="{cell}">{_escaped(value)}</td></tr>'
        for name, value in rows
    )
    style = "border-collapse:collapse;font-size:.92em;color:inherit"
    return f'<table style="{style}">{"".join(lines)}</table>'

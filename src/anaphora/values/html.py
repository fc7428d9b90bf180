"""Values in a notebook: small HTML that looks at home on light and on dark pages.

Whatever comes from outside is escaped; nothing is loaded and nothing runs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from .notice import Notice
from .parts import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Opaque,
    Part,
    Refusal,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from .reply import Reply
from .usage import Usage

#: Colours are taken from the page, lines are half-transparent.
_BOX = (
    "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:.5em .75em;margin:.25em 0;"
    "max-width:60em;color:inherit;background:rgba(128,128,128,.06)"
)
#: The text's own direction marks end with it.
_TEXT = (
    "white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;max-height:40em;"
    "overflow-y:auto;margin:.15em 0"
)
_CODE = f"{_TEXT};font-family:monospace;font-size:.92em"
_FAINT = "opacity:.7;font-size:.88em"


def escaped(text: object) -> str:
    """As text in a page or in a quoted attribute; what is no Unicode is shown as `?`."""
    return html.escape(str(text).encode("utf-8", "replace").decode(), quote=True)


def box(*pieces: str) -> str:
    return f'<div style="{_BOX}">{"".join(pieces)}</div>'


def prose(text: object) -> str:
    return f'<div style="{_TEXT}">{escaped(text)}</div>'


def code(text: object) -> str:
    return f'<div style="{_CODE}">{escaped(text)}</div>'


def faint(text: object) -> str:
    return f'<div style="{_FAINT}">{escaped(text)}</div>'


def folded(title: object, inside: str) -> str:
    """Shown when somebody opens it. `inside` is HTML."""
    return f'<details><summary style="{_FAINT}">{escaped(title)}</summary>{inside}</details>'


def table(rows: Iterable[tuple[object, object]]) -> str:
    cell = "text-align:left;padding:.1em .8em .1em 0;border:0;background:none"
    lines = (
        f'<tr style="background:none"><td style="{cell};opacity:.7">{escaped(name)}</td>'
        f'<td style="{cell}">{escaped(value)}</td></tr>'
        for name, value in rows
    )
    style = "border-collapse:collapse;font-size:.92em;color:inherit"
    return f'<table style="{style}">{"".join(lines)}</table>'


def notices_html(notices: Iterable[Notice]) -> str:
    return "".join(faint(f"{notice.code}: {notice}") for notice in notices)


def reply_html(reply: Reply) -> str:
    """The answer's parts, what it cost, and what was remarked."""
    ended = reply.stop_raw if reply.stop == "other" and reply.stop_raw else reply.stop
    foot = " · ".join((reply.model, ended, *usage_said(reply.usage)))
    parts = map(_part, reply.message.parts)
    return box(*parts, faint(foot), notices_html(reply.notices))


def usage_said(usage: Usage) -> list[str]:
    """Counts as far as they are known."""
    told = []
    if usage.input is not None:
        told.append(f"{usage.input:,} in")
    if usage.read:
        told.append(f"{usage.read:,} of them read from the cache")
    if usage.written_total:
        told.append(f"{usage.written_total:,} written to it")
    if usage.output is not None:
        told.append(f"{usage.output:,} out")
    return told


def _part(part: Part) -> str:
    match part:
        case Text(text=text):
            return prose(text)
        case Refusal(text=text):
            return faint("declined") + prose(text)
        case Thinking(text=text):
            return folded("thinking", prose(text)) if text else faint("thinking, not shown")
        case ToolCall(name=name, arguments=arguments):
            return faint(f"calls {name}") + code(arguments)
        case ToolResult(call_id=call_id, content=content):
            said = code(content) if isinstance(content, str) else "".join(map(_part, content))
            return faint(f"result of {call_id}") + said
        case Image(source=source) | Document(source=source) | Audio(source=source):
            return faint(f"{type(part).__name__.lower()}: {_source(source)}")
        case Opaque(provider=provider, kind=kind, json=json):
            return folded(f"{kind} ({provider})", code(json))


def _source(source: Source) -> str:
    """Described and not shown: a page that loads an address tells its owner."""
    match source:
        case Bytes(data=data, media_type=media_type):
            return f"{media_type}, {len(data):,} bytes"
        case Url(url=url):
            return url
        case FileId(provider=provider, id=name):
            return f"{name} at {provider}"

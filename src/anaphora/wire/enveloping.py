"""What every wire's envelope does the same way."""

from __future__ import annotations

import msgspec

from anaphora.prompt import Call
from anaphora.values import AnyTool, Extras, Notice, Tool

ANTHROPIC_TIERS = ("standard_only",)

_encode = msgspec.json.Encoder().encode


def exactly(call: Call) -> bytes:
    """Parameters, extras and cache options as bytes: unlike `==` on the values, this tells 1 from
    1.0 and one order of metadata from another."""
    try:
        return _encode((call.params, call.extras, call.ir.cache, call.ir.continuation))
    except UnicodeEncodeError:
        return b""  # rendering will say where the lone surrogate is


def foreign_fields(call: Call, wire: str) -> list[Notice]:
    """Fields that came along for another wire and mean nothing to this one."""
    notices = _foreign(call.extras, wire, "extras")
    for index, tool in enumerate(call.tools):
        notices += _foreign_tool(tool, wire, f"tools[{index}].extras")
    return notices


def foreign_tier(call: Call) -> list[Notice]:
    """A service tier that only Anthropic has. Hosts that speak like OpenAI have tiers of their
    own, so any other is sent as it is."""
    if call.params.service_tier not in ANTHROPIC_TIERS:
        return []
    return [
        Notice("param_left_out", "that tier is Anthropic's own; left out", "params.service_tier")
    ]


def continuation_left_out(call: Call) -> list[Notice]:
    """A response that another provider stored cannot be continued here."""
    if call.ir.continuation is None:
        return []
    return [
        Notice(
            "continuation_left_out",
            "a stored response cannot be continued here: only the messages of this call are sent,"
            " and what the response holds beyond them is not",
            "continuation",
        )
    ]


def _foreign_tool(tool: AnyTool, wire: str, path: str) -> list[Notice]:
    return _foreign(tool.extras, wire, path) if isinstance(tool, Tool) else []


def _foreign(extras: Extras | None, wire: str, path: str) -> list[Notice]:
    return [
        Notice("foreign_fields", f"{_named(text)} of {name}: left out", f"{path}.{name}")
        for name, text in (extras or {}).items()
        if name != wire and not name.startswith(f"{wire}.")
    ]


def _named(text: str) -> str:
    try:
        return ", ".join(msgspec.json.decode(text, type=dict[str, msgspec.Raw])) or "fields"
    except msgspec.DecodeError:
        return "fields"

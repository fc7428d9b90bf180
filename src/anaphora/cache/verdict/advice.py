"""The causes of losses: one name each, the remedy, and what to do about it.

    CAUSES["expired"].name                   "cache entry expired"
    advice("expired", ["claude_code"])       a line for each program, or one for all

All commands and pages take names and advice from here. A kind of change has advice of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anaphora.values import Ttl

from .diagnosis import CauseKind
from .remedy import REMEDIES, RemedyKind
from .values import CHANGES

#: The longer of the lifetimes that programs have a setting for.
LONGER: Ttl = "1h"
#: Agent programs that have a setting or command of their own, with their titles.
PROGRAM_TITLES = {
    "claude_code": "Claude Code",
    "codex": "Codex",
    "gemini_cli": "Gemini CLI",
    "opencode": "opencode",
    "copilot": "GitHub Copilot CLI",
    "pi": "pi",
}


class CauseFacts(NamedTuple):
    name: str
    remedy: RemedyKind
    """What avoids such a loss; "nothing": no setting or change does."""
    advice: str
    """For an application, and for any program."""
    programs: Mapping[str, str] = {}
    """For one program, in place of it."""
    otherwise: str = ""
    """If the remedy does not help: what to know, or a habit that loses less."""


def _sentence(kind: RemedyKind) -> str:
    text = REMEDIES[kind]
    return f"{text[:1].upper()}{text[1:]}."


_MARK = "Let Anaphora place the markers: `anaphora watch --fix -- COMMAND`, or the client."
_UNSET = {"claude_code": "Unset DISABLE_PROMPT_CACHING and its variants for single models."}
_ONE_MODEL = "Choose model and parameters when a conversation begins; each has a cache of its own."
_MODELS = {
    "claude_code": "Set /model and /effort when the session begins; opusplan changes the model at"
    " every end of plan mode.",
    "codex": "Set model and model_reasoning_effort in config.toml, and plan_mode_reasoning_effort"
    " to the same effort.",
    "gemini_cli": 'Set "model.name" in settings.json and "plan.modelRouting": false.',
    "copilot": "Choose the model with /model before the first prompt.",
    "pi": 'Set "defaultModel" and "defaultThinkingLevel" in settings.json.',
}

# The names were looked up on 2026-11-18 in the programs themselves and in their documentation:
# Claude Code 2.1.326 (its schema of settings, and code.claude.com/docs/en/prompt-caching), Codex
# 0.169.0 (keys of config.toml), Gemini CLI 0.61.0 (docs/reference/configuration.md), opencode
# (opencode.ai/v2/docs/compaction), Copilot CLI 1.0 (issues 3026 and 3174 of github/copilot-cli),
# pi 0.74.2 (README.md, docs/settings.md).
_MARKERS: dict[CauseKind, str] = {
    "no_marker": "no cache marker",
    "marker_on_volatile": "cache marker on content that changes",
    "marker_on_trailing_system": "last cache marker on a system message",
    "lookback_exceeded": "last write beyond the look-back of the next marker",
    "above_maximum": "first cache marker beyond the maximum",
}
_NOTHING: dict[CauseKind, tuple[str, str]] = {
    "thinking_dropped": (
        "thinking of earlier turns left out",
        "Nothing to set: it happens at every prompt of a user. Fewer and larger prompts lose less.",
    ),
    "resumed": (
        "session resumed or forked",
        "Resume while the cache is alive and with the same model; after a long break, begin anew.",
    ),
    "side_call": ("side call", "Nothing to do: it continues no conversation."),
    "below_minimum": (
        "below the provider's minimum",
        "Nothing to do: such prompts are not cached.",
    ),
    "not_persisted": ("no whole unit to cache", "Nothing to do: only whole units are cached."),
    "evicted": ("slot taken by another conversation", "Give the server more slots."),
    "provider_side": (
        "provider did not find it",
        "Nothing to do: the provider had the prompt and did not find it.",
    ),
    "unknown": (
        "cause unknown",
        "Run the program under `anaphora watch -- COMMAND` to see the bytes that changed.",
    ),
}
CAUSES: dict[CauseKind, CauseFacts] = {
    "expired": CauseFacts(
        "cache entry expired",
        "longer_ttl",
        "Cache for longer, or send the next call before the entry expires.",
        {
            "claude_code": 'With an API key, set "promptCacheTtl": "1h" in settings.json (or'
            " ENABLE_PROMPT_CACHING_1H=1).",
            "pi": "Set PI_CACHE_RETENTION=long: entries live for 1 h at Anthropic, not 5 min.",
        },
        "No lifetime would have paid. Compact, or begin a new session, before a long break: then"
        " less is written again after it.",
    ),
    "tools_changed": CauseFacts(
        "tools changed",
        "keep_tools",
        "Send the same tools in one order from the first call on; connect MCP servers before it.",
        {
            "claude_code": "Connect MCP servers before the session begins; ENABLE_TOOL_SEARCH=true"
            " loads their tools without changing the prompt's beginning.",
            "codex": "Change [mcp_servers] in config.toml between sessions, not during one.",
        },
    ),
    "system_changed": CauseFacts(
        "system prompt changed",
        "move_to_end",
        "Keep dates, branch names and other changing text out of the system prompt.",
        otherwise="Update a program and its plugins between sessions, and resume with the same"
        " model: the system prompt names them.",
    ),
    "model_changed": CauseFacts("model changed", "keep_parameters", _ONE_MODEL, _MODELS),
    "parameter_changed": CauseFacts(
        "effort or another parameter changed", "keep_parameters", _ONE_MODEL, _MODELS
    ),
    "thinking_changed": CauseFacts(
        "thinking setting changed",
        "keep_parameters",
        "Choose the thinking setting when a conversation begins. Some versions of Claude Code send"
        " slash commands, plans and skills without thinking: begin a session with them.",
        otherwise="Nothing to set: some versions of Claude Code send slash commands, plans and"
        " skills without thinking. Early in a session it costs less, as less is written again.",
    ),
    "images_changed": CauseFacts(
        "first image added or last one removed",
        "keep_parameters",
        "Send the first image when a conversation begins, or none.",
        {"claude_code": "Paste the first image into the session's first prompt."},
    ),
    "history_edited": CauseFacts(
        "earlier messages changed",
        "keep_history",
        "Leave earlier messages as they are and append; shorten the history rarely and by much.",
        {"opencode": 'Leave "compaction.prune" off: it removes old tool outputs.'},
        "Nothing to set: the program itself changes earlier messages. `anaphora watch -- COMMAND`"
        " shows which.",
    ),
    "skill_loaded": CauseFacts(
        "skill loaded",
        "nothing",
        "Nothing avoids it; early in a session it costs less, as less is written again.",
    ),
    "mode_changed": CauseFacts(
        "permission mode changed",
        "nothing",
        "Nothing avoids it; early in a session it costs less, as less is written again.",
    ),
    "compaction": CauseFacts(
        "history compacted",
        "nothing",
        "Compact between two tasks, or begin a new session for the next one.",
        {
            "claude_code": 'Run /compact between tasks, or /clear; "autoCompactEnabled": false in'
            " settings.json leaves the time to you.",
            "codex": "Run /compact between tasks; model_auto_compact_token_limit sets when Codex"
            " does.",
            "gemini_cli": 'Raise "model.compressionThreshold", or run /compress between tasks.',
            "opencode": '"compaction.auto": false in opencode.json leaves the time to you.',
            "copilot": "Run /compact between tasks.",
            "pi": 'Run /compact between tasks; "compaction.reserveTokens" sets when pi does it.',
        },
    ),
    "subagent": CauseFacts(
        "subagents wrote the same beginning again",
        "send_first",
        "Start one subagent first, the others once it has answered: they read its cache.",
    ),
    **{kind: CauseFacts(name, "place_markers", _MARK, _UNSET) for kind, name in _MARKERS.items()},
    "other_key": CauseFacts("cache key changed", "cache_key", _sentence("cache_key")),
    "other_route": CauseFacts(
        "another host, account or workspace", "pin_host", _sentence("pin_host")
    ),
    "not_yet_visible": CauseFacts(
        "earlier write not readable yet", "send_first", _sentence("send_first")
    ),
    **{kind: CauseFacts(name, "nothing", text) for kind, (name, text) in _NOTHING.items()},
}

#: What to call text that changes by itself.
VOLATILE_TEXTS = {"date": "the date", "clock": "the time", "uuid": "the UUID", "nonce": "the id"}
_SAME_JSON = "Write JSON with sorted keys and one spelling, from one serializer."
#: What to do about a kind of change: of each whose name begins so.
_CHANGES = {
    "order": "Write items that have no order of their own sorted.",
    "key_order": _SAME_JSON,
    "whitespace": _SAME_JSON,
    "spelling": _SAME_JSON,
    "counter": "Move the number that changes into the newest message.",
    "tool_": CAUSES["tools_changed"].advice,
    "block_changed": CAUSES["system_changed"].advice,
    "block_": "Put blocks that come and go after everything stable, in one order.",
    "message_": CAUSES["history_edited"].advice,
    "image_": CAUSES["images_changed"].advice,
    "text_edited": "Move text that changes into the newest message, behind everything stable.",
    "value_changed": "Keep the value the same from call to call, or move it to the end.",
}


def cause_name(cause: str) -> str:
    """Of a cause or a kind of change; other codes unchanged."""
    if cause in CAUSES:
        return CAUSES[cause].name
    return CHANGES.get(cause) or cause.replace("_", " ")


def what_to_do(cause: str) -> str:
    """About a cause or a kind of change, in an application; empty for other codes."""
    if cause in VOLATILE_TEXTS:
        return f"Move {VOLATILE_TEXTS[cause]} into the newest message."
    if cause in CAUSES:
        return CAUSES[cause].advice
    return next((text for begin, text in _CHANGES.items() if cause.startswith(begin)), "")


def can_apply(cause: CauseKind, program: str) -> bool:
    """Whether users of a program can avoid such a loss by a setting or command of its own."""
    facts = CAUSES[cause]
    return facts.remedy != "nothing" and program in facts.programs


def advice(
    cause: CauseKind, programs: Iterable[str] = (), *, helps: bool = True
) -> tuple[str, ...]:
    """What users of these programs can do: a line for each that has one of its own, and the general
    line for the others. `helps` is whether the remedy would have avoided a loss."""
    facts, named = CAUSES[cause], sorted({*programs})
    if not helps and facts.remedy != "nothing":
        return (facts.otherwise or "Nothing to do: no setting would have avoided it.",)
    own = [
        f"{title}: {facts.programs[name]}"
        for name, title in PROGRAM_TITLES.items()
        if name in named and name in facts.programs
    ]
    rest = not named or any(name not in facts.programs for name in named)
    return (*own, facts.advice) if rest else tuple(own)

"""What to do about each cause of a loss: a line for all programs, and lines for programs with a
setting or command of their own."""

from __future__ import annotations

from collections.abc import Iterable

from anaphora.analysis.trace.programs import ProgramName
from anaphora.cache.verdict import RemedyKind

from .places import TITLES
from .records import LossCause

#: The kind of remedy for each cause, by the names of `Verdict.remedy`.
REMEDY: dict[LossCause, RemedyKind] = {
    "idle": "longer_ttl",
    "tools_changed": "keep_tools",
    "system_changed": "move_to_end",
    "model_switched": "keep_parameters",
    "history_edited": "keep_history",
    "compaction": "nothing",
    "resumed": "longer_ttl",
    "subagent": "send_first",
    "below_minimum": "nothing",
    "no_marker": "place_markers",
    "provider_side": "nothing",
    "unknown": "nothing",
}

#: For every cause and any program.
GENERAL: dict[LossCause, str] = {
    "idle": "Answer before the cache expires, or begin a new session after a long break.",
    "tools_changed": "Connect MCP servers and enable tools before a session begins, not during it.",
    "system_changed": "Keep dates, branch names and other changing text out of the instructions.",
    "model_switched": "Choose model and effort when a session begins; each has a cache of its own.",
    "history_edited": "Prefer a new session to rewinding: all that follows a change is paid again.",
    "compaction": "Compact between two tasks, or begin a new session for the next one.",
    "resumed": "Resume while the cache is alive; later, a new session with a summary is cheaper.",
    "subagent": "Start one subagent first, the others once it has answered: they read its cache.",
    "below_minimum": "Nothing to do: prompts below the provider's minimum are never cached.",
    "no_marker": "Let the program mark its prompts, or send them through `anaphora serve`.",
    "provider_side": "Nothing to do: the provider had the prompt and did not find it.",
    "unknown": "Run the program under `anaphora watch -- COMMAND` to see the bytes that changed.",
}

# The names were looked up on 2026-11-18 in the programs themselves and in their documentation:
# Claude Code 2.1.326 (its schema of settings, and code.claude.com/docs/en/prompt-caching), Codex
# 0.169.0 (keys of config.toml), Gemini CLI 0.61.0 (docs/reference/configuration.md), opencode
# (opencode.ai/v2/docs/compaction), Copilot CLI 1.0 (issues 3026 and 3174 of github/copilot-cli),
# pi 0.74.2 (README.md, docs/settings.md).
#: For one program, in place of the general line.
SPECIFIC: dict[LossCause, dict[ProgramName, str]] = {
    "idle": {
        "claude_code": 'With an API key, set "promptCacheTtl": "1h" in settings.json (or'
        " ENABLE_PROMPT_CACHING_1H=1); after longer breaks use /clear or /compact.",
        "pi": "Set PI_CACHE_RETENTION=long: entries live for 1 h at Anthropic, not 5 min.",
    },
    "tools_changed": {
        "claude_code": "Connect MCP servers before the session begins; ENABLE_TOOL_SEARCH=true"
        " loads their tools without changing the prompt's beginning.",
        "codex": "Change [mcp_servers] in config.toml between sessions, not during one.",
    },
    "system_changed": {
        "claude_code": "Update Claude Code and plugins between sessions; name the model with"
        " --model, as the default's name is part of the system prompt.",
    },
    "model_switched": {
        "claude_code": "Set /model and /effort when the session begins; opusplan changes the model"
        " at every end of plan mode.",
        "codex": "Set model and model_reasoning_effort in config.toml, and"
        " plan_mode_reasoning_effort to the same effort.",
        "gemini_cli": 'Set "model.name" in settings.json and "plan.modelRouting": false.',
        "copilot": "Choose the model with /model before the first prompt.",
        "pi": 'Set "defaultModel" and "defaultThinkingLevel" in settings.json.',
    },
    "history_edited": {
        "claude_code": "Prefer /clear to /rewind for another task; images and edited messages make"
        " everything after them be paid again.",
        "codex": "Codex leaves out reasoning of earlier turns: put more of a task into one prompt.",
        "opencode": 'Leave "compaction.prune" in opencode.json off: it removes old tool outputs.',
    },
    "compaction": {
        "claude_code": 'Run /compact between tasks, or /clear; "autoCompactEnabled": false in'
        " settings.json leaves the time to you.",
        "codex": "Run /compact between tasks; model_auto_compact_token_limit in config.toml sets"
        " when Codex does it.",
        "gemini_cli": 'Raise "model.compressionThreshold" in settings.json (default 0.5), or run'
        " /compress between tasks.",
        "opencode": '"compaction.auto": false in opencode.json leaves the time to you.',
        "copilot": "Run /compact between tasks.",
        "pi": 'Run /compact between tasks; "compaction.reserveTokens" in settings.json sets when pi'
        " does it.",
    },
    "resumed": {
        "claude_code": "Name the model with --model when you use --continue or --resume; after a"
        " long break begin anew.",
    },
    "subagent": {
        "claude_code": 'Set "subagentPromptCacheTtl": "1h" in settings.json if subagents follow'
        " each other within the hour.",
    },
    "no_marker": {
        "claude_code": "Unset DISABLE_PROMPT_CACHING and its variants for single models.",
    },
}


def is_applicable(kind: RemedyKind, program: ProgramName) -> bool:
    """Whether users of a program can apply a remedy with a setting or command of its own."""
    return any(REMEDY[cause] == kind and program in lines for cause, lines in SPECIFIC.items())


def advice(cause: LossCause, programs: Iterable[str]) -> tuple[str, ...]:
    """What users of these programs can do: a line for each that has one of its own, and the general
    line for the others."""
    lines = SPECIFIC.get(cause, {})
    named = sorted({*programs})
    own = [f"{TITLES[name]}: {lines[name]}" for name in TITLES if name in named and name in lines]
    rest = not named or any(name not in lines for name in named)
    return (*own, GENERAL[cause]) if rest else tuple(own)

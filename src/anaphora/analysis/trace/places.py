"""Where a conversation was had, in the catalog's words; or why nobody can say."""

from __future__ import annotations

from anaphora import catalog

#: What other tools call a provider.
_NAMES = {
    "gemini": "google",
    "google-vertex": "google",
    "vertex": "google",
    "claude": "anthropic",
    "kimi": "moonshot",
    "moonshotai": "moonshot",
    "qwen": "alibaba",
    "dashscope": "alibaba",
    "grok": "xai",
    "zhipu": "zai",
    "azure-openai": "azure",
    "amazon-bedrock": "bedrock",
    "llama.cpp": "llamacpp",
}


def provider_named(name: str) -> str | None:
    """The catalog's name of a provider, which may be given by the host that serves it."""
    known = catalog.shipped().providers
    low = name.lower()
    low = _NAMES.get(low, low)
    if low in known:
        return low
    if "." not in low:
        return None
    dialects = catalog.dialects()
    for wire in dict.fromkeys(row.wire for row in dialects.rows):
        row = dialects.at_host(low, wire)
        if row is not None:
            return row.provider
    return None


def unplayable(provider: str, model: str) -> str | None:
    """Why a call to that model cannot be predicted; None when it can. A provider that lists no
    models at all is a server of one's own, which serves any."""
    name = provider_named(provider)
    if name is None:
        return f"unknown provider {provider!r}"
    if catalog.models(name) and not catalog.profile(name, model).known:
        return f"unknown model {model!r} of {name}"
    return None

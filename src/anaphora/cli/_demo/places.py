"""Where the agent goes: a current model of every provider that states a price, and a local one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Place(msgspec.Struct, frozen=True):
    """A dialect (`anaphora wires`) and a model (`anaphora models`)."""

    dialect: str
    model: str

    @property
    def provider(self) -> str:
        return self.dialect.partition("/")[0]


#: The five whose wires these are, first; then everybody who speaks like one of them.
PLACES = (
    Place("anthropic/anthropic", "claude-sonnet-5-5"),
    Place("openai/openai_responses", "gpt-6.1-sol"),
    Place("openai/openai_chat", "gpt-5.5"),
    Place("google/gemini", "gemini-3.8-flash"),
    Place("ollama/ollama", "gpt-oss:20b"),
    Place("azure/openai_responses", "gpt-6.1-sol"),
    Place("bedrock/openai_responses", "openai.gpt-6.1-sol"),
    Place("deepseek/openai_chat", "deepseek-v4-pro"),
    Place("xai/openai_responses", "grok-4.7"),
    Place("mistral/openai_chat", "mistral-large-4"),
    Place("moonshot/openai_chat", "kimi-k3.1-pro"),
    Place("alibaba/openai_chat", "qwen3.8-max"),
    Place("zai/openai_chat", "glm-5.3"),
    Place("minimax/anthropic", "MiniMax-M3"),
    Place("openrouter/openai_chat", "google/gemini-4-argon"),
    Place("snowflake/openai_chat/claude", "claude-sonnet-4-6"),
    Place("together/openai_chat", "moonshotai/Kimi-K3"),
    Place("groq/openai_chat", "openai/gpt-oss-120b"),
    Place("cerebras/openai_chat", "gpt-oss-120b"),
    Place("crusoe/openai_chat", "openai/gpt-oss-120b"),
)


def configuration(places: Sequence[Place], url: str) -> dict[str, Any]:
    """What llm.yaml would say, with every provider at the emulator. Each layout has a key, and so
    a cache, of its own."""
    return {
        "providers": {
            f"{place.dialect} {layout}": {
                "dialect": place.dialect,
                "base_url": f"{url}/{place.provider}",
                "key": {"env": layout.upper()},
            }
            for place in places
            for layout in ("usual", "anaphora")
        }
    }


#: The keys that the configuration names. The emulator takes any.
ENVIRON = {"USUAL": "key-usual", "ANAPHORA": "key-anaphora"}

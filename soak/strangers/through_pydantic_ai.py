"""pydantic-ai holds a conversation of two turns with its cache settings on.

python through_pydantic_ai.py URL anthropic|google|chat|responses
"""

from __future__ import annotations

import sys
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

LONG = "A beginning that stays the same. " * 400


def agent(url: str, kind: str) -> Any:
    if kind == "anthropic":
        anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(api_key="k", base_url=url))
        settings: dict[str, Any] = {
            "max_tokens": 64,
            "anthropic_cache_instructions": True,
            "anthropic_cache_messages": True,
        }
        model = AnthropicModel("claude-sonnet-4-5", provider=anthropic)
    elif kind == "google":
        google = GoogleProvider(api_key="k", base_url=url)
        model, settings = GoogleModel("gemini-2.5-pro", provider=google), {}
    else:
        openai = OpenAIProvider(openai_client=AsyncOpenAI(api_key="k", base_url=f"{url}/v1"))
        settings = {"openai_prompt_cache_key": "talk", "openai_prompt_cache_retention": "24h"}
        model = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[kind](
            "gpt-5.1", provider=openai
        )
    return Agent(model, instructions=LONG, model_settings=settings)


talker = agent(sys.argv[1], sys.argv[2])
first = talker.run_sync("One?")
talker.run_sync("Two?", message_history=first.all_messages())

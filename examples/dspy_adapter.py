"""DSPy programs on Anaphora's client. Copy this file, for DSPy 3.1 to 3.4.

    dspy.configure(lm=AnaphoraLM("claude-sonnet-5-5"))

Evaluations and optimizers call the model from many threads: one call writes the shared part of
their prompts (the signature, the demonstrations) to the cache, and the others read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import dspy

from anaphora import Client, Params, Response, Text
from anaphora.errors import InvalidRequest
from anaphora.integrations.framework_client import FrameworkClient, output_schema
from anaphora.values import Refusal, StopReason, Thinking

_FINISH: dict[StopReason, str] = {
    "end": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "context_overflow": "length",
    "tool_calls": "tool_calls",
    "refusal": "content_filter",
}
#: Parameters that have another name in DSPy.
_NAMES = {"max_completion_tokens": "max_tokens", "reasoning_effort": "reasoning"}
#: For DSPy itself.
_OWN = frozenset({"cache", "rollout_id", "num_retries", "n"})


class AnaphoraLM(dspy.BaseLM):
    """A model of any provider of the client."""

    def __init__(
        self,
        model: str,
        *,
        provider: str | None = None,
        client: Client | None = None,
        config: Any = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Without the application's `client`, the model makes its own from `config` (llm.yaml) or
        the keys in the environment."""
        super().__init__(model, temperature=temperature, max_tokens=max_tokens, **kwargs)
        self._provider = provider
        self._config = config
        self._calls = FrameworkClient(client, config=config)
        self._calls.model_profile(provider, model)  # a wrong name is an error now

    supports_function_calling = True
    supports_reasoning = True
    supports_response_schema = True

    @property
    def supported_params(self) -> set[str]:
        sent = {"temperature", "max_tokens", "top_p", "stop", "tools", "tool_choice", "reasoning"}
        return {*sent, *_NAMES, "response_format", "n"}

    def forward(
        self,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> SimpleNamespace:
        content, options, count = self._call(prompt, messages, kwargs)
        if count == 1:
            return _completion([self._calls.complete(content, self._provider, **options)])
        return _completion(self._calls.complete_several(count, content, self._provider, **options))

    async def aforward(
        self,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> SimpleNamespace:
        content, options, count = self._call(prompt, messages, kwargs)
        calls = (self._calls.acomplete(content, self._provider, **options) for _ in range(count))
        return _completion(await asyncio.gather(*calls))

    def dump_state(self) -> dict[str, Any]:
        inherited = getattr(super(), "dump_state", None)  # since DSPy 3.2
        state: dict[str, Any] = (
            {"model": self.model, **self.kwargs} if inherited is None else inherited()
        )
        state.pop("api_key", None)
        if self._provider is not None:
            state["provider"] = self._provider
        if isinstance(self._config, str):
            state["config"] = self._config
        return state

    def _call(
        self,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, Any, int]:
        """The content, the keywords and the number of calls."""
        merged = {**self.kwargs, **kwargs}
        count = merged.get("n") or 1
        form = merged.pop("response_format", None)
        options: dict[str, Any] = {
            _NAMES.get(name, name): value
            for name, value in merged.items()
            if value is not None and name not in _OWN
        }
        options["model"] = self.model
        if (schema := _schema(form)) is not None:
            options["params"] = Params(output=schema)
        content = [dict(each) for each in messages] if messages else prompt
        return content, options, count


def _schema(form: Any) -> Any:
    """The output format of a `response_format`: a pydantic model, or OpenAI's form."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if isinstance(form, type) and hasattr(form, "model_json_schema"):
        return output_schema(form.model_json_schema(), form.__name__)
    if isinstance(form, Mapping) and isinstance(wanted := form.get("json_schema"), Mapping):
        return output_schema(wanted["schema"], wanted.get("name"), strict=wanted.get("strict"))
    raise InvalidRequest(
        "must be a pydantic model or a JSON schema in OpenAI's format", path="response_format"
    )


def _completion(responses: Sequence[Response[Any]]) -> SimpleNamespace:
    """The responses in DSPy's format: a Chat Completion with a choice for each."""
    costs = [response.cost_usd for response in responses]
    known = [cost for cost in costs if cost is not None]
    return SimpleNamespace(
        id=responses[0].reply.id,
        model=responses[0].model,
        choices=[_choice(index, response) for index, response in enumerate(responses)],
        usage=_usage(responses),
        notices=[str(notice) for response in responses for notice in response.notices],
        _hidden_params={"response_cost": float(sum(known)) if len(known) == len(costs) else None},
    )


def _choice(index: int, response: Response[Any]) -> SimpleNamespace:
    parts = response.reply.message.parts
    calls = [
        SimpleNamespace(
            id=call.id,
            type="function",
            function=SimpleNamespace(name=call.name, arguments=call.arguments),
        )
        for call in response.tool_calls
    ]
    message = SimpleNamespace(
        role="assistant",
        content="".join(part.text for part in parts if isinstance(part, Text | Refusal)),
        tool_calls=calls or None,
        reasoning_content="".join(part.text for part in parts if isinstance(part, Thinking))
        or None,
        provider_specific_fields=None,
    )
    reason = _FINISH.get(response.stop_reason, response.stop_reason)
    return SimpleNamespace(index=index, message=message, finish_reason=reason, logprobs=None)


def _usage(responses: Sequence[Response[Any]]) -> dict[str, Any]:
    """The tokens of all calls; the prompt's include those of the cache, as in OpenAI's usage."""
    usages = [response.usage for response in responses]
    prompt = sum(usage.input or 0 for usage in usages)
    output = sum(usage.output or 0 for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.read or 0 for usage in usages),
            "cache_creation_tokens": sum(usage.written_total or 0 for usage in usages),
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning or 0 for usage in usages)
        },
    }

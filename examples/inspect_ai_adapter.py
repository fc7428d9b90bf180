"""Models of Anaphora's client for evaluations of inspect_ai. Copy this file into your package, and
name it in pyproject.toml for `inspect eval task.py --model anaphora/claude-sonnet-5-5`:

    [project.entry-points.inspect_ai]
    anaphora = "your_package.inspect_ai_adapter"
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import inspect_ai.model as their
from inspect_ai.tool import ToolCall as TheirToolCall
from inspect_ai.tool import ToolFunction

from anaphora import (
    Client,
    Document,
    Image,
    Message,
    Params,
    PromptBlock,
    Response,
    Text,
    ToolCall,
    ToolResult,
    errors,
)
from anaphora.integrations import framework_client as adapters
from anaphora.prompt import Reasoning, ToolChoice
from anaphora.values import Refusal, Thinking

#: Generation options that are parameters of a call; `stop_seqs` is `stop`.
_PARAMS = (
    *("max_tokens", "temperature", "top_p", "top_k", "stop_seqs", "seed"),
    *("frequency_penalty", "presence_penalty", "verbosity"),
)
_REFUSED = ("best_of", "logit_bias", "num_choices", "logprobs", "top_logprobs", "prompt_logprobs")
_STOPS = dict(
    zip(
        ("end", "stop_sequence", "tool_calls", "length", "refusal", "context_overflow"),
        ("stop", "stop", "tool_calls", "max_tokens", "content_filter", "model_length"),
        strict=True,
    )
)
#: Metadata key for reply content that inspect's types cannot hold.
_KEPT = "anaphora"


@their.modelapi(name="anaphora")
class AnaphoraAPI(their.ModelAPI):
    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Any = None,
        provider: str | None = None,
        client: Client | None = None,
        llm_config: Any = None,
    ) -> None:
        """`llm_config` is the path of llm.yaml (`-M llm_config=llm.yaml`), `provider` the name of
        a provider or a route in it. Without one, keys are those of the environment."""
        if base_url or api_key:
            reason = "belongs to a provider: set it in llm.yaml, or in the environment"
            raise errors.InvalidRequest(reason, path="base_url" if base_url else "api_key")
        super().__init__(model_name, None, None, [], config or their.GenerateConfig())
        self._provider = provider
        self._calls = adapters.FrameworkClient(client, config=llm_config)
        self._calls.model_profile(provider, model_name)  # a wrong name is an error now

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        system, content = _messages(input)
        options = _options(config) | {"model": self.model_name}
        options["system"] = [PromptBlock(f"system{i}", text) for i, text in enumerate(system)]
        if tools:
            options["tools"] = [
                adapters.function_tool(
                    one.name, one.description, one.parameters.model_dump(exclude_none=True)
                )
                for one in tools
            ]
            options["tool_choice"] = _choice(tool_choice, config.parallel_tool_calls)
            options["conversation"] = tool_choice != "none"  # their results come with the next call
        try:
            return _output(await self._calls.acomplete(content, self._provider, **options))
        except (errors.ContextOverflow, errors.ContentRefused) as problem:
            long = isinstance(problem, errors.ContextOverflow)
            stop: Any = "model_length" if long else "content_filter"
            return their.ModelOutput.from_content(self.model_name, str(problem), stop)

    def should_retry(self, ex: Exception) -> bool:
        return isinstance(ex, errors.AnaphoraError) and ex.retryable


def _options(config: Any) -> dict[str, Any]:
    for name in (*_REFUSED, "extra_headers", "extra_body"):
        if getattr(config, name, None) not in (None, False, 1):
            raise errors.InvalidRequest("is not supported by anaphora models", path=name)
    given = {name: getattr(config, name, None) for name in _PARAMS}
    given["stop"] = given.pop("stop_seqs")
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    effort, budget = config.reasoning_effort, config.reasoning_tokens
    if effort == "none":
        options["reasoning"] = Reasoning(mode="disabled")
    elif effort is not None or budget is not None:
        mode: Any = "adaptive" if budget is None else "enabled"
        options["reasoning"] = Reasoning(mode=mode, effort=effort, budget_tokens=budget)
    if (wanted := config.response_schema) is not None:
        schema = wanted.json_schema.model_dump(exclude_none=True, by_alias=True)
        form = adapters.output_schema(schema, wanted.name, strict=wanted.strict)
        options["params"] = Params(output=form)
    return options


def _choice(choice: Any, parallel: bool | None) -> ToolChoice | None:
    if isinstance(choice, ToolFunction):
        return ToolChoice("tool", choice.name, parallel)
    mode: Any = "required" if choice == "any" else choice
    return None if mode == "auto" and parallel is None else ToolChoice(mode, None, parallel)


def _messages(input: Sequence[Any]) -> tuple[list[str], list[Message]]:
    start = list(itertools.takewhile(lambda one: one.role == "system", input))
    content: list[Message] = []
    for one in input[len(start) :]:
        if one.role == "system":
            content.append(Message.system(one.text))
        elif one.role == "user":
            content.append(Message(role="user", parts=_parts(one.content)))
        elif one.role == "tool":
            failed = one.error is not None
            parts = one.error.message if failed else _parts(one.content)
            result = ToolResult(one.tool_call_id or "", parts, error=failed, name=one.function)
            content.append(Message(role="tool", parts=(result,)))
        elif (reply := _assistant(one)).parts:
            content.append(reply)
    return [one.text for one in start], content


def _assistant(message: Any) -> Message:
    text = [Text(message.text)] if message.text else []
    made = message.tool_calls or ()
    calls = (ToolCall(one.id, one.function, json.dumps(one.arguments)) for one in made)
    rebuilt = Message(role="assistant", parts=(*text, *calls))
    return adapters.restored_reply((message.metadata or {}).get(_KEPT), rebuilt)


def _parts(content: str | Sequence[Any]) -> tuple[Any, ...]:
    listed: Any = [their.ContentText(text=content)] if isinstance(content, str) else content
    return tuple(_part(item) for item in listed if item.type != "reasoning")


def _part(item: Any) -> Text | Image | Document:
    if item.type == "text":
        return Text(item.text)
    if item.type not in ("image", "document"):
        raise errors.InvalidRequest(f"anaphora models take no {item.type}", path="content")
    kind, place = (Image, item.image) if item.type == "image" else (Document, item.document)
    return kind.from_url(place) if re.match(r"data:|\w+://", place) else kind.from_file(place)


def _content(part: Any) -> Any:
    if isinstance(part, Thinking):
        sign, text = part.signature, part.text or part.data or ""
        return their.ContentReasoning(reasoning=text, signature=sign, redacted=not part.text)
    return their.ContentText(text=part.text, refusal=isinstance(part, Refusal) or None)


def _output(response: Response[Any]) -> their.ModelOutput:
    parts = response.reply.message.parts
    content = [_content(part) for part in parts if isinstance(part, Text | Refusal | Thinking)]
    kept, notices = adapters.kept_reply(response.reply.message), list(map(str, response.notices))
    message = their.ChatMessageAssistant(
        content=content,
        tool_calls=[_tool_call(one) for one in response.tool_calls] or None,
        model=response.model,
        source="generate",
        metadata=None if kept is None else {_KEPT: kept},
    )
    stop: Any = _STOPS.get(response.stop_reason, "unknown")
    usage, cost = response.usage, response.cost_usd
    return their.ModelOutput(
        model=response.model,
        choices=[their.ChatCompletionChoice(message=message, stop_reason=stop)],
        usage=their.ModelUsage(
            input_tokens=usage.uncached or 0,
            output_tokens=usage.output or 0,
            total_tokens=usage.total or 0,
            input_tokens_cache_read=usage.read,
            input_tokens_cache_write=usage.written_total,
            reasoning_tokens=usage.reasoning,
            total_cost=None if cost is None else float(cost),
        ),
        metadata={"notices": notices} if notices else None,
    )


def _tool_call(call: ToolCall) -> TheirToolCall:
    problem, arguments = None, {}
    try:
        arguments = json.loads(call.arguments or "{}")
        if not isinstance(arguments, dict):
            problem, arguments = "the arguments are no JSON object", {}
    except ValueError as error:
        problem = f"the arguments are not JSON: {error}"
    return TheirToolCall(call.id, call.name, arguments, problem)

"""An answer to a prompt, from the reply's making to the provider's words for it."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.verdict import SentCall
from anaphora.canonical import dumps
from anaphora.values import Message, Reply, Text, Thinking, ToolCall, Usage
from anaphora.wire.ollama.stream_writer import moment_of

from . import diagnosis, echo, further
from .asked import Answer, Asked
from .billing import Billing
from .ids import Ids
from .journal import Called, Entry, Journal
from .options import Latency, Options
from .prompts import Prompt, Prompts
from .replies import Said, invent, tokens_of
from .replies.dice import seed_of
from .replies.heard import Heard
from .routes import Route
from .saying import as_array, say_stream, say_whole

#: Hosts that count every stream, whether or not it is asked for.
_ALWAYS_COUNTED = ("mistral", "xai", "zai", "moonshot", "google")


class Generator:
    def __init__(
        self, options: Options, billing: Billing, prompts: Prompts, ids: Ids, journal: Journal
    ) -> None:
        self._options = options
        self._billing = billing
        self._prompts = prompts
        self._ids = ids
        self._journal = journal
        self._player = options.script.begin()

    def answer(
        self, asked: Asked, route: Route, workspace: str, prompt: Prompt, entry: Entry
    ) -> Answer:
        played = RenderedPrompt(prompt.rendered, prompt.plan)
        seed = self._seed(prompt, played)
        said = self._said(asked, route, prompt, entry, seed)
        more = further.further(prompt.call, route.wire, prompt.facts.profile, seed)
        stream = _streams(asked, route, prompt)
        latency = _paced(self._options.latency, said)
        began = asked.at + latency.first
        bill = self._billing.bill(
            route,
            played,
            prompt.facts,
            at=asked.at,
            began=began,
            ended=began + _pieces(said, stream) * latency.pace,
            scope=workspace,
        )
        output, reasoning = tokens_of(said, prompt.facts.profile)
        for one in more:
            spoken, thought = tokens_of(one, prompt.facts.profile)
            output, reasoning = output + spoken, reasoning + thought
        usage = bill.usage(route.wire, output, _counted(route.wire, said, reasoning))
        sent = SentCall(
            rendered=prompt.rendered, plan=prompt.plan, at=asked.at, usage=usage, route=workspace
        )
        reply = Reply(
            id=self._ids.reply(route.wire),
            model=prompt.rendered.model,
            message=Message(role="assistant", parts=said.parts),
            stop=said.stop,
            stop_sequence=said.stop_sequence,
            usage=usage,
            extras=self._extras(asked, route, workspace, prompt, said, sent, more),
        )
        entry.stream, entry.output, entry.reply_id = stream, output, reply.id
        entry.called = Called(
            sent=sent, outcome=bill.outcome, facts=prompt.facts, size=len(prompt.body)
        )
        if route.wire == "openai_responses" and prompt.call.params.store is not False:
            self._prompts.responses.keep(workspace, prompt.items, reply, route.codec)
        return self._spoken(asked, route, reply, stream, latency)

    def _seed(self, prompt: Prompt, played: RenderedPrompt) -> bytes:
        """Nothing but the prompt and its parameters: streamed or not, it is the same answer."""
        whole = played.key(len(played) - 1) if len(played) else b""
        cache_params = [
            name.encode() + b"\0" + value for name, value in prompt.rendered.envelope.cache_params
        ]
        return seed_of(b"%d" % self._options.seed, whole, *cache_params)

    def _said(self, asked: Asked, route: Route, prompt: Prompt, entry: Entry, seed: bytes) -> Said:
        profile = prompt.facts.profile
        if self._options.script.rules and not prompt.call.ir.cache.prewarm:
            heard = Heard(
                call=prompt.call,
                wire=route.wire,
                provider=route.provider,
                profile=profile,
                path=asked.path,
                seed=seed,
            )
            said = self._player.next(heard)
            if said is not None:
                entry.scripted = True
                return said
        return invent(prompt.call, route.wire, profile, seed)

    def _extras(
        self,
        asked: Asked,
        route: Route,
        workspace: str,
        prompt: Prompt,
        spoken: Said,
        sent: SentCall,
        more: list[Said],
    ) -> dict[str, str] | None:
        """What an answer says besides its message and its counts."""
        said: dict[str, Any] = {}
        cache = prompt.call.ir.cache
        earlier = None
        if cache.compare_with is not None:
            earlier = self._journal.sent(workspace, cache.compare_with.id)
        if route.wire == "anthropic":
            if cache.diagnose:
                said["diagnostics"] = diagnosis.anthropic(prompt.call, earlier, sent)
        elif route.wire == "openai_chat":
            said["created"] = int(asked.at)
            if route.provider in ("openai", "azure"):
                said["service_tier"] = "default"
        elif route.wire == "openai_responses":
            said = echo.response_fields(asked.fields, spoken.stop, asked.at)
            if cache.compare_with is not None:
                said["prompt_cache_diagnostics"] = diagnosis.openai(earlier, sent)
        elif route.wire == "ollama":
            said["created_at"] = moment_of(asked.at)
        if more:
            said[further.LISTS[route.wire]] = further.written(route.wire, more)
        return {route.wire: msgspec.json.encode(said).decode()} if said else None

    def _spoken(
        self, asked: Asked, route: Route, reply: Reply, stream: bool, latency: Latency
    ) -> Answer:
        if not stream:
            return say_whole(route.codec, reply, route.wire, latency)
        counted = route.wire != "openai_chat" or _counts(asked, route)
        answer = say_stream(route.codec, reply, route.wire, latency, asked.at, counted)
        if route.wire == "gemini" and asked.query.get("alt") != "sse":
            return as_array(answer)
        return answer


def _streams(asked: Asked, route: Route, prompt: Prompt) -> bool:
    if route.wire == "gemini":
        return ":streamGenerateContent" in asked.path
    return prompt.call.params.stream


def _counts(asked: Asked, route: Route) -> bool:
    """Whether a stream of Chat's ends with its counts."""
    if route.provider in _ALWAYS_COUNTED:
        return True
    options = msgspec.json.decode(asked.fields.get("stream_options", msgspec.Raw(b"null")))
    return isinstance(options, dict) and options.get("include_usage") is True


def _paced(latency: Latency, said: Said) -> Latency:
    return latency if said.pace is None else Latency(latency.first, said.pace)


def _counted(wire: str, said: Said, reasoning: int) -> int | None:
    """The count of reasoning, where the provider tells one."""
    if wire in ("openai_chat", "openai_responses"):
        return reasoning
    thinks = any(isinstance(part, Thinking) for part in said.parts)
    told = wire in ("anthropic", "gemini") and (thinks or reasoning)
    return reasoning if told else None


def _pieces(said: Said, stream: bool) -> int:
    """About how many pieces an answer comes in."""
    return sum(_length(part) // 12 for part in said.parts) if stream else 0


def _length(part: Any) -> int:
    if isinstance(part, ToolCall):
        return len(part.arguments)
    return len(part.text) if isinstance(part, Text | Thinking) else 0


def loaded(route: Route, model: str, at: float) -> bytes:
    """Ollama's answer to a request without messages: the model is loaded."""
    extras = {"created_at": moment_of(at)}
    reply = Reply(
        id="",
        model=model,
        message=Message(role="assistant", parts=()),
        stop="other",
        stop_raw="load",
        usage=Usage(),
        extras={route.wire: dumps(extras).decode()},
    )
    return route.codec.write_reply(reply)

"""From a request to its response: the prompt, the reply, its bill and its bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from anaphora.cache import hints_of
from anaphora.cache.sent_call import reply_lines
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.verdict import SentCall
from anaphora.catalog import CacheRules, Profile
from anaphora.errors import ContextOverflow, InvalidRequest, RequestRejected
from anaphora.prompt import Call
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import for_model
from anaphora.values import Message, Part, Reply, ReplyStart, ToolCall
from anaphora.wire.cutting import cut_call
from anaphora.yaml_values import seconds_in

from .exchange import EmulatorResponse, ResponseChunk
from .faults import Faults
from .hosts.host import EmulatorRoute, Host, ReplyContext, RoutedRequest
from .journal import Billing, CallRecord, Journal, ModelFacts
from .replies import GeneratedReply, generate_text, generate_tool_calls
from .replies.schema_value import SchemaGenerator
from .replies.script import Script, ScriptInput
from .replies.text import IdGenerator, SeededRandom, join_seed, stream_events
from .routers import name_host

#: Replies to one request: OpenAI's limit, the highest of all providers.
_MOST_REPLIES = 128


class Latency(msgspec.Struct, frozen=True):
    """Seconds before the first byte of a response, and between two chunks of a stream."""

    first: float | None = None
    """None: no delay, except that calls which write cache entries wait for calls sent together with
    them."""
    pace: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Latency:
        """Reads `50ms`, or `200ms,10ms` with the time between two chunks of a stream."""
        parts = [part.strip() for part in text.split(",")]
        try:
            if not all(part.endswith("s") for part in parts):
                raise ValueError  # `5m` is meant as milliseconds
            first, *pace = (seconds_in(part, "latency") for part in parts)
            return cls(first, *pace)
        except (TypeError, ValueError):
            reason = f"{text!r} is not a duration; write 50ms, 1.5s, or 200ms,10ms"
            raise InvalidRequest(reason, path="latency") from None


class EmulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 0
    """Another seed gives other replies and ids."""
    latency: Latency = Latency()
    providers: tuple[str, ...] = ()
    """The providers to serve; empty: all."""
    keys: frozenset[str] | None = None
    """The API keys to accept; None: any."""
    script: Script = Script()
    """Scripted replies; requests that match no rule get a generated reply."""
    faults: Faults = Faults()
    """The faults to inject."""
    strict: bool = True
    """Reject all requests that the provider rejects; otherwise only unreadable ones."""
    batch_seconds: float = 1.0
    """Seconds by the emulator's clock that batches take."""
    any_model: bool = False
    """Accept models that the provider would not know, or has retired."""
    tool_calls: bool = True
    """Call tools in generated replies. Forced tools are called in any case."""
    router_hosts: tuple[str, ...] = ()
    """The hosts behind every router, such as OpenRouter, each with a cache of its own: requests go
    to a random one, unless they ask for one. Empty: routers have one host, and do not name it."""
    remembered: int = 1000
    """How many calls the journal keeps."""
    rows: str = ""
    """Rows of the catalog, as TOML, that replace shipped cache rules."""


class ParsedPrompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    body: bytes
    """Completed with the content that the provider stores."""
    call: Call
    rendered: Rendered
    plan: Plan
    prefixes: RenderedPrompt
    """`rendered` with the cache keys of its prefixes."""
    facts: ModelFacts
    items: tuple[bytes, ...] = ()
    """Responses and threads: the input items, or messages, of the whole chain."""
    dropped: tuple[str, ...] = ()
    """Anthropic: the paths of thinking blocks that the model does not get."""


class Generator:
    """Reads the prompts of one engine, and generates their responses."""

    def __init__(
        self, options: EmulatorOptions, billing: Billing, ids: IdGenerator, journal: Journal
    ) -> None:
        self._options = options
        self._billing = billing
        self._ids = ids
        self._journal = journal
        self._player = options.script.player()
        self._schemas = SchemaGenerator()

    def read(self, request: RoutedRequest) -> ParsedPrompt:
        """Parses a request; raises the provider's errors."""
        route, complete = request.route, request.host.complete_body(request)
        body = complete.body
        call = route.codec.parse(body, route.path)
        rendered, facts = self._cut(call, route)
        dropped: tuple[str, ...] = ()
        if self._options.strict:
            kept = request.host.unbound_thinking(request, facts.profile, rendered)
            if kept is not None:
                body, dropped = kept
                call = route.codec.parse(body, route.path)
                rendered, facts = self._cut(call, route)
        shown = request.host.without_earlier_thinking(complete, facts.profile)
        if shown is not None:
            rendered, facts = self._cut(route.codec.parse(shown, route.path), route)
        plan = request_plan(rendered, facts.rules, call.ir.cache.mode)
        if complete.held is not None:
            if complete.held_model != rendered.model:
                reason = f"the cached content is for {complete.held_model}, not {rendered.model}"
                raise RequestRejected(reason, status=400, param="model")
            plan = Plan(held=complete.held)
        return ParsedPrompt(
            body=body,
            call=call,
            rendered=rendered,
            plan=plan,
            prefixes=RenderedPrompt(rendered, plan),
            facts=facts,
            items=complete.items,
            dropped=dropped,
        )

    def cut(self, request: RoutedRequest) -> tuple[Rendered, ModelFacts]:
        """The chunks of a request whose tokens are only counted."""
        route = request.route
        call = route.codec.parse(request.host.complete_body(request).body, route.path)
        return self._cut(call, route)

    def _cut(self, call: Call, route: EmulatorRoute) -> tuple[Rendered, ModelFacts]:
        rendered = cut_call(route.codec, call)
        facts = self._billing.facts(route.provider, route.host.wire, rendered.model)
        return for_model(rendered, facts.profile), facts

    def respond(self, request: RoutedRequest, prompt: ParsedPrompt) -> EmulatorResponse:
        host, facts, call = request.host, prompt.facts, prompt.call
        entry, workspace = request.entry, request.workspace
        generated, *others = self._replies(request, prompt)
        stream = host.is_stream(request, call)
        scope = _scope(request, facts)
        simulator, reasoning = self._billing.simulator(facts), generated.tokens(facts.profile)[1]
        opened = simulator.start(prompt.prefixes, at=request.now, reasoning=reasoning, scope=scope)
        outcome = opened.outcome
        usage = host.usage(outcome, facts, (generated, *others))
        usage = host.detailed_usage(request, facts, usage)
        message = Message(role="assistant", parts=generated.parts)
        headers: dict[str, str] = {}
        sent = SentCall(
            rendered=prompt.rendered,
            plan=prompt.plan,
            at=request.now,
            usage=usage,
            reply_lines=reply_lines(message),
            route=workspace,
            host=entry.host,
        )
        compared = call.ir.cache.compare_with
        earlier = None if compared is None else self._journal.sent(workspace, compared.id)
        context = ReplyContext(
            request=request,
            call=call,
            reply=generated,
            sent=sent,
            earlier=earlier,
            dropped=prompt.dropped,
        )
        fields = _extra_fields(context, others)
        if entry.host:
            message = name_host(entry.host, request.route.dialect, message, fields, headers)
        reply = Reply(
            id=self._ids.next(host.reply_id_prefix),
            model=host.reply_model(prompt.rendered.model),
            message=message,
            stop_reason=generated.stop_reason,
            stop_sequence=generated.stop_sequence,
            usage=usage,
            extras={host.wire: msgspec.json.encode(fields).decode()} if fields else None,
        )
        entry.stream, entry.output, entry.reply_id = stream, usage.output or 0, reply.id
        entry.billed = CallRecord(
            number=entry.number,
            sent=sent,
            hints=hints_of(request.headers, request.fields),
            outcome=outcome,
            facts=facts,
            size=len(prompt.body),
            open=opened,
        )
        host.keep(request, prompt.items, reply)
        made = _stream_response if stream else _whole_response
        response = made(request, reply, self._latency(generated))
        response.call = entry.billed
        response.headers.update(headers)
        return response

    def overflow_stream(
        self, request: RoutedRequest, prompt: ParsedPrompt, problem: ContextOverflow
    ) -> EmulatorResponse | None:
        """The stream of a prompt that is too long, if the provider begins one."""
        host, model = request.host, request.host.reply_model(prompt.rendered.model)
        if not host.is_stream(request, prompt.call):
            return None
        head = ReplyStart(self._ids.next(host.reply_id_prefix), model, request.now)
        response = host.overflow_stream(request, head, problem)
        request.entry.stream = response is not None
        return response

    def _latency(self, reply: GeneratedReply) -> Latency:
        latency, pace = self._options.latency, reply.pace
        return latency if pace is None else msgspec.structs.replace(latency, pace=pace)

    def _replies(self, request: RoutedRequest, prompt: ParsedPrompt) -> list[GeneratedReply]:
        """One reply, or several: Chat's `n`, Gemini's `candidateCount`. The first may be scripted.

        They depend on the prompt and its parameters only, and are the same in a stream.
        """
        call, host, profile = prompt.call, request.host, prompt.facts.profile
        prefixes = prompt.prefixes
        prefix = prefixes.key(len(prefixes) - 1) if len(prefixes) else b""
        params = prompt.rendered.envelope.cache_params
        values = [name.encode() + b"\0" + value for name, value in params]
        seed = join_seed(b"%d" % self._options.seed, prefix, *values)
        scripted = None
        if self._options.script.rules and not call.ir.cache.prewarm:
            script_input = ScriptInput(
                call=call,
                host=host,
                provider=request.route.provider,
                profile=profile,
                path=request.path,
                seed=seed,
            )
            scripted = self._player.next(script_input)
            request.entry.scripted = scripted is not None
        count = call.params.n or 1 if host.choices_field is not None else 1
        if count > _MOST_REPLIES:
            raise RequestRejected(f"at most {_MOST_REPLIES} replies, not {count}", status=400)
        self._schemas.begin_request()
        seeds = [seed, *(seed + join_seed(b"%d" % index) for index in range(1, count))]
        generate = partial(self._generated, call, host, profile)
        replies = [scripted or generate(seeds[0]), *map(generate, seeds[1:])]
        signed: list[GeneratedReply] = []
        for reply, own in zip(replies, seeds, strict=True):
            parts = host.sign_calls(reply.parts, profile, own)
            parts = host.bind_thinking(parts, profile, prompt.rendered)
            if parts is not reply.parts:
                reply = msgspec.structs.replace(reply, parts=parts)
            signed.append(reply)
        return signed

    def _generated(self, call: Call, host: Host, profile: Profile, seed: bytes) -> GeneratedReply:
        if call.ir.cache.prewarm or call.params.max_tokens == 0:
            return GeneratedReply(stop_reason=host.prewarm_stop)
        random, choice = SeededRandom(seed), call.params.tool_choice
        thinking, hidden = host.generate_thinking(call, profile, random)
        parts: list[Part] = [] if thinking is None else [thinking]
        forced = choice is not None and choice.mode in ("required", "tool")
        calls: list[ToolCall] = []
        if self._options.tool_calls or forced:
            calls = generate_tool_calls(call, host.call_id_prefix, self._schemas, random, seed)
        parts += calls or [host.text_part(call, generate_text(call, self._schemas, random, seed))]
        reply = GeneratedReply(
            parts=tuple(parts), stop_reason="tool_calls" if calls else "end", hidden=hidden
        )
        return reply.limited(call.params.max_tokens, call.params.stop, profile)


def request_plan(rendered: Rendered, rules: CacheRules, mode: str | None = None) -> Plan:
    """The markers of a request that the provider honours. `mode` is the request's setting for
    markers that the provider adds itself."""
    if not rules.slots.value:
        return Plan()
    ttls = rules.ttls.value
    default = rules.default_ttl.value if rules.default_ttl is not None else ttls[-1]
    marks = tuple(
        mark if mark.ttl in ttls else Mark(mark.chunk, default, mark.splice)
        for mark in rendered.marks
    )
    automatic = None
    if rules.automatic_breakpoint.value == "last_block":
        automatic = rendered.automatic
    elif rules.automatic_breakpoint.value == "last_message" and mode != "explicit":
        automatic = rendered.automatic or default
    if automatic is not None and automatic not in ttls:
        automatic = default
    return Plan(marks=marks, automatic=automatic)


def _scope(request: RoutedRequest, facts: ModelFacts) -> str:
    """The scope of the cache that a call uses."""
    scope = "" if facts.rules.isolation.value == "server" else request.workspace
    if request.entry.host:
        scope = f"{scope} at {request.entry.host}"
    return f"{scope} in batches" if request.entry.batch else scope  # a scope of their own


def _extra_fields(context: ReplyContext, others: list[GeneratedReply]) -> dict[str, Any]:
    """The fields of a reply beside its message and its counts."""
    host = context.request.host
    fields = host.extra_fields(context)
    if others and host.choices_field is not None:
        choices = []
        for index, other in enumerate(others, 1):
            message = Message(role="assistant", parts=other.parts)
            reply = Reply(id="", model="", message=message, stop_reason=other.stop_reason)
            choices.append(msgspec.Raw(host.write_choice(reply, index)))
        fields[host.choices_field] = choices
    return fields


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def _whole_response(request: RoutedRequest, reply: Reply, latency: Latency) -> EmulatorResponse:
    host = request.host
    chunk = ResponseChunk(latency.first or 0.0, request.route.codec.write_reply(reply))
    return EmulatorResponse(headers={"content-type": host.content_type}, chunks=[chunk])


def _stream_response(request: RoutedRequest, reply: Reply, latency: Latency) -> EmulatorResponse:
    """A chunk for each event that has data."""
    host = request.host
    usage = host.stream_usage(request, reply.usage)
    if usage is not reply.usage:
        reply = msgspec.structs.replace(reply, usage=usage)
    writer = request.route.codec.writer()
    written = b"".join(map(writer.write, stream_events(reply, request.now)))
    # One write may hold several events.
    chunks = [ResponseChunk(latency.pace, data) for data in host.split_stream(written)]
    chunks[0].delay = latency.first or 0.0
    headers = {"content-type": host.stream_type, "cache-control": "no-cache"}
    response = EmulatorResponse(headers=headers, chunks=chunks, stream=True)
    host.edit_stream(request, reply, response)
    return response

"""Requests from files as the verdict compares them: bytes as they were sent, bills where known."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.analysis import trace
from anaphora.analysis.trace.format import unsupported
from anaphora.analysis.trace.log_lines import LogLine
from anaphora.cache import CallHints, EarlierCall, PrefixIndex, hints_of
from anaphora.cache.compared_prompt import ComparedPrompt
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.sent_call import reply_lines
from anaphora.cache.verdict import (
    Diagnosis,
    Prediction,
    SentCall,
    Verdict,
    comparable,
    diagnosis_of,
    judge,
    predict_after,
)
from anaphora.catalog import CacheRules, Dialect, Price, Profile
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.rendered import Plan
from anaphora.tokens import for_model
from anaphora.values import Reply
from anaphora.wire import DetectedWire, Wire, detect_wire
from anaphora.wire.body_memory import DecodedBody
from anaphora.wire.openai_responses.parse import input_items
from anaphora.wire.reading import Members, decode_reason, known_text, object_members, request_error

from .planning import own_plan
from .request_log import PROMPT_FIELDS, REQUEST, LoggedCall, read_fields

#: Names that loggers use for the conversation of a request.
_CONVERSATION = ("conversation", "conversation_id", "session", "session_id", "thread_id", "group")

_fields = msgspec.json.Decoder(dict[str, Any]).decode
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL, _FALSE = msgspec.Raw(b"null"), msgspec.Raw(b"false")


#: A response, and why it cannot be read.
ReadReply: TypeAlias = tuple[Reply | None, str]


class RequestDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller knows of the requests."""

    origin: str | None = None
    """The wire or dialect."""
    provider: str | None = None
    model: str | None = None
    path: str = ""


_NO_DEFAULTS = RequestDefaults()


class BegunRules(msgspec.Struct, eq=False):
    """What all calls of a conversation with one model have in common."""

    rules: CacheRules | None = None
    """The rules that it began with; None: the catalog's."""
    conversation: Hashable = None


class SentRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    place: str
    sent: SentCall
    wire: str
    provider: str
    model: str
    conversation: str = ""
    """Where the log names it."""
    hints: CallHints = CallHints()
    """The conversation as the log names it, else as the client does. Never shown."""
    reply_id: str = ""
    failure: str = ""
    """Why the response cannot be read, where there is one."""
    service_tier: str = ""
    """As the request names it; prices depend on it."""
    diagnosis: Diagnosis | None = None
    guess: str = ""
    """How its wire was chosen, where it could be of another one, too."""
    dialect: Dialect | None
    """The provider's variant of the wire; None where it has none."""
    rules: CacheRules
    profile: Profile
    begun: BegunRules = msgspec.field(default_factory=BegunRules)

    @property
    def used_rules(self) -> CacheRules:
        """The rules that its conversation began with."""
        return self.rules if self.begun.rules is None else self.begun.rules


def is_request(fields: dict[str, Any]) -> bool:
    """A request's body, or a line of a request log."""
    is_body = any(name in fields for name in PROMPT_FIELDS) and "calls" not in fields
    return is_body or _is_logged(fields)


def _is_logged(fields: dict[str, Any]) -> bool:
    return any(isinstance(fields.get(name), dict | str) for name in REQUEST)


def holds_request(data: bytes, place: str, *, is_json: bool) -> bool:
    """Whether a file holds one request. Raises for a JSON file that holds something else, unless
    that is a trace."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        if is_json:
            reason = decode_reason(problem, data)
            raise InvalidRequest(f"not JSON: {reason}", path=place) from None
        return False
    if isinstance(fields, dict) and trace.detect(fields) is not None:
        return False
    if isinstance(fields, dict) and (is_request(fields) or "calls" in fields):
        return is_request(fields)
    if is_json:
        raise InvalidRequest("not a request of a known wire", path=place)
    return False


class _ChainLink(msgspec.Struct, eq=False):
    """A reply: what its request added to the chain, and its output."""

    before: _ChainLink | None
    input: bytes
    output: bytes | Callable[[], bytes]
    """The list, or what writes the reply that has it: few replies are continued by their id."""
    size: int

    def items(self) -> tuple[bytes, ...]:
        if not isinstance(self.output, bytes):
            self.output = bytes(_raw_fields(self.output())["output"])
        return (*input_items(self.input), *input_items(self.output))


class ResponseChains:
    """The input and output of earlier replies, which a request of the Responses API continues by
    `previous_response_id` without sending them again. The oldest are dropped first."""

    def __init__(self, most: int = 4096, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._links: dict[str, _ChainLink] = {}

    def complete(self, members: Members, hints: CallHints) -> Members | None:
        """The request with the whole chain as its input; None where that is not known."""
        link = self._links.get(hints.previous_reply)
        if link is None:
            return None
        parts = [input_items(members.get("input", _NULL))]
        while link is not None:
            parts.append(link.items())
            link = link.before
        items = b",".join(item for part in reversed(parts) for item in part)
        completed = {name: members[name] for name in members if name != "previous_response_id"}
        completed["input"] = msgspec.Raw(b"[" + items + b"]")
        return completed

    def keep(
        self, members: Members, hints: CallHints, reply: Reply, written: bytes | Callable[[], bytes]
    ) -> None:
        """Keeps the input of a reply of the Responses API and its output, from the reply as it was
        written, or can be. Replies that are not stored have no id to continue them by."""
        before = self._links.get(hints.previous_reply)
        if members.get("store") == _FALSE or (hints.previous_reply and before is None):
            return
        output = written
        if isinstance(written, bytes):
            raw = _raw_fields(written).get("output")
            if raw is None:
                return
            output = bytes(raw)
            size = len(output)
        else:
            size = len(msgspec.json.encode(reply.message))
        given = bytes(members.get("input", _NULL))
        link = _ChainLink(before, given, output, len(given) + size)
        self._links[reply.id] = link
        self._bytes += link.size
        while len(self._links) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._links.pop(next(iter(self._links))).size


def read_request(
    line: LogLine, defaults: RequestDefaults, chains: ResponseChains | None = None
) -> SentRequest:
    """The request in a line, or in a file that holds one. `chains` are the replies before it."""
    try:
        fields = _fields(line.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        reason = decode_reason(problem, line.data)
        raise InvalidRequest(f"not a JSON object: {reason}", path=line.place) from None
    try:
        return _read(line, fields, defaults, chains)
    except InvalidRequest as problem:
        raise problem.within(line.place) from None
    except (AnaphoraError, ValueError) as problem:
        raise InvalidRequest(str(problem), path=line.place) from None


def _read(
    line: LogLine, fields: dict[str, Any], defaults: RequestDefaults, chains: ResponseChains | None
) -> SentRequest:
    if not _is_logged(fields):
        if defaults.origin is None:
            detected = detect_wire(line.data, defaults.model)
        else:
            detected = DetectedWire(defaults.origin)
        logged = LoggedCall(request=line.data, response=b"", wire=detected.name)
        request = request_of(logged, line.place, defaults, chains)
        return replace(request, guess=detected.guess) if detected.guess else request
    logged = read_fields(fields, response_needed=False)
    logged = replace(logged, request=_sent_bytes(line.data, logged.request))
    request = request_of(logged, line.place, defaults, chains)
    named = (str(fields[name]) for name in _CONVERSATION if fields.get(name) is not None)
    conversation = next(named, "")
    if not conversation:
        return request
    hints = replace(request.hints, conversation=conversation)
    return replace(request, conversation=conversation, hints=hints)


def _answering_model(answer: Reply | None) -> str:
    """The model of a request that names none: a stored prompt decides it."""
    if answer is None or not answer.model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    return answer.model


def request_of(
    logged: LoggedCall,
    place: str,
    defaults: RequestDefaults = _NO_DEFAULTS,
    chains: ResponseChains | None = None,
    body: DecodedBody | None = None,
    reply: ReadReply | None = None,
) -> SentRequest:
    """A request and its bill, from the bytes that were sent. `body` and `reply` are what was read
    from them before."""
    if defaults.origin is not None:
        codec, provider = wire.get(defaults.origin), wire.provider_of(defaults.origin)
    else:
        codec, provider = logged.codec()
    provider = defaults.provider or provider
    if (reason := unsupported(provider, logged.model)) is not None:
        raise InvalidRequest(reason, path="provider")
    if body is None:
        body = DecodedBody(object_members(logged.request, "$", request_error))
    members = body.members
    hints, chained = hints_of(logged.headers, members), None
    if hints.previous_reply and chains is not None:
        chained = chains.complete(members, hints)
    rendered = codec.split(chained or body, path=defaults.path or logged.path)
    answer, failure = read_reply(logged, codec) if reply is None else reply
    named = defaults.model or logged.model or rendered.model
    model = named or _answering_model(answer)
    profile = catalog.profile(provider, model)
    rules = catalog.rules(provider, model, rendered.wire)
    rendered = for_model(rendered if named else replace(rendered, model=model), profile)
    if chains is not None and answer is not None and wire.features(rendered.wire).stores_responses:
        written = partial(codec.write_reply, answer) if logged.stream else logged.response
        chains.keep(members, hints, answer, written)
    sent = SentCall(
        rendered=rendered,
        plan=own_plan(rendered, rules, members),
        at=logged.started if logged.started is not None else logged.ended,
        began=logged.began,
        ended=logged.ended if logged.started is not None else None,
        usage=None if answer is None or answer.usage.uncached is None else answer.usage,
        reply_lines=() if answer is None else reply_lines(answer.message),
        route=logged.host,
        complete=bool(named) and (not hints.previous_reply or chained is not None),
    )
    return SentRequest(
        place=place,
        sent=sent,
        wire=rendered.wire,
        provider=provider,
        model=model,
        hints=hints,
        reply_id="" if answer is None else answer.id,
        failure=failure,
        service_tier=known_text(members, "service_tier"),
        diagnosis=None if answer is None else diagnosis_of(answer),
        dialect=getattr(codec, "dialect", None),
        rules=rules,
        profile=profile,
    )


def _sent_bytes(line: bytes, decoded: bytes) -> bytes:
    """The request as it stands in the line: decoding it would normalise white space and numbers."""
    for name, raw in _raw_fields(line).items():
        if name in REQUEST and bytes(raw)[:1] == b"{":
            body = bytes(raw)
            if any(field in _raw_fields(body) for field in PROMPT_FIELDS):
                return body
    return decoded


def read_reply(logged: LoggedCall, codec: Wire | None = None) -> ReadReply:
    """The response, or why there is none. `codec` is that of the call, unless another reads it."""
    if logged.response in (b"", b"{}", b"null"):
        return None, ""
    try:
        return logged.reply(logged.codec()[0] if codec is None else codec), ""
    except AnaphoraError as problem:
        return None, str(problem)


_Scope: TypeAlias = tuple[str, ...]


class RequestPairs:
    """Finds for each request the one before it: of its model at its host, else of the model or host
    that its conversation changed from."""

    def __init__(
        self,
        most_calls: int = 4096,
        most_bytes: int = 64 * 1024 * 1024,
        *,
        steps: LearnedSteps | None = None,
    ) -> None:
        """`most_bytes` limits the prompts of the requests that are remembered. `steps` is what
        earlier bills have shown, and learns from these."""
        self._near: PrefixIndex[SentRequest] = PrefixIndex(most_calls, most_bytes)
        self._anywhere: PrefixIndex[SentRequest] = PrefixIndex(most_calls, most_bytes)
        self._steps = LearnedSteps() if steps is None else steps
        self._only: dict[_Scope, _Scope | None] = {}
        """The one model and host of a provider whose requests were seen; None where there are
        several, and only then are they remembered anywhere."""

    @property
    def size(self) -> int:
        """The bytes of the remembered prompts."""
        return max(self._near.size, self._anywhere.size)

    def add(self, request: SentRequest) -> EarlierCall[SentRequest] | None:
        """Remembers a request, and returns the one before it."""
        sent = request.sent
        prompt = ComparedPrompt(sent.rendered, Plan())
        scope = request.provider, request.wire
        own = *scope, request.model, sent.route
        if self._only.setdefault(scope, own) not in (own, None):
            self._only[scope] = None
            for each in self._near.calls():
                if (each.provider, each.wire) == scope:
                    _remember(self._anywhere, each, scope)
        earlier = _remember(self._near, request, own, prompt)
        if self._only[scope] is None:
            other = _remember(self._anywhere, request, scope, prompt)
            if other is not None and other.continues and not (earlier and earlier.continues):
                # The same prompt for another model is a conversation of its own.
                grown = len(sent.rendered) > len(other.call.sent.rendered)
                earlier = other if grown else earlier
        prompt.hashed = None
        self._learn(request, earlier)
        return earlier

    def _learn(self, request: SentRequest, earlier: EarlierCall[SentRequest] | None) -> None:
        """Gives a request the rules of its conversation, and learns from its bill for later
        conversations."""
        sent, begun = request.sent, request.begun
        begun.conversation = object()
        if earlier is not None and earlier.continues:
            before = earlier.call
            begun.conversation = before.begun.conversation
            if (before.model, before.sent.route) == (request.model, sent.route):
                begun.rules = before.begun.rules
        if begun.rules is None:
            begun.rules = self._steps.begin(sent.route, request.rules)
        if sent.usage is not None:
            read, conversation = sent.usage.read, begun.conversation
            self._steps.learn(sent.route, request.rules, read, conversation=conversation)


def _remember(
    index: PrefixIndex[SentRequest],
    request: SentRequest,
    scope: _Scope,
    prompt: ComparedPrompt | None = None,
) -> EarlierCall[SentRequest] | None:
    return index.add(
        request.sent.rendered,
        request,
        scope=scope,
        hints=request.hints,
        reply_id=request.reply_id,
        prompt=prompt,
    )


def paired(
    requests: Iterable[SentRequest], steps: LearnedSteps | None = None
) -> Iterator[tuple[EarlierCall[SentRequest] | None, SentRequest]]:
    """Each request with the one before it."""
    pairs = RequestPairs(steps=steps)
    for request in requests:
        yield pairs.add(request), request


def judge_request(
    earlier: EarlierCall[SentRequest] | None, request: SentRequest, price: Price | None
) -> tuple[SentCall | None, Verdict, Prediction | None]:
    """The verdict on a request, what it is judged against, and the prediction by their markers,
    where that was made for the verdict."""
    sent, rules = request.sent, request.used_rules
    before = comparable(earlier, sent.rendered, rules, at=sent.at)
    later, expected = sent, None
    if before is not None:
        later, expected = predict_after(before, sent, rules)
    verdict = judge(
        before,
        later,
        rules,
        expected=expected,
        price=price,
        profile=request.profile,
        diagnosis=request.diagnosis,
    )
    marked = (each.marks.marks or each.marks.automatic for each in (before, sent) if each)
    if not rules.slots.value and any(marked):
        expected = None  # markers do not count for the verdict there
    return before, verdict, expected

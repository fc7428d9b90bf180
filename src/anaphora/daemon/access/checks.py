"""Checks a request against a grant, which denies by default. Also limits an app's concurrent calls
and the memory of its unread bodies.

    check_grant(facts, grant, provider_ids=["anthropic-default"], models=["claude-haiku-5-5"])
    check_prompt(facts, grant, members)

Both raise `NotGranted`, whose `param` is the field of the request, and whose message names the list
of the grant that lacks it.

    exchange.account = unread.account(app.id)
    account.add(len(piece))         while it arrives; raises StoreUnavailable
    account.end()                   the body has been decoded, or its connection has ended
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase

from anaphora.daemon.access.handles import check_background, check_kind
from anaphora.daemon.faces import face_of
from anaphora.errors import CapabilityDenied, GrantRateLimited, NotGranted, StoreUnavailable
from anaphora.redaction import quoted
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.reading import Members

from .approved_prompts import prompt_fingerprint
from .grants import MOST_DEPTH, NARROW, AppGrant, LlmGrant, Permission

#: Names that all providers and our own readers read as the same tool.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
#: Betas of `output_format` and `thread`.
_CHECKED_BETAS = frozenset({"structured-outputs-2025-11-13", "message-threads-2026-08-12"})


def check_grant(
    facts: CallFacts,
    grant: LlmGrant,
    *,
    provider_ids: Sequence[str] = (),
    models: Sequence[str] = (),
) -> None:
    """Raises `NotGranted` for what the grant does not allow. `provider_ids` are the providers or
    routes that the call may use, `models` those that it resolves to; models named in the request
    itself are also checked."""
    for provider in provider_ids:
        if provider not in grant.providers:
            raise _missing(f"provider {provider!r}", "providers", "provider")
    check_background(facts.background)
    for param, kind, _ in facts.handles:
        check_kind(kind, param)
    _check_models(facts, grant, models)
    check_limits(facts, grant)
    for param, name in facts.tools:
        if not is_granted(name, grant.tools):
            raise _missing(f"tool {quoted(name)}", "tools", param)
        if "*" not in grant.tools and _TOOL_NAME.fullmatch(name) is None:
            reason = (
                f"tool {quoted(name)}: a name has 1 to 128 letters, digits, dots, colons, dashes"
                " and underscores, unless the grant allows every tool"
            )
            raise NotGranted(reason, param=param)
    for permission, used in _permissions(facts):
        if permission not in grant.permissions:
            for what, param in used:
                raise _missing(what, f"allow ({permission})", param)
    for param, beta in facts.betas:
        if not is_beta_granted(beta, grant):
            raise _missing(f"beta {beta!r}", "allow (betas)", param)
    for path in facts.unknown:
        if not is_granted(path, grant.fields):
            raise _missing(f"field {path!r}", "allow (fields)", path)


def check_capabilities(grant: AppGrant, needed: Sequence[str], method: str) -> None:
    """Raises `CapabilityDenied` if an app lacks a capability that the method needs, or one that the
    app itself requires."""
    missing = grant.missing if grant.requires else grant.requires
    for capability in (*needed, *sorted(missing)) if missing else needed:
        if capability in grant.capabilities:
            continue
        reason = f"{grant.app} is not granted {capability}, which {method} needs"
        if capability not in needed:
            reason = f"{grant.app} requires {capability}, which it is not granted"
        elif capability == NARROW and len(grant.llm.narrowed) >= MOST_DEPTH:
            reason = f"this token was narrowed {MOST_DEPTH} times and cannot be narrowed again"
        raise CapabilityDenied(reason, capability=capability, app=grant.app, method=method)


def check_prompt(facts: CallFacts, grant: LlmGrant, members: Members) -> None:
    """Raises `NotGranted` if the grant approves one prompt and this is a different one. `members`
    are those of the request that `facts` describes."""
    if grant.approved_prompt is None:
        return
    if facts.stored_prompt:
        reason = "a stored prompt holds instructions, but the grant approves one prompt"
        raise NotGranted(reason, param="prompt")
    if facts.late_tools:
        reason = "messages change the tools, but the grant approves one prompt"
        raise NotGranted(reason, param="messages")
    tools = {tool.value for tool in facts.tools}
    fingerprint = prompt_fingerprint(facts.wire, members, tools)
    if (problem := grant.prompt_problem) is not None:
        reason = (
            f"approved_prompt of the grant {problem} and approves nothing; the value of this prompt"
            f" is {fingerprint}"
        )
        raise NotGranted(reason, param="system")
    if fingerprint != grant.approved_prompt:
        reason = f"the prompt is not the approved_prompt of the grant: it is {fingerprint}"
        raise NotGranted(reason, param="system")


def is_granted(name: str, patterns: Collection[str]) -> bool:
    """Whether one of the patterns matches the whole name; `*` stands for any characters."""
    if "*" in patterns or ("[" not in name and name in patterns):
        return True
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_beta_granted(name: str, grant: LlmGrant) -> bool:
    """Whether a grant lists a beta, or the beta only allows fields that are checked themselves."""
    return name in _CHECKED_BETAS or is_granted(name, grant.betas)


def is_model_granted(model: str, grant: LlmGrant) -> bool:
    """Whether a grant allows a model, and the token was not narrowed to others."""
    if not is_granted(model, grant.models):
        return False
    return not grant.narrowed or all(is_granted(model, each) for each in grant.narrowed if each)


def _check_models(facts: CallFacts, grant: LlmGrant, models: Sequence[str]) -> None:
    if not models and not facts.models:
        raise NotGranted("the request names no model", param="model")
    for model in models:
        if not is_model_granted(model, grant):
            raise _missing(f"model {model!r}", "models", "model")
    for index, (param, model) in enumerate(facts.models):
        # The first one was resolved to `models`: it may be an alias or a route.
        if (index or not models) and not is_model_granted(model, grant):
            raise _missing(f"model {model!r}", "models", param)


def check_limits(facts: CallFacts, grant: LlmGrant) -> None:
    """Raises `NotGranted` for more output or more answers than the grant allows."""
    most = grant.max_tokens
    field = facts.max_tokens_field
    if most is not None and facts.max_tokens is not None and facts.max_tokens > most:
        reason = f"{field} is {facts.max_tokens}; max_tokens of the grant is {most}"
        raise NotGranted(reason, param=field)
    if facts.n > grant.n:
        field = face_of(facts.wire).choices_field
        raise NotGranted(f"{field} is {facts.n}; n of the grant is {grant.n}", param=field)


def _permissions(facts: CallFacts) -> list[tuple[Permission, list[tuple[str, str]]]]:
    """The permissions that a request needs, each with a description and the field that needs it."""
    needed: list[tuple[Permission, list[tuple[str, str]]]] = []
    if facts.server_tools:
        tools = [(f"server tool {tool.type!r}", tool.param) for tool in facts.server_tools]
        needed.append(("server_tools", tools))
    if facts.remote_mcp:
        needed.append(
            ("remote_mcp", [("a remote MCP server", param) for param in facts.remote_mcp])
        )
    stored = [("a stored response", "store")] if facts.store else []
    stored += [(f"a stored {kind}", param) for param, kind, _ in facts.handles]
    if stored:
        needed.append(("stored_responses", stored))
    if facts.stored_prompt:
        needed.append(("stored_prompts", [("a stored prompt", "prompt")]))
    if facts.tiers:
        tiers = [(f"service tier {tier!r}", param) for param, tier in facts.tiers]
        needed.append(("service_tiers", tiers))
    return needed


def _missing(what: str, where: str, param: str) -> NotGranted:
    return NotGranted(f"{what} is not in {where} of the grant", param=param)


#: Bytes of each body that are not counted.
FREE_BYTES = 64 * 1024
#: Seconds after which a caller may try again.
_RETRY_SECONDS = 2.0


class CallSlots:
    """Limits the concurrent calls of each app, over endpoints and JSON-RPC together. Each call of a
    batch counts."""

    def __init__(
        self,
        most: int,
        refused: Callable[[str, GrantRateLimited], None] = lambda *_: None,
    ) -> None:
        """`refused` is called with the app and the error of each call that gets no slot."""
        self._most = most
        self._refused = refused
        self._running: Counter[str] = Counter()
        self.count = 0
        """Calls running at present."""
        self.begun = 0
        """Calls since the start."""

    def running(self, app: str) -> TakenSlot:
        """A context that counts one running call. Raises `GrantRateLimited` if too many are
        running."""
        return TakenSlot(self, app)

    def take(self, app: str) -> None:
        if self._running[app] >= self._most:
            refusal = GrantRateLimited(
                f"{self._most} calls of this app are running: wait until one has ended",
                limit="max_streams_per_app",
                retry_after=1.0,
            )
            self._refused(app, refusal)
            raise refusal
        self.begun += 1
        self._add(app, 1)

    def release(self, app: str) -> None:
        self._add(app, -1)

    def keep(self, app: str) -> Callable[[], None]:
        """Counts a call as running until the returned function is called."""
        self._add(app, 1)
        return lambda: self.release(app)

    def _add(self, app: str, by: int) -> None:
        self._running[app] += by
        self.count += by
        if not self._running[app]:
            del self._running[app]


class TakenSlot:
    """Counts a call of an app while the block runs."""

    __slots__ = ("_app", "_slots")

    def __init__(self, slots: CallSlots, app: str) -> None:
        self._slots = slots
        self._app = app

    def __enter__(self) -> None:
        self._slots.take(self._app)

    def __exit__(self, *exc_info: object) -> None:
        self._slots.release(self._app)


# ── Bodies ────────────────────────────────────────────────────────────────────────────────────────


class UnreadBytes:
    """At most `most` bytes of unread bodies over all endpoints, and half of that for one app.

    Bodies are counted as they arrive, compressed ones as they are decompressed; an announced size
    reserves nothing. The first bytes of each body are free, so an ordinary call is accepted even
    when large bodies fill the budget. The connection limit bounds how many such calls there can be.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_app = most // 2
        self.total = 0
        self._of_apps: Counter[str] = Counter()
        self.largest = 0
        """The maximum of `total` so far."""

    def account(self, app: str) -> UnreadAccount:
        return UnreadAccount(self, app)

    def of_app(self, app: str) -> int:
        return self._of_apps[app]

    def change(self, app: str, size: int) -> None:
        """Raises `StoreUnavailable`, without counting, if the budget would be exceeded."""
        if size > 0 and self._of_apps[app] + size > self.most_of_app:
            raise _full("of this app ", self.most_of_app)
        if size > 0 and self.total + size > self.most:
            raise _full("", self.most)
        self.total += size
        self._of_apps[app] += size
        if not self._of_apps[app]:
            del self._of_apps[app]
        self.largest = max(self.largest, self.total)


def _full(whose: str, most: int) -> StoreUnavailable:
    reason = f"request bodies {whose}that are not read yet exceed {most:,} bytes: send it again"
    return StoreUnavailable(reason, retry_after=_RETRY_SECONDS)


class UnreadAccount:
    """One body's share of the budget."""

    __slots__ = ("_app", "_budget", "_counted", "_size")

    def __init__(self, budget: UnreadBytes, app: str) -> None:
        self._budget = budget
        self._app = app
        self._size = self._counted = 0

    def add(self, size: int) -> None:
        """Counts bytes of the body that arrived or were decompressed. Raises `StoreUnavailable`."""
        self._size += size
        if self._size > FREE_BYTES:
            more = self._size - FREE_BYTES - self._counted
            self._budget.change(self._app, more)
            self._counted += more

    def end(self) -> None:
        """Releases the body's share. May be called more than once."""
        if self._counted:
            self._budget.change(self._app, -self._counted)
        self._size = self._counted = 0

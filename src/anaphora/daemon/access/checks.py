"""Checks a request against a grant: what the grant does not list is refused.

    check_grant(facts, grant, provider_ids=["anthropic-default"], models=["claude-haiku-5-5"])
    check_prompt(facts, grant, members)

Both raise `NotGranted`, whose `param` is the field of the request, and whose message names the list
of the grant that it is missing from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from anaphora.daemon.faces import face_of
from anaphora.daemon.facts.reading import RequestFacts
from anaphora.errors import CapabilityDenied, NotGranted
from anaphora.redaction import quoted
from anaphora.wire.body_memory import ListElements
from anaphora.wire.reading import Members

from .approved_prompts import prompt_fingerprint
from .grants import AppGrant, LlmGrant, Permission

#: Names that every provider and every reader of ours takes for the same tool.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
#: Stored objects that may hold tools and system text.
_PROMPTS = frozenset({"cached_content", "conversation"})


def check_grant(
    facts: RequestFacts,
    grant: LlmGrant,
    *,
    provider_ids: Sequence[str] = (),
    models: Sequence[str] = (),
) -> None:
    """Raises `NotGranted` for what the grant does not allow. `provider_ids` are the providers or
    routes that the call may use, `models` those that it resolves to; the models that the request
    itself names are checked too."""
    for provider in provider_ids:
        if provider not in grant.providers:
            raise _missing(f"provider {provider!r}", "providers", "provider")
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
        if not is_granted(beta, grant.betas):
            raise _missing(f"beta {beta!r}", "allow (betas)", param)
    for path in facts.unknown:
        if not is_granted(path, grant.fields):
            raise _missing(f"field {path!r}", "allow (fields)", path)


def check_capabilities(grant: AppGrant, needed: Sequence[str], method: str) -> None:
    """Raises `CapabilityDenied` where an app has not the capabilities that a method needs, or one
    that it requires itself."""
    missing = grant.missing if grant.requires else grant.requires
    for capability in (*needed, *sorted(missing)) if missing else needed:
        if capability in grant.capabilities:
            continue
        reason = f"{grant.app} is not granted {capability}, which {method} needs"
        if capability not in needed:
            reason = f"{grant.app} requires {capability}, which it is not granted"
        raise CapabilityDenied(reason, capability=capability, app=grant.app, method=method)


def check_prompt(
    facts: RequestFacts,
    grant: LlmGrant,
    members: Members,
    elements: ListElements | None = None,
) -> None:
    """Raises `NotGranted` where the grant approves one prompt and this is another. `members` are
    those of the request that the facts are of, `elements` its messages where they are known."""
    if grant.approved_prompt is None:
        return
    if facts.stored_prompt:
        reason = "a stored prompt holds instructions, but the grant approves one prompt"
        raise NotGranted(reason, param="prompt")
    if facts.late_tools:
        reason = "messages change the tools, but the grant approves one prompt"
        raise NotGranted(reason, param="messages")
    for param, kind, _ in facts.handles:
        if kind in _PROMPTS:
            name = kind.replace("_", " ")
            reason = f"a {name} may hold a system text, but the grant approves one prompt"
            raise NotGranted(reason, param=param)
    tools = {tool.value for tool in facts.tools}
    fingerprint = prompt_fingerprint(facts.wire, members, tools, elements)
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


def _check_models(facts: RequestFacts, grant: LlmGrant, models: Sequence[str]) -> None:
    if not models and not facts.models:
        raise NotGranted("the request names no model", param="model")
    for model in models:
        if not is_granted(model, grant.models):
            raise _missing(f"model {model!r}", "models", "model")
    for index, (param, model) in enumerate(facts.models):
        # The first one is what the resolved models were found by: it may be an alias or a route.
        if (index or not models) and not is_granted(model, grant.models):
            raise _missing(f"model {model!r}", "models", param)


def check_limits(facts: RequestFacts, grant: LlmGrant) -> None:
    """Raises `NotGranted` for more output or more answers than the grant allows."""
    most = grant.max_tokens
    field = facts.max_tokens_field
    if facts.unlimited_output and (most is not None or grant.has_spend_limit):
        raise NotGranted("the output must have a limit under this grant", param=field)
    if most is not None and facts.max_tokens is not None and facts.max_tokens > most:
        reason = f"{field} is {facts.max_tokens}; max_tokens of the grant is {most}"
        raise NotGranted(reason, param=field)
    if facts.n > grant.n:
        field = face_of(facts.wire).choices_field
        raise NotGranted(f"{field} is {facts.n}; n of the grant is {grant.n}", param=field)


def _permissions(facts: RequestFacts) -> list[tuple[Permission, list[tuple[str, str]]]]:
    """The permissions that a request needs, and what for: descriptions and fields."""
    needed: list[tuple[Permission, list[tuple[str, str]]]] = []
    if facts.server_tools:
        tools = [(f"server tool {tool.type!r}", tool.param) for tool in facts.server_tools]
        needed.append(("server_tools", tools))
    if facts.remote_mcp:
        needed.append(
            ("remote_mcp", [("a remote MCP server", param) for param in facts.remote_mcp])
        )
    if facts.background:
        needed.append(("background", [("a background response", "background")]))
    stored = [("a stored response", "store")] if facts.store else []
    for param, kind, _ in facts.handles:
        if kind == "container":
            needed.append(("server_tools", [("a container", param)]))
        else:
            stored.append((f"a stored {kind.replace('_', ' ')}", param))
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

"""What an app may do in effect, and where each value comes from: for `anaphora grants check`."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import Any

from anaphora.client.config import ClientConfig
from anaphora.daemon.home.config import daemon_config
from anaphora.daemon.home.extensions import AppTable, Grants, LlmTable
from anaphora.daemon.home.groups import GroupTable
from anaphora.yaml_values import Origin, dotted

from .grants import LlmGrant

#: Values that are in the list `allow`.
_IN_ALLOW = ("betas", "fields")
#: Limits of the daemon that hold for an app without one of its own.
_OF_DAEMON = {"max_body_bytes": "max_body_bytes", "max_streams": "max_streams_per_app"}
_OF_PROVIDER = ("requests_per_minute", "tokens_per_minute", "concurrency")


def grant_sources(grants: Grants, app: str, config: ClientConfig) -> dict[str, str]:
    """File and line of each value, by its name in the result; or the group or daemon that it is of,
    or `default`."""
    origin, group = grants.origin, grants.apps[app].group
    found = {name: _line(origin, app, name) for name in AppTable.__struct_fields__}
    found |= {name: _line(origin, app, "llm", name) for name in LlmTable.__struct_fields__}
    found |= {"capabilities": found["capabilities_grant"]}
    found |= dict.fromkeys(_IN_ALLOW, found["allow"])
    for name in GroupTable.__struct_fields__:
        line = _line(origin, "groups", group, name)
        found[f"group_{name}"] = f"group {group}, {line}" if line else ""
    for name, field in _OF_DAEMON.items():
        line = _line(config.origin, "daemon", field) or "default"
        found[name] = found.get(name) or f"daemon, {line}"
    return {name: source or "default" for name, source in found.items()}


def outer_limits(grants: Grants, app: str, config: ClientConfig) -> dict[str, Any]:
    """Limits that hold besides those of the app: of the daemon, and of each provider."""
    daemon, llm = daemon_config(config), grants.apps[app].llm
    limits = []
    named = [hop.provider for name in llm.providers for hop in config.routes.get(name, ())]
    for id in dict.fromkeys((*llm.providers, *named)):
        if id not in config.providers:
            continue
        for field in _OF_PROVIDER:
            if (most := getattr(config.providers[id].limits, field)) is not None:
                line = _line(config.origin, "providers", id, "limits", field)
                source = f"provider, {line or 'default'}"
                limits.append({"provider": id, "limit": field, "most": most, "source": source})
    return {
        "most_body_bytes": min(llm.max_body_bytes or daemon.max_body_bytes, daemon.max_body_bytes),
        "max_streams": daemon.max_streams_per_app,
        "provider_limits": limits,
    }


def granted_provider(name: str, grant: LlmGrant, config: ClientConfig) -> dict[str, Any]:
    """A provider or route, with the models of llm.yaml that the grant allows and refuses there.
    `any_model`: it also accepts models that llm.yaml does not name."""
    hops = config.routes.get(name)
    any_model = False
    if hops is None:
        one = config.providers.get(name)
        models = [] if one is None else [*one.known_models, *([one.model] if one.model else [])]
        any_model = one is not None and not one.known_models
    else:
        named = (hop.model or config.providers[hop.provider].model for hop in hops)
        models = [model for model in named if model]
    allowed = {
        model: any(fnmatchcase(model, pattern) for pattern in grant.models) for model in models
    }
    return {
        "id": name,
        "route": hops is not None,
        "any_model": any_model,
        "allowed_models": [model for model, is_allowed in allowed.items() if is_allowed],
        "refused_models": [model for model, is_allowed in allowed.items() if not is_allowed],
    }


def _line(origin: Origin, *path: str) -> str:
    line = origin.lines.get(dotted(path))
    return "" if line is None else f"{os.path.basename(origin.file)}:{line}"

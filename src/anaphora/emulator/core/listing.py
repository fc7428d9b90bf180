"""The models that a provider has, as it lists them: those of the catalog."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from anaphora import catalog
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.errors import NotFound

from .routes import Route

#: When the models were made: the catalog does not say, and clients want a date.
_MADE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_WHEN = _MADE.strftime("%Y-%m-%dT%H:%M:%SZ")


def models(route: Route, query: Mapping[str, str]) -> bytes:
    found = catalog.models(route.provider)
    told = [_told(route.wire, profile) for profile in found]
    if route.wire == "anthropic":
        return dumps(_page(told, query))
    if route.wire in ("gemini", "ollama"):
        return dumps({"models": told})
    return dumps({"object": "list", "data": told})


def model(route: Route) -> bytes:
    """One model. One that the catalog does not know is not there to be looked at."""
    found = next((p for p in catalog.models(route.provider) if p.id == route.name), None)
    if found is None:
        raise NotFound(f"no model {route.name}", status=404)
    return dumps(_told(route.wire, found))


def _page(told: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Anthropic's list, which is cut into pages by ids."""
    ids = [one["id"] for one in told]
    start = ids.index(query["after_id"]) + 1 if query.get("after_id") in ids else 0
    limit = query.get("limit", "20")
    page = told[start : start + (int(limit) if limit.isdigit() else 20)]
    return {
        "data": page,
        "has_more": start + len(page) < len(told),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _told(wire: str, profile: Profile) -> dict[str, Any]:
    context = profile.context_tokens.value if profile.context_tokens is not None else None
    output = profile.output_tokens.value if profile.output_tokens is not None else None
    if wire == "anthropic":
        limits = {"max_input_tokens": context, "max_tokens": output}
        return {
            "type": "model",
            "id": profile.id,
            "display_name": profile.id,
            "created_at": _WHEN,
            "lifecycle": "active",
            **{name: limit for name, limit in limits.items() if limit is not None},
        }
    if wire == "gemini":
        limits = {"inputTokenLimit": context, "outputTokenLimit": output}
        return {
            "name": f"models/{profile.id}",
            "displayName": profile.id,
            "supportedGenerationMethods": ["generateContent", "countTokens", "createCachedContent"],
            **{name: limit for name, limit in limits.items() if limit is not None},
        }
    if wire == "ollama":
        return {
            "name": profile.id,
            "model": profile.id,
            "modified_at": _WHEN,
            "size": 1,
            "digest": "0" * 64,
            "details": {"format": "gguf", "family": profile.tokenizer.value},
        }
    made = int(_MADE.timestamp())
    return {"id": profile.id, "object": "model", "created": made, "owned_by": profile.provider}

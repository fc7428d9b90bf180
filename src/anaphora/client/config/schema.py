"""The form of `llm.yaml` as JSON Schema, for editors."""

from __future__ import annotations

from typing import Any

import msgspec

from .values import Config


def schema() -> dict[str, Any]:
    """Draft 2020-12. Says what the types say; that a wire or a route exists it does not."""
    made = msgspec.json.schema(Config)
    made["$defs"]["Key"]["oneOf"] = [{"required": ["env"]}, {"required": ["secret"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llm.yaml",
        **made,
    }

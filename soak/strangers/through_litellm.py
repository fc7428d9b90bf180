"""LiteLLM asks twice, with a marker on the system prompt.

python through_litellm.py URL MODEL [PATH]
"""

from __future__ import annotations

import sys

import litellm

LONG = "A beginning that stays the same. " * 400
MARKED = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}

for question in ("One?", "Two?"):
    litellm.completion(
        model=sys.argv[2],
        api_base="".join((sys.argv[1], *sys.argv[3:])),
        api_key="litellm",
        max_tokens=64,
        messages=[
            {"role": "system", "content": [MARKED]},
            {"role": "user", "content": question},
        ],
    )

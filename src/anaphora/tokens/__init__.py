"""How many tokens a prompt is, and how sure that is.

    count_chunks(rendered, profile).total              from bytes, within the catalog's error
    tokenizer("o200k").count("some text")              to the token, for OpenAI's families
    counts.billed(usage.input)                         what a bill teaches about the next prompt

Nothing here asks a provider, and no vocabulary is loaded until `tokenizer` is called.
"""

from __future__ import annotations

from .calibration import Bill, Calibration, Growth, Prefix
from .chunks import Counts, count_chunks
from .count import NOTHING, Count
from .estimate import estimate
from .tokenizers import Tokenizer, tokenizer

__all__ = [
    "NOTHING",
    "Bill",
    "Calibration",
    "Count",
    "Counts",
    "Growth",
    "Prefix",
    "Tokenizer",
    "count_chunks",
    "estimate",
    "tokenizer",
]

"""How many tokens a prompt is, how sure that is, and what bills have taught.

    counts = Counts(rendered)              rendered for a model: `for_model` fits a split request
    counts.total                           the whole prompt
    counts.tokens(7)                       its first 7 chunks
    counts.bounds(profile.token_error)     between how many it is likely to be billed
    bills = counts.billed(usage.input)     carried by the next prompt as `Rendered.bills`

Every estimate in this package is made here, from lengths: bytes of text by the catalog's ratio,
images and documents by what they show. Nothing asks a provider and no vocabulary is loaded.
"""

from __future__ import annotations

from .bills import Bills, calibrated, learned
from .counts import Counts, for_model
from .sizes import Size, bytes_in, ends, measured, tokens_in

__all__ = [
    "Bills",
    "Counts",
    "Size",
    "bytes_in",
    "calibrated",
    "ends",
    "for_model",
    "learned",
    "measured",
    "tokens_in",
]

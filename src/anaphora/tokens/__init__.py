"""Token estimates with bounds, calibrated by bills.

    counts = Counts(rendered)              for a split request, `for_model` sets the ratio first
    counts.total                           the whole prompt
    counts.tokens(7)                       its first 7 chunks
    counts.bounds(profile.token_error)     the likely range of the bill
    bills = counts.billed(usage.input)     `Rendered.bills` of the next prompt

All estimates are made here, from lengths: bytes of text by the catalog's ratio, images and
documents by typical sizes. No provider is asked and no vocabulary is loaded.
"""

from __future__ import annotations

from .counts import Bills, Counts, calibrated, for_model, learned
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

"""Anaphora: say a prompt once, keep its beginning byte-stable, and know what it costs."""

"""The tour that `anaphora demo` runs: one agent at every provider, with three prompt layouts."""

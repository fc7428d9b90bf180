"""The steps of a call. `calls.pipeline` has their order."""

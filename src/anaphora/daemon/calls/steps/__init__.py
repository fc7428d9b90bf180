"""The steps of a call, one of which follows the other: `calls.pipeline` has their order."""

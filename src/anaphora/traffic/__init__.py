"""Requests of other programs: which conversation, what changed, what it cost, how to save it."""

"""Calls of apps: prepared, sent, judged and remembered."""

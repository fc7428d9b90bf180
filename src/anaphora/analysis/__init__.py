"""Offline analysis: traces, lint, rules check, round trip. The client never imports it."""

"""Offline analysis: traces, lint. The client never imports it."""

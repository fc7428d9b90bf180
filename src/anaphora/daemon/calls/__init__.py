"""Calls of apps: preparing, sending, judging and remembering them."""

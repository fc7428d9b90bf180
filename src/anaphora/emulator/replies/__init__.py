"""Replies: scripted, or generated from the prompt and the seed."""

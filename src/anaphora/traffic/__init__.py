"""Requests of other programs: their conversations, changes, costs, and possible savings."""

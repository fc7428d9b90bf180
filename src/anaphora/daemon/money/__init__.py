"""The maximum cost of calls, their holds, and their actual cost."""

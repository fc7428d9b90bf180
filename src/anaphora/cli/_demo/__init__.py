"""What `anaphora demo` plays: a story, the agents in it, and how their bills are shown."""

"""What `anaphora demo` plays: a story, its turns, and how they are shown."""

"""What `anaphora lint` is made of: prompts read, looked at and shown."""

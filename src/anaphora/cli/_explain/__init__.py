"""What `anaphora explain` is made of: requests read, paired, judged and shown."""

"""What `anaphora simulate` is made of."""

"""What `anaphora rules` is made of."""

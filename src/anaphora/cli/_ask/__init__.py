"""What `anaphora ask` is made of."""

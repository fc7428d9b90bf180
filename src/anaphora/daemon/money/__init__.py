"""What calls can cost at most, what they cost, and the holds in between."""

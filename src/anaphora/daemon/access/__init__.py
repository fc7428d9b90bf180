"""What apps may do: their tokens, their grants, and the limits of these."""

"""What agent programs on this machine, or the calls in a fleet's logs, cost, and how much of it
was a lost cache."""

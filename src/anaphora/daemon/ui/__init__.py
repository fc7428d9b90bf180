"""The dashboard of the daemon at `/ui`: login, who sees what, and its writes."""

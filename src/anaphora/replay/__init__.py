"""Recorded exchanges: written atomically and without secrets, verified before they are served."""

"""The dashboard: pages about calls, their cost and their cache, for the daemon, `anaphora watch`
and the emulator, and the same charts in files that `--html` writes."""

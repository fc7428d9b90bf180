"""The dashboard of the daemon at `/ui`: logins, permissions and actions."""

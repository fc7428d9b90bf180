"""The pytest plugin: fixtures that record, replay and check a prompt cache."""

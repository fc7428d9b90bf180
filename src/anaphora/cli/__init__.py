"""The `anaphora` command. Every module here without a leading underscore, but for `main`, is a
subcommand of its name, and defines it as `command`."""

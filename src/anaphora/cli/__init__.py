"""The `anaphora` command. A subcommand is a module of its name that defines `command`; it is listed
in `common.COMMANDS`."""

"""The `anaphora` command. Its subcommands are listed in `common.COMMANDS`."""

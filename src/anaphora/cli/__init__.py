"""The `anaphora` command. Each module whose name has no underscore, except `main`, `common` and
`terminal`, is a subcommand of that name and defines it as `command`."""

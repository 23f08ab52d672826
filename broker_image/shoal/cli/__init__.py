"""The `shoal` command: the broker and the everyday tools. `main.COMMANDS` is the table."""

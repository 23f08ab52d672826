"""The `shoal` command: the broker and the tools. `main.COMMANDS` lists the commands."""

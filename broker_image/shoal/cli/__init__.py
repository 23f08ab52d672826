"""The `shoal` command: the broker and the tools. `main.COMMANDS` lists the commands, and `commands`
has their modules. What they share is here: connection, output, prompts."""

"""The command `shoal`, and `python -m shoal.cli`."""

import os
import sys


def main() -> None:
    """Run a broker, or any other command. A broker lives long, so it does without typer."""
    if sys.argv[1:2] == ["server"]:
        from shoal.cli.commands import serve

        flags = serve.read_flags(sys.argv[2:], os.environ)
        if flags is not None:
            try:
                serve.serve(flags)
            except KeyboardInterrupt:
                sys.exit(130)
            return
    from shoal.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()

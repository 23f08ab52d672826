"""`python -m shoal.cli`."""

from shoal.cli.main import main

main()

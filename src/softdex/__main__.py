"""`python -m softdex` is the command line."""

from softdex.cli import main

main()

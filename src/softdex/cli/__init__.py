"""The command line."""

from softdex.cli.app import main

__all__ = ["main"]

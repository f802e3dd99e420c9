"""Train across processes."""

from softdex.gathered import Gathered, gathered

__all__ = ["Gathered", "gathered"]

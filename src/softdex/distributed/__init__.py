"""Train across processes."""

from softdex.distributed.gathered import Gathered, gathered

__all__ = ["Gathered", "gathered"]

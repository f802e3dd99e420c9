"""Synthetic worlds: preferences are planted, so the best possible list is known exactly."""

from softdex.synthetic.titles import titles
from softdex.synthetic.world import World, world

__all__ = ["World", "titles", "world"]

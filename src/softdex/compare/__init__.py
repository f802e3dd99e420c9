"""Compare: train several recipes on one split, choose on validation, report on test."""

from softdex.compare.comparison import Comparison
from softdex.compare.run import check_recipes, compare

__all__ = ["Comparison", "check_recipes", "compare"]

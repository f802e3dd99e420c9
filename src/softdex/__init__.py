"""softdex: recommender retrieval with an index that is a softmax."""

from softdex import recipes, split, synthetic
from softdex.evaluate import Result
from softdex.interactions import Interactions
from softdex.read import read
from softdex.recipes import fit
from softdex.retrieve import Recommendations, Retriever, load
from softdex.split import Holdout, Split

__version__ = "0.1.0"
__all__ = [
    "Holdout", "Interactions", "Recommendations", "Result", "Retriever", "Split",
    "fit", "load", "read", "recipes", "split", "synthetic",
]  # fmt: skip

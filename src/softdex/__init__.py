"""softdex: recommender retrieval with an index that is a softmax."""

from softdex import waiting as waiting  # isort: split

from softdex import recipes, split, synthetic
from softdex.errors import ArtifactError, DataError, ShapeError, SoftdexError
from softdex.evaluate import Result
from softdex.holdout import Holdout, Split
from softdex.interactions import Interactions
from softdex.read import read
from softdex.recipes import fit
from softdex.recommendations import Recommendations
from softdex.retrieve import Retriever, load
from softdex.threads import set_threads
from softdex.tune import Tuned, tune

__version__ = "0.1.0"
__all__ = [
    "ArtifactError",
    "DataError",
    "Holdout",
    "Interactions",
    "Recommendations",
    "Result",
    "Retriever",
    "ShapeError",
    "SoftdexError",
    "Split",
    "Tuned",
    "fit",
    "load",
    "read",
    "recipes",
    "set_threads",
    "split",
    "synthetic",
    "tune",
]

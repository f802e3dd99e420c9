"""softdex: recommender retrieval with an index that is a softmax."""

from softdex import openmp as openmp  # isort: split

from softdex import recipes, synthetic
from softdex.compare import Comparison, compare
from softdex.data import split
from softdex.data.holdout import Holdout, Split
from softdex.data.interactions import Interactions
from softdex.data.read import read
from softdex.errors import ArtifactError, DataError, ShapeError, SoftdexError
from softdex.evaluate.lists import evaluate
from softdex.evaluate.result import Result
from softdex.fit import fit
from softdex.machine import set_threads
from softdex.model.kinds import register
from softdex.model.recommendations import Recommendations
from softdex.model.retriever import Retriever
from softdex.model.saving import load
from softdex.tune import Tuned, tune

__version__ = "0.1.0"
__all__ = [
    "ArtifactError",
    "Comparison",
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
    "compare",
    "evaluate",
    "fit",
    "load",
    "read",
    "recipes",
    "register",
    "set_threads",
    "split",
    "synthetic",
    "tune",
]

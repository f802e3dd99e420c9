"""softdex: recommender retrieval with an index that is a softmax.

A public name is loaded when it is first used, so the package itself is imported in no time.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from softdex import compiled as compiled
from softdex import openmp as openmp

if TYPE_CHECKING:
    from softdex import plot as plot
    from softdex import recipes as recipes
    from softdex import synthetic as synthetic
    from softdex.compare import Comparison as Comparison
    from softdex.compare import compare as compare
    from softdex.data import split as split
    from softdex.data.holdout import Holdout as Holdout
    from softdex.data.holdout import Split as Split
    from softdex.data.interactions import Interactions as Interactions
    from softdex.data.read import read as read
    from softdex.errors import ArtifactError as ArtifactError
    from softdex.errors import DataError as DataError
    from softdex.errors import ShapeError as ShapeError
    from softdex.errors import SoftdexError as SoftdexError
    from softdex.evaluate.lists import evaluate as evaluate
    from softdex.evaluate.result import Result as Result
    from softdex.machine import set_threads as set_threads
    from softdex.model.explanation import Explanation as Explanation
    from softdex.model.from_torch import from_torch as from_torch
    from softdex.model.kinds import register as register
    from softdex.model.off_policy import OffPolicy as OffPolicy
    from softdex.model.off_policy import off_policy as off_policy
    from softdex.model.recommendations import Recommendations as Recommendations
    from softdex.model.retriever import Retriever as Retriever
    from softdex.model.saving import load as load
    from softdex.serve.start import look as look
    from softdex.serve.start import serve as serve
    from softdex.tune import Tuned as Tuned
    from softdex.tune import tune as tune
    from softdex.typed import fit as fit

__version__ = "0.1.0"
MODULES = {
    "plot": "softdex.plot",
    "recipes": "softdex.recipes",
    "split": "softdex.data.split",
    "synthetic": "softdex.synthetic",
}
OBJECTS = {
    "ArtifactError": "softdex.errors",
    "Comparison": "softdex.compare",
    "DataError": "softdex.errors",
    "Explanation": "softdex.model.explanation",
    "Holdout": "softdex.data.holdout",
    "Interactions": "softdex.data.interactions",
    "OffPolicy": "softdex.model.off_policy",
    "Recommendations": "softdex.model.recommendations",
    "Result": "softdex.evaluate.result",
    "Retriever": "softdex.model.retriever",
    "ShapeError": "softdex.errors",
    "SoftdexError": "softdex.errors",
    "Split": "softdex.data.holdout",
    "Tuned": "softdex.tune",
    "compare": "softdex.compare",
    "evaluate": "softdex.evaluate.lists",
    "fit": "softdex.fit",
    "from_torch": "softdex.model.from_torch",
    "load": "softdex.model.saving",
    "look": "softdex.serve.start",
    "off_policy": "softdex.model.off_policy",
    "read": "softdex.data.read",
    "register": "softdex.model.kinds",
    "serve": "softdex.serve.start",
    "set_threads": "softdex.machine",
    "tune": "softdex.tune",
}
__all__ = sorted(MODULES | OBJECTS)


class _Package(ModuleType):
    """The package: loads a public name when it is first used, and lists only these."""

    def __getattr__(self, name: str) -> Any:
        if name in MODULES:
            found = import_module(MODULES[name])
        elif name in OBJECTS:
            found = getattr(import_module(OBJECTS[name]), name)
        else:
            raise AttributeError(f"module 'softdex' has no attribute {name!r}")
        self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        # importing the module softdex.fit sets this attribute, which is the function softdex.fit
        if not (name in OBJECTS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return __all__


sys.modules[__name__].__class__ = _Package

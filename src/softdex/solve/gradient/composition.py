"""What is trained by gradient descent: encoder, scorer, feed and negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from softdex.data.interactions import Interactions
from softdex.index.contract import Index
from softdex.objective.contract import Loss
from softdex.solve.gradient.feed import Feed
from softdex.solve.loop import Progress

if TYPE_CHECKING:
    from softdex.solve.gradient.trainer import Trainer

RECALL = 0.99  # of the exact lists, that a served index is tuned to


@dataclass(frozen=True)
class Negatives:
    """The proposal, the loss, and the number of draws.

    A loss that is a module may remember things: they are saved with the run.

    Attributes:
        index: proposes the draws, and serves the trained model if it searches.
        loss: of queries against targets.
        draws: per query, or per batch if `shared`; 0: all items.
        shared: whether one set of draws serves the whole batch.
        proposes: whether the draws are the index's, so that it is worth a report; False where the
            batch holds the negatives, or the levels of a tree do.
        refit_every: steps between two refits of the index to the scorer; 0 never.
        recall: of the exact lists, that the served index is tuned to; None serves it as it is.
    """

    index: Index
    loss: Loss
    draws: int
    shared: bool = True
    proposes: bool = True
    refit_every: int = 0
    recall: float | None = RECALL


class Decline(NamedTuple):
    """How the learning rate falls to `lr_end`.

    Attributes:
        starts: epochs, beside the first, at which it starts again from `lr`.
        by_step: with every step and not with every epoch: for few epochs.
    """

    starts: tuple[int, ...] = ()
    by_step: bool = False

    def done(self, epoch: int, part: float, epochs: int) -> float:
        """The fraction of the fall that is done after `part` of an epoch."""
        edges = [0, *self.starts, epochs]
        first = max([edge for edge in edges[:-1] if edge <= epoch])
        falls = edges[edges.index(first) + 1] - first
        if self.by_step:
            return (epoch - first + part) / falls
        return min(1.0, (epoch - first) / max(1, falls - 1))


class Composition(NamedTuple):
    """What is trained.

    Attributes:
        encoder: makes queries.
        scorer: scores items for queries.
        feed: what a step trains on.
        negatives: what targets are trained against.
        prepare: called before each epoch, for what a recipe does between epochs (learning a tree).
        decline: of the learning rate.
    """

    encoder: Any
    scorer: Any
    feed: Feed
    negatives: Negatives
    prepare: Prepare | None = None
    decline: Decline = Decline()


class Prepare(Protocol):
    """What happens before an epoch."""

    def __call__(self, trainer: Trainer, progress: Progress) -> None:
        """Change what the trainer trains; `progress.notes` go into the record of the epoch."""
        ...

    def memory(self, log: Interactions) -> int:
        """Bytes it holds."""
        ...

"""What a tree does before an epoch: it is learned anew, and its labels are rectified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from softdex.data.interactions import Interactions
from softdex.index.tree.tree import Tree
from softdex.progress import Work, shown
from softdex.solve.gradient.feed import Windows
from softdex.solve.gradient.replay import Replay
from softdex.solve.gradient.trainer import Trainer
from softdex.solve.loop import Progress
from softdex.solve.tree.loss import TreeLoss
from softdex.solve.tree.rectify import Rectify, labels_of
from softdex.solve.tree.relearn import Rounds, relearn


@dataclass(frozen=True)
class TreeEpochs:
    """Learn the tree at the beginning of each round, and rectify the labels on it.

    Attributes:
        tree: that is trained.
        rounds: when and how the tree is learned.
        rectify: which labels count.
    """

    tree: Tree
    rounds: Rounds | None = None
    rectify: Rectify | None = None

    def __call__(self, trainer: Trainer, progress: Progress) -> None:
        """Prepare an epoch. A run that is resumed inside an epoch has the tree already."""
        feed, rounds, rectify = trainer.feed, self.rounds, self.rectify
        tree = cast(Tree, trainer.index)
        assert isinstance(feed, Windows)
        starts = rounds is not None and progress.epoch in rounds.starts
        if rounds is not None and starts and progress.step == 0:
            trainer.modules.eval()
            number = rounds.starts.index(progress.epoch) + 2
            with shown(Work(f"round {number}/{len(rounds.starts) + 1}")):
                progress.notes = relearn(
                    tree, feed, trainer.optimizers[0], rounds, trainer.generator
                )
            trainer.modules.train()
        if rectify is None or progress.epoch < rectify.after:
            return
        if rectify.kind == "own":
            assert isinstance(trainer.loss, TreeLoss)
            trainer.loss = replace(trainer.loss, own=True)
        elif starts or feed.labels is None:
            feed.labels = labels_of(tree, feed, rectify)
        if trainer.replay is not None and (starts or progress.epoch == rectify.after):
            trainer.replay = Replay(trainer.generator)

    def memory(self, log: Interactions) -> int:
        """Bytes: what every item weighs for the nodes of level 1, while the tree is learned."""
        return 0 if self.rounds is None else 16 * log.num_items * self.tree.sizes[0]

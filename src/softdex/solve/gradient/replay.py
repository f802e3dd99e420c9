"""Replay: a training step recorded once on a GPU, then launched as a whole.

A step is some hundred small kernels; launched one by one they take longer to launch than to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

WARM = 3  # steps run as they are before one is recorded: libraries set themselves up in them


@final
class Replay:
    """A step on batches of one size, recorded after a few. Everything it reads and writes must
    stay where it is in memory; random numbers come from `generator` and go on as if unrecorded."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator, self.warm = generator, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: Callable[[Tensor], None], at: Tensor) -> None:
        """One step, always the same one."""
        if self.warm < WARM:
            self._aside(step, at)
            return
        if self.graph is None:
            self.at = at.clone()
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.graph(self.graph):
                step(self.at)
        self.at.copy_(at)
        self.graph.replay()

    def _aside(self, step: Callable[[Tensor], None], at: Tensor) -> None:
        """On a stream of its own, as a recording will be."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(at)
        torch.cuda.current_stream().wait_stream(side)
        self.warm += 1

"""Replay: a training step captured once as a CUDA graph, then launched as a whole.

A step has some hundred small kernels, which take longer to launch one by one than to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

WARM = 3  # steps before the capture, in which libraries set themselves up


@final
class Replay:
    """A step on batches of one size, captured after WARM steps.

    What it reads and writes must stay at its place in memory. Random numbers come from `generator`
    and go on as without a graph.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator, self.warm = generator, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: Callable[[Tensor], None], at: Tensor) -> None:
        """Run the step, which must be the same function every time."""
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
        """Run on a stream of its own, as the capture will."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(at)
        torch.cuda.current_stream().wait_stream(side)
        self.warm += 1

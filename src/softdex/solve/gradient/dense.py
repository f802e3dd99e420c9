"""The optimiser of parameters that are no tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn


@final
class DenseAdam:
    """Adam with decoupled decay, bit for bit that of torch.

    That one loads torch's compiler first, which takes seconds: it is used on a GPU, where it is one
    kernel for all parameters.

    Args:
        parameters: without a gradient, they and their age stay as they are.
        lr: is read in every step.
        decay: a step shrinks parameters by lr * decay.
    """

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Sequence[nn.Parameter], lr: Tensor, decay: float) -> None:
        self.parameters, self.lr, self.decay = list(parameters), lr, decay
        self.moments = [
            {
                "step": torch.zeros((), device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for p in self.parameters
        ]
        self.fused: torch.optim.AdamW | None = None
        if lr.is_cuda and self.parameters:
            self.fused = torch.optim.AdamW(
                self.parameters, lr, weight_decay=decay, capturable=True, fused=True
            )
            for parameter, moments in zip(self.parameters, self.moments, strict=True):
                self.fused.state[parameter] = moments

    def state(self) -> dict[str, Tensor]:
        """Moments and ages, in the order of the parameters."""
        each = enumerate(self.moments)
        return {f"{i}.{name}": tensor for i, moments in each for name, tensor in moments.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients."""
        if self.fused is not None:
            self.fused.step()
            return
        for parameter, moments in zip(self.parameters, self.moments, strict=True):
            if parameter.grad is not None:
                self._update(parameter, parameter.grad, **moments)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def _update(
        self,
        parameter: Tensor,
        grad: Tensor,
        step: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
    ) -> None:
        (first, second), step = self.betas, step.add_(1)
        if self.decay:
            parameter.mul_(1 - self.lr * self.decay)
        exp_avg.lerp_(grad, 1 - first)
        exp_avg_sq.mul_(second).addcmul_(grad, grad, value=1 - second)
        age = float(step)
        size = (exp_avg_sq.sqrt() / (1 - second**age) ** 0.5).add_(self.eps)
        parameter.addcdiv_(exp_avg, size, value=-float(self.lr / (1 - first**age)))

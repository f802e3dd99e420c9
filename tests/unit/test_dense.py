"""The optimiser of parameters that are no tables."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from softdex.solve.gradient.dense import DenseAdam


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_adam_is_that_of_torch_bit_for_bit(decay: float, dtype: torch.dtype) -> None:
    starts = [torch.randn(5, 3, dtype=dtype), torch.randn(4, dtype=dtype), torch.ones(2)]
    mine, theirs = ([torch.nn.Parameter(s.clone()) for s in starts] for _ in range(2))
    rate = torch.tensor(0.1)
    ours, reference = DenseAdam(mine, rate, decay), torch.optim.AdamW(
        theirs, rate, weight_decay=decay
    )  # fmt: skip
    for turn in range(20):
        rate.fill_(0.1 / (turn + 1))
        for parameters, optimiser in ((mine, ours), (theirs, reference)):
            loss = (parameters[0] ** 3).sum() + parameters[1].sin().sum() * (turn % 3 > 0)
            loss.backward()
            if turn % 3 == 0:
                parameters[1].grad = None  # its age stands still
            optimiser.step()
            optimiser.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert torch.equal(mine[2], starts[2])
    assert [int(moments["step"]) for moments in ours.moments] == [20, 13, 0]


def test_a_training_on_a_cpu_does_not_wait_for_the_compiler_of_torch() -> None:
    code = (
        "import sys, softdex as sdx\n"
        "log = sdx.synthetic.world(users=30, items=20).interactions()\n"
        "sdx.fit('sasrec', log, dim=4, epochs=1, device='cpu', quiet=True)\n"
        "assert 'torch._dynamo' not in sys.modules, 'it is loaded'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

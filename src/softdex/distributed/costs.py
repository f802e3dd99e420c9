"""Costs that were measured: the constants behind the seconds of `softdex plan`.

Every constant of the plan is in this file, with the machine and the script that measured it; the
figures are those of docs/results.md. What a plan says is computed from them.
"""

from __future__ import annotations

from typing import NamedTuple

CPU, GPU = "two cores of an AMD EPYC", "one H200"


class Step(NamedTuple):
    """A training step of a recipe.

    Attributes:
        machine: where it was measured.
        script: by which script.
        milliseconds: per step.
        batch: rows of a step.
        scores: scores per row, or those that the rows share, divided by their number.
        dim: length of the vectors.
    """

    machine: str
    script: str
    milliseconds: float
    batch: int
    scores: float
    dim: int

    def seconds(self, batch: int, scores: float, dim: int) -> float:
        """Seconds of a step of another size: in proportion to the work, on a GPU never less."""
        ratio = batch * scores * dim / (self.batch * self.scores * self.dim)
        return self.milliseconds / 1e3 * (max(1.0, ratio) if self.machine == GPU else ratio)


class Sweep(NamedTuple):
    """A sweep of alternating least squares: seconds per event and per row, at this dim."""

    machine: str
    script: str
    per_event: float
    per_row: float
    dim: int

    def seconds(self, rows: int, events: int, dim: int) -> float:
        """Seconds of a sweep over this many rows of both tables and events, linear in dim."""
        return (self.per_event * events + self.per_row * rows) * dim / self.dim


IN_BATCH = {  # milliseconds on the GPU and on the CPU; batch 8192, dim 128
    "ssl": (3.95, 1004), "ssl_pop": (3.95, 995), "g_tower": (4.14, 1225), "mns": (7.50, 2881),
    "bir": (6.72, 3154), "xir": (14.8, 5992),
}  # fmt: skip
OWN_DRAWS = ("bpr", "bce", "dns", "self_adversarial", "warp", "pris", "uib", "sml")
STEPS: dict[str, dict[str, Step]] = {
    "ssm": {
        CPU: Step(CPU, "bench/step_time.py", 14.4, 2048, 1000, 64),
        GPU: Step(GPU, "bench/step_time.py", 0.42, 2048, 1000, 64),
    },
    "fastvae": {
        CPU: Step(CPU, "bench/fastvae_step.py", 112.0, 256, 200, 64),
        GPU: Step(GPU, "bench/fastvae_step.py", 0.85, 256, 200, 64),
    },
    "sasrec": {GPU: Step(GPU, "bench/sequence_step.py", 4.2, 128 * 50, 100, 128)},
    **{
        name: {
            CPU: Step(CPU, "bench/step_time.py", 26.5, 2048, 20, 64),
            GPU: Step(GPU, "bench/step_time.py", 0.50, 2048, 20, 64),
        }
        for name in OWN_DRAWS
    },
    **{
        name: {
            CPU: Step(CPU, "bench/in_batch_step.py", on_cpu, 8192, 8192, 128),
            GPU: Step(GPU, "bench/in_batch_step.py", on_gpu, 8192, 8192, 128),
        }
        for name, (on_gpu, on_cpu) in IN_BATCH.items()
    },
}
SWEEPS: dict[str, Sweep] = {
    CPU: Sweep(CPU, "bench/als_scale.py", 7.3e-8, 1.0e-6, 64),
    GPU: Sweep(GPU, "bench/als_scale.py", 8.0e-10, 1.15e-7, 64),
}

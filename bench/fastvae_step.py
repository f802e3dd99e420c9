"""A training step of `fastvae` as the catalogue grows, beside a full softmax with a dense Adam.

python bench/fastvae_step.py [item dims, default 64 200]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from _harness import milliseconds, peak, report, reset_peak
from softdex.encode.vae import Vae
from softdex.index.imi.books import popularity_weight
from softdex.index.imi.index import build
from softdex.recipes.compose import drawn_loss
from softdex.score.product import Dot
from softdex.solve.gradient.trainer import Batch, Composition, Settings, Trainer

BATCH, HISTORY, DRAWS, HIDDEN, LATENT, WORDS, REFIT_EVERY = 256, 50, 200, 200, 32, 64, 500
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SIZES = (10**5, 1_500_000, 10**7) if GPU else (10**5, 10**6)


class Random:
    """Users with histories of 50 items, popular ones more often."""

    mean = float(HISTORY)

    def __init__(self, items: int) -> None:
        self.items = items

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        place = torch.rand(BATCH, HISTORY, device=DEVICE, generator=generator)
        target = (place.square() * self.items).long()
        return Batch(at, target, torch.full_like(place, 1 / (BATCH * HISTORY)))


def ours(items: int, dim: int, precision: str) -> Trainer:
    made = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, generator=made) * shape[-1] ** -0.5

    scorer = Dot(random(items, dim))
    vae = Vae(
        random(items, HIDDEN), torch.zeros(HIDDEN), random(HIDDEN, 2 * LATENT),
        torch.zeros(2 * LATENT), random(LATENT, dim), torch.zeros(dim),
    )  # fmt: skip
    counts = (torch.arange(1, items + 1, device=DEVICE) / items) ** -0.5
    weight = popularity_weight(counts)
    index = build(scorer, codewords=WORDS, last="popularity", weight=weight, generator=made)
    loss = drawn_loss("ssm", scorer, DRAWS, shared=False, correct="all")
    parts = Composition(vae, scorer, index, loss, DRAWS, shared=False, targets=HISTORY)
    settings = Settings(BATCH, 0.001, precision=precision, refit_every=REFIT_EVERY, per_row=True)
    trainer = Trainer(parts, settings, DEVICE)
    trainer.feed = Random(items)  # type: ignore[assignment]
    trainer.modules.train()
    return trainer


def dense(items: int, dim: int) -> Callable[[], None]:
    """The same model with embeddings, all scores and torch.optim.Adam."""
    bag = nn.EmbeddingBag(items, HIDDEN, mode="sum", device=DEVICE)
    out = nn.Linear(dim, items, bias=False, device=DEVICE)
    mix, last = nn.Linear(HIDDEN, 2 * LATENT, device=DEVICE), nn.Linear(LATENT, dim, device=DEVICE)
    modules = nn.ModuleList([bag, mix, last, out])
    adam = torch.optim.Adam(modules.parameters(), 0.001, fused=True)
    feed, generator = Random(items), torch.Generator(DEVICE).manual_seed(0)

    def step() -> None:
        target = feed.batch(torch.arange(BATCH, device=DEVICE), generator).target
        mean, log_variance = mix(torch.tanh(bag(target) / HISTORY**0.5)).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        scores = out(last(z))
        own = scores.gather(1, target).mean(1)
        loss = (scores.logsumexp(1) - own + 0.2 * kl / HISTORY).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


def sampled(items: int, dim: int, precision: str) -> dict[str, float]:
    trainer = ours(items, dim, precision)
    at = torch.arange(BATCH, device=DEVICE)
    replay = trainer.replay
    step = trainer.step if replay is None else lambda at: replay(trainer.step, at)
    row = {
        "plain step ms": milliseconds(lambda: trainer.step(at), 20),
        "step ms": milliseconds(lambda: step(at), 100 if GPU else 10),
        "refit ms": milliseconds(trainer.refit, 5, warm=2),
    }
    row["in all ms"] = round(row["step ms"] + row["refit ms"] / REFIT_EVERY, 4)
    row["peak GB"] = peak(lambda: step(at))
    return row


def full(items: int, dim: int) -> dict[str, float | str]:
    try:
        step = dense(items, dim)
        return {"step ms": milliseconds(step, 10 if GPU else 3, warm=2), "peak GB": peak(step)}
    except torch.OutOfMemoryError:
        return {"step ms": "out of memory"}


def main() -> None:
    for dim in [int(d) for d in sys.argv[1:]] or [64, 200]:
        figures: dict[str, Any] = {}
        for items in SIZES:
            row: dict[str, Any] = {}
            for name, work in (
                ("fastvae", lambda: sampled(items, dim, "float32")),  # noqa: B023
                ("fastvae bf16", lambda: sampled(items, dim, "bf16")),  # noqa: B023
                ("full softmax, dense Adam", lambda: full(items, dim)),  # noqa: B023
            ):
                reset_peak()
                row[name] = work()
            figures[str(items)] = row
        first, last = (figures[str(s)]["fastvae"]["in all ms"] for s in (SIZES[0], SIZES[-1]))
        report(
            "fastvae_step",
            f"batch {BATCH}, history and targets {HISTORY}, {DRAWS} draws a user, hidden {HIDDEN}, "
            f"item dim {dim}, {WORDS} x {WORDS} cells by popularity, one second moment a "
            f"row, refit every {REFIT_EVERY} steps (its time added in that share); "
            "median, each step synchronised",
            device=torch.cuda.get_device_name() if GPU else "cpu",
            threads=torch.get_num_threads(),
            items=figures,
            ratio=round(last / first, 3),
        )


if __name__ == "__main__":
    main()

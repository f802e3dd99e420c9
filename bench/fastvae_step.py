"""Milliseconds and memory of a training step of `fastvae`, and of its draws alone, by items.

    python bench/fastvae_step.py [DIM ...] [--draws]

Beside a step a full softmax with dense Adam; beside the draws of each proposal the scores of all
items for the same queries and their logsumexp, without gradients (FastVAE, Fig. 4). DIM is the
length of the items' vectors: 64 and 200. With `--draws` only the draws.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

import softdex as sdx
from _data import random_log, step_of, trainer_of
from _harness import DEVICE, GPU, alternating, milliseconds, peak, report, reset_peak, sized, wait
from _options import parser, run, size
from softdex.index.proposals import PROPOSALS, ProposalOptions
from softdex.score.product import Dot

BATCH, HISTORY, DRAWS, HIDDEN, LATENT, WORDS = sized(
    (256, 50, 200, 200, 32, 64), (16, 10, 20, 8, 4, 4)
)
USERS, REFIT_EVERY = sized(20_000, 100), 500
SIZES = sized((10**5, 1_500_000, 10**7) if GPU else (10**5, 10**6), (200, 400))
DRAWN, ROUNDS = sized((10**4, 10**5, 10**6), (200, 400)), 5
BLOCK = 2**18 if GPU else 2**13
SAMPLERS = "uniform", "popularity", "kernel", "imi_uniform", "imi_popularity", "imi_exact"

PARSER = parser(__file__, __doc__)
PARSER.add_argument("dim", nargs="*", type=size, default=sized([64, 200], [8]))
PARSER.add_argument("--draws", action="store_true", help="only the draws")


def dense(log: sdx.Interactions, dim: int) -> Callable[[], None]:
    """The same model with embeddings, all scores and torch.optim.Adam."""
    items = log.num_items
    bag = nn.EmbeddingBag(items, HIDDEN, mode="sum", device=DEVICE)
    out = nn.Linear(dim, items, bias=False, device=DEVICE)
    mix, last = nn.Linear(HIDDEN, 2 * LATENT, device=DEVICE), nn.Linear(LATENT, dim, device=DEVICE)
    modules = nn.ModuleList([bag, mix, last, out])
    adam = torch.optim.Adam(modules.parameters(), 0.001, fused=True)
    histories = torch.from_numpy(log.item.copy()).to(DEVICE).long().view(-1, HISTORY)

    def step() -> None:
        target = histories[torch.randint(len(histories), (BATCH,), device=DEVICE)]
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


def sampled(log: sdx.Interactions, dim: int, precision: str) -> dict[str, float]:
    trainer = trainer_of(
        "fastvae", log, dim=dim, hidden=HIDDEN, latent=LATENT, negatives=DRAWS, codewords=WORDS,
        max_history=HISTORY, batch_size=BATCH, refit_every=REFIT_EVERY, precision=precision,
    )  # fmt: skip
    at, step = torch.arange(BATCH, device=DEVICE), step_of(trainer)
    row = {
        "plain step ms": milliseconds(lambda: trainer.step(at), 20),
        "step ms": milliseconds(step, 100 if GPU else 10),
        "refit ms": milliseconds(trainer.refit, 5, warm=2),
    }
    row["in all ms"] = round(row["step ms"] + row["refit ms"] / REFIT_EVERY, 4)
    row["peak GB"] = peak(step)
    return row


def full(log: sdx.Interactions, dim: int) -> dict[str, float | str]:
    try:
        step = dense(log, dim)
        return {"step ms": milliseconds(step, 10 if GPU else 3, warm=2), "peak GB": peak(step)}
    except torch.OutOfMemoryError:
        return {"step ms": "out of memory"}


def steps(dim: int) -> None:
    """Report the steps by items."""
    figures: dict[str, Any] = {}
    for items in SIZES:
        log, row = random_log(USERS, items, HISTORY), {}
        for name, work in (
            ("fastvae", lambda: sampled(log, dim, "float32")),  # noqa: B023
            ("fastvae bf16", lambda: sampled(log, dim, "bf16")),  # noqa: B023
            ("full softmax, dense Adam", lambda: full(log, dim)),  # noqa: B023
        ):
            reset_peak()
            row[name] = work()
        figures[str(items)] = row
    first, last = (figures[str(s)]["fastvae"]["in all ms"] for s in (SIZES[0], SIZES[-1]))
    report(
        "fastvae_step",
        f"batch {BATCH}, history and targets {HISTORY}, {DRAWS} draws per user, hidden "
        f"{HIDDEN}, item dim {dim}, {WORDS} x {WORDS} cells by popularity, one second moment "
        f"per row, refit every {REFIT_EVERY} steps (its time added in that share); "
        "median, each step synchronised",
        items=figures,
        ratio=round(last / first, 3),
    )


def drawn(items: int, dim: int) -> dict[str, dict[str, float]]:
    """Least and median milliseconds per batch, for each proposal and for the softmax."""
    generator = torch.Generator().manual_seed(0)
    scorer = Dot(torch.randn(items, dim, generator=generator) * dim**-0.5)
    query = torch.randn(BATCH, dim, generator=generator).to(DEVICE)
    counts, given = 10**6 // torch.arange(1, items + 1), ProposalOptions(codewords=WORDS)
    made = {name: PROPOSALS[name].build(scorer, counts, given) for name in SAMPLERS}
    scorer.to(DEVICE)
    works = {name: partial(index.to(DEVICE).sample, query, DRAWS) for name, index in made.items()}
    works["full softmax"] = partial(normaliser, query, scorer.vectors(slice(0, items)))
    with torch.no_grad():
        times = alternating({n: partial(synchronised, work) for n, work in works.items()}, ROUNDS)
    return {
        name: {"least": round(1e3 * min(found), 2), "median": round(1e3 * median(found), 2)}
        for name, found in times.items()
    }


def normaliser(query: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """The logsumexp (B,) of all scores, in blocks of items that a cache holds."""
    parts = [(query @ part.T).logsumexp(1) for part in vectors.split(BLOCK)]
    return torch.stack(parts).logsumexp(0)


def synchronised(work: Callable[[], Any]) -> None:
    """Do the work, and wait until the device has done it."""
    work()
    wait()


def draws(dim: int) -> None:
    """Report the draws alone by items."""
    report(
        "fastvae_draws",
        f"batch {BATCH}, {DRAWS} draws per query, dim {dim}, {WORDS} x {WORDS} cells, random "
        f"vectors, counts by Zipf's law; milliseconds per batch, {ROUNDS} rounds in turn",
        items={str(items): drawn(items, dim) for items in DRAWN},
    )


def main(given: Namespace) -> None:
    for dim in given.dim:
        if not given.draws:
            steps(dim)
        draws(dim)


if __name__ == "__main__":
    run(PARSER, main)

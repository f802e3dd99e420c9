"""A training step of `ssm` as the catalogue grows: row-wise updates beside a dense Adam."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from _harness import milliseconds, peak_of, report
from softdex.encode.table import Users
from softdex.index.uniform import Uniform
from softdex.objective.sampled import sampled_softmax
from softdex.recipes.compose import drawn_loss
from softdex.score.product import Dot
from softdex.solve.gradient.trainer import Batch, Composition, Settings, Trainer

USERS, DIM, BATCH, DRAWS = 100_000, 64, 2048, 1000


def batch(items: int, device: str) -> tuple[Tensor, Tensor]:
    users = torch.randint(USERS, (BATCH,), device=device)
    return users, torch.randint(items, (BATCH,), device=device)


class Random:
    """Events of random users and items."""

    def __init__(self, items: int, device: str) -> None:
        self.items, self.device = items, device

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        users, target = (
            torch.randint(n, (BATCH,), device=self.device, generator=generator)
            for n in (USERS, self.items)
        )
        return Batch(users, target, torch.full((BATCH,), 1 / BATCH, device=self.device))


def ours(items: int, device: str) -> Callable[[], None]:
    scorer = Dot(torch.randn(items, DIM) * 0.1)
    encoder, index = Users(torch.randn(USERS, DIM) * 0.1), Uniform(scorer)
    parts = Composition(
        encoder, scorer, index, drawn_loss("ssm", scorer, DRAWS, shared=True), DRAWS
    )
    trainer = Trainer(parts, Settings(batch_size=BATCH), torch.device(device))
    trainer.feed = Random(items, device)  # type: ignore[assignment]
    trainer.modules.train()
    at = torch.arange(BATCH, device=device)
    replay = trainer.replay
    return lambda: trainer.step(at) if replay is None else replay(trainer.step, at)


def dense(items: int, device: str) -> Callable[[], None]:
    """The same loss with nn.Embedding and torch.optim.Adam: the optimiser touches every row."""
    user, item = (nn.Embedding(n, DIM, device=device) for n in (USERS, items))
    adam = torch.optim.Adam([*user.parameters(), *item.parameters()], 0.01, fused=device == "cuda")

    def step() -> None:
        users, target = batch(items, device)
        ids = torch.randint(items, (DRAWS,), device=device)
        query = user(users)
        pos, neg = (query * item(target)).sum(1), query @ item(ids).T
        logq = torch.full((DRAWS,), -torch.tensor(float(items)).log().item(), device=device)
        own_logq = logq[:1].expand(BATCH)
        loss = sampled_softmax(pos, neg, logq, own_logq, ids == target[:, None]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = (10**5, 10**6, 10**7) if device == "cuda" else (10**5, 10**6)
    figures: dict[str, dict[str, float]] = {}
    for items in sizes:
        row = {"row-wise ms": milliseconds(ours(items, device), 100)}
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            ours(items, device)()
            row["row-wise peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        else:
            step = ours(items, device)
            row["row-wise peak above tables GB"] = peak_of(step)[1]["peak_above_start_gb"]
            row["tables GB"] = round((USERS + items) * DIM * 4 * 3 / 1e9, 3)
        row["dense Adam ms"] = milliseconds(dense(items, device), 20)
        figures[str(items)] = row
    first = figures[str(sizes[0])]["row-wise ms"]
    report(
        "step_time",
        f"batch {BATCH}, {DRAWS} shared uniform draws, dim {DIM}, {USERS} users, float32, dot; "
        "median of 100 steps (dense: 20), each synchronised",
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        items=figures,
        ratios={n: round(f["row-wise ms"] / first, 3) for n, f in figures.items()},
    )


if __name__ == "__main__":
    main()

"""Divergence of the proposals from the softmax: Fig. 2 of FastVAE, and KL by number of codewords.

    python bench/sampling_quality.py [out=sampling.png] [model=PATH] [seed=0] [NAME=VALUE ...]

Gowalla (FastVAE's, each user's items split 80/20); a `fastvae` with dim 64 and hidden 64 before and
after 20 epochs; the queries of 64 users drawn by the seed, from their training histories. `model`
is a saved model, or where the trained one is saved. Other names are options of `fastvae`.

Every distribution is exact, over all items; that of DNS, the best-scored of 20 uniform draws,
follows from the ranks. For the first user 100,000 draws of each are compared with it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from _data import need
from _harness import TINY, report, scratch, sized
from _options import parser, run
from softdex.index.flat import Flat
from softdex.index.imi.books import popularity_weight
from softdex.index.imi.index import Imi, build
from softdex.index.proposals import PROPOSALS, ProposalOptions

USERS, DRAWS, BEST_OF = sized((64, 100_000, 20), (4, 1000, 20))
WORDS = sized((8, 16, 32, 64, 128, 256), (4, 8))
NAMED = ("imi_exact", "imi_popularity", "imi_uniform", "kernel", "popularity", "uniform")
SMALL = {"dim": 64, "hidden": 64, "epochs": 20, "seed": 0, "device": "cpu"}
PICTURE = str(scratch() / "sampling.png") if TINY else None

PARSER = parser(__file__, __doc__)
PARSER.recipe_options({"recipe": "fastvae", "out": PICTURE, "model": None})


class Case(NamedTuple):
    """A scorer, queries of the users (B, D), the log-softmax of each over all items (B, I)."""

    scorer: Any
    query: Tensor
    softmax: Tensor


def main(given: Namespace) -> None:
    out, path = given.own["out"], given.own["model"]
    log = sdx.read(need("gowalla-fastvae.parquet"), quiet=True)
    train, _, test = sdx.split.fastvae(log, seed=0, max_users=None)
    model = trained(train, path, given.options)
    fresh: Any = sdx.recipes.make("fastvae", train, model.options)
    drawn = np.random.default_rng(model.options["seed"])
    users = drawn.choice(np.flatnonzero(train.user_counts), USERS, replace=False)
    key = train.users.take(users[:1])[0].as_py()
    found, curves = {}, {}
    for state, encoder, scorer in (
        ("untrained", fresh.encoder.eval(), fresh.scorer),
        ("trained", model.encoder, model.index.scorer),
    ):
        with torch.inference_mode():
            query = encoder(users, train.histories.take(users))
            softmax = Flat(scorer).log_prob(query, torch.arange(train.num_items)).double()
            case = Case(scorer, query, softmax)
            found[state], curves[state] = measured(case, train, model.options["seed"])
    if out is not None:
        draw(curves, f"user {key}", Path(out))
    report(
        "sampling_quality",
        f"gowalla-fastvae, mean over {USERS} users of KL(q || softmax); draws: {DRAWS} for one",
        options=model.options,
        card=test.card.sha256,
        user=key,
        events=int(train.user_counts[users[0]]),
        ndcg_50=round(model.evaluate(test, 50, index="exact")["ndcg@50"], 5),
        loss=model.card.training["history"][-1]["loss"],
        picture=out,
        **found,
    )


def trained(train: sdx.Interactions, path: str | None, given: dict[str, Any]) -> sdx.Retriever:
    """The saved model, or one trained now."""
    if path is not None and Path(path).exists():
        model = sdx.load(path)
        other = [name for name in given if model.options.get(name) != given[name]]
        if model.recipe != "fastvae" or other:
            raise sdx.DataError(f"{path} is a {model.recipe}; these options differ: {other}")
        return model
    model = sdx.fit("fastvae", train, **(SMALL | given))
    if path is not None:
        model.save(path)
    return model


# distributions -----------------------------------------------------------------------------------


class Curves(NamedTuple):
    """Cumulative distributions (I,): of one user and the mean over users, by rising popularity, and
    the mean over users by each user's rising scores."""

    one: Tensor
    mean: Tensor
    scored: Tensor


def measured(
    case: Case, train: sdx.Interactions, seed: int
) -> tuple[dict[str, Any], dict[str, Curves]]:
    """All figures of a model, and the curves of each distribution."""
    counts = torch.tensor(train.item_counts)
    order, by_score = torch.argsort(counts, stable=True), case.softmax.argsort(dim=1, stable=True)
    figures: dict[str, Any] = {"softmax": shape(case), "laws": {}, "draws": {}, "head": {}}
    curves = {}
    for name, logq, ids in laws(case, train, seed):
        q = logq.exp()
        one, *means = (q[0][order], q[:, order].mean(0), q.gather(1, by_score).mean(0))
        curves[name] = Curves(*(part.cumsum(0) for part in (one, *means)))
        drawn = torch.bincount(ids, minlength=len(order))[order].cumsum(0) / len(ids)
        figures["laws"][name] = distance(logq, case.softmax)
        figures["draws"][name] = round(float((drawn - curves[name].one).abs().max()), 4)
        figures["head"][name] = [head(curves[name].mean), head(curves[name].scored)]
    return figures | {"words": list(by_words(case, counts, seed))}, curves


def shape(case: Case) -> dict[str, float]:
    """Entropy and mass of the best items of the softmax, means over users."""
    p = case.softmax.exp()
    best = p.sort(dim=1, descending=True).values[:, :100].cumsum(1).mean(0)
    figures = {
        "entropy": -(p * case.softmax).sum(1).mean(),
        "first": best[0],
        "first_100": best[-1],
    }
    return {name: round(float(value), 5) for name, value in figures.items()}


def laws(case: Case, train: sdx.Interactions, seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Per way to draw: name, log probabilities (B, I), and draws for the first user (N,)."""
    everything = torch.arange(train.num_items)
    generator = torch.Generator().manual_seed(seed)
    first = case.query[:1]
    yield (
        "softmax",
        case.softmax,
        Flat(case.scorer).sample(first, DRAWS, generator=generator).ids[0],
    )
    for name in NAMED:
        counts = torch.tensor(train.item_counts)
        index = PROPOSALS[name].build(case.scorer, counts, ProposalOptions(seed=seed))
        ids = index.sample(first, DRAWS, generator=generator).ids[0]
        yield name, index.log_prob(case.query, everything).double(), ids
    some = torch.randint(train.num_items, (DRAWS, BEST_OF), generator=generator)
    best = case.softmax[0][some].argmax(1, keepdim=True)
    yield "dns", best_of(case.softmax, BEST_OF), some.gather(1, best)[:, 0]


def best_of(scores: Tensor, n: int) -> Tensor:
    """Log probability (B, I) that an item is the best-scored of n uniform draws.

    The best is among the worst r items with probability (r / I)^n.
    """
    rank = scores.argsort(dim=1, stable=True).argsort(dim=1).double() + 1
    return n * (rank / scores.shape[1]).log() + (-((1 - 1 / rank) ** n)).log1p()


def by_words(case: Case, counts: Tensor, seed: int) -> Iterator[dict[str, Any]]:
    """The multi-index by number of codewords, kind of codebooks and last stage."""
    everything = torch.arange(len(counts))
    for residual in (False, True):
        for words in WORDS:
            made = build(
                case.scorer,
                codewords=words,
                residual=residual,
                generator=torch.Generator().manual_seed(seed),
            )
            row = {"books": "residual" if residual else "product", "words": words}
            row["filled"] = len(made.cell.unique())
            row["uniform"] = distance(made.log_prob(case.query, everything), case.softmax)
            for kind in ("log", "power", "count"):
                logw = popularity_weight(counts, kind).log().float()
                other = Imi(
                    case.scorer, made.words, made.cell, logw, made.alive,
                    last="popularity", residual=residual,
                )  # fmt: skip
                row[kind] = distance(other.log_prob(case.query, everything), case.softmax)
            yield row


def distance(logq: Tensor, logp: Tensor) -> dict[str, float]:
    """Distances of distributions (B, I) from the softmax, means over users.

    KL(q || p) with its standard error, KL(p || q), total variation, and the effective share of many
    draws weighted by p / q: 1 / sum of p^2 / q.
    """
    logq = logq.double()
    p, q = logp.exp(), logq.exp()
    kl = (q * (logq - logp)).sum(1)
    figures = {
        "kl": kl.mean(),
        "error": kl.std() / len(kl) ** 0.5,
        "reverse": (p * (logp - logq)).sum(1).mean(),
        "variation": (q - p).abs().sum(1).mean() / 2,
        "effective": (-(2 * logp - logq).logsumexp(1)).exp().mean(),
    }
    return {name: round(float(value), 4) + 0.0 for name, value in figures.items()}


def head(curve: Tensor) -> float:
    """Mass of the last tenth of a curve's items."""
    return round(1 - float(curve[len(curve) - len(curve) // 10 - 1]), 4)


# picture -----------------------------------------------------------------------------------------

STYLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "0.80", "lw": 7, "solid_capstyle": "butt"},
    "imi_popularity": {"color": "#08306b", "lw": 1.8},
    "imi_uniform": {"color": "#08306b", "lw": 1.8, "ls": (0, (4, 1.5))},
    "dns": {"color": "#e6550d", "lw": 1.8},
    "kernel": {"color": "#238b45", "lw": 1.6, "ls": (0, (6, 1.5, 1, 1.5, 1, 1.5))},
    "popularity": {"color": "black", "lw": 1.6, "ls": (0, (1, 1.4))},
    "uniform": {"color": "0.45", "lw": 1.0},
}


def draw(curves: dict[str, dict[str, Curves]], user: str, out: Path) -> None:
    """One user before and after training, then the mean over users in two orders."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    everybody = f"mean of {USERS} users"
    panels = (
        ("untrained", "one", f"{user}, untrained"),
        ("trained", "one", f"{user}, trained"),
        ("trained", "mean", f"{everybody}, trained"),
        ("trained", "scored", f"{everybody}, trained, by their scores"),
    )
    figure = Figure(figsize=(7.6, 8.4), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.06, hspace=0.05)
    FigureCanvasAgg(figure)
    axes, ticks = figure.subplots(2, 2), (0, 0.5, 1)
    for at, (state, kind, title) in zip(axes.flat, panels, strict=True):
        for name, style in STYLES.items():
            curve = getattr(curves[state][name], kind).numpy()
            share = np.arange(len(curve) + 1) / len(curve)
            at.plot(share, np.append(0, curve), label=name, **style)
        at.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=ticks, yticks=ticks)
        at.set(xticklabels=ticks, yticklabels=ticks)
        at.set_title(title, fontsize=10, loc="left")
        order = "worst score" if kind == "scored" else "least popular"
        at.set_xlabel(f"share of items, {order} first", fontsize=9)
        at.tick_params(labelsize=9, length=3, color="0.5")
        at.spines[["top", "right"]].set_visible(False)
        at.spines[["left", "bottom"]].set_color("0.5")
    for at in axes[:, 0]:
        at.set_ylabel("share of draws", fontsize=9)
    lines, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        lines,
        names,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
        handlelength=3.2,
    )
    figure.savefig(out, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    run(PARSER, main)

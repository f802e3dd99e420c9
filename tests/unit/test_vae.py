"""Variational autoencoders: the encoder, the batches of histories, and the two recipes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softdex as sdx
from marks import slow
from softdex import recipes
from softdex.data.ragged import Ragged
from softdex.encode.vae import Vae
from softdex.index.imi.index import Imi
from softdex.model.kinds import saved_tensors
from softdex.recipes.compose import PROPOSALS, automatic
from softdex.shapes import kept
from softdex.solve.gradient.feed import Histories

ITEMS, HIDDEN, LATENT, DIM = 12, 6, 3, 5
SMALL: dict[str, Any] = {
    "dim": 8, "hidden": 8, "latent": 4, "codewords": 4, "negatives": 20, "lr": 0.01,
    "device": "cpu",
}  # fmt: skip


def read(name: str, **given: Any) -> dict[str, Any]:
    """Those of the options that have an effect."""
    idle = recipes.unread(name, recipes.options(name) | given)
    return {option: value for option, value in given.items() if option not in idle}


def encoder(**options: Any) -> Vae:
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (ITEMS, HIDDEN),
        (HIDDEN,),
        (HIDDEN, 2 * LATENT),
        (2 * LATENT,),
        (LATENT, DIM),
        (DIM,),
    ]
    return Vae(*(torch.randn(*s, generator=generator) for s in shapes), **options)


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    """Four groups of users with ten items each."""
    draw = np.random.default_rng(0)
    events = [
        (u, 10 * (u % 4) + int(i))
        for u in range(120)
        for i in draw.choice(10, draw.integers(3, 9), replace=False)
    ]
    return sdx.read(events)


# encoder


@pytest.mark.parametrize(("relu", "activate"), [(False, torch.tanh), (True, torch.relu)])
def test_a_query_is_what_the_formula_says(relu: bool, activate: Callable[..., Any]) -> None:
    made = encoder(relu=relu).eval()
    items = [1, 4, 7]
    state = {n: t.double() for n, t in made.state_dict().items()}
    h = activate(state["bag.weight"][items].sum(0) / math.sqrt(3) + state["bias"])
    mean = (h @ state["mix"] + state["mix_bias"])[:LATENT]
    wanted = mean @ state["out"] + state["out_bias"]
    found = made(np.array([0]), Ragged(np.array([0, 3]), np.array(items, np.int32)))
    assert torch.allclose(found[0].double(), wanted, atol=1e-5)


def test_an_item_of_a_history_counts_once_and_an_empty_history_is_a_query_too() -> None:
    made = encoder().eval()
    lists = Ragged(np.array([0, 2, 5, 5]), np.array([3, 8, 8, 3, 8], np.int32))
    once, twice, nothing = made(np.array([0, 1, 2]), lists)
    assert torch.allclose(once, twice, atol=1e-6)
    assert torch.isfinite(nothing).all()


def test_without_dropout_and_noise_training_reads_a_history_as_serving_does() -> None:
    made = encoder(dropout=0.0).train()
    with torch.no_grad():
        made.mix_bias[LATENT:] = -60.0  # no variance
        made.mix[:, LATENT:] = 0.0
    query, _ = made.learn(torch.tensor([[1, 4, 7, -1]]), torch.Generator().manual_seed(0))
    served = made(np.array([0]), Ragged(np.array([0, 3]), np.array([1, 4, 7], np.int32)))
    assert torch.allclose(query, served, atol=1e-5)


def test_the_penalty_is_the_divergence_of_two_normal_laws_and_has_a_gradient() -> None:
    made = encoder(dropout=0.0, beta=0.7).train()
    _, penalty = made.learn(torch.tensor([[2, 5]]), torch.Generator().manual_seed(0))
    sums = made.bag.weight[[2, 5]].sum(0, keepdim=True) / math.sqrt(2)
    mean, log_variance = made._latent(sums)
    law = torch.distributions.Normal(mean, (log_variance / 2).exp())
    prior = torch.distributions.Normal(torch.zeros(LATENT), torch.ones(LATENT))
    wanted = 0.7 * torch.distributions.kl_divergence(law, prior).sum()
    assert penalty.item() == pytest.approx(wanted.item(), rel=1e-5)
    penalty.sum().backward()
    assert made.mix.grad is not None
    assert made.mix.grad.abs().sum() > 0


def test_the_penalty_rises_to_its_weight_in_so_many_steps() -> None:
    made = encoder(dropout=0.0, beta=0.5, anneal=4).train()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = [float(made.learn(torch.tensor([[2]]), generator)[1]) for _ in range(6)]
    assert np.allclose(np.array(found) / found[-1], [0.25, 0.5, 0.75, 1, 1, 1])


def test_dropout_leaves_items_out_and_keeps_the_sum_on_average() -> None:
    made = encoder(dropout=0.4).train()
    ids = torch.tensor([[0, 3, 9, -1]])
    generator, total = torch.Generator().manual_seed(0), torch.zeros(HIDDEN)
    real = ids >= 0
    for _ in range(3000):
        kept = torch.rand(ids.shape, generator=generator) >= 0.4
        scale = real.sum(1, keepdim=True).rsqrt() / 0.6
        total += made.bag.bag(ids, (real & kept) * scale)[0].detach()
    wanted = made.bag.weight[[0, 3, 9]].sum(0) / math.sqrt(3)
    assert torch.allclose(total / 3000, wanted, atol=0.1)


def test_a_file_whose_relu_could_overflow_is_refused_where_tanh_is_bounded() -> None:
    tensors = kept(encoder(relu=True)) | {"bag.weight": torch.full((ITEMS, HIDDEN), 9e7)}
    tensors |= {"out": torch.full((LATENT, DIM), 9e7)}
    with pytest.raises(ValueError, match="its layers make numbers"):
        Vae.check(tensors, {"I": ITEMS})
    Vae.check({name: t for name, t in tensors.items() if name != "relu"}, {"I": ITEMS})


# batches


def test_a_batch_holds_the_users_items_and_weights_that_add_up(log: sdx.Interactions) -> None:
    feed = Histories(log, 50)
    batch = feed.batch(torch.arange(feed.size), torch.Generator())
    for user, row in zip(batch.users.tolist(), batch.target.tolist(), strict=True):
        assert sorted(i for i in row if i >= 0) == sorted(log.histories[user].tolist())
    assert batch.weight.sum().item() == pytest.approx(1.0, rel=1e-5)
    assert (batch.weight[batch.target < 0] == 0).all()


def test_of_a_long_history_every_item_is_taken_equally_often_and_counts_for_the_rest() -> None:
    log = sdx.read([(0, i) for i in range(10)] + [(1, 0)])
    feed = Histories(log, 4)
    generator, counts = torch.Generator().manual_seed(0), np.zeros(10)
    for _ in range(2000):
        batch = feed.batch(torch.tensor([0, 1]), generator)
        assert batch.target.shape == (2, 4)
        assert len(set(batch.target[0].tolist())) == 4
        assert batch.weight[0].sum().item() == pytest.approx(10 * batch.weight[1].sum().item())
        counts[batch.target[0].numpy()] += 1
    assert np.allclose(counts / 2000, 0.4, atol=0.05)


# recipes


@pytest.mark.parametrize(
    "index", ["full", "imi_popularity", *slow(*sorted({*PROPOSALS} - {"imi_popularity"}))]
)
@pytest.mark.slow
def test_every_index_learns_the_groups(log: sdx.Interactions, index: str) -> None:
    model = sdx.fit("vae", log, **read("vae", index=index, epochs=40, **SMALL))
    found = model.recommend(history=[[0, 1, 2], [31, 32, 33]], k=7).to_pydict()
    groups = [item // 10 for item in found["item"]]
    assert np.mean(np.array(groups) == np.array(found["user"]) * 3) > 0.8


def test_fastvae_is_served_from_the_index_it_trained_with(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    model = sdx.fit("fastvae", log, epochs=3, **SMALL)
    assert isinstance(model.index, Imi)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert isinstance(again.index, Imi)
    assert again.index.effort == model.index.effort
    assert torch.equal(again.index.cell, model.index.cell)
    users = list(range(0, 120, 7))
    assert again.recommend(users).to_pydict() == model.recommend(users).to_pydict()


def test_the_activation_is_kept_in_a_file_and_a_file_without_one_has_tanh(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    small = read("mult_vae", **SMALL) | {"epochs": 1}
    told, untold = (sdx.fit("mult_vae", log, **small, **o) for o in ({"activation": "relu"}, {}))
    assert "encoder.relu" not in saved_tensors(untold.encoder, untold.index.scorer)
    told.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    asked = Ragged(np.array([0, 3]), np.array([1, 4, 7], np.int32))
    query = told.encoder(np.array([-1]), asked)
    assert torch.equal(again.encoder(np.array([-1]), asked), query)
    again.encoder.relu = None
    assert not torch.allclose(again.encoder(np.array([-1]), asked), query)


def test_a_killed_fastvae_goes_on_to_the_very_same_model(
    log: sdx.Interactions, killed: Callable[..., sdx.Retriever]
) -> None:
    """Index, annealing and the moments of dense layers are part of the checkpoint."""
    options = SMALL | {"epochs": 6, "batch_size": 16, "refit_every": 5, "anneal": 30}
    whole = sdx.fit("fastvae", log, **options)
    again = killed("fastvae", log, after=29, **options)
    ours, theirs = (m.index.state() | m.encoder.state_dict() for m in (whole, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_model_starts_from_an_earlier_one(log: sdx.Interactions) -> None:
    small = read("mult_vae", **SMALL)
    first = sdx.fit("mult_vae", log, epochs=20, **small)
    second = sdx.fit("mult_vae", log, start=first, epochs=1, **(small | {"lr": 1e-9}))
    for name, tensor in first.encoder.state_dict().items():
        if name != "steps":
            assert torch.allclose(tensor, second.encoder.state_dict()[name], atol=1e-6), name
    with pytest.raises(sdx.SoftdexError, match=r"start= has .*same sizes"):
        sdx.fit("mult_vae", log, start=first, epochs=1, **(small | {"latent": 3}))


@pytest.mark.parametrize(("option", "value", "words"), [
    ("dropout", 1.0, "dropout from 0 to below 1"),
    ("beta", -0.1, "beta from 0 to 1e6"),
    ("latent", 0, "latent > 0"),
    ("index", "tree", "unknown index"),
    ("popularity", "rank", "unknown popularity"),
])  # fmt: skip
def test_options_that_make_no_sense_are_refused(
    log: sdx.Interactions, option: str, value: Any, words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"vae: .*{words}"):
        sdx.fit("vae", log, **{option: value})


def test_the_index_of_mult_vae_is_not_an_option(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"mult_vae: index= is fixed.* 'vae' has it"):
        sdx.fit("mult_vae", log, index="uniform")


def test_auto_takes_all_items_then_shared_draws_then_the_multi_index(
    capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    cpu = torch.device("cpu")
    assert automatic(1_000, 64, 2048, cpu) == "full"
    assert automatic(100_000, 64, 8192, cpu) == "uniform"
    assert automatic(100_000, 64, 256, cpu) == "imi_popularity"
    assert automatic(5_000_000, 64, 8192, cpu) == "imi_popularity"
    said = capsys.readouterr().err
    assert "index: uniform (100,000 items" in said
    assert automatic(20_000, 64, 256, torch.device("cuda")) == "full"

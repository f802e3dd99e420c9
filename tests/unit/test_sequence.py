"""Sequence models: nothing looks ahead, padding changes nothing, and order is learned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import softdex as sdx
from marks import slow
from softdex.data.ragged import Ragged
from softdex.encode.sequence import Dnn, Sequence
from softdex.encode.table import Table
from softdex.recipes import make
from softdex.solve.gradient.feed import Sequences

ITEMS, DIM, LAYERS, HEADS, HIDDEN, MOST = 20, 8, 2, 2, 12, 10
SMALL: dict[str, Any] = {
    "dim": 16, "hidden": 32, "heads": 2, "layers": 1, "dropout": 0.1, "lr": 0.01, "device": "cpu",
    "patience": 0, "batch_size": 32,
}  # fmt: skip
DRAWN: dict[str, Any] = {"objective": "ssm", "negatives": 20}


def attention(dropout: float = 0.0) -> Sequence:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.5

    return Sequence(
        random(MOST, DIM), random(LAYERS, DIM, 3 * DIM), random(LAYERS, 3 * DIM),
        random(LAYERS, DIM, DIM), random(LAYERS, DIM), random(LAYERS, DIM, HIDDEN),
        random(LAYERS, HIDDEN), random(LAYERS, HIDDEN, DIM), random(LAYERS, DIM),
        random(2 * LAYERS + 1, 2, DIM), torch.tensor(HEADS), Table(random(ITEMS, DIM)),
        dropout=dropout,
    ).eval()  # fmt: skip


def dnn() -> Dnn:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    widths = [(DIM, 6), (6,), (6, 5), (5,), (5, DIM), (DIM,)]
    items = Table(random(ITEMS, DIM))
    return Dnn(*(random(*w) for w in widths), torch.tensor(MOST), items).eval()


def lists(*rows: list[int]) -> Ragged:
    lengths = [len(row) for row in rows]
    ids = np.array([i for row in rows for i in row], np.int32)
    return Ragged(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), ids)


def layer_of(made: Sequence, layer: int) -> nn.TransformerEncoderLayer:
    """PyTorch's own layer with the same weights."""
    theirs = nn.TransformerEncoderLayer(
        DIM, HEADS, HIDDEN, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True,
        dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(made.attend[layer].T)
        theirs.self_attn.in_proj_bias.copy_(made.attend_bias[layer])
        theirs.self_attn.out_proj.weight.copy_(made.mix[layer].T)
        theirs.self_attn.out_proj.bias.copy_(made.mix_bias[layer])
        theirs.linear1.weight.copy_(made.widen[layer].T)
        theirs.linear1.bias.copy_(made.widen_bias[layer])
        theirs.linear2.weight.copy_(made.narrow[layer].T)
        theirs.linear2.bias.copy_(made.narrow_bias[layer])
        for norm, which in ((theirs.norm1, 2 * layer), (theirs.norm2, 2 * layer + 1)):
            norm.weight.copy_(made.norm[which, 0])
            norm.bias.copy_(made.norm[which, 1])
    return theirs.train()  # eval would take a path of its own; there is no dropout


def test_states_are_those_of_pytorchs_own_layers() -> None:
    made = attention()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    x = made.items.weight[ids] + made.positions[-6:]
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    for layer in range(LAYERS):
        x = layer_of(made, layer)(x, src_mask=mask, is_causal=True)
    scale, shift = made.norm[-1]
    expected = nn.functional.layer_norm(x, (DIM,), scale, shift, 1e-6)
    assert torch.allclose(made.states(ids), expected)


@pytest.mark.parametrize("made", [attention(), dnn()], ids=["attention", "dnn"])
def test_a_later_item_never_changes_an_earlier_query(made: Sequence | Dnn) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(ITEMS, (4, 7), generator=generator)
    before = made.learn(ids, generator)
    for place in range(7):
        other = ids.clone()
        other[:, place] = (other[:, place] + 3) % ITEMS
        after = made.learn(other, generator)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.allclose(before[:, place:], after[:, place:])


@pytest.mark.parametrize("made", [attention(), dnn()], ids=["attention", "dnn"])
def test_padding_changes_nothing_and_the_last_query_is_what_is_served(made: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    history = [3, 1, 4, 1, 5]
    tight = made.learn(torch.tensor([history]), generator)
    wide = made.learn(torch.tensor([history + [-1] * 4, list(range(9))]), generator)
    assert torch.allclose(tight[0], wide[0, :5])
    alone = made(np.array([-1]), lists(history))
    among = made(np.array([-1, -1]), lists(history, list(range(9))))
    assert torch.allclose(alone[0], tight[0, -1])
    assert torch.allclose(among[0], alone[0])


def test_of_a_long_history_the_latest_items_are_read_and_an_empty_one_is_no_error() -> None:
    for made in (attention(), dnn()):
        long = list(range(15))
        found = made(np.array([-1] * 3), lists(long, long[-MOST:], []))
        assert torch.allclose(found[0], found[1])
        assert found[2].isfinite().all()


def test_dropout_keeps_the_mean_and_repeats_with_the_generator() -> None:
    made, ids = attention(0.3), torch.tensor([[1, 2, 3]])
    once, twice = (made.learn(ids, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(once, twice)
    assert not torch.allclose(once, made.states(ids))
    ones = torch.ones(200, 100, dtype=torch.float64)
    kept = made._dropped(ones, torch.Generator().manual_seed(0))
    assert kept.mean() == pytest.approx(1.0, abs=0.02)


# batches -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cycles() -> sdx.Interactions:
    """After item i comes i + 1 (mod 12), from a random start: only order tells what is next."""
    draw = np.random.default_rng(0)
    events = []
    for u in range(150):
        start, length = draw.integers(12), draw.integers(3, 9)
        events += [(u, int(start + t) % 12, t) for t in range(length)]
    return sdx.read(events)


def test_every_event_but_a_users_first_is_to_be_found_once(cycles: sdx.Interactions) -> None:
    feed = Sequences(cycles, 3)
    batch = feed.batch(torch.arange(feed.size), torch.Generator())
    assert batch.target.shape[1] == 4
    found = []
    for user, row, weight in zip(batch.users, batch.target, batch.weight, strict=True):
        real = row[row >= 0].tolist()
        assert (weight > 0).tolist() == (row >= 0).tolist()
        found += [(int(user), before, after) for before, after in itertools.pairwise(real)]
    expected = []
    for user in range(cycles.num_users):
        items = cycles.histories[user].tolist()
        expected += [(user, a, b) for a, b in itertools.pairwise(items)]
    assert sorted(found) == sorted(expected)


def test_weights_stay_with_their_events_whatever_the_order_of_the_file() -> None:
    events = {"user": [1, 0, 1, 0, 1], "item": [5, 6, 7, 8, 9], "time": [3, 2, 1, 1, 2]}
    log = sdx.read(events | {"weight": [0.5, 0.6, 0.7, 0.8, 0.9]})
    feed = Sequences(log, 5)
    batch = feed.batch(torch.arange(2), torch.Generator())
    keys = log.items.all().to_pylist()
    for row, weight in zip(batch.target, batch.weight, strict=True):
        for item, w in zip(row.tolist(), weight.tolist(), strict=True):
            if item >= 0:
                assert w == pytest.approx(keys[item] / 10)


def test_users_with_one_event_teach_nothing_and_alone_are_refused() -> None:
    log = sdx.read([(0, 1, 1), (1, 2, 1), (1, 3, 2)])
    assert Sequences(log, 5).size == 1
    with pytest.raises(sdx.SoftdexError, match="no user has two events"):
        sdx.fit("sasrec", sdx.read([(0, 1, 1), (1, 2, 1)]), **SMALL)


def test_rows_that_are_drawn_to_be_trained_on_are_real(cycles: sdx.Interactions) -> None:
    trainer = make("sequence", cycles, {"objective": "bir", "positions": 40, **SMALL}).trainer(
        cycles
    )
    trainer.modules.train()
    batch = trainer.feed.batch(torch.arange(32), trainer.generator)
    query, target, weight, *_ = trainer.feed.positions(
        trainer.parts.encoder, batch.target, batch.weight, trainer.generator
    )
    assert query.shape == (40, 16)
    assert (target >= 0).all()
    assert weight.sum().item() == pytest.approx(1.0)


def test_the_last_query_of_every_window_is_the_one_that_is_served(
    cycles: sdx.Interactions,
) -> None:
    """Whatever else is in the batch, and however wide it is."""
    every = {"dropout": 0.0, "positions": 10_000}
    trainer = make("sequence", cycles, SMALL | every).trainer(cycles)
    trainer.modules.train()
    batch = trainer.feed.batch(torch.arange(20), trainer.generator)
    wide = torch.nn.functional.pad(batch.target, (0, 3), value=-1)
    for rows in (batch.target, wide):
        ones = torch.ones_like(rows, dtype=torch.float32)
        query, target, *_ = trainer.feed.positions(
            trainer.parts.encoder, rows, ones, trainer.generator
        )
        query, target = query.view(20, -1, 16), target.view(20, -1)
        for b in range(20):
            real = rows[b][rows[b] >= 0].tolist()
            served = trainer.parts.encoder(np.array([-1]), lists(real[:-1]))
            assert torch.allclose(query[b, len(real) - 2], served[0], atol=1e-5)
            assert target[b, len(real) - 2] == real[-1]


@pytest.mark.parametrize("objective", ["ssl", "ssl_pop", "mns", "g_tower", "bir", "xir"])
def test_rows_that_stand_for_nobody_change_nothing_in_the_batch(objective: str) -> None:
    from softdex.index.flat import Flat
    from softdex.score.product import Dot
    from softdex.solve.gradient.in_batch import InBatch

    generator = torch.Generator().manual_seed(0)
    items, query = (torch.randn(n, 4, generator=generator) for n in (6, 9))
    target = torch.randint(1, 6, (9,), generator=generator)
    logp = torch.rand(6, generator=generator).log_softmax(0)
    found = []
    for pads in (0, 4):
        made = InBatch(objective, logp, 9, draws=2000, cache_share=0.0, padded=True)
        rows = torch.cat([query, torch.randn(pads, 4)])
        ids = torch.cat([target, torch.full((pads,), -1)])
        draw = torch.Generator().manual_seed(1)
        found.append(made(Flat(Dot(items)), rows, ids, draw)[:9])
        if objective == "xir":
            assert made.cache.counts.sum() == 6 + 9 * 2000
        if objective == "g_tower":
            assert made.frequencies(torch.tensor([0])) < made.frequencies(torch.tensor([1])) + 1e-6
    close = 0.3 if objective in ("bir", "xir", "mns") else 1e-5  # these draw anew
    assert torch.allclose(*found, atol=close)


# learning ----------------------------------------------------------------------------------------


def right(model: sdx.Retriever) -> float:
    """How often the next of the cycle is the best after three of it."""
    history = [[(s + t) % 12 for t in range(3)] for s in range(12)]
    found = model.recommend(history=history, k=1, exclude_seen=False).to_pydict()
    return float(np.mean([i == (s + 3) % 12 for s, i in enumerate(found["item"])]))


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "softmax"},
        DRAWN | {"index": "uniform"},
        DRAWN | {"index": "imi_popularity", "codewords": 4},
        {"objective": "xir", "positions": 64},
        *slow(
            DRAWN | {"index": "popularity"},
            DRAWN | {"index": "imi_uniform", "codewords": 4},
            DRAWN | {"index": "auto"},
            {"objective": "ssl_pop", "positions": 64},
            {"objective": "bir", "positions": 64},
            {"objective": "softmax", "precision": "bf16"},
        ),
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
@pytest.mark.slow
def test_every_objective_and_index_learns_the_order(
    cycles: sdx.Interactions, options: dict[str, Any]
) -> None:
    assert right(sdx.fit("sasrec", cycles, epochs=30, **options, **SMALL)) == 1.0


def test_what_does_not_see_order_cannot_tell_which_of_its_neighbours_is_next(
    cycles: sdx.Interactions,
) -> None:
    """The mean of three items is the same in any order; it still finds the neighbourhood."""
    model = sdx.fit("youtube_dnn", cycles, epochs=40, lr=0.01, negatives=20, device="cpu")
    back, forth = (
        model.recommend(history=[h], k=12, exclude_seen=False).to_pydict()["score"]
        for h in ([1, 2, 3], [3, 2, 1])
    )
    assert np.allclose(back, forth)


def test_a_saved_model_answers_alike(cycles: sdx.Interactions, tmp_path: Path) -> None:
    for name in ("sasrec", "youtube_dnn"):
        small = {
            n: v for n, v in SMALL.items() if n not in ("hidden", "heads", "layers", "dropout")
        }
        model = sdx.fit(name, cycles, epochs=2, **(SMALL if name == "sasrec" else small))
        path = tmp_path / f"{name}.sdx"
        model.save(path)
        again = sdx.load(path)
        history = [[1, 2], [7]]
        a, b = (m.recommend(history=history, k=5).to_pydict() for m in (model, again))
        assert a == b


def test_a_killed_run_goes_on_to_the_very_same_model(
    cycles: sdx.Interactions, killed: Callable[..., sdx.Retriever]
) -> None:
    """Dropout comes from the run's own generator."""
    options = SMALL | {"epochs": 4}
    whole, again = (
        sdx.fit("sasrec", cycles, **options),
        killed("sasrec", cycles, after=12, **options),
    )
    ours, theirs = (m.encoder.state_dict() for m in (whole, again))
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_new_items_come_into_a_sequence_model(cycles: sdx.Interactions) -> None:
    model = sdx.fit("sasrec", cycles, epochs=20, **SMALL)
    model.add_items(sdx.read([(u, 99, 50) for u in range(0, 150, 3)]))
    found = model.recommend(history=[[1, 99, 3]], k=13, exclude_seen=False).to_pydict()
    assert 99 in found["item"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 3}, "heads to divide dim"),
        ({"dropout": 1.0}, "dropout from 0"),
        ({"objective": "bce"}, "softmax"),
        ({"index": "imi_uniform"}, "index= has no effect"),
        ({"objective": "bir", "positions": 0}, "positions="),
        ({"max_history": 0}, "max_history > 0"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else "",
)
def test_options_that_make_no_sense_are_refused(
    cycles: sdx.Interactions, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=said):
        sdx.fit("sasrec", cycles, **(SMALL | options))

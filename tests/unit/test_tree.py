"""Trees as models: trained, saved, asked, edited."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

import softdex as sdx
from cut_tree import cut
from hostile import members, with_tensors
from marks import slow
from softdex.errors import ArtifactError, DataError, SoftdexError
from softdex.index.contract import Filter
from softdex.index.tree.tree import Tree
from softdex.recipes import make
from softdex.recipes.leaves import categories

SMALL: dict[str, Any] = {
    "leaves": "random", "dim": 8, "beam": 10, "negatives": 10, "max_history": 8, "epochs": 3,
    "batch_size": 256, "lr": 0.005, "device": "cpu",
}  # fmt: skip
METHODS = {"dtr, uniform": {"sampling": "uniform"}}


def options(name: str, **more: Any) -> dict[str, Any]:
    given = {"din": ("leaves", "beam"), "plt": ("negatives",)}.get(name.split(",")[0], ())
    kept = {n: v for n, v in SMALL.items() if n not in given}
    return kept | METHODS.get(name, {}) | more


@pytest.fixture(scope="module")
def fitted(parts: sdx.Split) -> sdx.Retriever:
    return sdx.fit("dtr", parts.train, **options("dtr"))


def leaves(model: sdx.Retriever) -> Tree:
    assert isinstance(model.index, Tree)
    return model.index


@pytest.mark.parametrize("name", ["dtr", *slow("din", "dtr, uniform", "tdm", "plt")])
@pytest.mark.slow
def test_every_tree_learns_far_more_than_chance_knows(parts: sdx.Split, name: str) -> None:
    longer = {"epochs": 16 if name in ("tdm", "plt") else 6, "lr": 0.01}
    model = sdx.fit(name.split(",")[0], parts.train, **options(name, **longer))
    losses = [record["loss"] for record in model.card.training["history"]]
    assert losses[-1] < losses[0]
    assert model.evaluate(parts.test, 20)["recall@20"] > 0.28  # chance has .18


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_a_run_repeats_itself_bit_by_bit(parts: sdx.Split, norm: str) -> None:
    given = options("dtr", norm=norm, epochs=1, max_instances=1000)
    once, again = (sdx.fit("dtr", parts.train, **given) for _ in range(2))
    for name, tensor in once.index.scorer.state_dict().items():
        assert torch.equal(tensor, again.index.scorer.state_dict()[name]), name


def test_a_run_that_was_stopped_goes_on_to_the_same_model(parts: sdx.Split, tmp_path: Path) -> None:
    from softdex.solve.checkpoint import Checkpointer
    from softdex.solve.loop import Run

    def job() -> Any:
        given = options("dtr", norm="batch", max_instances=500)
        return make("tree", parts.train, given)

    whole = Run(job(), parts.train)
    whole.advance(3)
    checkpointer = Checkpointer(tmp_path, {}, resume=False)
    first = Run(job(), parts.train, checkpointer=checkpointer)
    first.advance(1)
    second = Run(job(), parts.train, checkpointer=Checkpointer(tmp_path, {}, resume=True))
    second.advance(2)
    for name, tensor in whole.trainer.state().items():
        assert torch.equal(tensor, second.trainer.state()[name]), name


def test_a_model_is_the_same_after_it_was_saved(fitted: sdx.Retriever, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.sdx")
    loaded = sdx.load(tmp_path / "m.sdx")
    users = fitted.users.take(np.arange(20))
    asked, again = (model.recommend(users) for model in (fitted, loaded))
    assert asked.to_pylist() == again.to_pylist()
    assert leaves(loaded).sizes == leaves(fitted).sizes


@pytest.mark.parametrize(
    "spoil",
    [
        {"index.item_of": lambda t: torch.where(t == t.max(), t.min().clamp(min=0), t)},
        {"index.item_of": lambda t: torch.full_like(t, 10_000)},
        {"index.item_of": lambda t: torch.full_like(t, -1)},
        {"index.depth": lambda t: t + 1},
        {"index.depth": lambda t: t * 0},
        {"index.arity": lambda t: t * 0},
        {"scorer.windows": lambda t: t - 1},
        {"scorer.windows": lambda t: t * 2**40},
        {"scorer.norm": lambda t: t + 7},
        {"scorer.nodes.weight": lambda t: t[:-1].clone()},
    ],
    ids=lambda s: next(iter(s)),
)
def test_a_file_whose_tree_does_not_fit_together_is_refused(
    fitted: sdx.Retriever, tmp_path: Path, spoil: Any
) -> None:
    path = tmp_path / "m.sdx"
    fitted.save(path)
    tensors = safetensors.torch.load(members(path)["tensors.safetensors"])
    changed = {n.replace(".", "__"): change(tensors[n]) for n, change in spoil.items()}
    path.write_bytes(with_tensors(path, **changed))
    with pytest.raises(ArtifactError):
        sdx.load(path)


def test_users_never_seen_are_served_by_their_histories(fitted: sdx.Retriever) -> None:
    key = fitted.items.take(np.array([3, 5, 8])).to_pylist()
    both = fitted.recommend(history=[key, key[:1]], k=7)
    assert both.num_rows == 14
    alone = fitted.recommend(history=[key], k=7)
    assert both.slice(0, 7)["item"].equals(alone["item"])
    assert not set(alone["item"].to_pylist()) & set(key)


def test_blocks_of_queries_change_nothing(fitted: sdx.Retriever) -> None:
    users = fitted.users.all()
    few = fitted.recommend(users, k=9, max_memory="2MB")
    assert few["item"].equals(fitted.recommend(users, k=9, max_memory="1GB")["item"])


def test_filters_act_inside_the_beam(fitted: sdx.Retriever) -> None:
    some = fitted.items.take(np.arange(0, 100, 9))
    users = fitted.users.take(np.arange(5))
    found = fitted.recommend(users, k=len(some), allow=some, exclude_seen=False)
    assert found.num_rows == 5 * len(some)
    assert set(found["item"].to_pylist()) == set(some.to_pylist())


def test_an_item_that_was_removed_comes_back_to_its_leaf(fitted: sdx.Retriever) -> None:
    users = fitted.users.take(np.arange(30))
    before = fitted.recommend(users, k=5)
    gone = before["item"].to_pylist()[:3]
    fitted.remove_items(gone)
    assert not set(fitted.recommend(users, k=5)["item"].to_pylist()) & set(gone)
    fitted.restore_items(gone)
    assert fitted.recommend(users, k=5).to_pylist() == before.to_pylist()


def test_a_new_item_takes_a_free_leaf_and_too_many_are_refused(fitted: sdx.Retriever) -> None:
    index = leaves(fitted)
    gap = int((index.item_of < 0).sum())
    alive = torch.cat([index.alive, torch.zeros(gap + 1, dtype=torch.bool)])
    wider = Tree(index.scorer, **(index.state() | {"alive": alive}))
    new = torch.arange(gap) + index.num_items
    grown = wider.insert(new)
    assert (grown.slot_of[new] >= 0).all()
    assert (grown.slot_of[: index.num_items] == index.slot_of).all()
    with pytest.raises(DataError, match="free leaves"):
        wider.insert(torch.arange(gap + 1) + index.num_items)


def test_the_beam_can_be_tuned_and_every_leaf_scored(parts: sdx.Split) -> None:
    model = sdx.fit("dtr", parts.train, **options("dtr", beam=3, epochs=1))
    users = model.users.all()
    query = model.encoder(np.arange(len(users)), model.seen)
    best = leaves(model).search(query, 20, effort=math.inf).ids
    model.build_index("tree", recall=0.9, k=20)
    found = leaves(model).search(query, 20).ids
    shared = (found.unsqueeze(2) == best.unsqueeze(1)).any(2)
    assert float(shared.float().mean()) > 0.85
    assert leaves(model).effort < model.index.num_items
    model.build_index("flat")
    assert torch.equal(leaves(model).search(query, 20).ids, best)
    with pytest.raises(SoftdexError, match="imi"):
        model.build_index("imi")


def test_served_and_exact_lists_are_two_figures(fitted: sdx.Retriever, parts: sdx.Split) -> None:
    found = fitted.evaluate(parts.test, 20, index="both")
    assert found["recall@20"] > 0


def test_a_tree_of_one_level_scores_everything(parts: sdx.Split) -> None:
    model = sdx.fit("din", parts.train, **options("din", epochs=1))
    assert leaves(model).depth == 1
    query = model.encoder(np.arange(9), model.seen.take(np.arange(9)))
    hits = leaves(model).search(query, 10, effort=1)
    assert torch.equal(hits.ids, leaves(model).search(query, 10, effort=math.inf).ids)


@pytest.mark.parametrize("negatives", [20, 500], ids=["draws", "all items"])
def test_din_by_cross_entropy_classifies_the_target_and_each_other_item(
    parts: sdx.Split, negatives: int
) -> None:
    job = make("din", parts.train, options("din", objective="binary", negatives=negatives))
    trainer = job.trainer(parts.train)
    trainer.modules.eval()
    index, (history, item) = trainer.index, trainer.feed.instances(torch.arange(9))
    found = trainer.loss(index, history, item, torch.Generator().manual_seed(3)).detach()
    drawn = torch.randint(
        index.sizes[0], (9, negatives), generator=torch.Generator().manual_seed(3)
    )
    scores = index.scores(index.seen(history, 1), 1).detach().double()
    for row, own in enumerate(index.slot_of[item].tolist()):
        others = drawn[row].tolist() if negatives < index.sizes[0] else range(index.sizes[0])
        loss = -math.log(torch.sigmoid(scores[row, own]))
        for node in others:
            if node != own and index.item_of[node] >= 0:
                loss -= math.log(1 - torch.sigmoid(scores[row, node]))
        assert found[row].item() == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_din_by_cross_entropy_learns_far_more_than_chance_knows(parts: sdx.Split) -> None:
    model = sdx.fit("din", parts.train, **options("din", objective="binary", epochs=6, lr=0.01))
    assert model.evaluate(parts.test, 20)["recall@20"] > 0.25  # chance has .18


def test_a_walk_tells_the_probability_of_the_way_to_an_item(fitted: sdx.Retriever) -> None:
    index = leaves(fitted)
    query = fitted.encoder(np.arange(6), fitted.seen.take(np.arange(6)))
    to = torch.tensor([5, 9, 1, 0, 33, 70])
    paths = index.walk(query, 4, to=to, generator=torch.Generator().manual_seed(0))
    for number, path in enumerate(paths, 1):
        hoped = cut(index, number).log_prob(query, path.node.unsqueeze(1))[:, 0]
        assert torch.allclose(path.logq, hoped, atol=1e-5)
    assert torch.equal(index.item_of[paths[-1].node].long(), to)


def test_similar_items_are_near_leaves(fitted: sdx.Retriever) -> None:
    asked = fitted.items.take(np.array([7])).to_pylist()
    found = fitted.similar(asked, k=4)
    assert found.num_rows == 4
    assert asked[0] not in found["similar"].to_pylist()


def test_items_lie_by_their_category(log: sdx.Interactions, world: sdx.synthetic.World) -> None:
    catalogue = world.item_table().add_column(0, "item", log.items.all())
    known = sdx.read(log.to_arrow(), items=catalogue, quiet=True)
    column = next(n for n in known.item_table.column_names if n != "item")
    made = make(
        "tree", known, options("dtr", leaves="category", category=column)
    ).parts.negatives.index
    assert isinstance(made, Tree)
    code = categories(known, column)[made.item_of[made.item_of >= 0].numpy()]
    assert (np.diff(code) != 0).sum() == len(set(code.tolist())) - 1


def test_of_a_list_a_random_value_is_the_category() -> None:
    genres = [["a"], [], None, *[["b", "a", "c", "a"]] * 400]
    table = pa.table({"item": [f"i{n:03}" for n in range(len(genres))], "genres": genres})
    log = sdx.read([("u", key.as_py(), 1) for key in table["item"]], items=table, quiet=True)
    code = categories(log, "genres", 0)
    assert code[1] == code[2] == -1
    shares = np.bincount(code[3:], minlength=3) / 400
    first = code[0]  # "a", twice in the long lists
    assert shares[first] == pytest.approx(0.5, abs=0.1)
    assert np.delete(shares, first) == pytest.approx([0.25, 0.25], abs=0.1)
    assert np.array_equal(code, categories(log, "genres", 0))
    assert not np.array_equal(code, categories(log, "genres", 1))
    made = [make("tree", log, options("dtr", leaves="category", category="genres", seed=seed))
            for seed in (0, 0, 1)]  # fmt: skip
    lies = [job.parts.negatives.index.item_of for job in made]
    assert torch.equal(lies[0], lies[1])
    kinds = [categories(log, "genres", seed)[lie[lie >= 0].numpy()] for seed, lie in
             zip((0, 1), (lies[0], lies[2]), strict=True)]  # fmt: skip
    assert all((np.diff(code) != 0).sum() == 3 for code in kinds)  # three genres, and none


@pytest.mark.parametrize("how", ["sequence", "factors"])
def test_a_tree_of_clusters_is_made_by_a_quick_model(parts: sdx.Split, how: str) -> None:
    model = sdx.fit("dtr", parts.train, **options("dtr", leaves=how, epochs=1, max_instances=500))
    assert sorted(leaves(model).item_of[leaves(model).item_of >= 0].tolist()) == list(
        range(len(model.items))
    )


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"arity": 1}, "arity"),
        ({"leaves": "category"}, "category="),
        ({"leaves": "categories"}, "category"),
        ({"beam": 0}, "beam"),
        ({"category": "genre"}, "no effect"),
        ({"min_history": 10_000}, "min_history"),
        ({"leaves": "category", "category": "colour"}, "unknown column"),
    ],
)
def test_what_makes_no_sense_is_refused(parts: sdx.Split, given: dict[str, Any], word: str) -> None:
    with pytest.raises(SoftdexError, match=word):
        sdx.fit("dtr", parts.train, **options("dtr", **given))


def test_siblings_are_for_yes_and_no(parts: sdx.Split) -> None:
    with pytest.raises(SoftdexError, match="siblings is for objective='binary'"):
        sdx.fit("dtr", parts.train, sampling="siblings")


def test_a_mistake_is_found_before_a_quick_model_is_trained(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.solve.loop.train", lambda *_: pytest.fail("trained"))
    with pytest.raises(SoftdexError, match="dtr: gap= has no effect with rounds=1"):
        sdx.fit("dtr", parts.train, leaves="factors", gap=3)


@pytest.mark.usefixtures("loud")
def test_what_a_device_decides_is_said(
    parts: sdx.Split, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {n: v for n, v in SMALL.items() if n not in ("negatives", "max_history")}
    sdx.fit("dtr", parts.train, **given | {"epochs": 1, "max_instances": 500})
    assert "negatives=20, max_history=20" in capsys.readouterr().err


def test_repeats_in_what_is_excluded_count_once(fitted: sdx.Retriever) -> None:
    from softdex.data.ragged import Ragged

    index = leaves(fitted)
    query = fitted.encoder(np.arange(1), fitted.seen.take(np.arange(1)))
    ids = np.repeat(np.arange(60), 3).astype(np.int32)
    hits = index.search(query, 60, filter=Filter(Ragged(np.array([0, len(ids)]), ids)))
    assert sorted(hits.ids[0].tolist()) == list(range(60, 120))


@pytest.mark.parametrize("name", ["plt", "dtr"])
def test_nodes_of_a_level_that_is_taken_whole_learn_too(parts: sdx.Split, name: str) -> None:
    """A label is pulled up and all others are pushed down, where nothing was drawn."""
    given = {"objective": "binary", "sampling": "siblings"} if name == "plt" else {"negatives": 500}
    job = make("tree", parts.train, options("dtr", **given))
    trainer = job.trainer(parts.train)
    trainer.modules.train()
    scorer: Any = job.scorer
    before = scorer.nodes.weight.clone()
    trainer.step(torch.arange(8))
    first = job.parts.negatives.index.sizes[0]  # type: ignore[attr-defined]
    assert (scorer.nodes.weight != before).any(1)[:first].all()


def test_settings_of_a_tree_can_be_searched(parts: sdx.Split) -> None:
    given = {n: v for n, v in SMALL.items() if n != "negatives"} | {"max_instances": 500}
    tuned = sdx.tune("dtr", parts.train, parts.valid, settings=3, **given).model
    assert isinstance(tuned.index, Tree)
    assert tuned.evaluate(parts.test, 20)["recall@20"] > 0


def test_a_tree_does_not_start_from_an_earlier_one(fitted: sdx.Retriever, parts: sdx.Split) -> None:
    with pytest.raises(SoftdexError, match="nodes of trees"):
        sdx.fit("dtr", parts.train, start=fitted, **options("dtr"))

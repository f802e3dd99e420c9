"""Shares of a score: they sum to it where they are exact, and are differences elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import own_parts
import softdex as sdx
from softdex import recipes
from softdex.data.ragged import Ragged
from softdex.encode.history import Mixed
from softdex.encode.terms import SumsTerms
from softdex.index.tree.tree import Tree
from softdex.model import shares
from softdex.model.card import Card
from softdex.model.parts import known_from, parts_from
from softdex.score.product import Cosine, Dot, Euclidean
from softdex.solve.closed.fold_in import FoldIn

SMALL: dict[str, Any] = {
    "dim": 4, "hidden": 4, "latent": 2, "heads": 1, "epochs": 2, "batch_size": 64, "negatives": 4,
    "max_history": 5, "beam": 4, "max_instances": 64, "device": "cpu",
}  # fmt: skip
WAYS = {
    **dict.fromkeys(("ials", "rg2", "rgx"), "solve"),
    **dict.fromkeys(("mult_vae", "fastvae", "sasrec", "youtube_dnn"), "leave-one-out"),
    **dict.fromkeys(("dtr", "tdm", "jtm", "otm", "plt", "din"), "leave-one-out"),
    "item_cf": "neighbours",
    "popular": "the same for all",
}  # others: own vector
MORE: list[tuple[str, dict[str, Any], str]] = [
    ("ssm", {"encoder": "history"}, "mean"),
    ("bce", {"encoder": "mix", "score": "dot_bias"}, "mean"),
    ("sml", {"encoder": "mix"}, "mean"),
    ("ssm", {"encoder": "mix", "features": ["category"], "user_features": None}, "mean"),
    ("rg2", {"solver": "newton_cg", "encoder": "mix"}, "mean"),
    ("rg2", {"solver": "newton_cg"}, "solve"),
    ("rg2", {"solver": "svd", "alpha": 0.0}, "solve"),
]
PAST = ["i03", "i17", "i03", "i22"]


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    world = sdx.synthetic.world(users=60, items=40, seed=3, events=8)
    return world.interactions()


def trained(name: str, log: sdx.Interactions, **given: Any) -> sdx.Retriever:
    known, chosen = set(recipes.choices(name)), recipes.options(name) | SMALL | given
    idle = recipes.unread(name, chosen)
    small = {n: v for n, v in SMALL.items() if n in known and n not in idle}
    return sdx.fit(name, log, **(small | given))


def summed(why: sdx.Explanation) -> float:
    return why.base + why.rest + sum(why.table["share"].to_pylist())


# every recipe ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "method"),
    [*((name, {}, WAYS.get(name, "own vector")) for name in recipes.methods()), *MORE],
)
def test_shares_sum_to_the_score_or_are_what_the_score_loses_without_the_item(
    name: str, options: dict[str, Any], method: str, log: sdx.Interactions
) -> None:
    model = trained(name, log, **options)
    [row] = model.recommend("u07", 1).to_pylist()
    why = model.explain("u07", row["item"], columns="category")
    assert (why.user, why.item, why.method) == ("u07", row["item"], method)
    assert why.score == pytest.approx(row["score"], rel=1e-5, abs=1e-6)
    assert why.exact == (method != "leave-one-out")
    past = set(model.items.take(model.seen[int(model.users.lookup(["u07"])[0])]).to_pylist())
    rows = why.table.to_pylist()
    assert {r["item"] for r in rows if r["of"] == "history"} <= past
    assert all((r["item"] is None) == (r["category"] is None) for r in rows)
    if why.exact:
        assert summed(why) == pytest.approx(why.score, rel=1e-12, abs=1e-12)
    else:
        without_one_each(model, why)
    is_tree = isinstance(model.index, Tree) and model.index.depth > 1
    assert (why.path is not None) == is_tree


def without_one_each(model: sdx.Retriever, why: sdx.Explanation) -> None:
    """Shares are differences of two scores that `score` returns."""
    [row] = model.users.lookup([why.user])
    past = model.items.take(model.seen[int(row)]).to_pylist()
    assert len(why.table) == len(set(past))
    for each in why.table.to_pylist()[:3]:
        left = [item for item in past if item != each["item"]]
        [other] = model.score([why.user], [why.item], history=[left])["score"].to_pylist()
        assert each["share"] == pytest.approx(why.score - other, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", [n for n in recipes.methods() if n in WAYS])
def test_a_history_without_a_user_has_shares_and_no_share_of_the_user(
    name: str, log: sdx.Interactions
) -> None:
    model = trained(name, log)
    why = model.explain(history=PAST, item="i05")
    [score] = model.score(items="i05", history=[PAST])["score"].to_pylist()
    assert why.user is None
    assert why.score == pytest.approx(score, rel=1e-5, abs=1e-6)
    assert why.table["of"].to_pylist() == ["history"] * (0 if name == "popular" else 3)
    if why.exact:
        assert summed(why) == pytest.approx(why.score, rel=1e-12)


# against plain arithmetic ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ials", {}),
        ("ials", {"reg": "l2"}),
        ("rg2", {}),
        ("rgx", {}),
        ("rgx", {"interaction": "frobenius", "beta": 0.5}),
    ],
)
def test_shares_of_closed_forms_are_those_of_the_dense_normal_equations(
    name: str, options: dict[str, Any], log: sdx.Interactions
) -> None:
    given = {"beta": 1.0} if name == "rgx" and not options else {}
    model = trained("rg" if name == "rgx" else name, log, **(given | options))
    encoder = model.encoder
    assert isinstance(encoder, FoldIn)
    loss, items = encoder.loss, encoder.items.weight.double().numpy()
    past = np.unique(model.items.lookup(PAST))
    n, [target] = len(past), model.items.lookup(["i05"])
    w, a, t = (c[0] + c[1] * n for c in (loss.weight, loss.extra, loss.pull))
    gram, total = items.T @ items, items.sum(0)
    if loss.frobenius:
        gram = (1 - loss.beta) * gram
    else:
        gram = gram - loss.beta / len(items) * np.outer(total, total)
    near = items[past]
    reg = loss.lam * (loss.items * w + n * a) ** loss.nu
    normal = w * gram + a * near.T @ near + reg * np.eye(items.shape[1])
    reached = np.linalg.solve(normal, items[target])
    why = model.explain(history=PAST, item="i05")
    found = dict(zip(why.table["item"].to_pylist(), why.table["share"].to_pylist(), strict=True))
    for key, row in zip(model.items.take(past).to_pylist(), past, strict=True):
        assert found[key] == pytest.approx(t * items[row] @ reached, rel=1e-5, abs=1e-9)
    assert why.base == pytest.approx(w * loss.centre * total @ reached, rel=1e-4, abs=1e-7)
    assert why.score == pytest.approx(why.base + t * near.sum(0) @ reached, rel=1e-5)


def test_a_trained_user_has_what_training_adds_to_their_solved_vector(
    log: sdx.Interactions,
) -> None:
    model = trained("rg2", log)
    [row] = model.users.lookup(["u07"])
    past = model.items.take(model.seen[int(row)]).to_pylist()
    why, solved = model.explain("u07", "i05"), model.explain(history=past, item="i05")
    [own] = [r["share"] for r in why.table.to_pylist() if r["of"] == "user"]
    assert own == pytest.approx(why.score - solved.score, rel=1e-5, abs=1e-7)


@given(seed=st.integers(0, 10**6), share=st.floats(0, 1), kind=st.sampled_from("dceb"))
def test_shares_of_means_are_scores_of_their_terms_in_float64(
    seed: int, share: float, kind: str
) -> None:
    draw = np.random.default_rng(seed)
    past = draw.integers(0, 9, draw.integers(1, 12))
    rows = [("a", int(i)) for i in past] + [("b", i) for i in range(9)]
    train = sdx.read(rows, quiet=True, duplicates="keep")
    users, items, bias = (draw.normal(size=shape) for shape in ((2, 3), (9, 3), (9,)))
    vectors = torch.from_numpy(items).float()
    made: dict[str, Any] = {
        "d": lambda: Dot(vectors),
        "b": lambda: Dot(vectors, torch.from_numpy(bias).float()),
        "c": lambda: Cosine(vectors, torch.tensor(0.3), torch.from_numpy(bias).float()),
        "e": lambda: Euclidean(vectors),
    }
    scorer = made[kind]()
    own = torch.from_numpy(users).float()
    encoder = Mixed(own, torch.tensor(share), torch.tensor(6), scorer.items)
    model = sdx.Retriever(Card("drawn"), parts_from(encoder, scorer), known_from(train))
    known = int(model.seen.lengths[0])
    assert known == len(past)
    read = model.seen[0][-6:]
    query = share * users[0] + (1 - share) * items[read].mean(0)
    target, norms = items[4], {"e": max(1.0, float(np.linalg.norm(items[4])))}
    scale = {"c": 1 / np.linalg.norm(query) / 0.3, "e": 2 / max(1.0, float(np.linalg.norm(query)))}
    ends = {"c": float(np.linalg.norm(target))} | norms
    slope = scale.get(kind, 1.0) * target / ends.get(kind, 1.0)
    base = {"d": 0.0, "e": -float(((target / norms["e"]) ** 2).sum())}.get(kind, bias[4])
    why = model.explain("a", 4)
    near = {"rel": 1e-4, "abs": 1e-4}
    assert why.base == pytest.approx(base, **near)
    assert why.score == pytest.approx(base + query @ slope, **near)
    for r in why.table.to_pylist():
        times = 0 if r["item"] is None else int((read == r["item"]).sum())
        term = (1 - share) * times / len(read) * items[r["item"]] if times else share * users[0]
        assert r["share"] == pytest.approx(term @ slope, **near)
    assert summed(why) == pytest.approx(why.score, rel=1e-9, abs=1e-9)


def test_shares_of_item_cf_are_similarities_and_other_items_have_a_base_alone(
    log: sdx.Interactions,
) -> None:
    model = sdx.fit("item_cf", log, neighbours=3)
    matrix = model.encoder.matrix.toarray()  # type: ignore[attr-defined]
    past = model.items.lookup(PAST[:2])
    named = {bool((matrix[past, i] > 0).any()): i for i in range(40)}
    for found, item in named.items():
        key = model.items.take(np.array([item]))[0].as_py()
        why = model.explain(history=PAST[:2], item=key)
        shares = {r["item"]: r["share"] for r in why.table.to_pylist()}
        wanted = [float(matrix[p, item]) if found else 0.0 for p in past]
        assert [shares[p] for p in PAST[:2]] == pytest.approx(wanted)
        assert (why.base == 0.0) == found


def test_popular_is_a_base_alone(log: sdx.Interactions) -> None:
    why = sdx.fit("popular", log).explain("u07", "i05")
    counts = dict(zip(log.items.all().to_pylist(), log.item_counts.tolist(), strict=True))
    assert (why.score, why.base, len(why.table)) == (counts["i05"], counts["i05"], 0)


# trees -------------------------------------------------------------------------------------------


def test_the_path_of_a_tree_has_the_item_s_node_on_every_level(log: sdx.Interactions) -> None:
    model = trained("tdm", log)
    tree = model.index
    assert isinstance(tree, Tree)
    found = model.recommend("u07", 1)["item"].to_pylist()
    [at] = model.items.lookup(found)
    path = model.explain("u07", found[0]).path
    assert path is not None
    assert path["level"].to_pylist() == list(range(1, tree.depth + 1))
    nodes = [int(tree.slot_of[int(at)]) // tree.width(j) for j in range(1, tree.depth + 1)]
    assert path["node"].to_pylist() == nodes
    assert all(r["rank"] <= min(r["kept"], r["candidates"]) for r in path.to_pylist())
    ways = [model.explain("u07", item).path.to_pylist() for item in model.items.all().to_pylist()]  # type: ignore[union-attr]
    assert all(rows[0]["rank"] is not None for rows in ways)
    gone = [rows for rows in ways if rows[-1]["rank"] is None]
    assert gone
    for rows in gone:  # once lost, a node is no candidate again
        ranks = [r["rank"] for r in rows]
        end = ranks.index(None)
        assert ranks[end:] == [None] * (len(ranks) - end)
        assert rows[end - 1]["rank"] > rows[end - 1]["kept"]


# parts of a user's own ---------------------------------------------------------------------------


class Bent(nn.Module):
    """A mean whose query is squared: no sum of terms."""

    reads_items = reads_history = True
    answers_strangers = history_first = False
    query_bytes = 8

    def __init__(self, items: Any) -> None:
        super().__init__()
        self.items = items

    def forward(self, users: Any, history: Ragged, leave_out: Tensor | None = None) -> Tensor:
        sums = torch.stack([self.items(torch.from_numpy(h).long()).sum(0) for h in history])
        return sums**2


def test_an_encoder_that_says_nothing_of_its_terms_is_explained_by_leaving_items_out(
    log: sdx.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "CELLS", 4)  # in several batches
    scorer = Dot(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))
    model = sdx.Retriever(Card("bent"), parts_from(Bent(scorer.items), scorer), known_from(log))
    assert not isinstance(model.encoder, SumsTerms)
    why = model.explain("u07", "i05")
    assert (why.method, why.exact, why.base) == ("leave-one-out", False, 0.0)
    without_one_each(model, why)
    assert "0.0000 without a history" in repr(why)


def test_a_scorer_that_is_no_product_is_explained_by_leaving_items_out(
    log: sdx.Interactions,
) -> None:
    draw = torch.Generator().manual_seed(0)
    points, items = (torch.randn(40, 3, generator=draw) for _ in range(2))
    encoder = Mixed(torch.zeros(60, 3), torch.tensor(0.5), torch.tensor(4), Dot(items).items)
    parts = parts_from(encoder, own_parts.Distance(points))
    model = sdx.Retriever(Card("far"), parts, known_from(log))
    without_one_each(model, model.explain("u07", "i05"))


# the answer --------------------------------------------------------------------------------------


def test_a_history_that_is_too_long_has_shares_of_its_latest_items(log: sdx.Interactions) -> None:
    model = trained("tdm", log)
    past = [f"i{i:02}" for i in range(1, 21) if i != 9]  # which was removed
    whole = model.explain(history=past, item="i25")
    few = shares.explain(model, None, "i25", past, None, (), most_cells=100)
    assert sorted(few.table["item"].to_pylist()) == past[-5:]
    assert {*rows(few)} < {*rows(whole)}
    assert (few.score, few.base) == (whole.score, whole.base)
    assert len(shares.explain(model, None, "i25", past, None, (), most_cells=1).table) == 1


def rows(why: sdx.Explanation) -> list[tuple[str, float]]:
    return [(row["item"], round(row["share"], 5)) for row in why.table.to_pylist()]


def test_k_keeps_the_largest_shares_and_the_rest_is_their_sum(log: sdx.Interactions) -> None:
    model = trained("rg2", log)
    whole, few = model.explain("u07", "i05"), model.explain("u07", "i05", k=2)
    every = whole.table["share"].to_pylist()
    assert every == sorted(every, reverse=True)
    assert whole.rest == 0.0
    largest = sorted(every, key=abs, reverse=True)[:2]
    assert few.table["share"].to_pylist() == sorted(largest, reverse=True)
    assert summed(few) == pytest.approx(few.score, rel=1e-12)
    assert "+ rest" in repr(few)


def test_an_explanation_prints_and_is_safe_in_a_notebook_and_as_json(
    log: sdx.Interactions,
) -> None:
    model = trained("tdm", log)
    model.item_table = pa.table({"title": ["<b>x</b>"] * 40})
    why = model.explain("u07", "i05", columns=["title"])
    assert repr(why).splitlines()[0].startswith("i05 for u07: score ")
    html = why._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;x" in html
    assert "candidates" in html
    told = why.json()
    assert told["shares"] == why.table.to_pylist()
    assert why.path is not None
    assert told["path"] == why.path.to_pylist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "expected items as keys .text or numbers., got None"),
        ({"item": "i05"}, "expected users, or history="),
        ({"item": ["i05", "i06"], "user": "u07"}, "expected one item, got 2"),
        ({"item": "i5", "user": "u07"}, r"1 unknown item \('i5'\)"),
        ({"item": "i05", "user": ["u07", "u08"]}, "expected one user, got 2"),
        ({"item": "i05", "user": "u7"}, r"1 unknown user \('u7'\)"),
        ({"item": "i05", "history": []}, "history 0 is empty"),
        ({"item": "i05", "history": [["i01"]]}, "expected items in history as keys"),
        ({"item": "i05", "history": ["i1"]}, "1 unknown item in history"),
        ({"item": "i05", "user": "u07", "k": 0}, "expected k as a whole number of at least 1"),
        ({"item": "i05", "user": "u07", "columns": "categry"}, "no item column 'categry'. Did you"),
        ({"item": "i09", "user": "u07"}, "item 'i09' was removed"),
    ],
)
def test_a_mistake_is_one_clear_sentence(
    arguments: dict[str, Any], words: str, log: sdx.Interactions
) -> None:
    model = trained("rg2", log)
    model.remove_items("i09")
    with pytest.raises(sdx.SoftdexError, match=f"^explain: {words}"):
        model.explain(**arguments)

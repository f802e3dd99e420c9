"""p(item | user): a softmax over living items, at a temperature that the holdout chose."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import log_softmax

import hostile
import softdex as sdx
from softdex.data.ragged import Ragged, empty, group
from softdex.encode.table import Users
from softdex.model import estimate
from softdex.model.card import Card
from softdex.model.parts import known_from, parts_from
from softdex.score.product import Dot

FAST: dict[str, Any] = {"dim": 8, "epochs": 2, "device": "cpu"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cosine with a prior": ("ssm", {"negatives": 50}),
    "cosine without": ("ssm", {"negatives": 50, "prior": 0.0}),
    "dot with a bias": ("bce", {"score": "dot_bias"}),
    "closed form": ("ials", {}),
    "history": ("ssm", {"negatives": 50, "encoder": "history"}),
    "vae": ("fastvae", {"hidden": 8, "latent": 4, "codewords": 4}),
}
READS = ["closed form", "history", "vae"]
USERS, STRANGERS = ["u001", "u007", "u002"], [["i003", "i009", "i050"], ["i017"]]


@pytest.fixture(scope="module")
def models(parts: sdx.Split) -> dict[str, sdx.Retriever]:
    """A model of each kind; tests do not change them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTDEX_QUIET", "1")
        fitted = {n: sdx.fit(name, parts.train, **(FAST | o)) for n, (name, o) in MODELS.items()}
        fitted["vae"].build_index("flat")
    return fitted


@pytest.fixture
def make(parts: sdx.Split) -> Callable[..., sdx.Retriever]:
    """Models of drawn vectors, whose scores a test may stretch."""

    def made(stretch: float = 1.0, bias: bool = True) -> sdx.Retriever:
        draw, train = torch.Generator().manual_seed(5), parts.train
        users = torch.randn(train.num_users, 6, generator=draw) * stretch
        items = torch.randn(train.num_items, 6, generator=draw)
        offsets = torch.randn(train.num_items, generator=draw) * stretch if bias else None
        made_of = parts_from(Users(users), Dot(items, offsets))
        return sdx.Retriever(Card("drawn"), made_of, known_from(train))

    return made


@pytest.fixture
def model(make: Callable[..., sdx.Retriever]) -> sdx.Retriever:
    """One that a test may change."""
    return make()


def scores(model: sdx.Retriever, users: Any = None, **asked: Any) -> np.ndarray:
    """Every item's score, from the lists of the model."""
    recs = model.recommend(users, len(model.items), exclude_seen=False, **asked)
    wide = np.array(recs["score"].to_numpy(), np.float64).reshape(-1, len(model.items))
    rows = model.items.lookup(recs["item"]).reshape(wide.shape)
    return np.take_along_axis(wide, rows.argsort(1), 1)


def drawn(model: sdx.Retriever, valid: sdx.Holdout, temperature: float, n: int) -> sdx.Holdout:
    """The holdout with n targets a user from softmax(score / temperature)."""
    users = np.flatnonzero(model.seen.lengths)
    known = valid.take(np.flatnonzero(np.isin(valid.users, users)))
    logits = scores(model, model.users.take(known.users)) / temperature
    noise = np.random.default_rng(3).gumbel(size=(n, *logits.shape))
    item = (logits + noise).argmax(2).T
    targets = Ragged(np.arange(len(known) + 1) * n, item.ravel().astype(np.int32))
    return replace(known, targets=targets, masked=empty(len(known)))


def nll(model: sdx.Retriever, valid: sdx.Holdout) -> float:
    """Mean of -log p over targets, one by one, p being over what is not masked."""
    asked = valid.take(np.flatnonzero(valid.targets.lengths))
    log_p = model.log_prob(model.users.take(asked.users)).astype(np.float64)
    log_p[asked.masked.row_of, asked.masked.ids] = -np.inf
    log_p = log_softmax(log_p, axis=1)
    return -float(log_p[asked.targets.row_of, asked.targets.ids].mean())


# a softmax over all items ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_log_softmax_of_the_scores(models: dict[str, sdx.Retriever], kind: str) -> None:
    model = models[kind]
    wanted = log_softmax(scores(model, USERS), axis=1)
    found = model.log_prob(USERS)
    assert found.dtype == np.float32
    assert found == pytest.approx(wanted, abs=1e-5)
    assert model.log_prob(USERS, ["i005", "i003"]) == pytest.approx(wanted[:, [5, 3]], abs=1e-5)


@pytest.mark.parametrize("kind", READS)
def test_histories_of_strangers_have_a_softmax_too(
    models: dict[str, sdx.Retriever], kind: str
) -> None:
    model = models[kind]
    wanted = log_softmax(scores(model, history=STRANGERS), axis=1)
    assert model.log_prob(history=STRANGERS) == pytest.approx(wanted, abs=1e-5)
    ((rows, block),) = model.distributions(history=STRANGERS)
    assert rows.tolist() == [0, 1]
    assert block == pytest.approx(wanted, abs=1e-5)


def test_a_history_stands_in_the_place_of_what_is_stored(models: dict[str, sdx.Retriever]) -> None:
    model = models["closed form"]
    both = model.log_prob(USERS[:2], history=STRANGERS)
    assert both == pytest.approx(model.log_prob(history=STRANGERS), abs=1e-6)
    assert both != pytest.approx(model.log_prob(USERS[:2]), abs=1e-2)


def test_every_user_can_be_asked_about_items_of_their_own(
    models: dict[str, sdx.Retriever],
) -> None:
    for model in models.values():
        lists = [["i001", "i002"], ["i119", "i001"], ["i007", "i007"]]
        rows = np.array([[1, 2], [119, 1], [7, 7]])
        wanted = np.take_along_axis(model.log_prob(USERS), rows, 1)
        for given in (lists, np.array(lists), pa.array(lists), (tuple(keys) for keys in lists)):
            assert model.log_prob(USERS, given) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("users", "items", "shape"), [
    ("u001", "i003", (1, 1)),
    (USERS, "i003", (3, 1)),
    (USERS, ["i003"], (3, 1)),
    (USERS, [], (3, 0)),
    (USERS, [["i003"]] * 3, (3, 1)),
    (USERS, [[]] * 3, (3, 0)),
    (USERS, pa.array(["i003", "i004"]), (3, 2)),
    ([], ["i003", "i004"], (0, 2)),
    (USERS, None, (3, 120)),
])  # fmt: skip
def test_there_is_a_row_for_each_user_and_a_column_for_each_item(
    model: sdx.Retriever, users: Any, items: Any, shape: tuple[int, int]
) -> None:
    assert model.log_prob(users, items).shape == shape


def test_items_the_user_has_had_count_like_any_other(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    row = int(model.users.lookup(["u001"])[0])
    assert np.isfinite(model.log_prob("u001")[0, model.seen[row]]).all()


# blocks ------------------------------------------------------------------------------------------


def test_rows_of_distributions_sum_to_one(models: dict[str, sdx.Retriever]) -> None:
    for model in models.values():
        users = model.users.take(np.flatnonzero(model.seen.lengths))
        total = [np.exp(b.astype(np.float64)).sum(1) for _, b in model.distributions(users)]
        assert np.concatenate(total) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_neither_blocks_of_users_nor_blocks_of_items_matter(
    models: dict[str, sdx.Retriever], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = models[kind], np.arange(40).reshape(20, 2)
    users = model.users.take(np.flatnonzero(model.seen.lengths)[:20])
    wanted = model.log_prob(users)
    monkeypatch.setattr("softdex.model.asking.BATCH", 7)
    monkeypatch.setattr("softdex.objective.softmax.SCORES_IN_CACHE", 50)
    assert model.log_prob(users) == pytest.approx(wanted, abs=1e-5)
    own = model.log_prob(users, [model.items.take(row) for row in rows])
    assert own == pytest.approx(np.take_along_axis(wanted, rows, 1), abs=1e-5)
    blocks = list(model.distributions(users))
    assert [len(rows) for rows, _ in blocks] == [7, 7, 6]
    assert np.concatenate([rows for rows, _ in blocks]).tolist() == list(range(20))
    found = np.concatenate([block for _, block in blocks])
    assert found.dtype == np.float32
    assert found == pytest.approx(wanted, abs=1e-5)


def test_blocks_stay_below_the_memory_they_are_given(model: sdx.Retriever) -> None:
    users = model.users.take(np.resize(np.flatnonzero(model.seen.lengths), 900))
    blocks = list(model.distributions(users, max_memory="1MiB"))
    assert len(blocks) > 3
    assert max(3 * block.nbytes for _, block in blocks) < 2**20


# removed items -----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["flat", "imi"])
@pytest.mark.parametrize("bias", [True, False])
def test_removed_items_have_no_probability_and_leave_theirs_to_the_others(
    make: Callable[..., sdx.Retriever], index: str, bias: bool
) -> None:
    model, gone = make(bias=bias), [0, 5, 119]
    wanted = scores(model, USERS)
    wanted[:, gone] = -np.inf
    model.build_index(index)
    before = model.log_prob(USERS)
    model.remove_items(["i000", "i005", "i119"])
    found = model.log_prob(USERS)
    assert found == pytest.approx(log_softmax(wanted, axis=1), abs=1e-5)
    ((_, block),) = model.distributions(USERS)
    assert block == pytest.approx(found, abs=1e-5)
    assert (model.log_prob(USERS, ["i005"]) == -np.inf).all()
    assert model.log_prob(USERS, [["i005", "i006"]] * 3) == pytest.approx(found[:, 5:7], abs=1e-5)
    model.restore_items(["i000", "i005", "i119"])
    assert model.log_prob(USERS) == pytest.approx(before, abs=1e-6)


# calibration -------------------------------------------------------------------------------------


def test_calibration_finds_the_temperature_that_targets_were_drawn_at(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    valid = drawn(model, parts.valid, 2.5, 40)
    found = model.calibrate(valid)
    assert found == pytest.approx(2.5, rel=0.03)  # 12,000 draws: a standard error of 0.01
    assert model.temperature == found
    wanted = log_softmax(scores(model, USERS) / found, axis=1)
    assert model.log_prob(USERS) == pytest.approx(wanted, abs=1e-5)
    ((_, block),) = model.distributions(USERS)
    assert block == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_scores_stretched_by_a_factor_have_a_temperature_as_much_larger(
    make: Callable[..., sdx.Retriever], parts: sdx.Split, factor: float
) -> None:
    one, other = make(), make(factor)
    valid = drawn(one, parts.valid, 2.5, 10)
    assert other.calibrate(valid) == pytest.approx(factor * one.calibrate(valid), rel=1e-3)
    assert other.log_prob(USERS) == pytest.approx(one.log_prob(USERS), abs=0.01)


def test_no_other_temperature_makes_the_targets_likelier(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    valid = drawn(model, parts.valid, 0.6, 3)
    best = model.calibrate(valid)
    least = nll(model, valid)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        model.temperature = best * factor
        assert nll(model, valid) > least


@pytest.mark.parametrize("kind", MODELS)
def test_calibration_never_makes_the_targets_less_likely(
    models: dict[str, sdx.Retriever], parts: sdx.Split, kind: str
) -> None:
    model = copy(models[kind])
    model.temperature = 1.0
    before = nll(model, parts.valid)
    found = model.calibrate(parts.valid)
    assert found > 0
    assert nll(model, parts.valid) <= before + 1e-6
    assert model.calibrate(parts.valid) == found


def test_every_target_counts_the_same(model: sdx.Retriever, parts: sdx.Split) -> None:
    """Users with several targets are as many users with one."""
    valid = drawn(model, parts.valid, 1.5, 6)
    uneven = replace(valid, targets=valid.targets.where(np.arange(len(valid.targets.ids)) % 5 < 3))
    alone = uneven.take(uneven.targets.row_of)
    alone = replace(alone, targets=group(np.arange(len(alone)), uneven.targets.ids, len(alone)))
    assert model.calibrate(uneven) == pytest.approx(model.calibrate(alone), rel=1e-3)


def test_targets_that_were_removed_are_not_asked_for(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    valid = drawn(model, parts.valid, 1.5, 6)
    model.remove_items(model.items.take(np.arange(20)))
    living = replace(valid, targets=valid.targets.where(valid.targets.ids >= 20))
    assert model.calibrate(valid) == model.calibrate(living)


def test_a_large_holdout_is_sampled(
    model: sdx.Retriever, parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = drawn(model, parts.valid, 2.5, 40)
    everybody = model.calibrate(valid)
    monkeypatch.setattr("softdex.model.estimate.SAMPLE", 30)
    assert len(estimate.sample(valid, model.index.alive)) == 30
    some = model.calibrate(valid)
    assert some == model.calibrate(valid) != everybody
    assert some == pytest.approx(2.5, rel=0.1)


@pytest.mark.parametrize(("best", "end"), [(True, 0), (False, 1)])
def test_targets_without_a_best_temperature_end_at_a_bound(
    model: sdx.Retriever, parts: sdx.Split, best: bool, end: int
) -> None:
    """Where every target scores best the softmax sharpens, where it scores worst it flattens."""
    valid = drawn(model, parts.valid, 1.0, 1)
    wide = scores(model, model.users.take(valid.users))
    ids = (wide.argmax(1) if best else wide.argmin(1)).astype(np.int32)
    found = model.calibrate(replace(valid, targets=Ragged(valid.targets.indptr, ids)))
    assert [found < 0.1, found > 1000][end]
    assert np.isfinite(model.log_prob(USERS)).all()


def test_scores_that_are_all_equal_keep_the_temperature(
    make: Callable[..., sdx.Retriever], parts: sdx.Split
) -> None:
    model = make(0.0)
    assert model.calibrate(drawn(model, parts.valid, 1.0, 1)) == 1.0


def test_lists_are_the_same_before_and_after(model: sdx.Retriever, parts: sdx.Split) -> None:
    before = model.recommend(USERS, 5).table
    model.calibrate(drawn(model, parts.valid, 2.5, 5))
    assert model.recommend(USERS, 5).equals(before)


def test_nothing_is_printed(
    model: sdx.Retriever, parts: sdx.Split, loud: None, capfd: pytest.CaptureFixture[str]
) -> None:
    model.calibrate(parts.valid)
    assert capfd.readouterr() == ("", "")


def test_an_overfitted_model_comes_nearer_to_the_truth(
    world: sdx.synthetic.World, parts: sdx.Split
) -> None:
    model = sdx.fit("softmax", parts.train, dim=16, epochs=30, device="cpu")
    rows = np.flatnonzero(model.seen.lengths)
    eta = world.eta(rows)

    def divergence() -> float:
        """KL(eta || p), mean over users."""
        log_p = np.concatenate([b for _, b in model.distributions(model.users.take(rows))])
        return float((eta * (np.log(eta) - log_p)).sum(1).mean())

    before = divergence()
    assert model.calibrate(parts.valid) > 1
    assert divergence() < before


# saved and loaded --------------------------------------------------------------------------------


def test_the_temperature_is_saved_with_the_model(
    model: sdx.Retriever, parts: sdx.Split, tmp_path: Path
) -> None:
    model.calibrate(drawn(model, parts.valid, 2.5, 5))
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert again.temperature == model.temperature
    assert (again.log_prob(USERS) == model.log_prob(USERS)).all()


def test_a_file_without_a_temperature_has_the_temperature_one(
    model: sdx.Retriever, parts: sdx.Split, tmp_path: Path
) -> None:
    plain = model.log_prob(USERS)
    model.calibrate(drawn(model, parts.valid, 2.5, 5))
    model.save(tmp_path / "m.sdx")
    (tmp_path / "old.sdx").write_bytes(hostile.with_manifest(tmp_path / "m.sdx", temperature=...))
    again = sdx.load(tmp_path / "old.sdx")
    assert again.temperature == 1.0
    assert (again.log_prob(USERS) == plain).all()


HOSTILE = [
    None, True, False, 0, 0.0, -1.0, 1e-5, 1e5, 1e-320, 1e400, float("nan"), 2**70, "1", [1.0], {},
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_file_with_no_such_temperature_is_refused(
    model: sdx.Retriever, tmp_path: Path, value: Any
) -> None:
    model.save(tmp_path / "m.sdx")
    (tmp_path / "bad.sdx").write_bytes(hostile.with_manifest(tmp_path / "m.sdx", temperature=value))
    with pytest.raises(sdx.ArtifactError, match=r"damaged .*the manifest's 'temperature' is"):
        sdx.load(tmp_path / "bad.sdx")


# what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["item_cf", "popular"])
def test_a_model_that_counts_has_no_softmax(parts: sdx.Split, recipe: str) -> None:
    model = sdx.fit(recipe, parts.train)
    said = f"expected a model with item vectors, {recipe} has none. Fit one that has, such as rg2"
    with pytest.raises(sdx.SoftdexError, match=f"log_prob: {said}"):
        model.log_prob("u001", "i003")
    with pytest.raises(sdx.SoftdexError, match=f"distributions: {said}"):
        model.distributions("u001")
    with pytest.raises(sdx.SoftdexError, match=f"calibrate: {said}"):
        model.calibrate(parts.valid)


@pytest.mark.parametrize(("kind", "asked", "words"), [
    ("closed form", {}, "expected users, or history="),
    ("closed form", {"users": ["nobody"]}, r"1 unknown user \('nobody'\)"),
    ("closed form", {"history": ["i003"]}, "one list per user"),
    ("closed form", {"history": [["no such item"]]}, "1 unknown item in history"),
    ("closed form", {"history": [["i003"], []]}, "history 1 is empty"),
    ("closed form", {"users": ["u001"], "history": []}, "one history per user, got 0 for 1 user"),
    ("dot with a bias", {"history": [["i003"]]}, "cannot read a history"),
])  # fmt: skip
def test_nobody_is_refused_before_anything_is_computed(
    models: dict[str, sdx.Retriever], kind: str, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"log_prob: .*{words}"):
        models[kind].log_prob(**asked)
    with pytest.raises(sdx.SoftdexError, match=f"distributions: .*{words}"):
        models[kind].distributions(**asked)


@pytest.mark.parametrize(("items", "words"), [
    (["i003", "nothing"], r"1 unknown item \('nothing'\)"),
    (3, "1 unknown item"),
    ([None], "expected items as keys"),
    ([["i003"], ["i003"]], "3 users but 2 lists of items"),
    ([["i003"], ["i003"], ["i003", "i004"]], "all of the same length"),
    ([["i003"], "i003", ["i003"]], "one list per user"),
    ([["i003"], ["nothing"], ["i003"]], r"1 unknown item \('nothing'\)"),
    ([[["i003"]], [["i003"]], [["i003"]]], "items"),
])  # fmt: skip
def test_items_that_do_not_fit_are_refused(model: sdx.Retriever, items: Any, words: str) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"log_prob: .*{words}"):
        model.log_prob(USERS, items)


@pytest.mark.parametrize("limit", ["much", 100, None, True])
def test_memory_that_is_no_memory_is_refused_at_once(model: sdx.Retriever, limit: Any) -> None:
    with pytest.raises(sdx.SoftdexError, match="max_memory: expected"):
        model.distributions(USERS, max_memory=limit)


def test_a_holdout_that_cannot_be_asked_is_refused(model: sdx.Retriever, parts: sdx.Split) -> None:
    other = sdx.split.leave_last(sdx.synthetic.world(users=30, items=20).interactions())
    for wrong, words in (
        (None, "expected a holdout, got None"),
        (parts.train, "expected a holdout, got a log"),
        (other.valid, "the holdout is of another log"),
        (parts.valid.take(np.arange(0)), "no user of the holdout has both"),
        (replace(parts.valid, targets=empty(len(parts.valid))), "no user of the holdout has both"),
    ):
        with pytest.raises(sdx.SoftdexError, match=f"calibrate: .*{words}"):
            model.calibrate(wrong)
    assert model.temperature == 1.0


def test_users_that_a_model_does_not_know_are_refused_or_read(log: sdx.Interactions) -> None:
    train, valid, _ = sdx.split.by_user(log)
    with pytest.raises(sdx.SoftdexError, match=r"calibrate: .* users .* have no event in training"):
        sdx.fit("bce", train, **FAST).calibrate(valid)
    assert sdx.fit("ials", train, **FAST).calibrate(valid) > 0


def test_a_model_that_has_grown_fits_no_split(log: sdx.Interactions) -> None:
    few, rest = (log.select(p).compact() for p in (log.user % 4 > 0, log.user % 4 == 0))
    train, valid, _ = sdx.split.leave_last(few)
    model = sdx.fit("ials", train, **FAST)
    model.add_users(rest.select(np.isin(rest.item, rest.items.lookup(few.items.all()))).compact())
    with pytest.raises(sdx.SoftdexError, match=r"calibrate: users or items were added"):
        model.calibrate(valid)

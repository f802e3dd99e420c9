"""Learned models: start from earlier ones, refit, serve whom they can, save to the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softdex as sdx
from softdex.evaluate.evaluate import evaluate
from softdex.fit import extend
from softdex.model.learn import learn, measurer
from softdex.model.parts import known_from, parts_from
from softdex.model.start import take_over
from softdex.recipes import make
from softdex.solve.checkpoint import FILE

QUICK: dict[str, Any] = {"dim": 8, "epochs": 2, "negatives": 20, "device": "cpu"}


@pytest.fixture(scope="module")
def ssm(parts: sdx.Split) -> sdx.Retriever:
    return sdx.fit("ssm", parts.train, valid=parts.valid, **QUICK)


def vectors(model: sdx.Retriever) -> tuple[torch.Tensor, torch.Tensor]:
    return model.encoder.vectors.weight, model.index.scorer.items.weight  # type: ignore


# starting from an earlier model


def test_vectors_of_known_keys_are_taken_over_and_new_keys_get_their_own(
    log: sdx.Interactions, ssm: sdx.Retriever
) -> None:
    half = log.select((log.user % 2 == 0) & (log.item % 3 > 0)).compact()
    old = sdx.fit("ssm", half, **QUICK)
    made = make("mf", log, QUICK)
    fresh = made.parts.encoder.vectors.weight.clone()
    new = learn("ssm", {}, made._replace(training=replace(made.training, epochs=0)), log, start=old)
    users, items = vectors(new)
    rows = old.users.lookup(new.users.all())
    assert torch.equal(users[rows >= 0], vectors(old)[0][rows[rows >= 0]])
    assert torch.equal(users[rows < 0], fresh[rows < 0])
    item_rows = old.items.lookup(new.items.all())
    assert torch.equal(items[item_rows >= 0], vectors(old)[1][item_rows[item_rows >= 0]])


def test_a_start_helps_at_once(parts: sdx.Split, ssm: sdx.Retriever) -> None:
    options = QUICK | {"epochs": 1}
    cold = sdx.fit("ssm", parts.train, **options).card.training["history"][0]["loss"]
    warm = sdx.fit("ssm", parts.train, start=ssm, **options).card.training["history"][0]["loss"]
    assert warm < cold


@pytest.mark.parametrize(("recipe", "options", "words"), [
    ("ssm", {"dim": 4}, "vectors of length 8, this model of 4"),
    ("popular", {}, "in one step"),
])  # fmt: skip
def test_a_start_that_does_not_fit_is_refused(
    parts: sdx.Split, ssm: sdx.Retriever, recipe: str, options: dict[str, Any], words: str
) -> None:
    given = (QUICK | options) if recipe == "ssm" else {}
    with pytest.raises(sdx.SoftdexError, match=words):
        sdx.fit(recipe, parts.train, start=ssm, **given)


def test_a_start_without_vectors_is_refused(parts: sdx.Split, model: sdx.Retriever) -> None:
    new = sdx.fit("ssm", parts.train, **QUICK)
    with pytest.raises(sdx.SoftdexError, match="shares no vectors"):
        take_over("ssm", new.encoder, new.index.scorer, parts.train, model)


# refitting


def test_refit_trains_on_validation_too_and_keeps_its_metrics(parts: sdx.Split) -> None:
    model = sdx.fit("ssm", parts.train, valid=parts.valid, refit=True, **QUICK)
    assert model.card.refitted
    assert parts.valid is not None
    assert len(model.seen.ids) == len(parts.train) + len(parts.valid.targets.ids)
    assert "valid" in model.card.metrics
    with pytest.raises(sdx.SoftdexError, match="needs valid="):
        sdx.fit("ssm", parts.train, refit=True, **QUICK)


def test_validation_events_come_after_each_users_training_events(parts: sdx.Split) -> None:
    assert parts.valid is not None
    whole = extend(parts.train, parts.valid)
    for row, user in enumerate(parts.valid.users[:50]):
        expected = [*parts.train.histories[user], *parts.valid.targets[row]]
        assert list(whole.histories[user]) == expected


# early stopping


@pytest.mark.parametrize("recipe", ["ssm", "item_cf"])
def test_training_is_measured_as_its_model_is(parts: sdx.Split, recipe: str) -> None:
    model = sdx.fit(recipe, parts.train, **(QUICK if recipe == "ssm" else {}))
    made_of = parts_from(model.encoder, model.index.scorer, model.index)  # type: ignore[arg-type]
    assert parts.valid is not None
    measure = measurer(recipe, made_of, known_from(parts.train), parts.valid)
    assert measure() == measure() == model.evaluate(parts.valid, 20)["ndcg@20"]


def test_the_users_measured_are_a_sample_that_is_always_the_same(
    parts: sdx.Split, ssm: sdx.Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.model.learn.MEASURED_USERS", 40)
    made_of = parts_from(ssm.encoder, ssm.index.scorer)  # type: ignore[arg-type]
    assert parts.valid is not None
    known = known_from(parts.train)
    first, second = (measurer("ssm", made_of, known, parts.valid)() for _ in range(2))
    assert first == second != ssm.evaluate(parts.valid, 20)["ndcg@20"]


# memory


def test_a_training_that_needs_too_much_memory_is_refused_before_it_starts(
    parts: sdx.Split,
) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"needs about .* GB, max_memory is 0\.00 GB"):
        sdx.fit("ssm", parts.train, max_memory="1MiB", **(QUICK | {"dim": 512}))


def test_the_prediction_grows_with_what_costs_memory(parts: sdx.Split) -> None:
    base = make("mf", parts.train, QUICK).memory(parts.train)
    for more in ({"dim": 64}, {"negatives": 2000}):
        assert make("mf", parts.train, QUICK | more).memory(parts.train) > base


# serving


def test_a_user_table_serves_only_users_it_was_trained_on(
    log: sdx.Interactions, ssm: sdx.Retriever
) -> None:
    with pytest.raises(sdx.SoftdexError, match="cannot read a history"):
        ssm.recommend(history=[["i003"]])
    popular = sdx.fit("popular", log).recommend(history=[[]], k=3)["item"].to_pylist()
    strangers = ssm.recommend(["nobody"], k=3, unknown="popular")["item"].to_pylist()
    assert len(set(strangers) & set(popular)) >= 2
    split = sdx.split.by_user(log, (0.8, 0.2))
    alone = sdx.fit("ssm", split.train, **QUICK)
    with pytest.raises(sdx.DataError, match="no event in training"):
        alone.evaluate(split.test)
    held_out = split.test.user_keys.take(split.test.users[:1]).to_pylist()
    with pytest.raises(sdx.SoftdexError, match="has no event in training"):
        alone.recommend(held_out)
    assert len(alone.recommend(held_out, unknown="skip")) == 0


@pytest.mark.parametrize("encoder", ["history", "mix"])
def test_a_history_encoder_serves_users_never_seen(log: sdx.Interactions, encoder: str) -> None:
    split = sdx.split.by_user(log, (0.8, 0.2))
    model = sdx.fit("ssm", split.train, encoder=encoder, **(QUICK | {"epochs": 8}))
    assert model.evaluate(split.test, 20)["recall@20"] > 0.1  # seen: about .3; random lists: .17
    first, second = ([key] for key in model.items.values.to_pylist()[:2])
    lists = model.recommend(history=[first, second], k=5)["item"].to_pylist()
    assert lists[:5] != lists[5:]


@pytest.mark.parametrize("encoder", ["user", "history", "mix"])
@pytest.mark.parametrize("score", ["cosine", "dot", "dot_bias"])
def test_a_saved_model_gives_the_same_lists(
    parts: sdx.Split, tmp_path: Path, encoder: str, score: str
) -> None:
    model = sdx.fit("ssm", parts.train, encoder=encoder, score=score, **QUICK)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert dict(again.evaluate(parts.test, 20)) == dict(model.evaluate(parts.test, 20))
    assert again.card.training == model.card.training
    assert again.similar("i003", k=3).table == model.similar("i003", k=3).table


def test_similar_is_the_cosine_of_item_vectors(ssm: sdx.Retriever) -> None:
    items = torch.nn.functional.normalize(vectors(ssm)[1], dim=1)
    scores = items[7] @ items.T
    scores[7] = -2
    best = scores.argsort(descending=True)[:4].numpy()
    found = ssm.similar(ssm.items.take(np.array([7])).to_pylist(), k=4)
    assert found["similar"].to_pylist() == ssm.items.take(best).to_pylist()


def test_the_same_seed_saves_the_same_bytes(parts: sdx.Split, tmp_path: Path) -> None:
    for name in ("a", "b"):
        sdx.fit("ssm", parts.train, valid=parts.valid, **QUICK).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_record_of_an_epoch_reports_the_proposal(ssm: sdx.Retriever, parts: sdx.Split) -> None:
    record = ssm.card.training["history"][-1]
    assert set(record) == {"epoch", "loss", "metric", "kl", "ess", "hits"}
    assert record["kl"] > 0
    assert 0 < record["ess"] <= 1
    full = sdx.fit("softmax", parts.train, dim=8, epochs=2, device="cpu")
    assert "kl" not in full.card.training["history"][-1]


def test_serving_a_loaded_model_remembers_no_lookups(
    ssm: sdx.Retriever, tmp_path: Path, parts: sdx.Split
) -> None:
    ssm.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    again.evaluate(parts.test, 10)
    assert again.encoder.vectors.touched() == []
    assert again.encoder.vectors._lookups == []
    assert not again.encoder.training


def test_a_variant_is_its_objective(parts: sdx.Split) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"objective= is fixed.* 'mf' has it"):
        sdx.fit("softmax", parts.train, objective="bpr")


def test_an_unknown_history_gets_what_is_popular_when_asked(parts: sdx.Split) -> None:
    model = sdx.fit("ssm", parts.train, encoder="history", **QUICK)
    popular = sdx.fit("popular", parts.train).recommend(history=[[]], k=5)["item"]
    assert model.recommend(history=[["nothing"]], k=5, unknown="popular")["item"] == popular


# runs


def test_fit_in_a_folder_resumes_to_the_same_model(
    parts: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = QUICK | {"epochs": 4, "patience": 0}
    whole = sdx.fit("ssm", parts.train, valid=parts.valid, **options)
    calls = 0

    def dies(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise EOFError
        return evaluate(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr("softdex.model.learn.evaluate", dies)
        with pytest.raises(EOFError):
            sdx.fit("ssm", parts.train, valid=parts.valid, folder=tmp_path, **options)
    assert (tmp_path / FILE).exists()
    again = sdx.fit("ssm", parts.train, valid=parts.valid, folder=tmp_path, resume=True, **options)
    whole.save(tmp_path / "a")
    again.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_resuming_where_nothing_was_begun_begins(parts: sdx.Split, tmp_path: Path) -> None:
    model = sdx.fit("ssm", parts.train, folder=tmp_path, resume=True, **QUICK)
    assert len(model.card.training["history"]) == 2


def test_resuming_needs_a_folder(parts: sdx.Split) -> None:
    with pytest.raises(sdx.SoftdexError, match="needs folder="):
        sdx.fit("ssm", parts.train, resume=True, **QUICK)


def test_resuming_with_other_options_is_refused(parts: sdx.Split, tmp_path: Path) -> None:
    sdx.fit("ssm", parts.train, folder=tmp_path, **QUICK)
    with pytest.raises(sdx.SoftdexError, match="another run"):
        sdx.fit("ssm", parts.train, folder=tmp_path, resume=True, **(QUICK | {"lr": 0.5}))

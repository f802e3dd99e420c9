"""The command line: what it does, and one clear line with exit code 2 for every mistake."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
import torch

import softdex as sdx
from hostile import small_disk
from softdex.cli import app as cli
from softdex.cli import demo as demo_command
from softdex.cli import run
from softdex.recipes.catalogue import DEFAULT


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        assert self.code == 0, self.err
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


Softdex = Callable[..., Done]


@pytest.fixture
def softdex(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Softdex:
    """Run a command in this process; anything but an exit is a traceback and fails the test."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["softdex", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, an item table and a trained run; tests do not change it."""
    folder = tmp_path_factory.mktemp("place")
    world = sdx.synthetic.world(users=80, items=40, seed=3, events=12)
    log = world.interactions()
    pcsv.write_csv(log.to_arrow(), folder / "clicks.csv")
    table = world.item_table().add_column(0, "item", log.items.all())
    pq.write_table(table, folder / "items.parquet")
    plan = {
        "recipe": "item_cf",
        "out": str(folder / "run"),
        "data": {"source": str(folder / "clicks.csv"), "items": str(folder / "items.parquet")},
        "evaluate": {"k": [5, 10]},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTDEX_QUIET", "1")
        run.fit(plan)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder of its own that has the log in it."""
    for name in ("clicks.csv", "items.parquet"):
        shutil.copy(place / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)


def mistake(done: Done, *words: str) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    for word in words:
        assert word in " ".join(done.err.split()), done.err


# what it does ------------------------------------------------------------------------------------


def test_fit_writes_a_run_folder_that_evaluates_to_the_same_figures(softdex: Softdex) -> None:
    fitted = softdex(
        "fit", "clicks.csv", "-r", "item_cf", "-o", "neighbours=20", "--items", "items.parquet",
        "--out", "run", "--k", "5,10", "--json",
    ).json()  # fmt: skip
    assert sorted(p.name for p in Path("run").iterdir()) == [
        "config.toml", "metrics.json", "model.sdx",
    ]  # fmt: skip
    assert fitted["recipe"] == "item_cf"
    assert fitted["out"] == "run"
    assert fitted["card"]["name"] == "leave_last"
    assert json.loads(Path("run/metrics.json").read_text())["metrics"] == fitted["metrics"]
    again = softdex("evaluate", "run", "--json").json()
    assert again["metrics"] == fitted["metrics"]
    assert sdx.load("run").options["neighbours"] == 20
    assert sdx.load("run").card.metrics["test"] == fitted["metrics"]


def test_a_user_table_is_read_by_fit_evaluate_and_compare(softdex: Softdex) -> None:
    Path("users.csv").write_text("user,age\nu01,31\nu02,40\n")
    fit = ("fit", "clicks.csv", "-r", "popular", "--users", "users.csv", "--out", "run", "--json")
    fitted = softdex(*fit).json()
    assert 'users = "users.csv"' in Path("run/config.toml").read_text()
    assert softdex("evaluate", "run", "--json").json()["metrics"] == fitted["metrics"]
    compare = ("compare", "clicks.csv", "--recipes", "popular", "--users", "users.csv")
    assert softdex(*compare, "--report", "r.html").code == 0
    assert "user columns" in Path("r.html").read_text()


def test_the_config_of_a_run_makes_the_same_run_again(softdex: Softdex) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "-o", "half_life=1e6", "--out", "a", "--k", "7")
    assert softdex("fit", "--config", "a/config.toml", "--out", "b").code == 0
    assert Path("a/metrics.json").read_bytes() == Path("b/metrics.json").read_bytes()
    assert Path("a/model.sdx").read_bytes() == Path("b/model.sdx").read_bytes()


def test_tune_keeps_the_best_setting_and_what_was_tried(softdex: Softdex) -> None:
    words = ("fit", "clicks.csv", "-r", "rg2", "-o", "dim=8", "-o", "epochs=4", "--tune", "4")
    done = softdex(*words, "--refit", "--out", "a", "--split", "per_user", "--json").json()
    tried = json.loads(Path("a/settings.json").read_text())
    assert 1 < len(tried) <= 4
    best = max(tried, key=lambda row: row["ndcg@20"])
    model = sdx.load("a")
    assert (model.options["alpha"], model.options["lam"]) == (best["alpha"], best["lam"])
    assert model.card.refitted
    again = softdex("fit", "--config", "a/config.toml", "--out", "b", "--json").json()
    assert again["metrics"] == done["metrics"]
    assert not Path("b/settings.json").exists()


def test_a_graph_reads_splits_trains_and_is_measured(softdex: Softdex) -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(200, size=4000)
    target = source // 20 * 20 + rng.integers(20, size=4000)  # links stay in groups of 20
    table = pa.table({"source": source, "target": target})
    pcsv.write_csv(table, "edges.csv")
    figures = {}
    for recipe in ("rgx", "popular"):
        done = softdex(
            "fit", "edges.csv", "-r", recipe, "--duplicates", "last", "--split", "rg",
            "--out", recipe, "--k", "10", "--json",
        ).json()  # fmt: skip
        figures[recipe] = done["metrics"]
    for metric in ("map@10", "mrr@10"):
        assert figures["rgx"][metric] > 3 * figures["popular"][metric]


def test_the_command_line_goes_over_the_config(softdex: Softdex) -> None:
    Path("c.toml").write_text(
        'recipe = "popular"\nout = "a"\n[data]\nsource = "gone.csv"\n[split]\nname = "per_user"\n'
        "seed = 3\n[options]\nhalf_life = 5.0\n[evaluate]\nk = 3\n"
    )
    done = softdex(
        "fit", "clicks.csv", "-c", "c.toml", "-o", "half_life=null", "--split", "per_user",
        "-s", "seed=4", "--k", "6", "--out", "b", "--json",
    ).json()  # fmt: skip
    assert done["card"]["arguments"]["seed"] == 4
    assert {name.split("@")[1] for name in done["metrics"]} == {"6"}
    assert sdx.load("b").options == {"half_life": None}


@pytest.mark.usefixtures("loud")
def test_messages_go_to_standard_error_and_quiet_silences_them(softdex: Softdex) -> None:
    done = softdex("fit", "clicks.csv", "-r", "popular", "--json")
    assert done.json()["out"] == "runs/popular"
    assert "read clicks.csv: user=user item=item time=time -> 774 rows" in done.err
    assert "split: leave_last, because the log has times" in done.err
    quiet = softdex("--quiet", "fit", "clicks.csv", "-r", "popular", "--force", "--json")
    assert quiet.json()["users"] == 76
    assert quiet.err == ""


def test_columns_without_a_header_are_numbers(softdex: Softdex) -> None:
    body = Path("clicks.csv").read_text().splitlines()[1:]
    Path("bare.csv").write_text("\n".join(body))
    done = softdex(
        "fit", "bare.csv", "--user", 0, "--item", "1", "--time", "2", "-r", "popular", "--out", "r"
    )
    assert done.code == 0, done.err
    assert "user = 0" in Path("r/config.toml").read_text()


def test_evaluate_breaks_down_and_prints_strict_json(place: Path, softdex: Softdex) -> None:
    done = softdex("evaluate", place / "run", "--by", "popularity", "--k", "3", "--json").json()
    assert {row["items"] for row in done["by"]} >= {"head", "middle", "tail"}
    plain = softdex("evaluate", place / "run", "--by", "history", "--index", "both")
    assert "By history length" in plain.out
    assert "overlap" in plain.out


def test_recommend_by_key_by_history_and_for_everybody(place: Path, softdex: Softdex) -> None:
    folder, model = place / "run", sdx.load(place / "run")
    rows = softdex(
        "recommend", folder, "-u", "u01", "-u", "u02", "--k", 2, "--json", "--columns",
        "category, subcategory",
    ).json()  # fmt: skip
    wanted = model.recommend(["u01", "u02"], 2, columns=["category", "subcategory"])
    assert rows == wanted.to_pylist()
    told = softdex("recommend", folder, "--history", "i01, i02,", "--history", "", "--json").json()
    assert told == model.recommend(history=[["i01", "i02"], []]).to_pylist()
    shown = softdex("recommend", folder, "-u", "u01", "--k", 1)
    assert shown.out.split()[:4] == ["user", "rank", "item", "score"]
    done = softdex("recommend", folder, "--all", "--k", 3, "--out", "all.parquet", "--json").json()
    assert done == {"out": "all.parquet", "rows": 240}
    assert pq.read_table("all.parquet").num_rows == 240
    assert softdex("recommend", folder, "-u", "u01", "--out", "one.parquet").out == (
        "wrote one.parquet (10 rows)\n"
    )


def test_the_shards_of_everybody_are_everybody_once(place: Path, softdex: Softdex) -> None:
    words = ("recommend", place / "run", "--all", "--k", 2, "--columns", "category")
    assert softdex(*words, "--out", "all.csv").code == 0
    done = [softdex(*words, "--shard", f"{i}/3", "--out", f"{i}.csv", "--json") for i in range(3)]
    assert [each.json()["rows"] for each in done] == [52, 54, 54]
    head, *lines = Path("all.csv").read_text().splitlines()
    shards = [Path(f"{i}.csv").read_text().splitlines() for i in range(3)]
    assert [shard[0] for shard in shards] == [head] * 3
    assert [line for shard in shards for line in shard[1:]] == lines


def test_recommend_takes_filters(place: Path, softdex: Softdex) -> None:
    folder, model = place / "run", sdx.load(place / "run")
    base = ("recommend", folder, "-u", "u01", "--json", "--keep-seen", "--k", 99)
    options = {"exclude_seen": False, "k": 99}
    where = softdex(*base, "--where", "category=c001", "--where", "category=c002").json()
    assert (
        where == model.recommend("u01", where={"category": ["c001", "c002"]}, **options).to_pylist()
    )
    keys = softdex(*base, "--allow", "i01", "--allow", "i02", "--deny", "i01").json()
    assert [row["item"] for row in keys] == ["i02"]
    popular = softdex("recommend", folder, "-u", "eve", "--unknown", "popular", "--json").json()
    assert {row["user"] for row in popular} == {"eve"}


def test_recommend_takes_users_and_rules_from_files(place: Path, softdex: Softdex) -> None:
    folder, model = place / "run", sdx.load(place / "run")
    Path("users.csv").write_text("user_id\nu03\nu01\nu02\n")
    Path("deny.csv").write_text("user,item\nu01,i01\nu02,i02\nu02,i03\n")
    Path("stock.csv").write_text("item\n" + "".join(f"i{i:02}\n" for i in range(30)))
    done = softdex(
        "recommend", folder, "--user-file", "users.csv", "--deny-file", "deny.csv", "--allow-file",
        "stock.csv", "--at-most", "category=1", "--k", 4, "--out", "recs.csv", "--json",
    ).json()  # fmt: skip
    wanted = model.recommend(
        ["u03", "u01", "u02"], 4, at_most={"category": 1}, allow=[f"i{i:02}" for i in range(30)],
        deny={"u01": ["i01"], "u02": ["i02", "i03"]},
    )  # fmt: skip
    assert done == {"out": "recs.csv", "rows": len(wanted)}
    written = pcsv.read_csv("recs.csv")
    assert written.column_names == ["user", "rank", "item", "score"]
    assert written["item"].to_pylist() == wanted["item"].to_pylist()
    near = softdex("similar", folder, "-i", "i01", "--deny", "i02", "--out", "near.jsonl")
    assert near.out == "wrote near.jsonl (10 rows)\n"
    assert len(Path("near.jsonl").read_text().splitlines()) == 10


def test_an_empty_answer_is_one_line_on_standard_error(
    place: Path, softdex: Softdex, loud: None
) -> None:
    reason = "no recommendation: no item has category=zzz. "
    done = softdex("recommend", place / "run", "-u", "u01", "--where", "category=zzz")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"recommend: {reason}Known: c000, c001, ")
    assert done.err.count("\n") == 1
    found = softdex("similar", place / "run", "-i", "i01", "--where", "category=zzz", "--json")
    assert (found.json(), found.err.startswith(f"similar: {reason}")) == ([], True)
    written = softdex("recommend", place / "run", "--all", "--allow", "i01", "--deny", "i01",
                      "--out", "none.csv")  # fmt: skip
    assert written.out == "wrote none.csv (0 rows)\n"
    assert written.err == (
        "recommend_all: no recommendation: allow, deny and where together leave none\n"
    )
    assert Path("none.csv").read_text() == '"user","rank","item","score"\n'


def test_keys_with_commas_in_a_history_stand_in_quotes(softdex: Softdex) -> None:
    rows = [("a", "x,y"), ("a", "z"), ("b", "x,y"), ("b", "z"), ("c", "z")]
    sdx.fit("item_cf", sdx.read(rows, quiet=True)).save("m.sdx")
    done = softdex("recommend", "m.sdx", "--history", '"x,y"', "--json").json()
    assert [row["item"] for row in done] == ["z"]


def test_similar_prints_neighbours(place: Path, softdex: Softdex) -> None:
    rows = softdex("similar", place / "run", "-i", "i01", "--k", 2, "--json").json()
    assert rows == sdx.load(place / "run").similar("i01", 2).to_pylist()
    assert "similar" in softdex("similar", place / "run", "-i", "i01").out


@pytest.fixture(scope="module")
def tree(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree model of the same log."""
    path = tmp_path_factory.mktemp("tree") / "tree.sdx"
    log = sdx.read(place / "clicks.csv", items=place / "items.parquet", quiet=True)
    small = {"max_instances": 64, "epochs": 1, "beam": 4, "dim": 4, "max_history": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTDEX_QUIET", "1")
        sdx.fit("tdm", log, leaves="random", **small).save(path)
    return path


def test_explain_draws_the_search_and_prints_the_list(tree: Path, softdex: Softdex) -> None:
    model = sdx.load(tree)
    done = softdex("explain", tree, "--user", "u01", "--k", 3)
    assert done.code == 0, done.err
    assert done.out.split()[:4] == ["rank", "item", "score", "exact"]
    assert done.out.endswith("\nwrote explain.html\n")
    assert Path("explain.html").read_text().startswith("<!doctype html>")
    words = (
        "explain",
        tree,
        "--history",
        "i01, i02",
        "--columns",
        "subcategory",
        "--out",
        "a/b.html",
    )
    told = softdex(*words, "--json").json()
    assert told["out"] == "a/b.html"
    wanted = model.recommend(history=[["i01", "i02"]])["item"].to_pylist()
    assert [row["item"] for row in told["items"]] == wanted
    assert "its most distinctive value of subcategory" in Path("a/b.html").read_text()
    assert sorted(p.name for p in Path("a").iterdir()) == ["b.html"]


def test_explain_prints_the_shares_of_a_score(place: Path, tree: Path, softdex: Softdex) -> None:
    before, run = sorted(Path().iterdir()), place / "run"
    done = softdex("explain", run, "--user", "u01", "--item", "i02")
    assert done.code == 0, done.err
    why = sdx.load(run).explain("u01", "i02")
    assert done.out.rstrip() == str(why)
    told = softdex(
        "explain", run, "--history", "i01,i03", "--item", "i02", "--k", 1, "--json"
    ).json()
    assert told["base"] + told["rest"] + told["shares"][0]["share"] == pytest.approx(told["score"])
    told = softdex("explain", tree, "--user", "u01", "--item", "i02", "--json").json()
    assert [row["level"] for row in told["path"]] == list(range(1, len(told["path"]) + 1))
    assert sorted(Path().iterdir()) == before


def test_explain_draws_what_lies_around_an_item(tree: Path, softdex: Softdex) -> None:
    done = softdex("explain", tree, "--item", "i01")
    assert done.code == 0, done.err
    assert done.out.splitlines()[1].split()[:2] == ["0", "i01"]
    assert "Around i01" in Path("explain.html").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("TREE", "explain: expected --user or --history, with or without --item, or --item alone,"),
        ("TREE -u u01 --history i01", "or --item alone, got 2 of the first two."),
        ("TREE -u u01 --history i01 --item i02", "or --item alone, got 2 of the first two."),
        ("RUN -u u01 --item i02 --out x.html", "explain: --out is for pages, shares are printed."),
        ("RUN -u u01 --item i02 --deny i03", "explain: rules have no effect with --item."),
        ("RUN -u u01 --item i02 --k 0", "explain: expected k as a whole number of at least 1, got"),
        ("RUN -u u01 --item i002", "explain: 1 unknown item ('i002'). Did you mean 'i02'?"),
        ("RUN --history i01 --item i02 --columns x", "explain: no item column 'x'."),
        ("TREE -u u01 --at-most category=1", "explain: --at-most has no effect on a beam search."),
        ("TREE --item i01 --deny i02", "explain: rules have no effect with --item."),
        ("TREE --item i01 --k 3", "explain: --k has no effect with --item alone."),
        ("TREE --item i001", "explain: 1 unknown item ('i001'). Did you mean 'i01'?"),
        (
            "RUN --item i01",
            "explain: item_cf has no tree to draw. Fit dtr, tdm, jtm, otm or plt;",
        ),
        ("TREE -u u001", "explain: 1 unknown user ('u001'). Did you mean 'u01'?"),
        (
            "TREE --history i001",
            "explain: 1 unknown item in history ('i001'). Did you mean 'i01'?",
        ),
        ("TREE --history ,", "explain: expected at least one item in history, got none."),
        ('TREE --history "i01', "--history: expected comma-separated words"),
        ("TREE -u u01 --columns categry", "explain: no item column 'categry'. Did you mean"),
        ("TREE -u u01 --k 0", "explain: expected k > 0, got 0."),
        ("TREE -u u01 --k ten", "Invalid value for '--k'"),
        ("RUN -u u01", "explain: item_cf has no tree to draw. Fit dtr, tdm, jtm, otm or plt;"),
        ("gone -u u01", "load: no file gone"),
        ("TREE -u u01 --out .", "cannot write . (it is a folder or a device)"),
        ("TREE -u u01 --out clicks.csv/x", "cannot write clicks.csv/x"),
    ],
)
def test_a_refused_explain_writes_nothing(
    words: str, expected: str, place: Path, tree: Path, softdex: Softdex
) -> None:
    names = {"TREE": str(tree), "RUN": str(place / "run")}
    before = sorted(Path().iterdir())
    mistake(softdex("explain", *(names.get(word, word) for word in words.split(" "))), expected)
    assert sorted(Path().iterdir()) == before


def test_compare_ranks_recipes_and_writes_a_report(softdex: Softdex) -> None:
    done = softdex(
        "compare", "clicks.csv", "--recipes", "popular, item_cf", "--k", "5", "--report", "r.html"
    )
    assert done.code == 0, done.err
    assert "is above" in done.out
    assert Path("r.html").read_text().startswith("<!doctype html>")
    listed = softdex("compare", "clicks.csv", "--recipes", "popular", "--json").json()
    assert list(listed) == ["popular"]
    assert listed["popular"]["valid ndcg@20"] > 0


def test_compare_ranks_by_the_metric_and_names_items_by_the_columns_asked_for(
    softdex: Softdex,
) -> None:
    words = ("compare", "clicks.csv", "--recipes", "popular,item_cf", "--k", "1,5")
    by = ("--metric", "recall@5", "--items", "items.parquet", "--columns", "subcategory")
    done = softdex(*words, *by, "--report", "r.html")
    assert done.code == 0, done.err
    page = Path("r.html").read_text()
    assert "is the best of 2 on recall@5" in page or "has the highest recall@5" in page
    assert "By subcategory of the target, 8 of " in page
    assert "<dd><bdi>softdex compare clicks.csv --recipes" in page
    mistake(softdex(*words, "--columns", "colour"), "compare: no item column 'colour'.")
    mistake(softdex(*words, "--metric", "recall@7"), "compare: unknown metric 'recall@7'")


def test_compare_keeps_a_run_folder_per_recipe_and_goes_on_from_there(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", "clicks.csv", "--recipes", "popular,item_cf", "--k", "5")
    first = softdex(*words)
    assert first.code == 0, first.err
    best = Path("runs/compare-clicks/item_cf")
    assert f"wrote {best.parent}. Next:\n  softdex recommend {best} --user " in first.out
    assert {p.name for p in best.iterdir()} == {"config.toml", "model.sdx"}
    shown = softdex("evaluate", best, "--json").json()
    assert shown["metrics"] == sdx.load(best).card.metrics["test"]
    run_file = importlib.import_module("softdex.compare.run")
    monkeypatch.setattr(run_file, "train_once", lambda *_, **__: pytest.fail("it trained"))
    assert softdex(*words).out == first.out
    mistake(softdex(*words, "--split", "per_user"), "comparison on other data or another split")
    mistake(softdex(*words, "--out", "clicks.csv"), "compare: cannot write into clicks.csv (Not a")


def test_compare_starts_no_recipe_once_its_budget_is_spent(softdex: Softdex, loud: None) -> None:
    words = ("compare", "clicks.csv", "--recipes", "popular,item_cf,rg2", "--k", "5", "--budget")
    done = softdex(*words, "0.000001s", "--report", "r.html")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[1].startswith("popular ")
    assert "item_cf: not trained (the budget was spent)" in lines
    assert [line.partition(":")[0] for line in done.err.splitlines()][-2:] == ["item_cf", "rg2"]
    assert "rg2: not trained (the budget was spent)" in lines
    assert "item_cf" in Path("r.html").read_text()
    assert list(softdex(*words, "0.000001s", "--json").json()) == ["popular"]
    assert softdex(*words, "1h", "--json").json().keys() == {"popular", "item_cf", "rg2"}


def test_compare_shows_what_has_finished_when_a_recipe_fails(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file = importlib.import_module("softdex.compare.run")
    train = run_file.train_once

    def failing(name: str, *given: Any, **options: Any) -> sdx.Retriever:
        if name == "item_cf":
            raise sdx.SoftdexError("item_cf: too large.")
        return train(name, *given, **options)

    monkeypatch.setattr(run_file, "train_once", failing)
    done = softdex("compare", "clicks.csv", "--recipes", "item_cf,popular", "--k", "5")
    assert done.code == 2
    assert done.out.splitlines()[1].startswith("popular ")
    assert done.err == "error: compare: item_cf failed (item_cf: too large.).\n"


def test_recipes_doctor_version_and_help(softdex: Softdex) -> None:
    assert softdex("recipes", "--json").json()["popular"] == {"half_life": None}
    assert "-o neighbours=200" in softdex("recipes", "item_cf").out
    facts = softdex("doctor", "--json").json()
    assert facts["softdex"] == sdx.__version__
    assert isinstance(facts["troubles"], list)
    assert "matrix product" in softdex("doctor").out
    assert softdex("--version").out.strip() == sdx.__version__
    assert "Usage" in softdex("--help").out


@pytest.mark.usefixtures("loud")
def test_fit_without_a_recipe_takes_a_default_and_says_how_to_choose(softdex: Softdex) -> None:
    done = softdex("fit", "clicks.csv", "--json", "-o", "dim=8")
    assert done.json()["recipe"] == DEFAULT
    assert (
        f"recipe: {DEFAULT}, quick and good untuned; --recipe chooses another, `softdex recipes` "
        "lists them\n"
    ) in done.err
    assert softdex("fit", "-c", f"runs/{DEFAULT}/config.toml", "--out", "again").code == 0
    assert sdx.load("again").options == sdx.load(f"runs/{DEFAULT}").options


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("fit x.csv -r rg", ["rg", "rg2", "rgx"]),
        ("fit x.csv -r ssm -o neg", ["negatives="]),
        ("fit x.csv -o ste", ["steps="]),
        ("fit x.csv -r rg2 -o solver=n", ["solver=newton_cg"]),
        ("fit x.csv -r no_such -o ne", []),
        ("recipes it", ["item_cf"]),
    ],
)
def test_the_shell_completes_recipes_and_their_options(
    typed: str, completed: list[str], softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["softdex", *typed.split()]
    monkeypatch.setenv("_SOFTDEX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert softdex().out.split() == completed


def test_demo_measures_its_recipes_against_the_best_possible(softdex: Softdex) -> None:
    done = softdex("demo", "--users", 60, "--items", 30, "--out", "d", "--json").json()
    assert set(done["results"]) == {
        "popular", "item_cf", "rg2", "fastvae", "bir", "dtr", "sasrec",
    }  # fmt: skip
    assert done["best possible"]["recall@20"] > 0
    assert sorted(p.name for p in Path("d").iterdir()) == [
        "clicks.parquet", "items.parquet", "models", "report.html",
    ]  # fmt: skip
    again = softdex("evaluate", "d/models/rg2", "--json").json()
    assert again["metrics"] == pytest.approx(
        {n: v for n, v in done["results"]["rg2"].items() if n in again["metrics"]}
    )


def test_demo_ends_with_commands_that_run(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_command, "DEFAULTS", {"item_cf": {}, "popular": {}})
    shown = softdex("demo", "--users", 60, "--items", 30, "--out", "d").out.splitlines()
    assert max(map(len, shown)) <= 80
    assert any(line.startswith("best possible") for line in shown)
    look, fit, recommend = (line.split()[1:] for line in shown if line.startswith("  softdex "))
    assert [sdx.load(path).recipe for path in look[1:]] == [line.split()[0] for line in shown[1:3]]
    assert softdex(*fit).code == 0
    assert "title" in softdex(*recommend).out


def test_the_full_demo_has_a_recipe_of_every_family() -> None:
    assert set(demo_command._all()) == {
        "bir", "bpr", "dtr", "fastvae", "ials", "item_cf", "mult_vae", "popular", "rg2", "rgx",
        "sasrec", "softmax", "ssl_pop", "ssm", "xir", "youtube_dnn",
    }  # fmt: skip


# mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fit", ["expected a log: a path, or source ="]),
        ("fit -r popular", ["expected a log: a path, or source ="]),
        ("fit clicks.csv -r item_fc", ["unknown recipe 'item_fc'. Did you mean 'item_cf'?"]),
        ("fit clicks.csv -r ../run", ["unknown recipe '../run'"]),
        ("fit clicsk.csv -r popular", ["no file clicsk.csv. Did you mean 'clicks.csv'?"]),
        ("fit clicks.csv -r popular --user usr", ["no column 'usr' for user", "'user'?"]),
        ("fit clicks.csv -r popular --user 99", ["--user 99", "columns 0 to 2"]),
        ("fit clicks.csv -r popular --user ²", ["no column '²' for user"]),
        ("fit clicks.csv -r item_cf -o neighbours", ["--option: expected name=value"]),
        ("fit clicks.csv -r item_cf -o =5", ["--option: expected name=value, got '=5'"]),
        (
            "fit clicks.csv -r item_cf -o neigbours=5",
            ["unknown option 'neigbours'", "'neighbours'"],
        ),
        ("fit clicks.csv -r item_cf -o neighbours=abc", ["neighbours as a whole number", "'abc'"]),
        ("fit clicks.csv -r item_cf -o neighbours=1.5", ["neighbours as a whole number", "1.5"]),
        ("fit clicks.csv -r item_cf -o neighbours=", ["neighbours as a whole number, got ''"]),
        ("fit clicks.csv -r item_cf -o neighbours=-1", ["expected neighbours > 0", "-1"]),
        ("fit clicks.csv -r item_cf -o shrink=NaN", ["expected shrink as a number, got nan"]),
        ('fit clicks.csv -r popular -o half_life="x"', ["half_life as a number or nothing", "'x'"]),
        ("fit clicks.csv -r popular -o half_life=0", ["expected half_life > 0, got 0"]),
        ("fit clicks.csv -r popular -o x=" + "[" * 9999, ["unknown option 'x'"]),
        ("fit clicks.csv -r popular --k abc", ["--k: expected comma-separated numbers, got 'abc'"]),
        ("fit clicks.csv -r popular --k 0", ["expected cut-offs k of at least 1, got [0]"]),
        ("fit clicks.csv -r popular --k 5,-5", ["expected cut-offs k of at least 1, got [5, -5]"]),
        ("fit clicks.csv -r popular --k 999999999", ["expected k of at most 1,000"]),
        ("fit clicks.csv -r popular --split leave_lst", ["unknown split", "'leave_last'?"]),
        ("fit clicks.csv -r popular --split rg -s sed=1", ["unknown option 'sed'", "'seed'?"]),
        ("fit clicks.csv -r popular --split rg -s seed=x", ["seed as a whole number, got 'x'"]),
        ("fit clicks.csv -r popular --split rg -s seed", ["--split-option: expected name=value"]),
        ("fit clicks.csv -r popular --split per_user -s ratios=ab", ["ratios as a list"]),
        ("fit clicks.csv -r popular -s m=2", ["split.leave_last: unknown option 'm'"]),
        ("fit clicks.csv -r popular --max-memory lots", ["a size such as '2GB', got 'lots'"]),
        ("fit clicks.csv -r popular --duplicates lst", ["duplicates rule 'lst'", "'last'?"]),
        ("fit clicks.csv -r popular --encoding klingon", ["unknown encoding 'klingon'"]),
        ("fit clicks.csv -r popular --items no.csv", ["no file no.csv"]),
        ("fit clicks.csv -r popular --items 5", ["no file 5"]),
        ("fit clicks.csv -r popular --users no.csv", ["no file no.csv"]),
        ("fit clicks.csv -r popular --users items.parquet", ["no user column among item"]),
        ("fit clicks.csv -r popular --k-core many", ["Invalid value for '--k-core'"]),
        ("fit clicks.csv -r popular --k-core 999", ["no row is left after min_rating and k_core"]),
        ("fit clicks.csv -r popular --min-rating 3", ["the log has no rating column"]),
        ("fit clicks.csv -r popular --out clicks.csv", ["clicks.csv is a file. Expected a folder"]),
        ("fit clicks.csv -r popular --out clicks.csv/x", ["cannot write into clicks.csv/x"]),
        ("fit clicks.csv -r popular --out " + "x" * 300, ["File name too long"]),
        ("fit clicks.csv --recpie popular", ["No such option: --recpie", "--recipe"]),
        ("fti clicks.csv", ["No such command 'fti'", "fit"]),
        ("evaluate", ["Missing argument"]),
        ("evaluate gone", ["gone is not a run folder (it has no config.toml)"]),
        ("evaluate clicks.csv", ["clicks.csv is a file. Expected the run folder"]),
        ("evaluate RUN --by hist", ["unknown breakdown 'hist'. Did you mean 'history'?"]),
        ("evaluate RUN --index exakt", ["'exakt' is not one of"]),
        ("evaluate RUN --k 0", ["expected cut-offs k of at least 1"]),
        ("evaluate RUN --data gone.csv", ["no file gone.csv"]),
        ("recommend gone -u u01", ["load: no file gone"]),
        ("recommend . -u u01", ["load: no file model.sdx"]),
        ("recommend clicks.csv -u u01", ["clicks.csv is not a softdex artifact"]),
        (
            "recommend RUN",
            ["expected --user KEY, --user-file FILE, --history i1,i2 or --all --out"],
        ),
        ("recommend RUN -u u001", ["1 unknown user ('u001'). Did you mean 'u01'?"]),
        ("recommend RUN -u u01 --columns categry", ["no item column 'categry'", "'category'?"]),
        ("recommend RUN -u u01 --where category", ["--where: expected column=value"]),
        ("recommend RUN -u u01 --where categry=1", ["no item column 'categry'", "'category'?"]),
        ("recommend RUN -u u01 --k ten", ["Invalid value for '--k'"]),
        ("recommend RUN -u u01 --unknown pop", ["unknown rule", "'popular'?"]),
        ("recommend RUN -u u01 --allow i001", ["1 unknown item in allow ('i001')", "'i01'?"]),
        ("recommend RUN -u u01 --max-memory 5", ["expected at least 1 MiB, got 5 bytes"]),
        ("recommend RUN -u u01 -u u02 --history i01", ["one history per user, got 1 for 2 users"]),
        ("recommend RUN --history i01,i001", ["1 unknown item in history ('i001')"]),
        ('recommend RUN --history "i01', ["--history: expected comma-separated words"]),
        ("recommend RUN --all", ["--all needs --out FILE"]),
        ("recommend RUN --all --out x.csv --shard 3/3", ["--shard: expected i/n, with i from 0"]),
        ("recommend RUN --all --out x.csv --shard 1", ["from 0 to n - 1, got '1'"]),
        ("recommend RUN -u u01 --shard 0/2", ["--shard needs --out FILE, and users by key or"]),
        ("recommend RUN --all --out x.parquet -u u01", ["expected --all, or users, not both"]),
        ("recommend RUN --all --out /dev/null", ["it is a folder or a device"]),
        ("fit clicks.csv -r rg2 --tune 0", ["expected --tune of at least 1, got 0"]),
        ("fit clicks.csv -r rg2 --tune 2 --start RUN", ["Leave --start out"]),
        ("fit clicks.csv -r popular --tune 2", ["popular has nothing to tune"]),
        ("fit clicks.csv -r item_cf --tune 2 --refit", ["there is nothing to --refit"]),
        ("fit clicks.csv -r rgx -o beta=2", ["rgx: expected beta from 0 to 1, got 2"]),
        ("fit clicks.csv -r rg2 -o solver=svd", ["alpha above 0", "Use solver='als'"]),
        ("fit clicks.csv -r rg2 -o encoder=mix", ["has no closed form. Use solver='newton_cg'"]),
        ("fit clicks.csv -r ials -o reg=l3", ["ials: unknown reg 'l3'"]),
        ("similar RUN", ["Missing option"]),
        ("similar RUN -i i001", ["1 unknown item ('i001'). Did you mean 'i01'?"]),
        ("similar RUN -i i01 --columns categry", ["no item column 'categry'"]),
        ("compare", ["expected a log"]),
        ("compare clicks.csv --recipes popluar", ["unknown recipe 'popluar'", "'popular'?"]),
        ("compare clicks.csv --recipes popular --report .", ["cannot write ."]),
        ("compare clicks.csv --k 999999999", ["expected k of at most 1,000"]),
        ("compare gone.csv --budget soon", ["budget: expected", "'10m'", "got 'soon'"]),
        ("compare gone.csv --budget 0", ["budget: expected", "got '0'"]),
        ("recipes item_fc", ["unknown recipe 'item_fc'. Did you mean 'item_cf'?"]),
        ("demo --users 0", ["expected positive sizes"]),
        ("demo --users many", ["Invalid value for '--users'"]),
        ("demo --seed -1", ["Invalid value for '--seed'"]),
        ("demo --users 2 --items 2 --out d", ["nothing is held out"]),
        ("demo --users 9 --items 9 --out clicks.csv", ["cannot write clicks.csv/clicks.parquet"]),
        ("--nope", ["No such option: --nope"]),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    command: str, words: list[str], place: Path, softdex: Softdex
) -> None:
    arguments = [str(place / "run") if part == "RUN" else part for part in command.split(" ")]
    mistake(softdex(*arguments), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = = 3", ["is not valid TOML"]),
        ("x = " + "[" * 5000, ["is not valid TOML"]),
        ("x = " + "9" * 5000, ["is not valid TOML"]),
        ("recipe = 5", ["expected recipe as text, got 5"]),
        ("out = 5", ["expected out as text, got 5"]),
        ("rcipe = 'popular'", ["unknown option 'rcipe'. Did you mean 'recipe'?"]),
        ("data = 5", ["expected data as a table of entries, got 5"]),
        ("[[data]]\nsource = 'x'", ["expected data as a table of entries"]),
        ("[dta]\nx = 1", ["unknown option 'dta'. Did you mean 'data'?"]),
        ("[data]\nsorce = 'x'", ["[data]: unknown option 'sorce'. Did you mean 'source'?"]),
        ("[data]\nsource = 5", ["[data]: expected source as text or a list, each text, got 5"]),
        ("[data]\nsource = {a = 1}", ["expected source as text"]),
        ("[data]\nuser = 1.5", ["expected user as text or a whole number"]),
        ("[data]\ntime = true", ["expected time as"]),
        ("[data]\nk_core = 'x'", ["expected k_core as a whole number"]),
        ("[data]\nmin_rating = 'x'", ["expected min_rating as a number"]),
        ("[data]\nkeep = 'x'", ["expected keep as a list, each text"]),
        ("[data]\nquiet = true", ["unknown option 'quiet'"]),
        ("[split]\nname = 3", ["unknown split 3"]),
        ("[split]\nname = 'rg'\nseed = 'x'", ["split.rg: expected seed as a whole number"]),
        ("[split]\nnam = 'rg'", ["unknown option 'nam'. Did you mean 'name'?"]),
        ("[options]\nhalf_lief = 1", ["unknown option 'half_lief'. Did you mean 'half_life'?"]),
        ("[options]\nhalf_life = [1]", ["expected half_life as a number or nothing, got [1]"]),
        ("[evaluate]\nk = 'abc'", ["expected k as a whole number or a list"]),
        ("[evaluate]\nk = [1.5]", ["expected k as a whole number or a list"]),
        ("[evaluate]\nk = []", ["expected cut-offs k of at least 1, got []"]),
        ("[evaluate]\nempty = 'zer'", ["unknown value of empty 'zer'. Did you mean 'zero'?"]),
        ("[evaluate]\nindex = 'sered'", ["unknown value of index 'sered'", "'served'?"]),
        ("[evaluate]\nmax_memory = []", ["expected max_memory as"]),
        ("[evaluate]\nkk = 3", ["unknown option 'kk'. Did you mean 'k'?"]),
    ],
)
def test_a_mistake_in_a_config_is_found_before_any_work(
    text: str, words: list[str], softdex: Softdex
) -> None:
    Path("c.toml").write_text(text)
    given = () if "recipe =" in text else ("-r", "popular")
    source = () if "source" in text else ("clicks.csv",)
    mistake(softdex("fit", *source, *given, "-c", "c.toml"), *words)
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["gone.toml", ".", "clicks.csv"])
def test_a_config_that_cannot_be_read_is_refused(name: str, softdex: Softdex) -> None:
    mistake(softdex("fit", "clicks.csv", "-r", "popular", "-c", name), f"{name}")


def test_a_config_that_is_not_text_is_refused(softdex: Softdex) -> None:
    Path("c.toml").write_bytes(b"\xff\xfe\x00")
    mistake(softdex("fit", "-c", "c.toml"), "c.toml is not valid TOML")


def test_a_model_is_not_replaced_unless_forced(softdex: Softdex) -> None:
    first = ("fit", "clicks.csv", "-r", "popular", "--out", "r")
    assert softdex(*first).code == 0
    old = Path("r/model.sdx").read_bytes()
    mistake(softdex(*first, "-o", "half_life=9"), "r holds a model already. Pass --force")
    assert Path("r/model.sdx").read_bytes() == old
    assert softdex(*first, "-o", "half_life=9", "--force").code == 0
    assert Path("r/model.sdx").read_bytes() != old


def test_a_refused_fit_leaves_the_folder_as_it_was(softdex: Softdex) -> None:
    mistake(softdex("fit", "clicks.csv", "-r", "item_cf", "--out", "new", "-o", "neighbours=-5"))
    assert not Path("new").exists()
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    old = Path("r/config.toml").read_bytes()
    bad = ("-r", "item_cf", "--out", "r", "-o", "neighbours=-5", "--force")
    mistake(softdex("fit", "clicks.csv", *bad), "neighbours > 0")
    assert Path("r/config.toml").read_bytes() == old
    assert softdex("evaluate", "r").code == 0


@pytest.mark.parametrize(("options", "word"), [
    ("-o restart=true", "restart= has no effect"),
    ("-o rounds=5 -o epochs=2 -o leaves=random", "dtr: 5 rounds need as many epochs"),
    ("--tune 2 -o rounds=5 -o epochs=2 -o leaves=random", "dtr: 5 rounds need as many epochs"),
    ("--start nowhere.sdx", "nowhere.sdx"),
])  # fmt: skip
def test_a_stopped_run_is_not_lost_to_a_mistake(softdex: Softdex, options: str, word: str) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    Path("r/checkpoint.safetensors").write_bytes(b"an epoch")
    before = Path("r/config.toml").read_bytes()
    bad = ("fit", "clicks.csv", "-r", "dtr", "--out", "r", "--force", *options.split())
    mistake(softdex(*bad), word)
    assert Path("r/checkpoint.safetensors").read_bytes() == b"an epoch"
    assert Path("r/config.toml").read_bytes() == before
    good = ("fit", "clicks.csv", "-r", "rg2", "-o", "dim=4", "--out", "r", "--force")
    assert softdex(*good).code == 0
    assert not list(Path("r").glob("checkpoint*"))


def test_a_model_that_does_not_fit_on_the_disk_leaves_the_folder_as_it_was(
    softdex: Softdex,
) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    before = {path.name: path.read_bytes() for path in Path("r").iterdir()}
    with small_disk(2000):
        done = softdex("fit", "clicks.csv", "-r", "item_cf", "--out", "r", "--force")
    mistake(done, "save: cannot write r/model.sdx (File too large).")
    assert {path.name: path.read_bytes() for path in Path("r").iterdir()} == before


def test_figures_of_a_model_that_was_replaced_do_not_stay(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    monkeypatch.setattr("softdex.cli.run.summary", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        softdex("fit", "clicks.csv", "-r", "item_cf", "--out", "r", "--force")
    assert sdx.load("r").recipe == "item_cf"
    assert not Path("r/metrics.json").exists()


@pytest.mark.usefixtures("loud")
def test_options_of_the_app_work_before_and_after_the_command(softdex: Softdex) -> None:
    before = torch.get_num_threads()
    try:
        for words in (["-q", "--threads", "2", "fit"], ["fit", "-q", "--threads", "2"]):
            torch.set_num_threads(1)
            done = softdex(*words, "clicks.csv", "-r", "popular", "--force")
            assert (done.code, done.err, torch.get_num_threads()) == (0, "", 2)
    finally:
        torch.set_num_threads(before)


def test_a_pipe_is_no_log_and_no_config(softdex: Softdex) -> None:
    os.mkfifo("pipe")
    mistake(softdex("fit", "pipe"), "read: pipe is a pipe or a device. Write its content to a file")
    mistake(softdex("fit", "-c", "pipe"), "config: pipe is no file. Expected a TOML file.")


@pytest.mark.usefixtures("loud")
def test_compare_says_what_it_leaves_out_of_a_config(softdex: Softdex) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    done = softdex("compare", "--recipes", "popular,item_cf", "-c", "r/config.toml")
    assert done.code == 0
    assert "gives data, split and evaluate" in done.err


def test_numbers_and_truths_may_be_written_as_python_does(softdex: Softdex) -> None:
    given = ("-o", "lam=.5", "-o", "alpha=3.e-2", "-o", "epochs=1", "-o", "dim=4")
    assert softdex("fit", "clicks.csv", "-r", "ials", *given).code == 0
    mistake(softdex("fit", "clicks.csv", "-r", "ssm", "-o", "dim=True"), "as a whole number")
    mistake(softdex("fit", "clicks.csv", "-r", "ssm", "-o", "lr={{1}}"), "number, got '{{1}}'")


def test_a_place_that_cannot_be_written_is_found_before_a_log_is_read(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("softdex.files.tempfile.TemporaryFile", denied)
    monkeypatch.setattr("softdex.cli.run.prepare", lambda *_, **__: pytest.fail("it read"))
    mistake(
        softdex("fit", "clicks.csv", "-r", "popular", "--out", "r"),
        "fit: cannot write into r",
        "Permission denied",
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--report clicks.csv/r.html",
            "compare: cannot write clicks.csv/r.html (Not a directory).",
        ),
        ("--report .", "compare: cannot write . (it is a folder or a device)."),
        ("--report clicks.csv", "compare: expected a file name ending in .html, got 'clicks.csv'."),
        ("--out clicks.csv", "compare: cannot write into clicks.csv (Not a directory)."),
    ],
)
def test_a_comparison_that_cannot_be_written_is_found_before_a_log_is_read(
    options: str, words: str, softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_file = importlib.import_module("softdex.cli.compare")
    monkeypatch.setattr(compare_file, "prepare", lambda *_: pytest.fail("it read"))
    mistake(softdex("compare", "clicks.csv", "--recipes", "popular", *options.split()), words)
    assert not Path("runs").exists()


def test_an_interrupt_before_the_first_recipe_says_how_to_go_on(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch, loud: None
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run_file = importlib.import_module("softdex.compare.run")
    monkeypatch.setattr(run_file, "train_once", interrupted)
    done = softdex("compare", "clicks.csv", "--recipes", "rg2", "--k", "5")
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith("stopped. The same command goes on.\n")


def test_a_cut_off_beyond_the_catalogue_is_found_before_training(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.cli.run.train_model", lambda *_, **__: pytest.fail("it trained"))
    done = softdex("fit", "clicks.csv", "-r", "popular", "--k", "100000", "--out", "r")
    mistake(done, "evaluate: expected k of at most 1,000, got 100,000.")
    assert not Path("r").exists()


def test_a_report_that_cannot_be_written_is_found_before_training(
    softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.cli.compare.compare_recipes", lambda *_, **__: pytest.fail("no"))
    done = softdex("compare", "clicks.csv", "--report", ".", "--out", "r")
    mistake(done, "compare: cannot write . (it is a folder or a device).")
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("recommend x -u u01 --out recs.json", ["ending in .parquet, .arrow", "got 'recs.json'"]),
        ("recommend x -u u01 --out recs", ["expected a file name ending in", "got 'recs'"]),
        ("recommend x --all --out recs.parquet.gz", ["or .jsonl.gz, got 'recs.parquet.gz'"]),
        ("recommend x --all --out clicks.csv/x.csv", ["cannot write clicks.csv/x.csv (Not a dir"]),
        ("recommend x --all --out .", ["cannot write . (it is a folder or a device)"]),
        ("recommend x -u u01 --k 0", ["expected k as a whole number of at least 1, got 0"]),
        ("recommend x -u u01 --user-file u.csv", ["expected --user or --user-file, not both"]),
        ("recommend x -u u01 --deny a --deny-file d.csv", ["--deny or --deny-file, not both"]),
        ("recommend x -u u01 --deny-file gone.csv", ["no file gone.csv"]),
        ("recommend x --all --user-file u.csv --out r.csv", ["--all, or users, not both"]),
        ("recommend x -u u01 --at-most category", ["--at-most: expected column=number"]),
        ("recommend x -u u01 --at-most category=0", ["--at-most: expected column=number"]),
        ("similar x -i i01 --out recs.json", ["similar: expected a file name ending in"]),
        ("similar x -i i01 --k 0", ["similar: expected k as a whole number of at least 1"]),
        ("explain x -u u01 --out .", ["explain: cannot write ."]),
        ("explain x -u u01 --out clicks.csv", ["explain: expected a file name ending in .html"]),
        ("export x --faiss clicks.csv/x", ["export: cannot write clicks.csv/x"]),
    ],
)
def test_what_cannot_be_written_or_meant_is_found_before_the_model_is_loaded(
    command: str, words: list[str], softdex: Softdex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("recommend", "similar", "explain", "export"):
        module = importlib.import_module(f"softdex.cli.{name}")
        monkeypatch.setattr(module, "load", lambda *_: pytest.fail("it loaded"))
    before = sorted(path.name for path in Path().iterdir())
    mistake(softdex(*command.split(" ")), *words)
    assert sorted(path.name for path in Path().iterdir()) == before


def test_evaluate_refuses_data_that_has_changed(softdex: Softdex) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    lines = Path("clicks.csv").read_text().splitlines()
    Path("clicks.csv").write_text("\n".join(lines[:-3]))
    mistake(softdex("evaluate", "r"), "the data has changed since r was trained", "Train again")
    done = softdex("evaluate", "r", "--leak", "allow")
    assert done.code == 0, done.err
    assert "note: leak allowed: " in done.out


def test_evaluate_does_not_mind_rows_in_another_order(softdex: Softdex) -> None:
    fitted = softdex("fit", "clicks.csv", "-r", "popular", "--out", "r", "--json").json()
    head, *lines = Path("clicks.csv").read_text().splitlines()
    Path("clicks.csv").write_text("\n".join([head, *reversed(lines)]) + "\n")
    assert softdex("evaluate", "r", "--json").json()["card"]["sha256"] == fitted["card"]["sha256"]


def test_evaluate_says_when_only_the_order_of_the_rows_has_changed(softdex: Softdex) -> None:
    """Events of equal time are divided by the order of the rows."""
    rows = [f"{u},{i},{n // 2}" for u in range(9) for n, i in enumerate("abcdef")]
    for lines in (rows, rows[::-1]):
        Path("tied.csv").write_text("\n".join(["user,item,time", *lines]))
        if lines is rows:
            assert softdex("fit", "tied.csv", "-r", "popular", "--out", "r").code == 0
    refused = softdex("evaluate", "r")
    mistake(refused, "the rows are in another order than when r was trained", "--leak allow")
    assert "data has changed" not in refused.err


def test_evaluate_reports_the_metrics_asked_for(place: Path, softdex: Softdex) -> None:
    done = softdex("evaluate", place / "run", "--metrics", "ndcg,hit", "--k", "5", "--json").json()
    assert list(done["metrics"]) == ["ndcg@5", "hit@5"]
    trained = softdex("evaluate", place / "run", "--known-users", "trained")
    assert trained.code == 0, trained.err
    mistake(softdex("evaluate", place / "run", "--metrics", "ndgc"), "unknown metric 'ndgc'")


def test_evaluate_measures_lists_made_elsewhere_on_the_split_of_a_run(
    place: Path, softdex: Softdex
) -> None:
    model = sdx.load(place / "run")
    test = sdx.split.leave_last(sdx.read("clicks.csv", quiet=True)).test
    lists = model.recommend(test.user_keys.take(test.users), k=12)
    pq.write_table(lists.table, "lists.parquet")
    done = softdex(
        "evaluate", place / "run", "--lists", "lists.parquet", "--k", "5", "--json"
    ).json()
    expected = sdx.evaluate(lists, test, k=5)
    assert done["recipe"] == "lists.parquet"
    assert done["metrics"] == dict(expected)
    mistake(softdex("evaluate", place / "run", "--lists", "gone.csv"), "gone.csv")


def test_evaluate_refuses_a_log_whose_keys_have_changed(softdex: Softdex) -> None:
    softdex("fit", "clicks.csv", "-r", "popular", "--out", "r")
    table = pcsv.read_csv("clicks.csv")
    renamed = pa.array([f"x{name}" for name in table["user"].to_pylist()])
    pcsv.write_csv(table.set_column(0, "user", renamed), "clicks.csv")
    mistake(softdex("evaluate", "r"), "the data has changed since r was trained")
    mistake(softdex("evaluate", "r", "--leak", "allow"), "the holdout is of another log")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.sdx", b"PK", "no seal at its end"),
        ("model.sdx", None, "no file"),
        ("config.toml", b"x = =", "is not valid TOML"),
        ("config.toml", b"recipe = 'popular'", "expected a log"),
        ("config.toml", None, "is not a run folder"),
    ],
)
def test_a_damaged_run_folder_is_refused(
    name: str, content: bytes | None, words: str, place: Path, softdex: Softdex
) -> None:
    shutil.copytree(place / "run", "run")
    Path("run", name).unlink()
    if content is not None:
        Path("run", name).write_bytes(content)
    mistake(softdex("evaluate", "run"), words)


def test_memory_that_runs_out_is_one_line(softdex: Softdex, monkeypatch: Any) -> None:
    def too_much(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("softdex.cli.recommend.load", too_much)
    mistake(softdex("recommend", "x", "-u", "a"), "error: MemoryError")


def test_an_interrupt_ends_quietly(softdex: Softdex, monkeypatch: Any) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softdex.cli.recommend.load", interrupted)
    done = softdex("recommend", "x", "-u", "a")
    assert done.code == 130
    assert "Traceback" not in done.err


# in a process of its own -------------------------------------------------------------------------


def test_a_real_process_ends_with_2_and_without_a_traceback(place: Path) -> None:
    script = shutil.which("softdex", path=str(Path(sys.executable).parent))
    assert script is not None
    command = [script, "recommend", str(place / "run"), "--user", "nobody", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: recommend: 1 unknown user ('nobody').")
    assert len(done.stderr.splitlines()) == 1


def test_a_real_process_prints_json_and_messages_apart(place: Path, tmp_path: Path) -> None:
    script = shutil.which("softdex", path=str(Path(sys.executable).parent))
    command = [str(script), "fit", "clicks.csv", "-r", "popular", "--json"]
    settings = {name: value for name, value in os.environ.items() if name != "SOFTDEX_QUIET"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    assert json.loads(done.stdout)["recipe"] == "popular"
    assert "popular: trained in" in done.stderr
    assert (tmp_path / "runs" / "popular" / "model.sdx").exists()

"""The command line: the same arguments as the library, and no traceback for a user's mistake."""

from __future__ import annotations

import csv
import inspect
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console

from softdex import __version__, recipes
from softdex.cli import run
from softdex.cli.demo import run_demo
from softdex.cli.doctor import examine
from softdex.cli.options import (
    AsJson,
    BadRows,
    Config,
    Cutoffs,
    Duplicates,
    Encoding,
    IndexMode,
    ItemColumn,
    Items,
    KCore,
    MaxMemory,
    MinRating,
    Rating,
    Separator,
    Source,
    SplitName,
    SplitOption,
    TimeColumn,
    UserColumn,
    Users,
    Weight,
)
from softdex.data.holdout import Split
from softdex.errors import SoftdexError, choose
from softdex.evaluate import report
from softdex.evaluate.result import Result
from softdex.explain.draw import draw
from softdex.explain.look import TREES, look
from softdex.explain.near import draw_near, near
from softdex.fit import fit as train
from softdex.machine import set_threads
from softdex.messages import say
from softdex.model.artifact import plain
from softdex.model.export import key_file
from softdex.model.retriever import Retriever, load, versions
from softdex.tables import Rows, grid

COLUMNS = ("user", "item", "time", "rating", "weight")
app = typer.Typer(
    name="softdex",
    help="Recommender retrieval: read a log, train, measure honestly, recommend.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def start(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but results.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of everything that computes.")
    ] = None,
) -> None:
    """Recommender retrieval: read a log, train, measure honestly, recommend."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if threads is not None:
        set_threads(threads)
    if quiet:
        os.environ["SOFTDEX_QUIET"] = "1"


@app.command()
def fit(
    source: Source = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="See `softdex recipes`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; runs/RECIPE by default.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Recipe option, name=value.")
    ] = None,
    config: Config = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    time: TimeColumn = None,
    rating: Rating = None,
    weight: Weight = None,
    items: Items = None,
    users: Users = None,
    duplicates: Duplicates = None,
    bad_rows: BadRows = None,
    separator: Separator = None,
    encoding: Encoding = None,
    min_rating: MinRating = None,
    k_core: KCore = None,
    split_name: SplitName = None,
    split_option: SplitOption = None,
    k: Cutoffs = None,
    max_memory: MaxMemory = None,
    start: Annotated[
        str | None, typer.Option(help="Earlier model or run to start from, aligned by key.")
    ] = None,
    tune: Annotated[
        int | None, typer.Option(help="Try so many settings of the recipe on validation first.")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="At the end, train again on train and validation.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the stopped run in --out.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model in the run folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe on a log; write a run folder with config, metrics and model."""
    if resume and config is None and source is None:
        if out is None:
            raise SoftdexError("fit: --resume needs --out, the folder of the stopped run.")
        config = out / run.CONFIG
    plan = _plan(config, source, locals())
    given = {"refit": refit or None, "max_memory": max_memory, "start": start, "tune": tune}
    plan.setdefault("train", {}).update({n: v for n, v in given.items() if v is not None})
    if recipe:
        plan["recipe"] = recipe
    if out:
        plan["out"] = str(out)
    plan.setdefault("options", {}).update(_pairs(option, "--option"))
    _, result, folder = run.fit(plan, force=force, resume=resume)
    if as_json:
        _print_json({**run.summary(plan["recipe"], result), "out": str(folder)})
        return
    typer.echo(f"{result}\n")
    typer.echo(f"saved {folder}. Next: softdex recommend {folder} --user KEY")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    k: Cutoffs = None,
    index: Annotated[
        IndexMode | None, typer.Option(help="Served list, exact list, or both.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Break down by history or popularity.")] = None,
    data: Annotated[str | None, typer.Option(help="The log, if it has moved.")] = None,
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained run again, on the split it was trained with."""
    overrides = {
        "index": index.value if index else None,
        "k": _cutoffs(k),
        "max_memory": max_memory,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    model, result = run.evaluate(folder, given, data)
    rows = result.by(by) if by else None
    if as_json:
        _print_json(run.summary(model.recipe, result) | ({"by": list(rows)} if rows else {}))
        return
    typer.echo(str(result))
    if rows:
        typer.echo(f"\n{rows}")


@app.command()
def recommend(
    model: Annotated[Path, typer.Argument(help="Run folder or saved model.")],
    user: Annotated[
        list[str] | None, typer.Option("--user", "-u", help="User key; repeat for more.")
    ] = None,
    history: Annotated[
        list[str] | None, typer.Option(help="Item keys with commas: a user never seen.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every user, into --out.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Parquet file to write.")] = None,
    k: Annotated[int, typer.Option("--k", help="Length of each list.")] = 10,
    where: Annotated[
        list[str] | None, typer.Option(help="Item column=value; repeat for more.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Only these items.")] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Never these items.")] = None,
    columns: Annotated[str, typer.Option(help="Item columns to show, with commas.")] = "",
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Items already had may return.")
    ] = False,
    unknown: Annotated[str, typer.Option(help="Unknown users: error, popular or skip.")] = "error",
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Recommend for users by key, by raw history, or for everyone."""
    fitted = load(model)
    options: dict[str, Any] = {
        "exclude_seen": not keep_seen,
        "where": _where(where) if where else None,
        "allow": allow or None,
        "deny": deny or None,
        "columns": _words(columns, "--columns"),
    }
    if max_memory:
        options["max_memory"] = max_memory
    if everyone:
        if user or history:
            raise SoftdexError("recommend: expected --all, or users, not both.")
        if out is None:
            raise SoftdexError("recommend: --all needs --out FILE.parquet.")
        count = fitted.recommend_all(out, k, **options)
        _finish_file(out, count, as_json)
        return
    if not user and not history:
        raise SoftdexError("recommend: expected --user KEY, --history i1,i2 or --all --out FILE.")
    past = [_words(h, "--history") for h in history] if history else None
    table = fitted.recommend(user or None, k, history=past, unknown=unknown, **options).table
    if out is not None:
        run.save_table(out, table)
        _finish_file(out, table.num_rows, as_json)
    elif as_json:
        _print_json(table.to_pylist())
    else:
        _print_table(table)


@app.command()
def similar(
    model: Annotated[Path, typer.Argument(help="Run folder or saved model.")],
    item: Annotated[list[str], typer.Option("--item", "-i", help="Item key; repeat for more.")],
    k: Annotated[int, typer.Option("--k", help="Length of each list.")] = 10,
    columns: Annotated[str, typer.Option(help="Item columns to show, with commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """The items most like an item."""
    table = load(model).similar(item, k, columns=_words(columns, "--columns")).table
    if as_json:
        _print_json(table.to_pylist())
    else:
        _print_table(table)


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help=f"Run folder or saved model: {TREES}.")],
    user: Annotated[str | None, typer.Option("--user", "-u", help="User key.")] = None,
    history: Annotated[
        str | None, typer.Option(help="Item keys with commas: a user never seen.")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", "-i", help="Item key: draw what lies around it.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Length of the list; 10.")] = None,
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("explain.html"),
    columns: Annotated[
        str, typer.Option(help="Item columns to name items and nodes by, with commas.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Draw how the beam search of a tree finds the items of one user, or what lies by an item."""
    past = None if history is None else _words(history, "--history")
    names = _words(columns, "--columns")
    given = sum(each is not None for each in (user, past, item))
    if given != 1:
        raise SoftdexError(f"explain: expected one of --user, --history and --item, got {given}.")
    if item is not None:
        if k is not None:
            raise SoftdexError("explain: --k has no effect with --item. Leave it out.")
        part = near(load(model), item, names)
        table, page = part.table, draw_near(part)
    else:
        search = look(load(model), user, history=past, k=10 if k is None else k, columns=names)
        table, page = search.table, draw(search)
    run.save_text(out, page)
    if as_json:
        _print_json({"out": str(out), "items": table.to_pylist()})
        return
    _print_table(table)
    typer.echo(f"\nwrote {out}")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Run folder or saved model.")],
    faiss: Annotated[Path, typer.Option("--faiss", help="Index file to write.")],
    factory: Annotated[
        str, typer.Option(help="Kind of index, as faiss writes it, e.g. IVF1024,Flat.")
    ] = "Flat",
    as_json: AsJson = False,
) -> None:
    """Write the item vectors as a faiss index, to be served without softdex."""
    count = load(model).export_faiss(faiss, factory)
    keys = key_file(faiss)
    if as_json:
        _print_json({"out": str(faiss), "keys": str(keys), "items": count})
    else:
        typer.echo(f"wrote {faiss} ({count:,} items) and {keys}")


@app.command()
def compare(
    source: Source = None,
    names: Annotated[
        str, typer.Option("--recipes", help="Names with commas; all by default.")
    ] = "",
    report_path: Annotated[
        Path | None, typer.Option("--report", help="HTML file to write.")
    ] = None,
    config: Config = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    time: TimeColumn = None,
    rating: Rating = None,
    weight: Weight = None,
    items: Items = None,
    users: Users = None,
    duplicates: Duplicates = None,
    bad_rows: BadRows = None,
    separator: Separator = None,
    encoding: Encoding = None,
    min_rating: MinRating = None,
    k_core: KCore = None,
    split_name: SplitName = None,
    split_option: SplitOption = None,
    k: Cutoffs = None,
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Train several recipes on one split and say which differences are real."""
    plan = _plan(config, source, locals())
    if plan.keys() & {"recipe", "options", "train"}:
        say(f"compare: of {config} it takes data, split and evaluate; recipes have their defaults")
    chosen = _words(names, "--recipes") or recipes.methods()
    for name in chosen:
        choose("compare", "recipe", name, recipes.names())
    log, parts = run.prepare(plan)
    results, seconds, training = _fit_all(chosen, parts, plan.get("evaluate", {}))
    rows = _leaderboard(results, seconds)
    if report_path:
        extra = {name: {"fit seconds": f"{s:.1f}"} for name, s in seconds.items()}
        facts = [
            ("Data", log.describe()),
            ("Protocol card", parts.card.json()),
            ("Versions", versions()),
        ]
        title, lead = "Recipes compared", str(plan["data"]["source"])
        page = report.build(title, lead, results, extra=extra, training=training, facts=facts)
        run.save_text(report_path, page)
    if as_json:
        _print_json({name: run.summary(name, r) for name, r in results.items()})
        return
    typer.echo(str(rows))
    _say_differences(results)
    if report_path:
        typer.echo(f"\nwrote {report_path}")


@app.command("recipes")
def list_recipes(
    name: Annotated[str | None, typer.Argument(help="Show one recipe with its options.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes and their options."""
    chosen = (
        recipes.names() if name is None else [choose("recipes", "recipe", name, recipes.names())]
    )
    if as_json:
        _print_json({n: recipes.options(n) for n in chosen})
    elif name is not None:
        typer.echo(f"{name}\n\n{inspect.getdoc(recipes.recipe(name))}\n")
        typer.echo("\n".join(f"  -o {o}={json.dumps(v)}" for o, v in recipes.options(name).items()))
    else:
        about = {n: recipes.about(n) for n in chosen}
        options = {n: ", ".join(f"{o}={v}" for o, v in recipes.options(n).items()) for n in chosen}
        rows = [[n, about[n], options[n]] for n in chosen]
        Console(highlight=False).print(
            grid(["recipe", "what it does", "options"], rows, numbers=False)
        )


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this installation has, and what would make it slow."""
    record, troubles = examine()
    if as_json:
        _print_json({**record, "troubles": troubles})
    else:
        typer.echo(str(record))
        typer.echo(
            "\n" + ("\n".join(f"! {t}" for t in troubles) if troubles else "Everything is fine.")
        )


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the log and the report.")] = Path(
        "demo"
    ),
    users: Annotated[int, typer.Option(help="Users of the world.")] = 2000,
    items: Annotated[int, typer.Option(help="Items of the world.")] = 1200,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another world.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a world whose best answer is known, train recipes, compare them with it."""
    outcome = run_demo(out, users, items, seed)
    if as_json:
        _print_json(outcome.json())
        return
    typer.echo(
        f"{outcome.table()}\n\nwrote {out / 'report.html'}. Next:\n"
        f"  softdex fit {out / 'clicks.parquet'} --items {out / 'items.parquet'} "
        "--recipe item_cf --out runs/first\n"
        f"  softdex recommend runs/first --user {outcome.a_user} --columns category"
    )


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    try:
        app()
    except (SoftdexError, MemoryError, OSError) as error:
        text = str(error) or type(error).__name__
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {text}", style="red", markup=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


# inside ------------------------------------------------------------------------------------------


def _plan(config: Path | None, source: str | None, given: dict[str, Any]) -> run.Plan:
    """The config file's plan with the command line's arguments on top."""
    plan = run.read_config(config) if config else {}
    data = plan.setdefault("data", {})
    names = [n for n in run.SECTIONS["data"] or [] if n in given and n != "source"]
    data.update({n: _column(n, given[n]) for n in names if given[n] is not None})
    if source is not None:
        data["source"] = source
    parts = plan.setdefault("split", {})
    if given["split_name"]:
        plan["split"] = parts = {"name": given["split_name"]}
    parts.update(_pairs(given["split_option"], "--split-option"))
    measure = plan.setdefault("evaluate", {})
    cutoffs = _cutoffs(given["k"])
    measure.update({"k": cutoffs} if cutoffs else {})
    measure.update({"max_memory": given["max_memory"]} if given["max_memory"] else {})
    return plan


def _column(name: str, value: Any) -> Any:
    """Columns of a file without a header are numbers."""
    return int(value) if name in COLUMNS and value.isdecimal() else value


def _words(text: str, flag: str) -> list[str]:
    """Words with commas between them; one that holds a comma stands in quotes."""
    try:
        rows = list(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise SoftdexError(f"{flag}: expected words with commas, got {text!r} ({error}).") from None
    return [word.strip() for row in rows for word in row if word.strip()]


def _pairs(pairs: list[str] | None, flag: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SoftdexError(f"{flag}: expected name=value, got {pair!r}.")
        found[name.strip().replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> Any:
    """JSON, what Python writes otherwise (.5, True), or else text."""
    if re.fullmatch(r"-?(\d+\.|\.\d+)(e-?\d+)?", text):
        return float(text)
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def _where(conditions: list[str]) -> dict[str, list[Any]]:
    wanted: dict[str, list[Any]] = {}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals:
            raise SoftdexError(f"--where: expected column=value, got {condition!r}.")
        wanted.setdefault(name, []).append(value)
    return wanted


def _cutoffs(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SoftdexError(f"--k: expected numbers with commas, got {text!r}.") from None


def _fit_all(
    names: list[str], parts: Split, rules: dict[str, Any]
) -> tuple[dict[str, Result], dict[str, float], dict[str, Any]]:
    results, seconds, training = {}, {}, {}
    for name in names:
        began = time.perf_counter()
        model: Retriever = train(name, parts.train, valid=parts.valid)
        seconds[name] = time.perf_counter() - began
        say(f"trained {name} in {seconds[name]:.1f} s")
        results[name] = model.evaluate(parts.test, **rules)
        if "training" in model.info:
            training[name] = model.info["training"]["history"]
    return results, seconds, training


def _leaderboard(results: dict[str, Result], seconds: dict[str, float]) -> Rows:
    cutoffs = next(iter(results.values())).cutoffs
    names = [f"{m}@{k}" for k in cutoffs for m in ("recall", "ndcg")]
    return Rows(
        "",
        [
            {"": n, **{m: r.shown(m) for m in names}, "fit s": f"{seconds[n]:.1f}"}
            for n, r in results.items()
        ],
    )


def _say_differences(results: dict[str, Result]) -> None:
    metric = f"ndcg@{next(iter(results.values())).middle}"
    best = max(results, key=lambda name: results[name][metric])
    for name, result in results.items():
        if name != best:
            gap = next(r for r in results[best].compare(result) if r["metric"] == metric)
            typer.echo(
                f"{best} is above {name} by {gap['difference']:.4f} {metric} "
                f"(95 % {gap['low']:.4f} .. {gap['high']:.4f}, p {_p_value(gap['p'])})"
            )


def _p_value(p: float) -> str:
    """A bootstrap of 1000 samples cannot show less than 2 in 1000."""
    return "at most 0.002" if p <= 0.002 else f"{p:.3f}"


def _finish_file(out: Path, count: int, as_json: bool) -> None:
    if as_json:
        _print_json({"out": str(out), "rows": count})
    else:
        typer.echo(f"wrote {out} ({count:,} rows)")


def _print_table(table: pa.Table) -> None:
    rows = [[_cell(v) for v in row.values()] for row in table.to_pylist()]
    Console(highlight=False).print(grid(table.column_names, rows, numbers=False))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(plain(value), indent=2))

"""What the experiments of the papers run: commands of other scripts, and how they are laid out."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple


class Experiment(NamedTuple):
    """Commands, and how their table is laid out.

    Attributes:
        commands: script and arguments, without the file that the script writes.
        rows, columns: arguments that name a row and a column: `task`, or options.
        metrics: of a cell.
        curves: whether the lines keep the history of the training, epoch by epoch.
    """

    commands: list[str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    curves: bool = False


def in_batch() -> Experiment:
    """BIR, Fig. 7: in-batch objectives by batch size, the row's target and hits kept."""
    small = dict.fromkeys(("lastfm-hetrec", "amazon-beauty", "gowalla"), 40)
    epochs = small | {"amazon-book-kgat": 20, "ml-10m-implicit": 12}
    sizes = 256, 512, 1024, 2048, 4096, 8192
    priors = {"ssl_pop": (0, 0.7), "bir": (0, 0.5), "xir": (0, 0.5)}
    commands = [
        f"quality xir-{name} recipe={recipe} batch_size={size} prior={prior} own=keep hits=keep "
        f"epochs={epochs[name]} patience=0 seed=0"
        for name, size, recipe in product(epochs, sizes, priors)
        for prior in priors[recipe]
    ]
    return Experiment(commands, ("task", "recipe", "prior"), ("batch_size",), ("ndcg@10",))


WALKS = "recipe=dtr sampling=tree lr=0.01"
DTR = {
    "U": "recipe=dtr sampling=uniform lr=0.02",
    "T": WALKS,
    "T-RL": f"{WALKS} rectify=path warm_up=1",
}


def dtr() -> Experiment:
    """DTR, Table 2, on ml-1m with a longer training; three seeds for the order of U, T and T-RL."""
    long = "batch_size=512 epochs=5 patience=0"
    settings = (
        f"recipe=jtm rounds=2 lr=0.02 {long} save=@jtm.sdx",
        *(f"{setting} {long} seed={seed}" for seed in range(3) for setting in DTR.values()),
        f"recipe=otm leaves=@jtm.sdx lr=0.02 {long}",
        f"recipe=tdm lr=0.02 {long}",
        f"recipe=tdm rounds=3 lr=0.02 {long}",
        f"recipe=plt lr=0.02 {long}",
        f"recipe=plt lr=0.005 {long}",
        f"recipe=din objective=softmax lr=0.02 {long}",
        f"recipe=din objective=binary lr=0.02 {long}",
        "recipe=sasrec lr=0.003 epochs=30 patience=5 max_history=100",
        "recipe=youtube_dnn lr=0.01 epochs=40 patience=5",
        "recipe=item_cf",
        "recipe=popular",
    )
    commands = [f"quality dtr-ml-1m {setting}" for setting in settings]
    rows = "recipe", "sampling", "rectify", "rounds", "objective", "lr"
    return Experiment(commands, rows, (), ("f@20", "f@40", "f@60", "masked f@20"))


def dtr_rounds() -> Experiment:
    """DTR, Fig. 3: twelve rounds from the tree of the genres."""
    rounds = "leaves=category category=genres rounds=12 epochs=12 patience=0 batch_size=512"
    settings = "recipe=jtm lr=0.02", *DTR.values()
    commands = [f"quality dtr-ml-1m {each} {rounds} max_instances=200000" for each in settings]
    return Experiment(
        commands, ("recipe", "sampling", "rectify"), (), ("f@20", "masked f@20"), True
    )


def dtr_negatives() -> Experiment:
    """DTR, Fig. 4: nodes per level, from the tree of the genres."""
    start = "leaves=category category=genres epochs=3 patience=0 batch_size=512"
    commands = [
        f"quality dtr-ml-1m {each} negatives={negatives} {start} max_instances=200000"
        for negatives, each in product((10, 30, 50, 70, 90), DTR.values())
    ]
    rows = "recipe", "sampling", "rectify"
    return Experiment(commands, rows, ("negatives",), ("f@20", "masked f@20"))


def dtr_folds() -> Experiment:
    """DTR, Table 2, on a small set: over ten folds every user of amazon-beauty is asked once."""
    by_level = "batch_size=256 epochs=5 patience=0 lr=0.005"
    walks = "recipe=dtr sampling=tree batch_size=256 epochs=5 patience=0 lr=0.01"
    settings = (
        "recipe=popular",
        "recipe=item_cf",
        "recipe=youtube_dnn lr=0.01 epochs=15 patience=0",
        "recipe=sasrec max_history=50 dropout=0.5 epochs=20 patience=5",
        *(f"recipe={recipe} {by_level}" for recipe in ("plt", "tdm", "jtm", "din")),
        "recipe=otm batch_size=256 epochs=5 patience=0 lr=0.02",
        f"recipe=dtr sampling=uniform {by_level}",
        walks,
        f"{walks} rectify=path warm_up=1",
        f"{walks} rectify=child warm_up=1",
    )
    commands = [
        f"quality dtr-amazon-beauty fold={fold} {setting}"
        for fold, setting in product(range(10), settings)
    ]
    return Experiment(commands, ("recipe", "sampling", "rectify"), (), ("f@20", "masked f@20"))


def own_draws() -> Experiment:
    """Losses on draws: draws per row, draws that the batch shares, and the earlier defaults."""
    sets = "rg-lastfm-hetrec", "rg-ml-latest-small", "ml-100k", "ml-1m"
    softer = "temperature=0.1 prior=0.7"
    earlier = {
        "bpr": f"{softer} negatives=100",
        "bce": "",
        "dns": f"{softer} negatives=20",
        "self_adversarial": f"{softer} negatives=100",
    }
    commands = [
        f"quality {name} recipe={recipe}{options} seed={seed}"
        for name, recipe, seed in product(sets, earlier, range(3))
        for options in dict.fromkeys(
            ["", " shared=true", f" shared=true {earlier[recipe]}".rstrip()]
        )
    ]
    rows = "recipe", "shared", "temperature", "negatives"
    return Experiment(commands, rows, ("task",), ("ndcg@20", "ndcg@50"))


def rg() -> Experiment:
    """RG2, Table 3: every row tuned on validation, dim 64."""
    sets = "ml-100k", "ml-latest-small", "amazon-beauty-large", "ml-1m", "ml-10m-implicit"
    by_descent = (
        *("bpr", "bce", "ssm", "uib", "uib link=hinge", "sml", "sparsemax", "softmax"),
        "softmax score=dot",
    )
    rows = [f"{recipe} tune=12 epochs=30 patience=4" for recipe in by_descent]
    rows += [f"{recipe} tune=24 epochs=12 patience=3" for recipe in ("ials", "rg2", "rgx")]
    commands = [f"quality rg-{name} recipe={row} dim=64" for name, row in product(sets, rows)]
    return Experiment(commands, ("recipe", "score", "link"), ("task",), ("ndcg@10", "mrr@10"))


def rg_curves() -> Experiment:
    """RG2, Fig. 1: validation by seconds of training, with the settings that `rg` found."""
    cosine = "lr=0.00411 temperature=0.222 prior=1"
    found = (
        "recipe=ials alpha=null lam=0.2",
        "recipe=rg2 alpha=0.03 lam=0.1",
        "recipe=rgx alpha=0.041 lam=0.0701",
        f"recipe=softmax {cosine}",
        f"recipe=ssm {cosine}",
        "recipe=bpr lr=0.01 temperature=0.2 prior=1 negatives=20",
        "recipe=softmax score=dot lr=0.00615",
    )
    commands = [f"quality rg-ml-1m {each} dim=64 epochs=30 patience=0 timed=true" for each in found]
    return Experiment(commands, ("recipe", "score"), ("task",), ("ndcg@10", "mrr@10"), True)


def links() -> Experiment:
    """RG2, Table 4: links of a graph of items, and of one of tags, tuned on validation."""
    by_descent = "bpr", "bce", "ssm", "softmax", "softmax score=dot"
    rows = [f"{recipe} tune=12 epochs=30 patience=4 dim=64" for recipe in by_descent]
    rows += [f"{recipe} tune=24 epochs=12 patience=3 dim=64" for recipe in ("ials", "rg2", "rgx")]
    rows += ["popular", "item_cf"]
    sets = "lastfm-hetrec-tags", "ml-10m-tags", "ml-1m"
    commands = [f"link_prediction {name} recipe={row}" for name, row in product(sets, rows)]
    return Experiment(commands, ("recipe", "score"), ("task",), ("map@10", "mrr@10", "ndcg@10"))


def fastvae() -> Experiment:
    """FastVAE, Table 3: the factorisations beside the autoencoders, tuned on validation."""
    recipes = "bpr", "warp", "aobpr", "dns", "pris", "pris index=imi_popularity", "self_adversarial"
    rows = [f"{recipe} tune=12 epochs=30 patience=4" for recipe in recipes]
    commands = [
        f"fastvae_quality {name} recipe={row} dim=64"
        for name, row in product(("gowalla", "ml-10m"), rows)
    ]
    return Experiment(commands, ("recipe", "index"), ("task",), ("ndcg@50", "recall@50"))


VAES = {
    "gowalla": {"latent": 96, "beta": 0.5, "lr": 0.006, "lr_end": 0.02, "epochs": 60},
    "ml-10m": {"latent": 32, "beta": 0.2, "lr": 0.003, "epochs": 35},
}  # of the rows of fastvae in the table
DRAWS = {"gowalla": 1000, "ml-10m": 500}
SAMPLERS = "imi_popularity", "imi_uniform", "imi_exact", "kernel", "popularity", "uniform"


def _words(**options: object) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


def fastvae_samplers() -> Experiment:
    """FastVAE, Table 3: every proposal tuned on validation, the latent size as in the table."""
    commands = [
        f"fastvae_quality {name} recipe=fastvae index={index} latent={options['latent']} "
        f"negatives={DRAWS[name]} tune=6 epochs=40 patience=5"
        for (name, options), index in product(VAES.items(), SAMPLERS)
    ]
    return Experiment(commands, ("index",), ("task",), ("ndcg@50", "recall@50"))


def fastvae_curves() -> Experiment:
    """FastVAE, Fig. 3: validation by epoch for each proposal, and for the softmax."""
    commands = []
    for name, options in VAES.items():
        ending = _words(**options, patience=0)
        commands.append(f"fastvae_quality {name}-valid recipe=mult_vae {ending}")
        for index in SAMPLERS:
            sampled = f"recipe=fastvae index={index} negatives={DRAWS[name]}"
            commands.append(f"fastvae_quality {name}-valid {sampled} {ending}")
    return Experiment(commands, ("recipe", "index"), ("task",), ("ndcg@20", "ndcg@50"), True)


def fastvae_draws() -> Experiment:
    """FastVAE, Fig. 5: draws per user, and codewords per codebook."""
    changed = (
        *({"negatives": n} for n in (200, 1000, 5000)),
        *({"codewords": n} for n in (8, 16, 32, 64, 128)),
    )
    commands = [
        f"fastvae_quality {name} recipe=fastvae {_words(**options, patience=0, **change)}"
        for (name, options), change in product(VAES.items(), changed)
    ]
    return Experiment(commands, ("negatives", "codewords"), ("task",), ("ndcg@50", "recall@50"))


def wrmf() -> Experiment:
    """FastVAE, Table 3, WRMF with the grid of the paper: an event weighs so many times as much as
    an item without one, dim 32, a plain L2 of .01; `-valid` chooses."""
    commands = [
        f"fastvae_quality {name}{part} recipe=ials dim=32 reg=l2 alpha={1 / weight:g} "
        f"lam={0.01 / weight:g} epochs=15 patience=3"
        for name, part, weight in product(
            ("gowalla", "ml-10m"), ("-valid", ""), (1, 5, 10, 20, 50, 100, 200, 500)
        )
    ]
    return Experiment(commands, ("alpha",), ("task",), ("ndcg@50", "recall@50"))


EXPERIMENTS = {
    "in-batch": in_batch,
    "dtr": dtr,
    "dtr-folds": dtr_folds,
    "dtr-rounds": dtr_rounds,
    "dtr-negatives": dtr_negatives,
    "own-draws": own_draws,
    "rg": rg,
    "rg-curves": rg_curves,
    "links": links,
    "fastvae": fastvae,
    "fastvae-samplers": fastvae_samplers,
    "fastvae-curves": fastvae_curves,
    "fastvae-draws": fastvae_draws,
    "wrmf": wrmf,
}

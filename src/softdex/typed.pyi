# fmt: off
"""`fit` with the options of each recipe; written by tools/write_recipes.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.model.retriever import Retriever

@overload
def fit(
    recipe: Literal["aobpr"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, correct: Literal["draws", "all"] = "draws",
    smooth: float = 0.0, encoder: Literal["user", "history", "mix"] = "user", score:
    Literal["cosine", "dot", "dot_bias", "euclidean"] = "cosine", dim: int = 64, temperature: float
    = 0.2, prior: float = 1.0, share: float = 0.5, max_history: int = 50, features: list[str] | str
    | None = None, user_features: list[str] | str | None = None, ids: Literal["add", "drop"] =
    "add", id_dropout: float = 0.1, margin: float = 1.0, rank_weight: Literal["harmonic", "log"] =
    "harmonic", link: Literal["logistic", "hinge"] = "logistic", most_margin: float = 1.0, symmetry:
    float = 0.1, reward: float = 0.1, negatives: int | None = 20, shared: bool | None = None,
    popularity: Literal["power", "log", "count"] = "power", power: float = 0.5, codewords: int = 64,
    rank_scale: float = 500.0, refit_every: int = 500, epochs: int = 200, batch_size: int | None =
    None, lr: float = 0.01, lr_end: float = 1.0, decay: float = 0.0, per_row: bool = False,
    patience: int = 5, seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] =
    "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["bce", "bpr", "dns", "pris", "self_adversarial", "softmax", "sparsemax", "ssm",
    "uib", "warp"], train: Interactions, valid: Holdout | None = None, start: Retriever | None =
    None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, correct: Literal["draws", "all"] = "draws",
    smooth: float = 0.0, encoder: Literal["user", "history", "mix"] = "user", score:
    Literal["cosine", "dot", "dot_bias", "euclidean"] = ..., dim: int = 64, temperature: float =
    ..., prior: float = ..., share: float = 0.5, max_history: int = 50, features: list[str] | str |
    None = None, user_features: list[str] | str | None = None, ids: Literal["add", "drop"] = "add",
    id_dropout: float = 0.1, margin: float = 1.0, rank_weight: Literal["harmonic", "log"] =
    "harmonic", link: Literal["logistic", "hinge"] = "logistic", most_margin: float = 1.0, symmetry:
    float = 0.1, reward: float = 0.1, index: Literal["auto", "uniform", "popularity", "imi_uniform",
    "imi_popularity", "imi_exact", "kernel", "factor_ranks", "full"] = ..., negatives: int | None =
    ..., shared: bool | None = None, popularity: Literal["power", "log", "count"] = "power", power:
    float = 0.5, codewords: int = 64, rank_scale: float = 500.0, refit_every: int = 500, epochs: int
    = 200, batch_size: int | None = ..., lr: float = ..., lr_end: float = 1.0, decay: float = ...,
    per_row: bool = False, patience: int = 5, seed: int = 0, device: str = "auto", precision:
    Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["bir", "g_tower", "mns", "ssl", "ssl_pop", "xir"], train: Interactions, valid:
    Holdout | None = None, start: Retriever | None = None, *, refit: bool = False, folder: str |
    Path | None = None, resume: bool = False, max_memory: int | str | None = None, max_seconds:
    float | str | None = None, shard: bool | None = None, quiet: bool = False, verbose: bool =
    False, negatives: int | None = None, popularity: Literal["count", "log", "power"] = "count",
    power: float = 0.5, correction: Literal["none", "uniform", "proposal"] = "none", own:
    Literal["drop", "keep"] = "drop", hits: Literal["drop", "keep"] = "drop", cache_share: float =
    0.2, cache_weight: Literal["pop", "occurrence"] = "pop", cache_decay: float = 1.0, rate: float =
    0.01, block: int = 0, index: Literal["flat", "imi"] = "flat", smooth: float = 0.0, encoder:
    Literal["user", "history", "mix"] = "user", score: Literal["cosine", "dot", "dot_bias",
    "euclidean"] = "cosine", dim: int = 64, temperature: float = ..., prior: float = ..., share:
    float = 0.5, max_history: int = 50, features: list[str] | str | None = None, user_features:
    list[str] | str | None = None, ids: Literal["add", "drop"] = "add", id_dropout: float = 0.1,
    epochs: int = 60, batch_size: int | None = None, lr: float = 0.01, lr_end: float = 0.05, decay:
    float = 0.0, per_row: bool = False, patience: int = 10, seed: int = 0, device: str = "auto",
    precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["din"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, objective: Literal["softmax", "binary"] =
    "softmax", dim: int = 24, norm: Literal["none", "layer", "batch"] = "batch", negatives: int |
    None = None, max_history: int | None = None, min_history: int = 1, windows: Literal["all",
    "last"] = "all", max_instances: int = 0, epochs: int | None = None, batch_size: int | None =
    None, lr: float | None = None, lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False,
    patience: int = 3, seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] =
    "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["dtr"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, sampling: Literal["tree", "uniform",
    "siblings", "beam"] | None = None, leaves: str | None = None, category: str | None = None,
    arity: int = 2, room: float = 0.0, beam: int = 150, dim: int = 24, norm: Literal["none",
    "layer", "batch"] = "batch", negatives: int | None = None, max_history: int | None = None,
    min_history: int = 1, windows: Literal["all", "last"] = "all", max_instances: int = 0, rounds:
    int = 1, gap: int = 7, deal: Literal["auction", "greedy"] = "auction", per_item: int = 64, move:
    bool = True, restart: bool = False, rectify: Literal["none", "path", "child", "own"] = "none",
    normalise: bool = False, estimator: str | None = None, warm_up: int = 0, epochs: int | None =
    None, batch_size: int | None = None, lr: float | None = None, lr_end: float = 0.05, decay: float
    = 0.0, per_row: bool = False, patience: int = 3, seed: int = 0, device: str = "auto", precision:
    Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["fastvae", "vae"], train: Interactions, valid: Holdout | None = None, start:
    Retriever | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool
    = False, max_memory: int | str | None = None, max_seconds: float | str | None = None, shard:
    bool | None = None, quiet: bool = False, verbose: bool = False, dim: int = 200, hidden: int =
    200, latent: int = 64, activation: Literal["tanh", "relu"] = "tanh", dropout: float = 0.5, beta:
    float = 0.3, anneal: int = 0, max_history: int = 200, index: Literal["auto", "uniform",
    "popularity", "imi_uniform", "imi_popularity", "imi_exact", "kernel", "factor_ranks", "full"] =
    ..., negatives: int = 500, shared: bool | None = None, popularity: Literal["power", "log",
    "count"] = "power", power: float = 0.5, codewords: int = 64, rank_scale: float = 500.0,
    refit_every: int = 500, epochs: int = 60, batch_size: int | None = None, lr: float = ...,
    lr_end: float = 0.05, decay: float = 0.0, per_row: bool = ..., patience: int = 10, seed: int =
    0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["ials"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, dim: int = 128, alpha: float | None = None,
    lam: float = 0.2, reg: Literal["l2", "sum_w", "frequency"] = "frequency", nu: float = 0.5,
    epochs: int = 8, patience: int = 2, steps: int = 4, seed: int = 0, device: str = "auto"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["item_cf"], train: Interactions, valid: Holdout | None = None, start: Retriever
    | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, neighbours: int = 200, user_power: float =
    0.5, asymmetry: float = 0.6, shrink: float = 0.0
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["jtm"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, leaves: str | None = None, category: str |
    None = None, arity: int = 2, room: float = 0.0, beam: int = 150, dim: int = 24, norm:
    Literal["none", "layer", "batch"] = "batch", negatives: int | None = 6, max_history: int | None
    = None, min_history: int = 1, windows: Literal["all", "last"] = "all", max_instances: int = 0,
    rounds: int = 2, gap: int = 7, deal: Literal["auction", "greedy"] = "auction", per_item: int =
    64, move: bool = True, restart: bool = False, epochs: int | None = None, batch_size: int | None
    = None, lr: float | None = None, lr_end: float = 0.05, decay: float = 0.0, per_row: bool =
    False, patience: int = 3, seed: int = 0, device: str = "auto", precision: Literal["float32",
    "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["mf"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, objective: Literal["softmax", "ssm", "bpr",
    "bce", "dns", "self_adversarial", "warp", "pris", "sparsemax", "uib", "sml"] = "ssm", correct:
    Literal["draws", "all"] = "draws", smooth: float = 0.0, encoder: Literal["user", "history",
    "mix"] = "user", score: Literal["cosine", "dot", "dot_bias", "euclidean"] = "cosine", dim: int =
    64, temperature: float = 0.1, prior: float = 0.7, share: float = 0.5, max_history: int = 50,
    features: list[str] | str | None = None, user_features: list[str] | str | None = None, ids:
    Literal["add", "drop"] = "add", id_dropout: float = 0.1, margin: float = 1.0, rank_weight:
    Literal["harmonic", "log"] = "harmonic", link: Literal["logistic", "hinge"] = "logistic",
    most_margin: float = 1.0, symmetry: float = 0.1, reward: float = 0.1, index: Literal["auto",
    "uniform", "popularity", "imi_uniform", "imi_popularity", "imi_exact", "kernel", "factor_ranks",
    "full"] = "uniform", negatives: int | None = None, shared: bool | None = None, popularity:
    Literal["power", "log", "count"] = "power", power: float = 0.5, codewords: int = 64, rank_scale:
    float = 500.0, refit_every: int = 500, epochs: int = 200, batch_size: int | None = None, lr:
    float = 0.01, lr_end: float = 1.0, decay: float = 0.0, per_row: bool = False, patience: int = 5,
    seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["mult_vae"], train: Interactions, valid: Holdout | None = None, start: Retriever
    | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, dim: int = 200, hidden: int = 200, latent:
    int = 64, activation: Literal["tanh", "relu"] = "tanh", dropout: float = 0.5, beta: float = 0.3,
    anneal: int = 0, max_history: int = 200, negatives: int = 500, shared: bool | None = None,
    popularity: Literal["power", "log", "count"] = "power", power: float = 0.5, codewords: int = 64,
    rank_scale: float = 500.0, refit_every: int = 500, epochs: int = 60, batch_size: int | None =
    None, lr: float = 0.002, lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False,
    patience: int = 10, seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] =
    "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["otm"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, leaves: str | None = None, category: str |
    None = None, arity: int = 2, room: float = 0.0, beam: int = 50, dim: int = 24, norm:
    Literal["none", "layer", "batch"] = "batch", max_history: int | None = None, min_history: int =
    1, windows: Literal["all", "last"] = "all", max_instances: int = 0, rounds: int = 1, gap: int =
    7, deal: Literal["auction", "greedy"] = "auction", per_item: int = 64, move: bool = True,
    restart: bool = False, warm_up: int = 0, epochs: int | None = None, batch_size: int | None =
    None, lr: float | None = None, lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False,
    patience: int = 3, seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] =
    "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["plt"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, leaves: str | None = None, category: str |
    None = None, arity: int = 2, room: float = 0.0, beam: int = 150, dim: int = 24, norm:
    Literal["none", "layer", "batch"] = "batch", max_history: int | None = None, min_history: int =
    1, windows: Literal["all", "last"] = "all", max_instances: int = 0, rounds: int = 1, gap: int =
    7, deal: Literal["auction", "greedy"] = "auction", per_item: int = 64, move: bool = True,
    restart: bool = False, epochs: int | None = None, batch_size: int | None = None, lr: float |
    None = None, lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False, patience: int = 3,
    seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["popular"], train: Interactions, valid: Holdout | None = None, start: Retriever
    | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, half_life: float | None = None
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["rg", "rgx"], train: Interactions, valid: Holdout | None = None, start:
    Retriever | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool
    = False, max_memory: int | str | None = None, max_seconds: float | str | None = None, shard:
    bool | None = None, quiet: bool = False, verbose: bool = False, dim: int = 128, alpha: float =
    0.03, lam: float = 0.1, reg: Literal["l2", "sum_w", "frequency", "scores"] = "frequency", nu:
    float = 1.0, beta: float = ..., interaction: Literal["exact", "frobenius"] = "exact", sampled:
    int | None = None, solver: Literal["als", "svd", "newton_cg"] = "als", encoder: Literal["user",
    "history", "mix"] = "user", share: float = 0.5, max_history: int = 200, epochs: int = 8,
    patience: int = 2, steps: int = 4, seed: int = 0, device: str = "auto"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["rg2"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, dim: int = 128, alpha: float = 0.03, lam:
    float = 0.1, reg: Literal["l2", "sum_w", "frequency", "scores"] = "frequency", nu: float = 1.0,
    sampled: int | None = None, solver: Literal["als", "svd", "newton_cg"] = "als", encoder:
    Literal["user", "history", "mix"] = "user", share: float = 0.5, max_history: int = 200, epochs:
    int = 8, patience: int = 2, steps: int = 4, seed: int = 0, device: str = "auto"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["sasrec"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, objective: Literal["softmax", "ssm", "ssl",
    "ssl_pop", "mns", "g_tower", "bir", "xir"] = "softmax", dim: int = 128, layers: int = 2, heads:
    int = 2, hidden: int = 256, dropout: float = 0.2, max_history: int = 200, features: list[str] |
    str | None = None, ids: Literal["add", "drop"] = "add", id_dropout: float = 0.1, positions: int
    | None = None, index: Literal["auto", "uniform", "popularity", "imi_uniform", "imi_popularity",
    "imi_exact", "kernel", "factor_ranks", "full"] = "auto", negatives: int = 500, shared: bool |
    None = None, popularity: Literal["power", "log", "count"] = "power", power: float = 0.5,
    codewords: int = 64, rank_scale: float = 500.0, refit_every: int = 500, epochs: int = 60,
    batch_size: int | None = None, lr: float = 0.001, lr_end: float = 0.05, decay: float = 0.0,
    per_row: bool = False, patience: int = 10, seed: int = 0, device: str = "auto", precision:
    Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["sequence"], train: Interactions, valid: Holdout | None = None, start: Retriever
    | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, encoder: Literal["attention", "dnn"] =
    "attention", objective: Literal["softmax", "ssm", "ssl", "ssl_pop", "mns", "g_tower", "bir",
    "xir"] = "softmax", dim: int = 128, layers: int = 2, heads: int = 2, hidden: int = 256, dropout:
    float = 0.2, max_history: int = 200, features: list[str] | str | None = None, ids:
    Literal["add", "drop"] = "add", id_dropout: float = 0.1, positions: int | None = None, index:
    Literal["auto", "uniform", "popularity", "imi_uniform", "imi_popularity", "imi_exact", "kernel",
    "factor_ranks", "full"] = "auto", negatives: int = 500, shared: bool | None = None, popularity:
    Literal["power", "log", "count"] = "power", power: float = 0.5, codewords: int = 64, rank_scale:
    float = 500.0, refit_every: int = 500, epochs: int = 60, batch_size: int | None = None, lr:
    float = 0.001, lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False, patience: int =
    10, seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["sml"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, correct: Literal["draws", "all"] = "draws",
    smooth: float = 0.0, encoder: Literal["user", "history", "mix"] = "user", dim: int = 64,
    temperature: float = 0.1, prior: float = 0.7, share: float = 0.5, max_history: int = 50,
    features: list[str] | str | None = None, user_features: list[str] | str | None = None, ids:
    Literal["add", "drop"] = "add", id_dropout: float = 0.1, margin: float = 1.0, rank_weight:
    Literal["harmonic", "log"] = "harmonic", link: Literal["logistic", "hinge"] = "logistic",
    most_margin: float = 1.0, symmetry: float = 0.1, reward: float = 0.1, index: Literal["auto",
    "uniform", "popularity", "imi_uniform", "imi_popularity", "imi_exact", "kernel", "factor_ranks",
    "full"] = "uniform", negatives: int | None = 20, shared: bool | None = None, popularity:
    Literal["power", "log", "count"] = "power", power: float = 0.5, codewords: int = 64, rank_scale:
    float = 500.0, refit_every: int = 500, epochs: int = 200, batch_size: int | None = None, lr:
    float = 0.005, lr_end: float = 1.0, decay: float = 0.0, per_row: bool = False, patience: int =
    5, seed: int = 0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["tdm"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, leaves: str | None = None, category: str |
    None = None, arity: int = 2, room: float = 0.0, beam: int = 150, dim: int = 24, norm:
    Literal["none", "layer", "batch"] = "batch", negatives: int | None = 6, max_history: int | None
    = None, min_history: int = 1, windows: Literal["all", "last"] = "all", max_instances: int = 0,
    rounds: int = 1, move: bool = True, restart: bool = False, epochs: int | None = None,
    batch_size: int | None = None, lr: float | None = None, lr_end: float = 0.05, decay: float =
    0.0, per_row: bool = False, patience: int = 3, seed: int = 0, device: str = "auto", precision:
    Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["tree"], train: Interactions, valid: Holdout | None = None, start: Retriever |
    None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, objective: Literal["softmax", "binary"] =
    "softmax", sampling: Literal["tree", "uniform", "siblings", "beam"] | None = None, leaves: str |
    None = None, category: str | None = None, arity: int = 2, room: float = 0.0, beam: int = 150,
    dim: int = 24, norm: Literal["none", "layer", "batch"] = "batch", negatives: int | None = None,
    max_history: int | None = None, min_history: int = 1, windows: Literal["all", "last"] = "all",
    max_instances: int = 0, rounds: int = 1, relearn: Literal["softmax", "binary", "cluster"] =
    "softmax", gap: int = 7, deal: Literal["auction", "greedy"] = "auction", per_item: int = 64,
    move: bool = True, restart: bool = False, rectify: Literal["none", "path", "child", "own"] =
    "none", normalise: bool = False, estimator: str | None = None, warm_up: int = 0, epochs: int |
    None = None, batch_size: int | None = None, lr: float | None = None, lr_end: float = 0.05,
    decay: float = 0.0, per_row: bool = False, patience: int = 3, seed: int = 0, device: str =
    "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["two_tower"], train: Interactions, valid: Holdout | None = None, start:
    Retriever | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool
    = False, max_memory: int | str | None = None, max_seconds: float | str | None = None, shard:
    bool | None = None, quiet: bool = False, verbose: bool = False, objective: Literal["ssl",
    "ssl_pop", "mns", "g_tower", "bir", "xir"] = "bir", negatives: int | None = None, popularity:
    Literal["count", "log", "power"] = "count", power: float = 0.5, correction: Literal["none",
    "uniform", "proposal"] = "none", own: Literal["drop", "keep"] = "drop", hits: Literal["drop",
    "keep"] = "drop", cache_share: float = 0.2, cache_weight: Literal["pop", "occurrence"] = "pop",
    cache_decay: float = 1.0, rate: float = 0.01, block: int = 0, index: Literal["flat", "imi"] =
    "flat", smooth: float = 0.0, encoder: Literal["user", "history", "mix"] = "user", score:
    Literal["cosine", "dot", "dot_bias", "euclidean"] = "cosine", dim: int = 64, temperature: float
    = 0.2, prior: float = 0.5, share: float = 0.5, max_history: int = 50, features: list[str] | str
    | None = None, user_features: list[str] | str | None = None, ids: Literal["add", "drop"] =
    "add", id_dropout: float = 0.1, epochs: int = 60, batch_size: int | None = None, lr: float =
    0.01, lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False, patience: int = 10, seed:
    int = 0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: Literal["youtube_dnn"], train: Interactions, valid: Holdout | None = None, start:
    Retriever | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool
    = False, max_memory: int | str | None = None, max_seconds: float | str | None = None, shard:
    bool | None = None, quiet: bool = False, verbose: bool = False, objective: Literal["softmax",
    "ssm", "ssl", "ssl_pop", "mns", "g_tower", "bir", "xir"] = "ssm", dim: int = 24, max_history:
    int = 200, features: list[str] | str | None = None, ids: Literal["add", "drop"] = "add",
    id_dropout: float = 0.1, positions: int | None = None, index: Literal["auto", "uniform",
    "popularity", "imi_uniform", "imi_popularity", "imi_exact", "kernel", "factor_ranks", "full"] =
    "uniform", negatives: int = 1000, shared: bool | None = None, popularity: Literal["power",
    "log", "count"] = "power", power: float = 0.5, codewords: int = 64, rank_scale: float = 500.0,
    refit_every: int = 500, epochs: int = 60, batch_size: int | None = None, lr: float = 0.001,
    lr_end: float = 0.05, decay: float = 0.0, per_row: bool = False, patience: int = 10, seed: int =
    0, device: str = "auto", precision: Literal["float32", "bf16"] = "float32"
) -> Retriever: ...

@overload
def fit(
    recipe: str, train: Interactions, valid: Holdout | None = None, start: Retriever | None = None,
    *, refit: bool = False, folder: str | Path | None = None, resume: bool = False, max_memory: int
    | str | None = None, max_seconds: float | str | None = None, shard: bool | None = None, quiet:
    bool = False, verbose: bool = False
) -> Retriever: ...

@overload
def fit(
    recipe: Callable[..., Any], train: Interactions, valid: Holdout | None = None, start: Retriever
    | None = None, *, refit: bool = False, folder: str | Path | None = None, resume: bool = False,
    max_memory: int | str | None = None, max_seconds: float | str | None = None, shard: bool | None
    = None, quiet: bool = False, verbose: bool = False, **given: Any
) -> Retriever: ...

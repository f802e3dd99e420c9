"""Export: the item vectors of a model as a faiss index, to be served without softdex."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from softdex.data.keys import Keys
from softdex.errors import SoftdexError
from softdex.files import write_atomically
from softdex.score.contract import Product

CARD = "softdex"  # the entry of the key file's metadata that says what the index holds
TOO_SMALL = re.compile(r"(?<!\d)0+(?!\d)|(HNSW|NSG)0*1(?!\d)")  # faiss dies of these, or hangs


class Model(Protocol):
    """What of a `Retriever` is exported."""

    recipe: str
    items: Keys
    index: Any


def to_faiss(model: Model, path: Path, factory: str) -> int:
    """Write the living items as a faiss index, and their keys beside it; returns their number."""
    scorer = with_vectors(model, "export_faiss")
    alive = _alive(model)
    rows = np.flatnonzero(alive)
    vectors = item_vectors(scorer, rows)
    faiss = _faiss()
    index = _built(faiss, factory, vectors, rows, everything=bool(alive.all()))
    card = {
        "recipe": model.recipe,
        "metric": "inner product",
        "dim": vectors.shape[1],
        "offset_appended": has_offsets(scorer),
        "items": len(rows),
        "factory": factory,
    }
    keys = _key_table(model.items, alive).replace_schema_metadata({CARD: json.dumps(card)})
    _write_both(faiss, index, path, keys)
    return len(rows)


def key_file(path: Path) -> Path:
    """Where the keys of an exported index are."""
    return Path(f"{path}.keys.parquet")


def with_vectors(model: Model, where: str) -> Product:
    """The scorer of a model whose items have vectors; any other model is refused."""
    scorer = model.index.scorer
    if not scorer.is_product:
        raise SoftdexError(
            f"{where}: expected a model with item vectors, {model.recipe} has none. Fit one that "
            "has, such as rg2 or ssm."
        )
    return scorer


def has_offsets(scorer: Product) -> bool:
    """Whether items score something for everybody, so that vectors get one more coordinate."""
    return scorer.offsets(slice(0, 1)) is not None


@torch.inference_mode()
def item_vectors(scorer: Product, rows: np.ndarray) -> np.ndarray:
    """Vectors of these items (N, D), or (N, D + 1) with their offsets at the end."""
    ids = torch.from_numpy(rows)
    return _joined(scorer.vectors(ids), scorer.offsets(ids))


@torch.inference_mode()
def query_vectors(scorer: Product, query: Tensor) -> np.ndarray:
    """What item vectors are multiplied with, (B, D), or (B, D + 1) with a 1 for the offset."""
    vectors = scorer.project(query)
    return _joined(vectors, vectors.new_ones(len(vectors)) if has_offsets(scorer) else None)


# inside ------------------------------------------------------------------------------------------


def _joined(vectors: Tensor, last: Tensor | None) -> np.ndarray:
    parts = [vectors] if last is None else [vectors, last.unsqueeze(1)]
    return torch.cat(parts, 1).float().cpu().numpy()


def _alive(model: Model) -> np.ndarray:
    alive = model.index.alive
    return np.ones(len(model.items), bool) if alive is None else alive.cpu().numpy()


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise SoftdexError(
            f"export_faiss: faiss cannot be imported ({error}). Run pip install softdex[ann]"
        ) from None
    return faiss


def _built(
    faiss: Any, factory: str, vectors: np.ndarray, rows: np.ndarray, *, everything: bool
) -> Any:
    """A trained index whose ids are rows; only where rows are missing does it have to map them."""
    if not isinstance(factory, str) or TOO_SMALL.search(factory):
        raise SoftdexError(
            "export_faiss: expected factory as faiss writes it, such as 'Flat' or 'IVF1024,Flat' "
            f"(sizes above 0, graphs of at least 2 links), got {factory!r}."
        )
    count, dim = vectors.shape
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if not everything and not isinstance(index, faiss.IndexIDMap):
            index = faiss.IndexIDMap(index)
        index.train(vectors)
        if isinstance(index, faiss.IndexIDMap):
            index.add_with_ids(vectors, rows)
        else:
            index.add(vectors)
    except (RuntimeError, AssertionError) as error:
        raise SoftdexError(
            f"export_faiss: faiss makes no index {factory!r} of {count:,} vectors of {dim} numbers "
            f"({_reason(error)}). Choose another factory; 'Flat' takes any vectors."
        ) from None
    return index


def _reason(error: BaseException) -> str:
    """What faiss says, without the place in its source."""
    said = re.sub(r"^Error in .* at \S+:\d+: ", "", str(error), flags=re.DOTALL)
    return re.sub(r"^Error: '.*' failed: ", "", said).strip()


def _key_table(items: Keys, alive: np.ndarray) -> pa.Table:
    """The key of every row, nothing where the item was removed."""
    rows = pa.array(np.arange(len(alive)), mask=~alive)
    living = Keys(items.values.take(rows), items.type).all()
    return pa.table({"row": np.arange(len(alive)), "item": living})


def _write_both(faiss: Any, index: Any, path: Path, keys: pa.Table) -> None:
    """The keys are on disk before the index takes its place, and take theirs right after it."""

    def write_index(file: Any) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))

    def write_keys(file: Any) -> None:
        pq.write_table(keys, file)
        file.flush()
        write_atomically(path, write_index)

    write_atomically(key_file(path), write_keys)

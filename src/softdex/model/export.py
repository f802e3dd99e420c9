"""Export item vectors as a faiss index, to be served without softdex."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from softdex.data.keys import Keys
from softdex.errors import SoftdexError
from softdex.files import write_atomically
from softdex.index.contract import MAX_MEMORY
from softdex.model.asking import Ask, batch_size, queries, who
from softdex.score.contract import Product

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever

CARD = "softdex"  # entry of the key file's metadata that describes the index
TOO_SMALL = re.compile(r"(?<!\d)0+(?!\d)|(HNSW|NSG)0*1(?!\d)")  # faiss crashes or hangs on these


def to_faiss(model: Retriever, path: Path, factory: str) -> int:
    """Write the items that are not removed as a faiss index, and their keys beside it.

    Returns the number of items written.
    """
    scorer = with_vectors(model, "export_faiss")
    alive = _alive(model)
    rows = np.flatnonzero(alive)
    vectors = exported_vectors(scorer, rows)
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
    """Return the path of the keys of an exported index."""
    return Path(f"{path}.keys.parquet")


def query_vectors(model: Retriever, users: Any, history: Any, ask: Ask = who) -> np.ndarray:
    """Return query vectors (B, D), float32; see `Retriever.query_vectors`."""
    scorer = with_vectors(model, "query_vectors")
    asked = ask(model, "query_vectors", users, history)
    size = batch_size(model.encoder, MAX_MEMORY, 1)
    found = queries(model, asked.rows, asked.history, size)
    return np.concatenate([exported_queries(scorer, query) for _, query in found])


def with_vectors(model: Retriever, method: str) -> Product:
    """Return the scorer of a model with item vectors; refuse any other model."""
    scorer: Product = model.index.scorer
    if not scorer.is_product:
        raise SoftdexError(
            f"{method}: expected a model with item vectors, {model.recipe} has none. Fit one that "
            "has, such as rg2 or ssm."
        )
    return scorer


def has_offsets(scorer: Product) -> bool:
    """Return whether items have offsets, which take one more coordinate per vector."""
    return scorer.offsets(slice(0, 1)) is not None


@torch.inference_mode()
def exported_vectors(scorer: Product, rows: np.ndarray) -> np.ndarray:
    """Return item vectors (N, D), or (N, D + 1) with the offset as the last coordinate."""
    ids = torch.from_numpy(rows)
    return _joined(scorer.vectors(ids), scorer.offsets(ids))


@torch.inference_mode()
def exported_queries(scorer: Product, query: Tensor) -> np.ndarray:
    """Return query vectors (B, D), or (B, D + 1) with a 1 as the last coordinate."""
    vectors = scorer.project(query)
    return _joined(vectors, vectors.new_ones(len(vectors)) if has_offsets(scorer) else None)


# inside ------------------------------------------------------------------------------------------


def _joined(vectors: Tensor, last: Tensor | None) -> np.ndarray:
    """Append a coordinate, if there is one, and return float32."""
    parts = [vectors] if last is None else [vectors, last.unsqueeze(1)]
    return torch.cat(parts, 1).float().cpu().numpy()


def _alive(model: Retriever) -> np.ndarray:
    """Return which items are not removed (I,)."""
    alive: np.ndarray = model.index.alive.cpu().numpy()
    return alive


def _faiss() -> Any:
    """Import faiss, or say how to install it."""
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
    """Train an index whose ids are item rows; ids are mapped only if rows are missing."""
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
            f"export_faiss: faiss cannot build {factory!r} of {count:,} vectors of {dim} numbers "
            f"({_reason(error)}). Choose another factory; 'Flat' takes any vectors."
        ) from None
    return index


def _reason(error: BaseException) -> str:
    """Return the message of a faiss error without its source location."""
    said = re.sub(r"^Error in .* at \S+:\d+: ", "", str(error), flags=re.DOTALL)
    return re.sub(r"^Error: '.*' failed: ", "", said).strip()


def _key_table(items: Keys, alive: np.ndarray) -> pa.Table:
    """Return a table with the key of every row, null where the item was removed."""
    rows = pa.array(np.arange(len(alive)), mask=~alive)
    living = Keys(items.values.take(rows), items.type).all()
    return pa.table({"row": np.arange(len(alive)), "item": living})


def _write_both(faiss: Any, index: Any, path: Path, keys: pa.Table) -> None:
    """Write both files, or neither: the keys are on disk before the index replaces an older one,
    and are renamed right after it."""

    def write_index(file: Any) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))

    def write_keys(file: Any) -> None:
        pq.write_table(keys, file)
        file.flush()
        write_atomically(path, write_index)

    write_atomically(key_file(path), write_keys)

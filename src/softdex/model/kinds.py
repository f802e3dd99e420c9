"""Parts: encoders and scorers by name, and the tensors from which each is built again.

What comes from a file is checked here before anything computes with it: compiled code trusts
row pointers and ids, so a hostile file must not get that far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from softdex.data.arrow import plain_type
from softdex.encode.counting import Anyone, Neighbours
from softdex.encode.features.columns import Encoded, columns_from_json
from softdex.encode.features.tower import Tower
from softdex.encode.history import Mixed, Recent, Vae
from softdex.encode.sequence import Dnn, Sequence
from softdex.encode.table import Users
from softdex.errors import ArtifactError
from softdex.index.flat import Flat
from softdex.index.imi.index import Imi
from softdex.index.tree.tree import Tree
from softdex.model.artifact import Contents, check_kinds
from softdex.score.din import NORMS, Din
from softdex.score.product import Constant, Cosine, Dot, Sparse
from softdex.solve.closed.fold_in import FoldIn

FLOATS, LONGS, INTS = torch.float32, torch.int64, torch.int32
DOUBLES, FLAGS = torch.float64, torch.bool
Layout = Mapping[str, tuple[torch.dtype, str]]
"""Name of a tensor -> its type and shape. U users, I items, a digit itself; any other letter is as
large as it is where it first stands."""


class Part(NamedTuple):
    """A class and the tensors it is built from; the name up to the dot is the argument's."""

    kind: type
    tensors: Layout
    optional: tuple[str, ...] = ()
    shares_items: bool = False  # also takes the scorer's item table


ENCODERS = {
    "anyone": Part(Anyone, {}),
    "neighbours": Part(
        Neighbours, {"indptr": (LONGS, "P"), "indices": (INTS, "N"), "values": (FLOATS, "N")}
    ),
    "users": Part(Users, {"vectors.weight": (FLOATS, "UD")}),
    "mixed": Part(
        Mixed,
        {"vectors.weight": (FLOATS, "UD"), "share": (FLOATS, ""), "length": (LONGS, "")},
        shares_items=True,
    ),
    "vae": Part(
        Vae,
        {
            "bag.weight": (FLOATS, "IH"),
            "bias": (FLOATS, "H"),
            "mix": (FLOATS, "HL"),
            "mix_bias": (FLOATS, "L"),
            "out": (FLOATS, "ZD"),
            "out_bias": (FLOATS, "D"),
        },
    ),
    "sequence": Part(
        Sequence,
        {
            "positions": (FLOATS, "WD"),
            "attend": (FLOATS, "RDA"),
            "attend_bias": (FLOATS, "RA"),
            "mix": (FLOATS, "RDD"),
            "mix_bias": (FLOATS, "RD"),
            "widen": (FLOATS, "RDF"),
            "widen_bias": (FLOATS, "RF"),
            "narrow": (FLOATS, "RFD"),
            "narrow_bias": (FLOATS, "RD"),
            "norm": (FLOATS, "K2D"),
            "heads": (LONGS, ""),
        },
        shares_items=True,
    ),
    "dnn": Part(
        Dnn,
        {
            "first": (FLOATS, "DF"),
            "first_bias": (FLOATS, "F"),
            "second": (FLOATS, "FG"),
            "second_bias": (FLOATS, "G"),
            "third": (FLOATS, "GD"),
            "third_bias": (FLOATS, "D"),
            "length": (LONGS, ""),
        },
        shares_items=True,
    ),
    "recent": Part(Recent, {"length": (LONGS, "")}),
    "foldin": Part(
        FoldIn,
        {"vectors.weight": (FLOATS, "UD"), "total": (FLOATS, "U"), "terms": (DOUBLES, "T")},
        shares_items=True,
    ),
}
SCORERS = {
    "constant": Part(Constant, {"weight": (FLOATS, "I")}),
    "dot": Part(
        Dot, {"items.weight": (FLOATS, "ID"), "bias.weight": (FLOATS, "I1")}, ("bias.weight",)
    ),
    "cosine": Part(
        Cosine,
        {"items.weight": (FLOATS, "ID"), "temperature": (FLOATS, ""), "prior": (FLOATS, "I")},
        ("prior",),
    ),
    "sparse": Part(Sparse, {"fallback": (FLOATS, "I")}),
    "din": Part(
        Din,
        {
            "nodes.weight": (FLOATS, "RD"),
            "see": (FLOATS, "3DA"),
            "see_units": (FLOATS, "3A"),
            "weigh": (FLOATS, "2"),
            "windows": (LONGS, "W"),
            "first": (FLOATS, "EF"),
            "first_units": (FLOATS, "4F"),
            "first_stats": (FLOATS, "2F"),
            "second": (FLOATS, "FG"),
            "second_units": (FLOATS, "4G"),
            "second_stats": (FLOATS, "2G"),
            "third": (FLOATS, "GH"),
            "third_units": (FLOATS, "4H"),
            "third_stats": (FLOATS, "2H"),
            "last": (FLOATS, "H"),
            "last_bias": (FLOATS, ""),
            "norm": (LONGS, ""),
        },
    ),
}
INDEXES = {
    "flat": Part(Flat, {"alive": (FLAGS, "I")}, ("alive",)),
    "imi": Part(
        Imi,
        {
            "words": (FLOATS, "2CD"),
            "cell": (INTS, "I"),
            "logw": (FLOATS, "I"),
            "alive": (FLAGS, "I"),
            "last": (LONGS, ""),
            "residual": (FLAGS, ""),
            "effort": (DOUBLES, ""),
        },
    ),
    "tree": Part(
        Tree,
        {
            "item_of": (INTS, "S"),
            "alive": (FLAGS, "I"),
            "arity": (LONGS, ""),
            "depth": (LONGS, ""),
            "effort": (DOUBLES, ""),
            "product": (FLAGS, ""),
        },
    ),
}
TOWERS = {"tower": "features", "user_tower": "user_features"}  # where the manifest has columns
LETTERS = ("V", "X"), ("v", "x")  # how many values and numbers each of them reads
HISTORY = Part(
    dict, {"seen.indptr": (LONGS, "Q"), "seen.ids": (INTS, "M"), "item_counts": (LONGS, "I")}
)
NEEDED = {"recipe": str, "options": dict, "encoder": str, "scorer": str, "softdex": dict}
INFO = {"index": str, "data": str, "card": (dict, type(None)), "metrics": dict, "training": dict}
NORM, MOST_PLACES = range(len(NORMS)), 2**20  # of attention over histories
TEMPERATURES = (1e-4, 1e4)  # that a model can be calibrated to
NOT_INFO = (*NEEDED, *TOWERS.values(), "index", "format", "version", "tensors", "users", "items")


def rebuild(contents: Contents) -> tuple[Any, Any]:
    """Encoder and index, after everything in the file is known to fit together."""
    manifest, tensors, users, items = contents
    check_kinds(manifest, NEEDED, needed=True)
    check_kinds(manifest, INFO, needed=False)
    _check_temperature(manifest.get("temperature", 1.0))
    parts = {"": HISTORY}
    for role, known in (("encoder", ENCODERS), ("scorer", SCORERS), ("index", INDEXES)):
        name = manifest.get(role, "flat")
        if name not in known:
            raise ArtifactError(f"load: unknown {role} {name!r}. Upgrade softdex.")
        parts[f"{role}."] = known[name]
    for (what, entry), (values, numbers) in zip(TOWERS.items(), LETTERS, strict=True):
        if entry in manifest:
            sizes = {"tokens": (FLOATS, f"{values}D"), "numeric": (FLOATS, f"{numbers}D")}
            parts[f"{what}."] = Part(Tower, sizes)
    _check_tensors(tensors, parts, users.num_rows, items.num_rows)
    _check_tables(users, items)
    scorer = _build(parts["scorer."], "scorer.", tensors)
    shared = {"items": scorer.items} if parts["encoder."].shares_items else {}
    encoder = _build(parts["encoder."], "encoder.", tensors, **shared)
    return encoder, _build(parts["index."], "index.", tensors, scorer=scorer)


def rebuilt_tower(contents: Contents, what: str) -> Tower | None:
    """What reads the features of new items or users, if the model was trained on them."""
    manifest, tensors, *_ = contents
    if TOWERS[what] not in manifest:
        return None
    columns = columns_from_json(manifest[TOWERS[what]])
    tokens, numeric = tensors[f"{what}.tokens"], tensors[f"{what}.numeric"]
    if (columns.tokens, columns.numeric) != (len(tokens), len(numeric)):
        raise ValueError("the features' values and their vectors do not fit together")
    nobody = Encoded(
        np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32),
        np.zeros((0, columns.numeric), np.float32),
    )  # fmt: skip
    return Tower(None, tokens, numeric, nobody, columns).eval()


def saved_tower(tower: Tower | None, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `rebuilt_tower` needs: tensors, and an entry of the manifest."""
    if tower is None:
        return {}, {}
    tensors = {f"{what}.tokens": tower.tokens.weight, f"{what}.numeric": tower.numeric}
    found = {name: t.detach().cpu() for name, t in tensors.items()}
    return found, {TOWERS[what]: tower.columns.json()}


def saved_index(index: Any) -> dict[str, Tensor]:
    """What `rebuild` needs of an index; nothing of one that holds all items and no structure."""
    if isinstance(index, Flat) and index.alive is None:
        return {}
    return {f"index.{name}": t.detach().cpu() for name, t in index.state().items()}


def saved_tensors(encoder: Any, scorer: Any) -> dict[str, Tensor]:
    """What `rebuild` needs of an encoder and a scorer."""
    found: dict[str, Tensor] = {}
    for role, part, known in (("encoder", encoder, ENCODERS), ("scorer", scorer, SCORERS)):
        names = known[kind_of(part)].tensors
        state = part.state_dict().items()
        found |= {f"{role}.{n}": t.detach().cpu() for n, t in state if n in names}
    return found


def letters_of(name: str, encoder: Any, scorer: Any) -> str:
    """The shape of a saved tensor, in letters."""
    role, _, rest = name.partition(".")
    part = ENCODERS[kind_of(encoder)] if role == "encoder" else SCORERS[kind_of(scorer)]
    return part.tensors[rest][1]


def kind_of(part: Any) -> str:
    """The name of an encoder's or scorer's kind."""
    return type(part).__name__.lower()


def reading(encoder: Any, items: Any) -> Any:
    """An encoder with another table of items to read histories with."""
    part = ENCODERS[kind_of(encoder)]
    state = encoder.state_dict()
    own = {n: state[n].detach() for n in part.tensors}
    return _build(part, "", own, items=items)


def _build(part: Part, role: str, tensors: Mapping[str, Tensor], **shared: Any) -> Any:
    named = {n.removeprefix(role): t for n, t in tensors.items() if n.startswith(role)}
    own = {name.partition(".")[0]: tensor for name, tensor in named.items()}
    return part.kind(**own, **shared)


def _check_tensors(
    tensors: dict[str, Tensor], parts: Mapping[str, Part], num_users: int, num_items: int
) -> None:
    sizes = {"U": num_users, "I": num_items} | {str(n): n for n in range(1, 5)}
    unknown = set(tensors)
    for role, part in parts.items():
        for name, (kind, letters) in part.tensors.items():
            tensor = tensors.get(role + name)
            if tensor is not None or name not in part.optional:
                _check_shape(role + name, tensor, kind, letters, sizes)
            unknown.discard(role + name)
    if unknown:
        raise ValueError(f"tensors {', '.join(sorted(unknown))} belong to nothing")
    if wrong := [name for name in not_finite(tensors) if name != "index.effort"]:
        raise ValueError(f"{', '.join(wrong)} holds what is not finite")
    _check_index(tensors)
    _check_sequence(tensors)
    _check_tree(tensors, num_items)
    if bool((tensors["item_counts"] < 0).any()):
        raise ValueError("an item was counted less than 0 times")
    if "encoder.total" in tensors and bool((tensors["encoder.total"] < 0).any()):
        raise ValueError("a user's events count less than 0 together")
    check_lists("seen", tensors["seen.indptr"], tensors["seen.ids"], num_users, num_items)
    if "encoder.indptr" in tensors:
        lists = tensors["encoder.indptr"], tensors["encoder.indices"]
        check_lists("encoder", *lists, num_items, num_items)


def _check_temperature(value: Any) -> None:
    """Refuse what cannot be divided by."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not TEMPERATURES[0] <= value <= TEMPERATURES[1]:
        raise ValueError(f"the manifest's 'temperature' is {str(value)[:40]!r}")


def _check_index(tensors: dict[str, Tensor]) -> None:
    """Refuse cells and settings that an index does not have."""
    if "index.alive" in tensors and not bool(tensors["index.alive"].any()):
        raise ValueError("no item lives in the index")
    if "index.cell" not in tensors:
        return
    cell, cells = tensors["index.cell"], tensors["index.words"].shape[1] ** 2
    last, effort = int(tensors["index.last"]), float(tensors["index.effort"])
    if not (int(cell.min()) >= 0 and int(cell.max()) < cells and last in range(3) and effort > 0):
        raise ValueError("the index has cells or settings that do not exist")


def _check_sequence(tensors: dict[str, Tensor]) -> None:
    """Refuse heads, lengths and widths that no reader of histories has."""
    if "encoder.length" in tensors and int(tensors["encoder.length"]) < 1:
        raise ValueError("the encoder reads no history at all")
    if "encoder.heads" not in tensors:
        return
    heads, positions = int(tensors["encoder.heads"]), tensors["encoder.positions"]
    layers, dim, three = tensors["encoder.attend"].shape
    good = heads > 0 and dim % heads == 0 and three == 3 * dim and len(positions) > 0
    if not good or len(tensors["encoder.norm"]) != 2 * layers + 1:
        raise ValueError("the encoder's heads, positions, widths or norms do not fit together")


def _check_tree(tensors: dict[str, Tensor], num_items: int) -> None:
    """Refuse windows, slots and levels that do not fit together."""
    if "scorer.windows" in tensors:
        windows, first = tensors["scorer.windows"], tensors["scorer.first"]
        dim = tensors["scorer.nodes.weight"].shape[1]
        good = bool((windows > 0).all()) and len(first) == (len(windows) + 1) * dim
        if not good or int(windows.sum()) > MOST_PLACES or int(tensors["scorer.norm"]) not in NORM:
            raise ValueError("the scorer's windows, layers or norm do not fit together")
        if "index.item_of" not in tensors and len(tensors["scorer.nodes.weight"]) != num_items:
            raise ValueError("the scorer has other items than the model")
    if "index.item_of" not in tensors:
        return
    item_of, arity, depth = (tensors[f"index.{n}"] for n in ("item_of", "arity", "depth"))
    taken, levels = item_of[item_of >= 0], int(depth)
    good = int(arity) > 1 and 0 < levels < 64 and len(item_of) > 0
    good = good and len(item_of) % int(arity) ** (levels - 1) == 0
    good = good and int(item_of.min()) >= -1 and int(item_of.max()) < num_items
    good = good and len(taken) > 0 and len(taken.unique()) == len(taken)  # type: ignore[no-untyped-call]
    rows = sum(len(item_of) // int(arity) ** j for j in range(levels)) if good else -1
    if not good or len(tensors.get("scorer.nodes.weight", ())) != rows:
        raise ValueError("the tree's slots, levels and nodes do not fit together")
    if not bool(tensors["index.alive"][taken.long()].any()):
        raise ValueError("no item lives in the tree")


def _check_shape(
    name: str, tensor: Tensor | None, kind: torch.dtype, letters: str, sizes: dict[str, int]
) -> None:
    found = None if tensor is None else (str(tensor.dtype), *tensor.shape)
    good = found is not None and found[0] == str(kind) and len(found) == len(letters) + 1
    if not good or any(
        sizes.setdefault(letter, size) != size
        for letter, size in zip(letters, found[1:], strict=True)  # type: ignore[index]
    ):
        wanted = (str(kind), *(sizes.get(letter, letter) for letter in letters))
        raise ValueError(f"tensor {name}: expected {wanted}, got {found}")


def _check_tables(users: pa.Table, items: pa.Table) -> None:
    keyed, *names = items.column_names
    if users.column_names != ["key"] or keyed != "key" or len(set(names)) != len(names):
        raise ValueError(f"unexpected columns {users.column_names} and {items.column_names}")
    kinds = [*users.schema.types, *items.schema.types]
    if any(plain_type(kind) != kind for kind in kinds) or any(map(pa.types.is_nested, kinds[:2])):
        raise ValueError(f"unexpected column types {kinds}")


def check_lists(what: str, indptr: Tensor, ids: Tensor, rows: int, columns: int) -> None:
    """Refuse lists whose row pointers or ids point outside."""
    starts, values = indptr.numpy(), ids.numpy()
    good = (
        len(starts) == rows + 1
        and starts[0] == 0
        and starts[-1] == len(values)
        and bool((starts[1:] >= starts[:-1]).all())
        and values.min(initial=0) >= 0
        and values.max(initial=-1) < columns
    )
    if not good:
        raise ValueError(f"{what}: lists of {rows} rows over {columns} items point outside")


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold a NaN or an infinity."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point()}
    return [name for name, t in floats.items() if not bool(torch.isfinite(t).all())]

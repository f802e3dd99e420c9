"""Kinds: encoders, scorers and indexes by their names in files, saved and built again.

What comes from a file is checked here before anything computes with it: compiled code trusts row
pointers and ids, so a hostile file must not get that far. A class says itself which tensors a file
keeps of it, and checks them; see the contracts in `encode`, `score` and `index`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from softdex.data.arrow import plain_type
from softdex.encode.contract import Encoder
from softdex.encode.counting import Neighbours, Unpersonalised
from softdex.encode.features.columns import Encoded, columns_from_json
from softdex.encode.features.tower import Tower
from softdex.encode.history import Mixed, Recent
from softdex.encode.sequence import Dnn, Sequence
from softdex.encode.table import Users
from softdex.encode.vae import Vae
from softdex.errors import ArtifactError, SoftdexError
from softdex.index.contract import Index
from softdex.index.flat import Flat
from softdex.index.imi.index import Imi
from softdex.index.kernel import Kernel
from softdex.index.popularity import Popularity
from softdex.index.tree.tree import Tree
from softdex.index.uniform import Uniform
from softdex.model.artifact import Contents, check_kinds
from softdex.score.contract import Product, Scorer
from softdex.score.counting import Constant, Sparse
from softdex.score.din import Din
from softdex.score.product import Cosine, Dot, Euclidean
from softdex.shapes import (
    INTS,
    LONGS,
    Layout,
    arguments,
    check_lists,
    check_shapes,
    kept,
    not_finite,
)
from softdex.solve.closed.fold_in import FoldIn

ENCODERS: dict[str, type[Encoder]] = {
    "anyone": Unpersonalised,
    "neighbours": Neighbours,
    "users": Users,
    "mixed": Mixed,
    "vae": Vae,
    "sequence": Sequence,
    "dnn": Dnn,
    "recent": Recent,
    "foldin": FoldIn,
}
SCORERS: dict[str, type[Scorer]] = {
    "constant": Constant,
    "dot": Dot,
    "cosine": Cosine,
    "euclidean": Euclidean,
    "sparse": Sparse,
    "din": Din,
}
INDEXES: dict[str, type[Index]] = {
    "flat": Flat,
    "uniform": Uniform,
    "popularity": Popularity,
    "kernel": Kernel,
    "imi": Imi,
    "tree": Tree,
}
KINDS: dict[str, dict[str, Any]] = {"encoder": ENCODERS, "scorer": SCORERS, "index": INDEXES}
CONTRACTS = {  # and a member that only this role has
    "encoder": (Encoder, "reads_history"),
    "scorer": (Scorer, "num_queries"),
    "index": (Index, "log_prob"),
}
ALSO = {  # what a flag asks of a class
    "answers_strangers": ("similar",),
    "history_first": ("with_users", "new_items"),
    "is_product": tuple(name for name in vars(Product) if name[0] != "_"),
}
TOWERS = {"tower": "features", "user_tower": "user_features"}  # prefix -> entry of the manifest
HISTORY: Layout = {
    "seen.indptr": (LONGS, "Q"),
    "seen.ids": (INTS, "M"),
    "item_counts": (LONGS, "I"),
}
NEEDED = {"recipe": str, "options": dict, "encoder": str, "scorer": str, "softdex": dict}
INFO = {"index": str, "data": str, "card": (dict, type(None)), "metrics": dict, "training": dict}
TEMPERATURES = (1e-4, 1e4)  # that a model can be calibrated to
MOST_EVENTS = 2**53  # of an item
NOT_INFO = (*NEEDED, *TOWERS.values(), "index", "format", "version", "tensors", "users", "items")

Part = TypeVar("Part")


# your own ----------------------------------------------------------------------------------------


def register(cls: type[Part], name: str | None = None) -> type[Part]:
    """Register your own encoder, scorer or index, so that models with it can be saved and loaded.

    A file keeps the name, never code: before `load`, import the module that defines the class and
    registers it. Also works as a decorator.

    Args:
        cls: a class that keeps the contract of its role.
        name: in files; None: the class's name in lower case.

    Returns:
        The class.
    """
    role, name = _role_of(cls), cls.__name__.lower() if name is None else name
    if not isinstance(name, str) or not name.isidentifier():
        raise SoftdexError(f"register: expected a name of letters and digits, got {name!r}.")
    _check_class(cls, role)
    known = KINDS[role]
    if (old := known.get(name)) is not None and _path(old) != _path(cls):
        raise SoftdexError(f"register: the {role} {name!r} is {_path(old)}. Choose another name=.")
    if other := [n for n, known_class in known.items() if known_class is cls and n != name]:
        raise SoftdexError(f"register: {_path(cls)} is registered as {other[0]!r} already.")
    known[name] = cls
    return cls


def _role_of(cls: Any) -> str:
    """Return the role of a class by a member that no other role has."""
    found = [role for role, (_, mark) in CONTRACTS.items() if mark in dir(cls)]
    if not isinstance(cls, type) or len(found) != 1:
        marks = ", ".join(f"{mark} ({role})" for role, (_, mark) in CONTRACTS.items())
        raise SoftdexError(
            f"register: expected a class that has one of {marks}, got {cls!r}. See "
            "docs/index-contract.md."
        )
    return found[0]


def _check_class(cls: Any, role: str) -> None:
    """Refuse a class that lacks what its contract asks of the class itself."""
    contract, where = CONTRACTS[role][0], f"register: {cls.__name__}"
    annotated = contract.__annotations__.items()  # attributes of other types are of instances
    flags = [name for name, kind in annotated if kind in ("ClassVar[Layout]", "bool")]
    methods = [name for name in vars(contract) if name[0] != "_"]
    if missing := [name for name in (*flags, *methods) if name not in dir(cls)]:
        raise SoftdexError(f"{where} has no {', '.join(missing)}, which every {role} has.")
    if role != "index" and not issubclass(cls, nn.Module):
        raise SoftdexError(f"{where}: expected a torch.nn.Module.")
    for name in flags:
        value = getattr(cls, name)
        if not (_is_layout(value) if name == "tensors" else isinstance(value, bool)):
            wanted = "{name: (torch dtype, letters)}" if name == "tensors" else "True or False"
            raise SoftdexError(f"{where}.{name}: expected {wanted}, got {value!r}.")
        if value is True and (missing := [n for n in ALSO.get(name, ()) if n not in dir(cls)]):
            raise SoftdexError(
                f"{where} has no {', '.join(missing)}, which {name} = True asks for."
            )
    if wrong := [n for n in methods if not callable(getattr(cls, n))]:
        raise SoftdexError(f"{where}: expected methods {', '.join(wrong)}.")
    _check_constructor(cls, role, where)


def _is_layout(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(entry, tuple) and len(entry) == 2
        and isinstance(entry[0], torch.dtype) and isinstance(entry[1], str)
        for name, entry in value.items()
    )  # fmt: skip


def _check_constructor(cls: Any, role: str, where: str) -> None:
    """Refuse a class whose constructor does not take what a file keeps."""
    layout = cls.tensors
    needed = {name.partition(".")[0] for name, (_, size) in layout.items() if size[-1:] != "?"}
    more = {"items": None} if role == "encoder" and cls.reads_items else {}
    for names in (arguments(dict.fromkeys(layout)), needed):  # type: ignore[arg-type]
        try:
            first = (None,) if role == "index" else ()
            inspect.signature(cls).bind(*first, **dict.fromkeys(names), **more)
        except TypeError as error:
            raise SoftdexError(
                f"{where}: its constructor does not take the tensors that it keeps ({error})."
            ) from None


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# save --------------------------------------------------------------------------------------------


def kind_of(part: Any) -> str:
    """Return the name of a part's kind; refuse a part that could not be loaded again."""
    cls = type(part)
    found = [(role, n) for role, known in KINDS.items() for n, c in known.items() if c is cls]
    if not found:
        raise SoftdexError(
            f"save: {_path(cls)} is not registered, so a file of it could not be loaded. Call "
            f"softdex.register({cls.__name__}) first."
        )
    (role, name), *_ = found
    try:
        check_shapes(f"{role}.", cls.tensors, part.state() if role == "index" else kept(part), {})
    except ValueError as error:
        raise SoftdexError(f"save: {error}, see {cls.__name__}.tensors.") from None
    return name


def saved_tensors(encoder: Any, scorer: Any) -> dict[str, Tensor]:
    """Return the tensors that a file keeps of an encoder and a scorer."""
    parts = {"encoder": encoder, "scorer": scorer}
    return {
        f"{role}.{name}": tensor.cpu()
        for role, part in parts.items()
        for name, tensor in kept(part).items()
    }


def saved_index(index: Any) -> dict[str, Tensor]:
    """Return the tensors that a file keeps of an index."""
    return {f"index.{name}": t.detach().cpu() for name, t in index.state().items()}


def saved_tower(tower: Tower | None, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `rebuilt_tower` needs: tensors, and an entry of the manifest."""
    if tower is None:
        return {}, {}
    tensors = {f"{what}.tokens": tower.tokens.weight, f"{what}.numeric": tower.numeric}
    found = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    return found, {TOWERS[what]: tower.columns.json()}


def letters_of(name: str, encoder: Any, scorer: Any) -> str:
    """Return the letters of a tensor from `saved_tensors`."""
    role, _, rest = name.partition(".")
    return str(type({"encoder": encoder, "scorer": scorer}[role]).tensors[rest][1]).rstrip("?")


def check_parts(encoder: Any, index: Any) -> None:
    """Refuse, by a ValueError, the parts of a model whose file `rebuild` would refuse."""
    shared = {"I": index.num_items}
    for role, part in (("encoder", encoder), ("scorer", index.scorer), ("index", index)):
        found = index.state() if role == "index" else kept(part)
        tensors = {name: tensor.detach().cpu() for name, tensor in found.items()}
        _check_finite({f"{role}.{name}": tensor for name, tensor in tensors.items()})
        sizes = check_shapes(f"{role}.", part.tensors, tensors, shared)
        part.check(tensors, sizes, *((index.scorer,) if role == "index" else ()))


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    if wrong := [name for name in not_finite(tensors) if name != "index.effort"]:
        raise ValueError(f"{', '.join(wrong)}: not finite")


# load --------------------------------------------------------------------------------------------


def rebuild(contents: Contents) -> tuple[Any, Any]:
    """Return encoder and index, once everything in the file is known to fit together."""
    manifest, tensors, users, items = contents
    check_kinds(manifest, NEEDED, needed=True)
    check_kinds(manifest, INFO, needed=False)
    _check_temperature(manifest.get("temperature", 1.0))
    kinds = {role: _kind(role, manifest.get(role, "flat")) for role in KINDS}
    layouts = {"": HISTORY} | {role: kind.tensors for role, kind in kinds.items()}
    layouts |= {what: Tower.tensors for what, entry in TOWERS.items() if entry in manifest}
    parts = _by_role(tensors, layouts)
    shared = {"U": users.num_rows, "I": items.num_rows}
    sizes = {
        role: check_shapes(f"{role}." if role else "", layout, parts[role], shared)
        for role, layout in layouts.items()
    }
    _check_finite(tensors)
    least, most = map(int, tensors["item_counts"].aminmax())
    if least < 0 or most > MOST_EVENTS:
        raise ValueError("item_counts holds numbers below 0 or beyond 2^53")
    check_lists("seen", tensors["seen.indptr"], tensors["seen.ids"], shared["U"], shared["I"])
    _check_tables(users, items)
    return _built(kinds, parts, sizes)


def _built(
    kinds: Mapping[str, Any],
    parts: Mapping[str, dict[str, Tensor]],
    sizes: Mapping[str, Mapping[str, int]],
) -> tuple[Any, Any]:
    """Check and build the scorer, the encoder, and then the index, which looks at the scorer."""
    encoder, scorer, index = (parts[role] for role in KINDS)
    kinds["encoder"].check(encoder, sizes["encoder"])
    kinds["scorer"].check(scorer, sizes["scorer"])
    made = kinds["scorer"](**arguments(scorer))
    if kinds["encoder"].reads_items and not made.is_product:
        raise ValueError("the encoder reads item vectors, and the scorer has none")
    more = {"items": made.items} if kinds["encoder"].reads_items else {}
    kinds["index"].check(index, sizes["index"], made)
    found = kinds["index"](made, **arguments(index))
    if found.num_items != sizes["index"]["I"]:
        raise ValueError("the scorer has other items than the model")
    return kinds["encoder"](**arguments(encoder), **more), found


def _kind(role: str, name: str) -> Any:
    if name not in KINDS[role]:
        raise ArtifactError(
            f"load: unknown {role} {name!r}. Upgrade softdex; or, if the {role} is your own, "
            "import the module that defines it and call softdex.register first."
        )
    return KINDS[role][name]


def _by_role(
    tensors: Mapping[str, Tensor], roles: Mapping[str, Any]
) -> dict[str, dict[str, Tensor]]:
    """Sort tensors by the role before the dot, without it; those of no role are of the role ""."""
    parts: dict[str, dict[str, Tensor]] = {role: {} for role in roles}
    for name, tensor in tensors.items():
        role, _, rest = name.partition(".")
        if role and role in roles:
            parts[role][rest] = tensor
        else:
            parts[""][name] = tensor
    return parts


def rebuilt_tower(contents: Contents, what: str) -> Tower | None:
    """Return the tower of new items or users, None where the model was trained without features."""
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


def _check_temperature(value: Any) -> None:
    """Refuse a temperature that nothing can be divided by."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not TEMPERATURES[0] <= value <= TEMPERATURES[1]:
        raise ValueError(f"the manifest's 'temperature' is {str(value)[:40]!r}")


def _check_tables(users: pa.Table, items: pa.Table) -> None:
    """Refuse tables of users and items with other columns or types than are saved."""
    keyed, *names = items.column_names
    if users.column_names != ["key"] or keyed != "key" or len(set(names)) != len(names):
        raise ValueError(f"unexpected columns {users.column_names} and {items.column_names}")
    kinds = [*users.schema.types, *items.schema.types]
    if any(plain_type(kind) != kind for kind in kinds) or any(map(pa.types.is_nested, kinds[:2])):
        raise ValueError(f"unexpected column types {kinds}")

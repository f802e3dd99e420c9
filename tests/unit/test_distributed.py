"""Two processes with a part of the batch each get the gradients of one with the whole batch."""

from __future__ import annotations

import socket
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, multiprocessing

from softdex import group
from softdex.distributed import gathered
from softdex.encode.table import Table
from softdex.errors import ShapeError, SoftdexError
from softdex.objective.sampled import MASKED_SCORE, sampled_softmax

USERS, ITEMS, DIM, ROWS = 6, 7, 5, 10
# where the batch is cut in two; the last one leaves a rank nothing, as a last batch may
CUTS = {"equal": 5, "promised": 5, "unequal": 7, "fewer": 2, "empty": 10}
BATCHES = pytest.mark.parametrize("name", CUTS)
Found = dict[str, Tensor]


def vectors(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, DIM, dtype=torch.float64, generator=generator)


def batch() -> tuple[Tensor, Tensor]:
    """Ten pairs of six users and seven items: both halves share rows of both tables."""
    generator = torch.Generator().manual_seed(0)
    users, targets = (torch.randint(n, (ROWS,), generator=generator) for n in (USERS, ITEMS))
    return users, targets


def _grad(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def in_batch(
    query: Tensor, items: Tensor, targets: Tensor, *, equal: bool = False
) -> tuple[Tensor, Tensor]:
    """Losses (B,) against the items of all ranks, and where those are the row's own target."""
    logq = torch.arange(1.0, ITEMS + 1, dtype=torch.float64).log_softmax(0)[targets]
    joined, start = gathered(items, targets, logq, equal=equal)
    items, everyones, logq = joined
    scores = query @ items.T
    own = start + torch.arange(len(query))
    hit = everyones == targets[:, None]
    pos = scores.gather(1, own[:, None])[:, 0]
    neg = scores.masked_fill(hit, MASKED_SCORE)
    return sampled_softmax(pos, neg, logq, logq[own], None, correct="all"), hit


def learned(rows: slice, *, equal: bool = False) -> Found:
    """Loss and gradients of some rows of the batch."""
    users, targets = (ids[rows] for ids in batch())
    tables = Table(vectors(USERS, 1)), Table(vectors(ITEMS, 2))
    query, items = tables[0](users), tables[1](targets)
    loss, hit = in_batch(query, items, targets, equal=equal)
    loss.sum().backward()
    found = {"loss": loss.detach(), "hit": hit, "query": _grad(query), "items": _grad(items)}
    return found | {"user table": whole(tables[0]), "item table": whole(tables[1])}


def whole(table: Table) -> Tensor:
    """The gradient of all rows of a table."""
    (found,) = table.touched()
    assert found.ids is not None
    return torch.zeros_like(table.weight).index_add_(0, found.ids, found.grad)


def mean_learned(rows: slice) -> Found:
    """The gradient of a tower of both users and items, of the mean over these rows."""
    users, targets = (ids[rows] for ids in batch())
    tower = vectors(DIM, 3).requires_grad_()
    query, items = vectors(USERS, 1)[users] @ tower, vectors(ITEMS, 2)[targets] @ tower
    in_batch(query, items, targets)[0].mean().backward()
    return {"tower": _grad(tower)}


def odd(rank: int) -> Found:
    """Two tensors with gradients, of which each rank uses one; one is not contiguous."""
    across = (torch.arange(6.0).reshape(3, 2) + 10 * rank).T.requires_grad_()
    flags = torch.tensor([rank == 0, True])
    other = torch.full((2,), float(rank), requires_grad=True)
    (left, right, joined), start = gathered(across, other, flags)
    assert start == 2 * rank
    assert not joined.requires_grad
    ((left if rank == 0 else right).sum() * (rank + 1)).backward()
    given = {"left": left.detach(), "right": right.detach(), "flags": joined}
    return given | {"across": _grad(across), "other": _grad(other)}


def nothing() -> Found:
    """No rank has a row."""
    leaf = torch.zeros(0, DIM, requires_grad=True)
    (joined,), start = gathered(leaf)
    joined.sum().backward()
    assert start == 0
    return {"joined": joined.detach(), "leaf": _grad(leaf)}


def collectives(rank: int) -> Found:
    """What every rank gets of tensors, rows, bytes and values that differ between the ranks."""
    mine = torch.arange(6.0).view(3, 2)[: 1 + 2 * rank] + 10 * rank
    came, counts = group.exchange_rows(mine, [1, 0] if rank == 0 else [1, 2])
    known, _ = group.exchange_rows(mine, [1, 0] if rank == 0 else [1, 2], counts)
    assert torch.equal(known, came)
    assert group.broadcast_bytes(b"" if rank == 0 else None) == b""
    assert group.broadcast_bytes(b"ab" if rank == 1 else None, source=1) == b"ab"
    assert group.broadcast_json({"epoch": [1, None, "é"]} if rank == 0 else 5) == {
        "epoch": [1, None, "é"]
    }
    with group.joined():  # a group that is there already is used, and not closed
        group.barrier()
    assert (group.rank(), group.size(), group.is_first()) == (rank, 2, rank == 0)
    assert group.own_rows(5) == (slice(0, 2) if rank == 0 else slice(2, 5))
    return {
        "sum": group.all_reduce_sum(torch.tensor([1.0, rank])),
        "max": group.all_reduce_max(torch.tensor([3 - rank, rank])),
        "rows": group.gather_rows(mine),
        "exchanged": came,
        "counts": torch.tensor(counts),
        "copied": group.broadcast(torch.tensor([7.0 + rank]), source=1),
    }


def start_group(folder: Path, rank: int, world: int) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )


def work(rank: int, folder: Path) -> None:
    """In each of the two processes: everything that the tests check."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    start_group(folder, rank, 2)
    found = {"odd": odd(rank), "nothing": nothing(), "group": collectives(rank)}
    for name, cut in CUTS.items():
        rows = slice(cut) if rank == 0 else slice(cut, None)
        found[name] = learned(rows, equal=name == "promised")
    found["mean"] = mean_learned(slice(5) if rank == 0 else slice(5, None))
    for name, tensors in found.items():
        whole = {n: t.contiguous() for n, t in tensors.items()}
        save_file(whole, folder / f"{rank}.{name}.safetensors")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        meet_at_home(patch)
        multiprocessing.spawn(work, (folder,), 2)
    return [
        {path.name.split(".")[1]: load_file(path) for path in folder.glob(f"{rank}.*.safetensors")}
        for rank in range(2)
    ]


def meet_at_home(patch: pytest.MonkeyPatch) -> None:
    """Let processes communicate through the loopback device only."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    patch.setenv("GLOO_SOCKET_IFNAME", names[0])


def close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@BATCHES
def test_losses_and_gradients_are_those_of_one_process(
    ranks: list[dict[str, Found]], name: str
) -> None:
    alone = learned(slice(None))
    for what in ("loss", "query", "items"):
        assert close(torch.cat([rank[name][what] for rank in ranks]), alone[what]), what
    for what in ("user table", "item table"):
        assert close(ranks[0][name][what] + ranks[1][name][what], alone[what]), what


@BATCHES
def test_targets_that_are_another_ranks_too_are_found(
    ranks: list[dict[str, Found]], name: str
) -> None:
    first, second = (rank[name]["hit"] for rank in ranks)
    assert torch.equal(torch.cat([first, second]), learned(slice(None))["hit"])
    assert first[:, CUTS[name] :].any() == (name != "empty")


def test_gradients_averaged_over_ranks_are_those_of_the_mean_over_all_rows(
    ranks: list[dict[str, Found]],
) -> None:
    """DDP averages them; if they are summed, the mean needs a factor 1 / world."""
    first, second = (rank["mean"]["tower"] for rank in ranks)
    assert close((first + second) / 2, mean_learned(slice(None))["tower"])


def test_a_rank_need_not_use_all_it_gathered(ranks: list[dict[str, Found]]) -> None:
    for rank in (found["odd"] for found in ranks):
        assert rank["left"].tolist() == [[0, 2, 4], [1, 3, 5], [10, 12, 14], [11, 13, 15]]
        assert rank["right"].tolist() == [0, 0, 1, 1]
        assert rank["flags"].tolist() == [True, True, False, True]
        assert rank["across"].tolist() == [[1, 1, 1], [1, 1, 1]]
        assert rank["other"].tolist() == [2, 2]


def test_no_rows_anywhere_are_no_rows(ranks: list[dict[str, Found]]) -> None:
    for rank in (found["nothing"] for found in ranks):
        assert rank["joined"].shape == rank["leaf"].shape == (0, DIM)


def test_collectives_bring_what_every_rank_gave(ranks: list[dict[str, Found]]) -> None:
    rows = [[0, 1], [10, 11], [12, 13], [14, 15]]
    for number, found in enumerate(rank["group"] for rank in ranks):
        assert found["sum"].tolist() == [2, 1]
        assert found["max"].tolist() == [3, 1]
        assert found["rows"].tolist() == rows
        assert found["exchanged"].tolist() == (rows[:2] if number == 0 else rows[2:])
        assert found["counts"].tolist() == ([1, 1] if number == 0 else [0, 2])
        assert found["copied"].tolist() == [8]


def test_alone_every_collective_returns_what_it_was_given() -> None:
    given = torch.arange(4.0).view(2, 2)
    whole = group.all_reduce_sum, group.all_reduce_max, group.gather_rows, group.broadcast
    assert all(each(given) is given for each in whole)
    assert group.exchange_rows(given, [2]) == (given, [2])
    assert group.stacked(given).shape == (1, 2, 2)
    assert group.broadcast_bytes(b"ab") == b"ab"
    assert group.broadcast_json([1]) == [1]
    assert (group.rank(), group.size(), group.is_first()) == (0, 1, True)
    assert group.own_rows(3) == slice(0, 3)
    with group.joined():
        assert group.size() == 1


def test_blocks_of_ranks_cover_all_rows_and_differ_by_one_at_most() -> None:
    assert group.edges(10, 4) == [0, 2, 5, 7, 10]
    assert group.edges(2, 4) == [0, 0, 1, 1, 2]


def test_an_environment_that_is_not_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(SoftdexError, match="MASTER_ADDR, MASTER_PORT is not set"),
        group.joined(),
    ):
        pass


def test_outside_a_process_group_tensors_come_back_as_they_are() -> None:
    given = torch.randn(3, 2, requires_grad=True), torch.arange(3)
    back, start = gathered(*given)
    assert start == 0
    assert all(ours is theirs for ours, theirs in zip(back, given, strict=True))


def test_alone_in_its_group_a_process_gets_back_what_it_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at_home(monkeypatch)
    start_group(tmp_path, 0, 1)
    try:
        given = torch.randn(3, 2)
        assert gathered(given).tensors[0] is given
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("shapes", [[], [()], [(3,), ()], [(3, 2), (2,)]])
def test_tensors_of_other_lengths_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ShapeError, match="expected tensors of the same number of rows"):
        gathered(*(torch.zeros(shape) for shape in shapes))

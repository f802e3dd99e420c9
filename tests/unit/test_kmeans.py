"""K-means: a loop in float64 is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softdex.index import kmeans
from softdex.index.kmeans import lloyd, nearest, seeds

POINTS, WORDS, DIM = 60, 7, 3
SEEDS = pytest.mark.parametrize("seed", range(6))


def cloud(seed: int, points: int = POINTS, dim: int = DIM) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(points, dim, generator=generator, dtype=torch.float64)


def start(points: Tensor, words: int = WORDS, seed: int = 0) -> Tensor:
    return seeds(points, words, torch.Generator().manual_seed(seed))


def gap(point: Tensor, word: Tensor) -> float:
    return sum((a - b) ** 2 for a, b in zip(point.tolist(), word.tolist(), strict=True))


def inertia(points: Tensor, words: Tensor) -> float:
    return sum(min(gap(point, word) for word in words) for point in points)


def naive_lloyd(points: Tensor, words: Tensor, rounds: int) -> Tensor:
    """Means of the nearest points; words without any go to the farthest points, in turn."""
    for _ in range(rounds):
        gaps = [[gap(point, word) for word in words] for point in points]
        code = [row.index(min(row)) for row in gaps]
        far = sorted(range(len(points)), key=lambda p: -min(gaps[p]))
        new = words.clone()
        for c in range(len(words)):
            mine = [points[p] for p in range(len(points)) if code[p] == c]
            if mine:
                new[c] = sum(mine[1:], mine[0]) / len(mine)
            elif far:
                new[c] = points[far.pop(0)]
        words = new
    return words


@SEEDS
def test_lloyd_equals_the_loop_from_the_same_start(seed: int) -> None:
    points = cloud(seed)
    for rounds in (0, 1, 2, 5):
        ours = lloyd(points, start(points), rounds)
        assert torch.allclose(ours, naive_lloyd(points, start(points), rounds), atol=1e-9)


@SEEDS
def test_lloyd_equals_the_loop_where_words_die(seed: int) -> None:
    """Some words start far away from every point and so have none."""
    points = cloud(seed)
    words = start(points)
    words[[1, 4, 5]] += 100
    for rounds in (1, 2, 5):
        ours = lloyd(points, words, rounds)
        assert torch.allclose(ours, naive_lloyd(points, words, rounds), atol=1e-9)


@SEEDS
@pytest.mark.parametrize("dead", [0, 3])
def test_no_round_raises_the_inertia(seed: int, dead: int) -> None:
    points = cloud(seed)
    words = start(points)
    words[:dead] += 100
    now = inertia(points, words)
    for _ in range(8):
        words = lloyd(points, words, 1)
        before, now = now, inertia(points, words)
        assert now <= before + 1e-9


def test_a_word_without_points_takes_the_place_of_the_farthest_the_next_of_the_second() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0], [9.0], [-4.0]])
    words = torch.tensor([[1.0], [500.0], [600.0]])
    moved = lloyd(points, words, 1)
    assert moved[:, 0].tolist() == pytest.approx([8 / 5, 9.0, -4.0])


def test_words_of_fewer_different_points_than_words_come_to_rest_on_them() -> None:
    """Copies tie for the farthest: nothing may swing or divide by 0."""
    different = torch.tensor([[0.0, 1.0], [5.0, 5.0], [-3.0, 2.0]])
    points = different.repeat(20, 1)
    words = points[:1].repeat(6, 1)
    rested = lloyd(points, words, 10)
    assert inertia(points, rested) == pytest.approx(0, abs=1e-9)
    assert torch.equal(lloyd(points, rested, 1), rested)
    assert all(min(gap(word, p) for p in different) < 1e-9 for word in rested)


def test_a_word_without_points_stays_where_it_is_if_every_point_is_at_its_word() -> None:
    points = torch.tensor([[1.0], [2.0], [2.0]])
    words = torch.tensor([[1.0], [100.0], [2.0]])
    assert torch.equal(lloyd(points, words, 3), words)


@pytest.mark.parametrize("points", [1, 3])
def test_fewer_points_than_words_give_every_point_a_word(points: int) -> None:
    some = cloud(0, points).float()
    words = start(some, 5)
    assert words.shape == (5, DIM)
    for rounds in (1, 2, 3):
        moved = lloyd(some, words, rounds)
        assert torch.isfinite(moved).all()
        assert inertia(some, moved) == pytest.approx(0, abs=1e-9)


def test_points_that_are_all_zero_leave_the_words_there() -> None:
    words = lloyd(torch.zeros(4, 2), torch.zeros(3, 2), 3)
    assert torch.equal(words, torch.zeros(3, 2))


@SEEDS
def test_nearest_is_the_nearest_by_the_loop_and_the_first_of_equal_ones(seed: int) -> None:
    """Small whole numbers make sums exact, so ties are ties."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(-2, 3, (POINTS, DIM), generator=generator).float()
    words = torch.randint(-2, 3, (WORDS, DIM), generator=generator).float()
    gaps = [[gap(point, word) for word in words] for point in points]
    assert nearest(points, words).tolist() == [row.index(min(row)) for row in gaps]


@pytest.mark.parametrize("cells", [1, WORDS, 5 * WORDS + 3, POINTS * WORDS])
def test_blocks_do_not_change_the_nearest(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points = cloud(1)
    whole = nearest(points, start(points))
    monkeypatch.setattr(kmeans, "BLOCK_CELLS", cells)
    assert torch.equal(nearest(points, start(points)), whole)


def test_seeds_are_different_points_while_there_are_enough_and_then_go_round() -> None:
    points = torch.arange(5.0)[:, None]
    few, many = start(points, 5)[:, 0].tolist(), start(points, 12)[:, 0].tolist()
    assert sorted(few) == [0, 1, 2, 3, 4]
    assert many == (few * 3)[:12]


def test_the_same_generator_gives_the_same_words_and_another_one_others() -> None:
    points = cloud(2).float()
    one, again, other = (lloyd(points, start(points, seed=s), 5) for s in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_words_to_start_from_are_left_as_they_were() -> None:
    points = cloud(3)
    words = start(points)
    kept = words.clone()
    lloyd(points, words, 3)
    assert torch.equal(words, kept)

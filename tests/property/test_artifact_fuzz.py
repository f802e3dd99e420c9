"""A file of unknown origin is refused, or holds a model that works: nothing else can happen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hostile
import softdex as sdx
from marks import slow
from softdex.errors import ArtifactError
from softdex.model.artifact import DIGEST, MEMBERS
from softdex.model.filter import RESULT

DATA = Path(__file__).parents[1] / "data"
SAVED = {name: DATA / f"format-1-{name}.sdx" for name in ("item_cf", "popular")}
recipes = st.sampled_from(sorted(SAVED))
pieces = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**20]).map(
        lambda n: n.to_bytes(4, "little", signed=True)
    ),
    st.sampled_from([2**63 - 1, -(2**63), 2**40, 2**33]).map(
        lambda n: n.to_bytes(8, "little", signed=True)
    ),
)
many = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused_or_works(file: Path, raw: bytes) -> bool:
    """Load and use a file; whatever is raised besides ArtifactError goes up to the test."""
    file.write_bytes(raw)
    try:
        model = sdx.load(file)
    except ArtifactError:
        return False
    table = model.item_table
    columns = [] if table is None else [c for c in table.column_names if c not in RESULT]
    found = model.recommend(model.users.all(), 3, exclude_seen=False, columns=columns)
    assert len(found) == 3 * len(model.users)
    assert found._repr_html_()
    assert len(model.recommend(history=[[]], k=9)) == len(model.items)
    model.save(file)
    assert sdx.load(file).recommend(history=[[]]).equals(model.recommend(history=[[]]).table)
    return True


def overwritten(raw: bytes, at: float, piece: bytes) -> bytes:
    place = int(at * len(raw))
    return (raw[:place] + piece + raw[place + len(piece) :])[: len(raw)]


@many
@given(recipes, st.sampled_from(MEMBERS), st.floats(0, 1, exclude_max=True), pieces)
def test_a_member_with_other_bytes_in_it_is_refused_or_works(
    tmp_path: Path, recipe: str, member: str, at: float, piece: bytes
) -> None:
    raw = overwritten(hostile.members(SAVED[recipe])[member], at, piece)
    changed = hostile.changed(SAVED[recipe], **{member.partition(".")[0]: raw})
    refused_or_works(tmp_path / "m.sdx", changed)


@many
@given(recipes, st.floats(0, 1, exclude_max=True), pieces)
def test_an_archive_with_other_bytes_in_it_is_refused_or_works(
    tmp_path: Path, recipe: str, at: float, piece: bytes
) -> None:
    raw = SAVED[recipe].read_bytes()
    changed = overwritten(raw[:-DIGEST], at, piece) + raw[-DIGEST:]
    refused_or_works(tmp_path / "m.sdx", hostile.sealed(changed))


@given(recipes, st.floats(0, 1, exclude_max=True), st.binary(max_size=64))
def test_without_the_seal_no_changed_file_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, recipe: str, at: float, piece: bytes
) -> None:
    raw = SAVED[recipe].read_bytes()
    changed = overwritten(raw, at, piece)
    file = tmp_path_factory.mktemp("fuzz") / "m.sdx"
    assert refused_or_works(file, changed) == (changed == raw)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
entries = sorted(json.loads(hostile.members(SAVED["item_cf"])["manifest.json"]))


@many
@given(recipes, st.dictionaries(st.sampled_from(entries), values, min_size=1, max_size=2))
def test_a_manifest_that_says_something_else_is_refused_or_works(
    tmp_path: Path, recipe: str, said: dict[str, object]
) -> None:
    refused_or_works(tmp_path / "m.sdx", hostile.with_manifest(SAVED[recipe], **said))


PEAK = """
import random, sys, tempfile
from pathlib import Path
import hostile
from test_artifact_fuzz import MEMBERS, SAVED, overwritten, refused_or_works

def peak():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmPeak")))

draw = random.Random(int(sys.argv[1]))
file = Path(tempfile.mkdtemp()) / "m.sdx"
pieces = [n.to_bytes(8, "little", signed=True) for n in (2**62, 2**40, 2**33, 2**31 - 1, -1)]
for saved in SAVED.values():
    assert refused_or_works(file, saved.read_bytes())
before = peak()
for saved in SAVED.values():
    for member, raw in hostile.members(saved).items():
        for piece in pieces:
            for cut in (4, 8):
                for _ in range(int(sys.argv[2])):
                    other = overwritten(raw, draw.random(), piece[:cut])
                    changed = hostile.changed(saved, **{member.partition(".")[0]: other})
                    refused_or_works(file, changed)
print(peak() - before)
"""


@pytest.mark.parametrize("repeats", [2, *slow(12)])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_no_hostile_file_makes_a_large_allocation(repeats: int) -> None:
    """Even address space counts: what is only claimed must not be asked of the system."""
    folder = Path(__file__).parent
    path = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(folder.parent)!r}]"
    words = [sys.executable, "-c", f"{path}\n{PEAK}", "0", str(repeats)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 64 * 1024  # KiB; the files are of 4 KiB; seen: 2 MiB

"""The page on extending: parts written outside of the package train, save, load and serve."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MODULE = "\n".join(BLOCKS[:-1])  # the last one trains
TRAIN = """
import json, softdex as sdx, own
log = sdx.synthetic.world(users=60, items=30, seed=0).interactions()
model = sdx.fit(own.decayed, log, dim=4, epochs=1, device="cpu")
model.remove_items([log.items.values[0].as_py()])
model.save("own.sdx")
print(json.dumps(model.recommend(log.users.all().to_pylist()[:5], k=4).table.to_pylist()))
"""
LOAD = """
import json, softdex as sdx, own
model = sdx.load("own.sdx")
print(json.dumps(model.recommend(model.users.all().to_pylist()[:5], k=4).table.to_pylist()))
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"SOFTDEX_QUIET": "1"},
    )  # fmt: skip


def test_parts_of_a_users_own_are_trained_saved_and_serve_in_another_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(MODULE)
    trained, loaded = run(TRAIN, tmp_path), run(LOAD, tmp_path)
    assert trained.returncode == loaded.returncode == 0, trained.stderr + loaded.stderr
    assert len(json.loads(trained.stdout)) == 20
    assert loaded.stdout == trained.stdout
    unknown = run('import softdex as sdx; sdx.load("own.sdx")', tmp_path)
    assert unknown.returncode == 1
    assert "SoftdexError" in unknown.stderr
    assert "softdex.register" in unknown.stderr


def test_each_part_of_the_page_takes_less_than_forty_lines() -> None:
    parts = [n for n in ast.parse(MODULE).body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    assert {p.name for p in parts} == {"hinge", "Distance", "Decayed", "FrontHeavy", "decayed"}
    for part in parts:
        first = min([part.lineno, *(d.lineno for d in part.decorator_list)])
        assert (part.end_lineno or 0) - first < 40, part.name

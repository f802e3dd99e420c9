"""Duels: who beats whom, every model against every other."""

from __future__ import annotations

from softdex.errors import counted
from softdex.evaluate.report.parts import cell, column, name, numbered, section, table
from softdex.evaluate.report.study import Study

SMALL = 8  # up to this many models have numbers in the cells
WIN, LOSS, EQUAL = "▲", "▼", "="


def duels(study: Study) -> str:
    """Return the section; a single model has none."""
    pairs, names = study.pairs, study.names
    if len(names) < 2:
        return ""
    head = [column("row against column")]
    head += [numbered(i, n) for i, n in enumerate(names, 1)]
    head += [column("wins", kind="sum"), column("equal"), column("losses")]
    rows = []
    for i, model in enumerate(names):
        wins = int((pairs.apart[i] & (pairs.difference[i] > 0)).sum())
        losses = int((pairs.apart[i] & (pairs.difference[i] < 0)).sum())
        cells = [_cell(study, i, j) for j in range(len(names))]
        counts = [str(wins), str(len(names) - 1 - wins - losses), str(losses)]
        row = [name(model, f" <small>{i + 1}</small>"), *cells, cell(counts[0], "sum")]
        rows.append([*row, *map(cell, counts[1:])])
    words = (
        f"{WIN} is above in {study.metric}, {LOSS} below, {EQUAL} cannot be told apart. Paired "
        f"bootstrap over {counted(pairs.users, 'users')}, {pairs.samples:,} samples. "
    )
    if pairs.number > 1:
        words += (
            f"The 95 % are of all {pairs.number:,} pairs at once: 19 of 20 such tables hold no "
            f"wrong {WIN}, however many models they compare."
        )
    return section(
        "duels", "Who beats whom", f"<p class='lead'>{words}</p>",
        table(head, rows, caption=f"Difference in {study.metric}, row less column", kind="matrix"),
    )  # fmt: skip


# inside ------------------------------------------------------------------------------------------


def _cell(study: Study, i: int, j: int) -> str:
    """Return who is above, with the interval in the tooltip."""
    if i == j:
        return "<td class='same'></td>"
    pairs = study.pairs
    gap, margin = float(pairs.difference[i, j]), float(pairs.margin[i, j])
    if not pairs.apart[i, j]:
        kind, mark = "", EQUAL
    else:
        kind, mark = ("win", WIN) if gap > 0 else ("loss", LOSS)
    number = f"{gap:+.4f}".replace("0.", ".").replace("-", "−")
    words = f"{mark} {number}" if len(study.names) <= SMALL else mark
    told = f"{pairs.names[i]} - {pairs.names[j]}: {gap:+.4f} (95 % {gap - margin:+.4f} to "
    return cell(words, kind, f"{told}{gap + margin:+.4f}), p {pairs.p[i, j]:.3f}")

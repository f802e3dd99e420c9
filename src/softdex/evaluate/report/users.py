"""Users: three of them, with their history, what was held out, and the list of each model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from softdex.data.holdout import Holdout
from softdex.drawing import esc, one_line
from softdex.errors import counted
from softdex.evaluate.report.parts import bdi, folded, lead, section
from softdex.evaluate.report.study import Study

RECENT, TARGETS = 12, 8  # items of a history and of the targets shown
HIT = "✓"


class Pick(NamedTuple):
    """A user to show: the place among those whose lists are kept, which kind of user it stands for,
    and the share of that kind."""

    place: int
    kind: str
    share: float


def users(study: Study) -> str:
    """Return the section; without the split nothing is known of users."""
    if study.split is None or study.labels is None:
        return ""
    words = (
        f"The first {study.best.lists.shape[1]} of each list; {HIT} was held out. Users are "
        "divided by how many models find something for them; each shown has the median length of "
        "history of its kind."
    )
    chosen = picks(study)
    title = ("One user", "Two users", "Three users")[len(chosen) - 1]
    shown = "".join(_user(study, study.split.test, pick) for pick in chosen)
    return section("users", title, lead(words), shown)


def picks(study: Study) -> list[Pick]:
    """Choose a user whom every model serves, one whom some do, and one whom none does; where there
    is no such user, another of the most frequent kind."""
    served = np.sum([hits.any(1) for hits in study.hits.values()], axis=0)
    number, lengths = len(study.names), study.best.history_lengths[study.best.sampled]
    every = "every model" if number > 1 else "the model"
    kinds = {
        f"{every} finds something": served == number,
        "some models find something": (served > 0) & (served < number),
        "no model finds anything" if number > 1 else "the model finds nothing": served == 0,
    }
    groups = {kind: np.flatnonzero(mask) for kind, mask in kinds.items() if mask.any()}
    ordered = {k: at[np.argsort(lengths[at], kind="stable")] for k, at in groups.items()}
    most = max(ordered, key=lambda kind: len(ordered[kind]))
    found = [Pick(int(at[len(at) // 2]), k, len(at) / len(served)) for k, at in ordered.items()]
    for quarter in (1, 3):
        at = ordered[most]
        there = int(at[quarter * len(at) // 4])
        if len(found) < 3 and there not in {pick.place for pick in found}:
            found.append(Pick(there, most, len(at) / len(served)))
    return found


# inside ------------------------------------------------------------------------------------------


def _user(study: Study, holdout: Holdout, pick: Pick) -> str:
    row = int(study.asked[pick.place])
    key = one_line(holdout.user_keys.take(holdout.users[[row]])[0].as_py())
    history, targets = holdout.history[row].tolist(), holdout.targets[row].tolist()
    older = f"<li class='soft'>… {len(history) - RECENT:,} older</li>" * (len(history) > RECENT)
    past = "".join(_chip(study, item) for item in history[-RECENT:]) or "<li class='soft'>none</li>"
    held = "".join(_chip(study, item, "good") for item in targets[:TARGETS])
    if len(targets) > TARGETS:
        held += f"<li class='soft'>… {len(targets) - TARGETS:,} more</li>"
    caption, more = f"Lists of user {key}", counted(len(study.rest), "further models")
    shown = _lists(study, study.few, pick.place, caption)
    if study.rest:
        shown += folded(more, _lists(study, study.rest, pick.place, f"{caption}, {more}"))
    return (
        f"<article class='user'><h3><span class='cut' title='{esc(key)}'>User {bdi(key)}</span>"
        f"<small>{esc(pick.kind)}, as for {pick.share:.0%} of users</small></h3>"
        f"<dl><dt>history, {counted(len(history), 'items')}</dt>"
        f"<dd><ul class='chips'>{older}{past}</ul></dd>"
        f"<dt>held out</dt><dd><ul class='chips'>{held}</ul></dd></dl>"
        f"{shown}</article>"
    )


def _chip(study: Study, item: int, kind: str = "") -> str:
    assert study.labels is not None
    _, title, fields = study.labels.item(item)
    told = " · ".join([title, *filter(None, fields.values())])
    return f"<li class='chip {kind}' title='{esc(told)}'><span class='cut'>{bdi(title)}</span></li>"


def _lists(study: Study, models: Sequence[str], place: int, caption: str) -> str:
    """Return the lists of some models side by side."""
    lists = [study.results[n].lists[place].tolist() for n in models]
    hits = [study.hits[n][place].tolist() for n in models]
    head = "".join(
        f"<th scope='col' class='words'><span class='cut' title='{esc(n)}'>{bdi(n)}</span></th>"
        for n in models
    )
    rows = []
    for rank in range(study.best.lists.shape[1]):
        places = [(each[rank], hit[rank]) for each, hit in zip(lists, hits, strict=True)]
        if any(item >= 0 for item, _ in places):
            cells = "".join(_item(study, item, hit=hit) for item, hit in places)
            rows.append(f"<tr><th scope='row'>{rank + 1}</th>{cells}</tr>")
    corner = "<th scope='col'><span class='hidden'>rank</span></th>"
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{esc(caption)}'>"
        f"<table class='beside' style='--columns:{len(models)}'>"
        f"<thead><tr>{corner}{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _item(study: Study, item: int, *, hit: bool) -> str:
    if item < 0:
        return "<td></td>"
    assert study.labels is not None
    key, title, fields = study.labels.item(item)
    more = " · ".join(filter(None, fields.values()))
    told = " · ".join(filter(None, [title, key if key != title else "", more]))
    mark = f"{HIT} <span class='hidden'>held out: </span>" if hit else ""
    below = f"<small class='cut'>{bdi(more)}</small>" if more else ""
    return (
        f"<td class='words{' hit' * hit}' title='{esc(told)}'><span class='cut'>{mark}{bdi(title)}"
        f"</span>{below}</td>"
    )

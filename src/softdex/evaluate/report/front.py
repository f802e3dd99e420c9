"""Front: quality against seconds of training, and the models that no other beats on both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from softdex.drawing import esc, line, lines, log_ticks, path, short, text, ticks, width_of
from softdex.evaluate.report.answer import WIDTH
from softdex.evaluate.report.parts import and_, figure, section, strong
from softdex.evaluate.report.study import CEILING, Study

LEAST = 0.01  # seconds that the axis shows
NAME, LINE = 130.0, 13.0  # width and height of a label
LEFT, RIGHT, TOP, BOTTOM = 48.0, 16.0, 18.0, 40.0  # margins
SIZES = {"roomy": (860.0, 400.0), "tight": (380.0, 380.0)}  # of a screen and of a phone

Box = tuple[float, float, float, float]


class Dot(NamedTuple):
    """A model on the plane; `rank` counts from 1."""

    model: str
    seconds: float
    value: float
    error: float
    rank: int


def front(study: Study) -> str:
    """Return the section; at least two models must have been trained here."""
    dots = [
        Dot(n, study.seconds[n], r[study.metric], r.standard_error(study.metric), i)
        for i, n in enumerate(study.names, 1)
        if n in study.seconds and (r := study.results[n])
    ]
    if len(dots) < 2:
        return ""
    best = pareto(dots)
    steps = ", then ".join(f"{strong(d.model)} ({_time(d.seconds)})" for d in best)
    words = f"On the front, from quick to good: {steps}."
    if len(best) < len(dots):
        words += " Each of the others is slower than one of these that is at least as good."
    missing = [n for n in study.names if n not in study.seconds]
    words += f" Not trained here: {and_(missing)}." if missing else ""
    says = f"{study.metric} against seconds of training. On the front: "
    says += ", ".join(d.model for d in best)
    pictures = "".join(
        f"<div class='{kind}'>{figure(_Plane(study, dots, *size).draw(best), *size, says)}</div>"
        for kind, size in SIZES.items()
    )
    return section(
        "front", "Quality against training time", f"<p class='lead'>{words}</p>", pictures
    )


def pareto(dots: Sequence[Dot]) -> list[Dot]:
    """Return the dots that no other equals or beats in less time, from quick to good."""
    found: list[Dot] = []
    for dot in sorted(dots, key=lambda d: (d.seconds, -d.value)):
        if not found or dot.value > found[-1].value:
            found.append(dot)
    return found


# inside ------------------------------------------------------------------------------------------


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    if seconds < LEAST:
        return f"less than {LEAST} s"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


class _Plane:
    """The axes of one size, and what is drawn on them."""

    def __init__(self, study: Study, dots: Sequence[Dot], width: float, height: float) -> None:
        self.study, self.dots, self.width, self.height = study, dots, width, height
        times = [max(LEAST, d.seconds) for d in dots]
        self.start, self.end = math.log10(min(times) / 1.6), math.log10(max(times) * 1.6)
        high = max(d.value + (0.0 if math.isnan(d.error) else WIDTH * d.error) for d in dots)
        if study.ceiling is not None:
            high = max(high, study.ceiling[study.metric])
        self.high = high * 1.06 or 1.0

    def x(self, seconds: float) -> float:
        share = (math.log10(max(LEAST, seconds)) - self.start) / (self.end - self.start)
        return LEFT + (self.width - LEFT - RIGHT) * share

    def y(self, value: float) -> float:
        return self.height - BOTTOM - (self.height - TOP - BOTTOM) * value / self.high

    def draw(self, best: Sequence[Dot]) -> str:
        """Return axes, the front as steps, and per model a dot, its interval and its name."""
        points = [(self.x(d.seconds), self.y(d.value)) for d in best]
        way = [points[0]]
        for here, there in pairwise(points):
            way += [(there[0], here[1]), there]
        svg = [self.axes(), path([*way, (self.width - RIGHT, way[-1][1])], "class='front'")]
        taken = [_around(self.x(d.seconds), self.y(d.value), 6.0, 6.0) for d in self.dots]
        ordered = [*best, *(d for d in self.dots if d not in best)]
        return "".join([*svg, *(self.dot(d, taken, on=d in best) for d in ordered)])

    def axes(self) -> str:
        ground, end = self.height - BOTTOM, self.width - RIGHT
        svg = [text(0, 10, self.study.metric)]
        for level in ticks(0.0, self.high):
            svg.append(line(LEFT, self.y(level), end, self.y(level)))
            svg.append(text(LEFT - 7, self.y(level) + 4, short(level), "text-anchor='end'"))
        for tick in log_ticks(10**self.start, 10**self.end):
            svg.append(line(self.x(tick), ground, self.x(tick), ground + 4))
            svg.append(text(self.x(tick), ground + 17, short(tick), "text-anchor='middle'"))
        middle = (LEFT + end) / 2
        svg.append(text(middle, self.height - 5, "seconds of training", "text-anchor='middle'"))
        if self.study.ceiling is not None:
            there = self.y(self.study.ceiling[self.study.metric])
            svg.append(line(LEFT, there, end, there, "class='ceiling'"))
            svg.append(text(LEFT + 4, there - 5, CEILING))
        return "".join(svg)

    def dot(self, dot: Dot, taken: list[Box], *, on: bool) -> str:
        x, y = self.x(dot.seconds), self.y(dot.value)
        note = f"{dot.rank}. {dot.model}: {dot.value:.4f} {self.study.metric}, {_time(dot.seconds)}"
        bar = ""
        if not math.isnan(dot.error):
            low, high = (max(0.0, dot.value + side * WIDTH * dot.error) for side in (-1, 1))
            bar = line(x, self.y(low), x, self.y(high), "class='reach'")
        return (
            f"<g class='{'s1' if on else 's0'}'><title>{esc(note)}</title>{bar}"
            f"<circle class='dot' cx='{x:.1f}' cy='{y:.1f}' r='{4.5 if on else 3.5}'/></g>"
            f"{self.label(dot, x, y, taken, on=on)}"
        )

    def label(self, dot: Dot, x: float, y: float, taken: list[Box], *, on: bool) -> str:
        """Return the name beside the dot where it is free, else the rank, else nothing."""
        kind = "label best" if on else "label"
        for words in (lines(dot.model, 1, NAME)[0], str(dot.rank)):
            wide = width_of(words)
            for anchor, dx, dy in PLACES:
                left = x + dx - {"start": 0.0, "end": wide, "middle": wide / 2}[anchor]
                box = (left, y + dy - LINE + 3, left + wide, y + dy + 3)
                inside = box[0] >= LEFT and box[2] <= self.width and box[1] >= 0
                if inside and not any(map(_overlap(box), taken)):
                    taken.append(box)
                    return text(x + dx, y + dy, words, f"class='{kind}' text-anchor='{anchor}'")
        return ""


PLACES = (
    ("start", 9.0, 4.0), ("end", -9.0, 4.0), ("middle", 0.0, -10.0), ("middle", 0.0, 19.0),
    ("start", 7.0, -8.0), ("end", -7.0, -8.0), ("start", 7.0, 16.0), ("end", -7.0, 16.0),
)  # fmt: skip
"""Anchor and shift of a label beside its dot, in the order of preference."""


def _around(x: float, y: float, dx: float, dy: float) -> Box:
    return x - dx, y - dy, x + dx, y + dy


def _overlap(box: Box) -> Callable[[Box], bool]:
    return lambda o: box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3]

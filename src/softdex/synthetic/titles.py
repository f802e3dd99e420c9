"""Titles for items that have none: made up, and different from one another."""

from __future__ import annotations

import itertools

import numpy as np

FIRST = (
    "Amber", "Ashen", "Borrowed", "Brass", "Broken", "Crimson", "Distant", "Drowned", "Empty",
    "Endless", "Fallen", "Feral", "First", "Forgotten", "Frozen", "Gilded", "Glass", "Hidden",
    "Hollow", "Hushed", "Iron", "Ivory", "Last", "Late", "Little", "Lonely", "Long", "Lost",
    "Midnight", "Narrow", "Northern", "Old", "Painted", "Pale", "Paper", "Patient", "Quiet",
    "Restless", "Salt", "Scarlet", "Second", "Secret", "Silent", "Silver", "Slow", "Stolen",
    "Tangled", "Thirteenth", "Velvet", "Wandering", "Wild", "Winter", "Wooden", "Yellow",
)  # fmt: skip
SECOND = (
    "Acre", "Almanac", "Anchor", "Apprentice", "Archive", "Atlas", "Bakery", "Bell", "Border",
    "Bridge", "Canal", "Carnival", "Cartographer", "Choir", "Clock", "Comet", "Compass", "Corridor",
    "Crossing", "Dancer", "Diary", "Divers", "Echo", "Ember", "Engine", "Envelope", "Estuary",
    "Ferry", "Fiddler", "Field", "Fox", "Garden", "Glacier", "Guest", "Harbour", "Harvest", "House",
    "Island", "Journey", "Kitchen", "Ladder", "Lantern", "Letter", "Library", "Lighthouse",
    "Meadow", "Mirror", "Moth", "Museum", "Night", "Observatory", "Orchard", "Parade", "Passenger",
    "Piano", "Portrait", "Promise", "Quarry", "Queen", "Rain", "Railway", "Reef", "River", "Road",
    "Room", "Season", "Shadow", "Signal", "Sister", "Snowfall", "Sparrow", "Staircase", "Stranger",
    "Summer", "Telescope", "Theatre", "Tide", "Tower", "Train", "Valley", "Violin", "Visitor",
    "Voyage", "Window", "Winter", "Witness",
)  # fmt: skip
FORMS = ("The {} {}", "{} {}", "One {} {}", "Beyond the {} {}", "Return to the {} {}")


def titles(count: int, seed: int = 0) -> list[str]:
    """Return titles, such as "The Quiet Lighthouse"; no two are the same."""
    made = np.array([form.format(a, b) for form in FORMS for a in FIRST for b in SECOND])
    draw = np.random.default_rng(seed)
    found: list[str] = []
    for part in itertools.count(1):
        more = draw.permutation(made)[: count - len(found)].tolist()
        found += more if part == 1 else [f"{title}, part {part}" for title in more]
        if len(found) == count:
            return found
    raise AssertionError

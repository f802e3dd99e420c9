"""The style sheet of pages: one look for the explorer and for reports."""

from __future__ import annotations

from pathlib import Path


def style() -> str:
    """Return the style sheet, for a `<style>` of a page that stands alone."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")

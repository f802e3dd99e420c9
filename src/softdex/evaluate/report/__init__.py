"""Report: a comparison as one HTML page, from the answer down to the protocol card."""

from softdex.evaluate.report.page import build
from softdex.evaluate.report.study import Study

__all__ = ["Study", "build"]

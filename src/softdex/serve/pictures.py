"""Pictures of items, from a folder: named by the key of an item, or by a cell of its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import pyarrow as pa

from softdex.errors import SoftdexError

MEDIA = {
    ".avif": "image/avif", ".gif": "image/gif", ".jpeg": "image/jpeg", ".jpg": "image/jpeg",
    ".png": "image/png", ".webp": "image/webp",
}  # fmt: skip


@final
class Pictures:
    """The pictures in a folder; those that come later are not seen.

    Args:
        folder: the folder; None has no pictures.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not folder.is_dir():
            raise SoftdexError(f"serve: {folder} is no folder of pictures.")
        files = [] if folder is None else sorted(folder.iterdir())
        files = [file for file in files if file.suffix.lower() in MEDIA and file.is_file()]
        self.files = {name: file for file in files for name in (file.stem, file.name)}

    def of(self, key: Any, table: pa.Table | None, row: int) -> Path | None:
        """Return the picture of the item in a row: by its key, else by a column of text."""
        found = self.files.get(str(key))
        if found is None and table is not None and self.files:
            cells = (table[name][row].as_py() for name in table.column_names)
            hits = (self.files.get(cell) for cell in cells if isinstance(cell, str))
            found = next((hit for hit in hits if hit is not None), None)
        return found

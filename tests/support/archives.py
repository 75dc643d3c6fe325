"""Imports of whole files, as `tenure import` makes them."""

from __future__ import annotations

from pathlib import Path

from tenure.archive.importer import ArchiveSummary, ReportProgress, check_file, import_file
from tenure.stores.contract import ArchiveStore


async def check_and_import(
    archive: ArchiveStore, path: Path, *, report: ReportProgress | None = None
) -> ArchiveSummary:
    """Check the file, and import it into an empty database."""
    summary = check_file(path, report=report)
    await import_file(archive, path, summary, report=report)
    return summary

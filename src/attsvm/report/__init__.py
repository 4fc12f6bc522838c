"""One self-contained HTML page from the rows of the experiments."""

from attsvm.report._gather import Section, gather
from attsvm.report._write import export_figures, write_report

__all__ = ["Section", "export_figures", "gather", "write_report"]

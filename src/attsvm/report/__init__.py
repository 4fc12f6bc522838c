"""One self-contained HTML page from the rows of the experiments."""

from attsvm.report._gather import Section, gather, strangers
from attsvm.report._write import export_figures, write_report

__all__ = ["Section", "export_figures", "gather", "strangers", "write_report"]

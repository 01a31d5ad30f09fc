"""What sheets and pages show of a comparison, as data."""

from accucompare.report.contents import divergence, norm_sheets, summaries, summary
from accucompare.report.contents.layer_tables import all_layers, sized, unmatched
from accucompare.report.contents.summaries import group_columns
from accucompare.report.contents.summary_sheet import meaning
from accucompare.report.contents.training_tables import step_columns, training

__all__ = [
    "all_layers",
    "divergence",
    "group_columns",
    "meaning",
    "norm_sheets",
    "sized",
    "step_columns",
    "summaries",
    "summary",
    "training",
    "unmatched",
]

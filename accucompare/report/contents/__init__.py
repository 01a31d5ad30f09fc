"""What sheets and pages show of a comparison, as data."""

from accucompare.report.contents import fit_tables
from accucompare.report.contents.divergence_sheet import divergence
from accucompare.report.contents.group_sheets import group_columns, summaries
from accucompare.report.contents.layer_tables import all_layers, sized, unmatched
from accucompare.report.contents.summary_sheet import made_by, meaning, summary
from accucompare.report.contents.training_tables import step_columns, training
from accucompare.report.contents.trend_sheets import (
    listed_places,
    place_columns,
    run_columns,
    trend_sheets,
)

__all__ = [
    "all_layers",
    "divergence",
    "fit_tables",
    "group_columns",
    "listed_places",
    "made_by",
    "meaning",
    "place_columns",
    "run_columns",
    "sized",
    "step_columns",
    "summaries",
    "summary",
    "training",
    "trend_sheets",
    "unmatched",
]

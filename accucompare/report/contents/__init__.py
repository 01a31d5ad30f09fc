"""What sheets and pages show of a comparison, as data."""

from accucompare.report.contents import fit_tables as fit_tables
from accucompare.report.contents.divergence_sheet import divergence as divergence
from accucompare.report.contents.group_sheets import group_columns as group_columns
from accucompare.report.contents.group_sheets import summaries as summaries
from accucompare.report.contents.layer_tables import all_layers as all_layers
from accucompare.report.contents.layer_tables import sized as sized
from accucompare.report.contents.layer_tables import unmatched as unmatched
from accucompare.report.contents.summary_sheet import made_by as made_by
from accucompare.report.contents.summary_sheet import meaning as meaning
from accucompare.report.contents.summary_sheet import summary as summary
from accucompare.report.contents.training_tables import step_columns as step_columns
from accucompare.report.contents.training_tables import training as training
from accucompare.report.contents.trend_sheets import listed_places as listed_places
from accucompare.report.contents.trend_sheets import place_columns as place_columns
from accucompare.report.contents.trend_sheets import run_columns as run_columns
from accucompare.report.contents.trend_sheets import trend_sheets as trend_sheets

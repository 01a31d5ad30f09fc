"""What a report shows, as data: columns, sheets, charts, looks."""

from accucompare.report.table import looks
from accucompare.report.table.columns import (
    COLUMNS,
    COUNT,
    EXCESS,
    GENERAL,
    LOGARITHM,
    NUMBER,
    PERCENT,
    SCIENTIFIC,
    TEXT,
    Column,
    Scale,
    Value,
    bracketed,
    chosen,
    comparison_columns,
    layer,
    limit_on_error,
    to_dataframe,
    value_blocks,
)
from accucompare.report.table.environment_sheet import (
    ABSENT,
    DIFFERS,
    EnvironmentEntry,
    entries,
    entry_columns,
    entry_fill,
    entry_table,
    environment_sheets,
    flat,
    important,
)
from accucompare.report.table.extremes import NONE
from accucompare.report.table.heat import HeatMap, heat_maps, heat_note, trend_heats
from accucompare.report.table.overview import (
    MOST_ROWS,
    Chosen,
    Groups,
    Overview,
    overview_of,
    what_is_held,
)
from accucompare.report.table.sheets import (
    Chart,
    ChartSeries,
    Line,
    Page,
    SheetItem,
    Table,
    column_letter,
    heading_lines,
    table_lines,
    thinned,
)

"""A comparison as a file for other programs."""

from accucompare.report.files.answers_json import (
    write_decode_json,
    write_fit_json,
    write_invariance_json,
    write_ranks_json,
    write_repeat_json,
    write_trend_json,
)
from accucompare.report.files.call_tree import ENTERS, CallNode, CallStage, Pass, passes, worst
from accucompare.report.files.json import write_json
from accucompare.report.files.json_file import encoded_json, write_document
from accucompare.report.files.model_explorer import write_model_explorer
from accucompare.report.files.parquet import require_pyarrow, write_parquet
from accucompare.report.files.perfetto import write_perfetto
from accucompare.report.files.written_comparison import (
    Written,
    WrittenMetrics,
    WrittenRow,
    WrittenSide,
    read_written,
)

__all__ = [
    "ENTERS",
    "CallNode",
    "CallStage",
    "Pass",
    "Written",
    "WrittenMetrics",
    "WrittenRow",
    "WrittenSide",
    "encoded_json",
    "passes",
    "read_written",
    "require_pyarrow",
    "worst",
    "write_decode_json",
    "write_document",
    "write_fit_json",
    "write_invariance_json",
    "write_json",
    "write_model_explorer",
    "write_parquet",
    "write_perfetto",
    "write_ranks_json",
    "write_repeat_json",
    "write_trend_json",
]

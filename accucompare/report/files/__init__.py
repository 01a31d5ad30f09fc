"""A comparison as a file for other programs."""

from accucompare.report.files.fit_json import write_fit_json
from accucompare.report.files.json import write_json
from accucompare.report.files.model_explorer import write_model_explorer
from accucompare.report.files.parquet import require_pyarrow, write_parquet
from accucompare.report.files.perfetto import write_perfetto
from accucompare.report.files.ranks_json import write_ranks_json
from accucompare.report.files.reruns_json import write_invariance_json, write_repeat_json
from accucompare.report.files.written_comparison import read_written

__all__ = [
    "read_written",
    "require_pyarrow",
    "write_fit_json",
    "write_invariance_json",
    "write_json",
    "write_model_explorer",
    "write_parquet",
    "write_perfetto",
    "write_ranks_json",
    "write_repeat_json",
]

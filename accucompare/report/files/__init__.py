"""A comparison as a file for other programs."""

from accucompare.report.files.answers_json import write_decode_json as write_decode_json
from accucompare.report.files.answers_json import write_fit_json as write_fit_json
from accucompare.report.files.answers_json import write_invariance_json as write_invariance_json
from accucompare.report.files.answers_json import write_ranks_json as write_ranks_json
from accucompare.report.files.answers_json import write_repeat_json as write_repeat_json
from accucompare.report.files.answers_json import write_trend_json as write_trend_json
from accucompare.report.files.call_tree import ENTERS as ENTERS
from accucompare.report.files.call_tree import CallNode as CallNode
from accucompare.report.files.call_tree import CallStage as CallStage
from accucompare.report.files.call_tree import Pass as Pass
from accucompare.report.files.call_tree import passes as passes
from accucompare.report.files.call_tree import worst as worst
from accucompare.report.files.json import write_json as write_json
from accucompare.report.files.json_file import encoded_json as encoded_json
from accucompare.report.files.json_file import write_document as write_document
from accucompare.report.files.model_explorer import write_model_explorer as write_model_explorer
from accucompare.report.files.parquet import require_pyarrow as require_pyarrow
from accucompare.report.files.parquet import write_parquet as write_parquet
from accucompare.report.files.perfetto import write_perfetto as write_perfetto
from accucompare.report.files.written_comparison import Written as Written
from accucompare.report.files.written_comparison import WrittenMetrics as WrittenMetrics
from accucompare.report.files.written_comparison import WrittenRow as WrittenRow
from accucompare.report.files.written_comparison import WrittenSide as WrittenSide
from accucompare.report.files.written_comparison import read_written as read_written

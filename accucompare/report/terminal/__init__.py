"""What commands print: rich."""

from accucompare.report.terminal.tables import print_table as print_table
from accucompare.report.terminal.tables import shown as shown
from accucompare.report.terminal.terminal import print_comparison as print_comparison
from accucompare.report.terminal.terminal_bundle import print_capture as print_capture
from accucompare.report.terminal.terminal_bundle import print_import as print_import
from accucompare.report.terminal.terminal_bundle import print_records as print_records
from accucompare.report.terminal.terminal_bundle import print_tensor as print_tensor
from accucompare.report.terminal.terminal_bundle import print_verified as print_verified
from accucompare.report.terminal.terminal_fit import print_fit as print_fit
from accucompare.report.terminal.terminal_reruns import print_decode as print_decode
from accucompare.report.terminal.terminal_reruns import print_invariance as print_invariance
from accucompare.report.terminal.terminal_reruns import print_ranks as print_ranks
from accucompare.report.terminal.terminal_reruns import print_repeats as print_repeats
from accucompare.report.terminal.terminal_trend import print_trend as print_trend

"""Where a value that is not finite began."""

from accucompare.findings.origins.open_calls import INFINITE as INFINITE
from accucompare.findings.origins.origins import find_origins as find_origins
from accucompare.findings.origins.origins import infinite_outputs as infinite_outputs
from accucompare.findings.origins.poles import DIVISIONS as DIVISIONS
from accucompare.findings.origins.poles import LOGS as LOGS
from accucompare.findings.origins.poles import is_pole as is_pole
from accucompare.findings.origins.poles import operator_name as operator_name
from accucompare.findings.origins.poles import snake as snake

"""Where a value that is not finite began."""

from accucompare.findings.origins.open_calls import INFINITE
from accucompare.findings.origins.origins import find_origins, infinite_outputs
from accucompare.findings.origins.poles import DIVISIONS, LOGS, is_pole, operator_name, snake

__all__ = [
    "DIVISIONS",
    "INFINITE",
    "LOGS",
    "find_origins",
    "infinite_outputs",
    "is_pole",
    "operator_name",
    "snake",
]

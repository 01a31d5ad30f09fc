"""The checklist: its checks, and what a log says to each."""

from accucompare.findings.checklist.checks import Check as Check
from accucompare.findings.checklist.checks import CheckOutcome as CheckOutcome
from accucompare.findings.checklist.checks import CheckStatus as CheckStatus
from accucompare.findings.checklist.checks import Layer as Layer
from accucompare.findings.checklist.checks import failed as failed
from accucompare.findings.checklist.checks import not_looked_at as not_looked_at
from accucompare.findings.checklist.checks import passed as passed
from accucompare.findings.checklist.checks import warned as warned
from accucompare.findings.checklist.checks_run import FINITE as FINITE
from accucompare.findings.checklist.health_checklist import CHECKS as CHECKS
from accucompare.findings.checklist.health_checklist import STATUS_EXIT_CODES as STATUS_EXIT_CODES
from accucompare.findings.checklist.health_checklist import Checklist as Checklist
from accucompare.findings.checklist.health_checklist import Health as Health
from accucompare.findings.checklist.health_checklist import judge_finite as judge_finite
from accucompare.findings.checklist.health_checklist import judge_log as judge_log
from accucompare.findings.checklist.health_checklist import judge_vitals as judge_vitals
from accucompare.findings.checklist.health_checklist import read_thresholds as read_thresholds

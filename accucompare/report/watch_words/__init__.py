"""The words of a watch's findings, the checklist and a gradcheck; a diff starts without them."""

from accucompare.report.watch_words.check_words import CHECK_WORDS as CHECK_WORDS
from accucompare.report.watch_words.check_words import THRESHOLD_WORDS as THRESHOLD_WORDS
from accucompare.report.watch_words.finding_words import answer as answer
from accucompare.report.watch_words.finding_words import called as called
from accucompare.report.watch_words.finding_words import described as described
from accucompare.report.watch_words.finding_words import finding_headline as finding_headline
from accucompare.report.watch_words.finding_words import kinds as kinds
from accucompare.report.watch_words.finding_words import short as short
from accucompare.report.watch_words.finding_words import smallest as smallest
from accucompare.report.watch_words.finding_words import where as where
from accucompare.report.watch_words.hints import hints_for as hints_for
from accucompare.report.watch_words.remark_words import printable_value as printable_value
from accucompare.report.watch_words.remark_words import said as said

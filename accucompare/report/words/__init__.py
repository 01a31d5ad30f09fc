"""The words of verdicts, culprits and steps, the same in every report."""

from accucompare.report.words import compiled_words as compiled_words
from accucompare.report.words import culprit_words as culprit_words
from accucompare.report.words import decision_words as decision_words
from accucompare.report.words import decode_words as decode_words
from accucompare.report.words import fit_code as fit_code
from accucompare.report.words import fit_words as fit_words
from accucompare.report.words import invariance_words as invariance_words
from accucompare.report.words import limit_words as limit_words
from accucompare.report.words import preflight_words as preflight_words
from accucompare.report.words import rank_words as rank_words
from accucompare.report.words import repeat_words as repeat_words
from accucompare.report.words import training_words as training_words
from accucompare.report.words import trend_words as trend_words
from accucompare.report.words import verdict_words as verdict_words
from accucompare.report.words.assertion import failure as failure
from accucompare.report.words.assertion import nan_on_both as nan_on_both
from accucompare.report.words.culprit_place import NamedCulprit as NamedCulprit
from accucompare.report.words.culprit_place import culprit_hints as culprit_hints
from accucompare.report.words.culprit_place import culprit_place as culprit_place
from accucompare.report.words.culprit_place import error_words as error_words
from accucompare.report.words.culprit_words import place_words as place_words
from accucompare.report.words.preflight_words import ToldFinding as ToldFinding

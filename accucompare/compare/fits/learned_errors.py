"""What runs teach about errors that were estimated.

The logarithm of a run's squared error, against its estimate, is taken for a Gaussian process: a
common part, since all estimates may be too low, and a part for each term, weighted by its share in
the estimate. So a run tells much of choices that are off by the same terms, and little of others,
and each choice has an uncertainty of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.fits.called_tree import Mask
from accucompare.compare.fits.error_terms import ErrorTerms

#: Variances of logarithms of squared errors: of a term (two over the number of directions); of all
#: terms together; of a run by itself, since roundings add up at random.
TERM_VARIANCE, COMMON_VARIANCE, RUN_VARIANCE = 0.25, 0.1, 0.03
#: A run so many standard deviations from what was expected shows that estimates mislead.
MISLED = 4.0
#: Stands for no error at all in logarithms.
_NOTHING = 1e-100


class ExpectedErrors(NamedTuple):
    """Logarithms of squared errors of choices, and their standard deviations."""

    logs: NDArray[np.float64]
    deviations: NDArray[np.float64]

    @property
    def errors(self) -> NDArray[np.float64]:
        errors = np.exp(self.logs / 2)
        return np.where(errors > _NOTHING, errors, 0)


class LearnedErrors:
    """Estimates, corrected by runs."""

    def __init__(self, terms: ErrorTerms) -> None:
        self._terms = terms
        self._weights = np.zeros((0, 3 * len(terms.tree)))
        self._ratios: list[float] = []
        self._surprises: list[float] = []
        # whether a run was far from what was expected, as where experts are chosen
        self.misled = False

    def saw(self, kept: Mask, error: float) -> None:
        """What a run has shown."""
        estimate = float(self._terms.estimates(kept[None]).errors[0])
        if not (0 < error < math.inf and 0 < estimate < 1):
            return  # nothing to be learned of an overflow
        if self._ratios:
            expected = self.expected(kept[None])
            off = (2 * math.log(error) - expected.logs[0]) / expected.deviations[0]
            self._surprises.append(float(off))
            self.misled |= bool(abs(off) > MISLED)
        self._weights = np.vstack([self._weights, self._terms.weights(kept)])
        self._ratios.append(2 * math.log(error / estimate))

    def expected(self, kept: Mask) -> ExpectedErrors:
        """Of masks of shape (choices, modules)."""
        found = self._terms.estimates(kept, self._weights)
        logs = 2 * np.log(np.maximum(found.errors, _NOTHING))
        variances = COMMON_VARIANCE + TERM_VARIANCE * found.alone + RUN_VARIANCE
        if self._ratios:
            shared = COMMON_VARIANCE + TERM_VARIANCE * found.overlaps
            logs += shared @ self._solved(np.array(self._ratios))
            variances -= (shared * self._solved(shared.T).T).sum(-1)
        surprise = np.mean(np.square(self._surprises)) if self._surprises else 1.0
        return ExpectedErrors(
            logs, np.sqrt(np.maximum(variances, RUN_VARIANCE) * max(1.0, surprise))
        )

    def corrected_terms(self) -> ErrorTerms:
        """The terms, each as much larger as runs make likely."""
        if not self._ratios:
            return self._terms
        solved = self._solved(np.array(self._ratios))
        logs = COMMON_VARIANCE * solved.sum() + TERM_VARIANCE * self._weights.T @ solved
        return self._terms.scaled(np.exp(logs))

    def _solved(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        known = COMMON_VARIANCE + TERM_VARIANCE * self._weights @ self._weights.T
        noisy = known + RUN_VARIANCE * np.eye(len(known))
        return np.linalg.solve(noisy, right).astype(np.float64)

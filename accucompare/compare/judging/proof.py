"""Whether a baseline is proved: golden's own case, run beside it in golden's precision on golden's
values, must give golden's values.

The same files are no proof: an environment variable, another build of a library or a patch changes
the computation, and the candidate's fault may be in the baseline too. The **proof** is one more fed
capture by the process that made the baseline. Where it does not reproduce golden, the baseline's
distance from golden is not rounding. Its distance from the proof is, and takes its place: the same
environment in two precisions. A pair over that limit is a bug; one within it does not pass. A
deviation is explained

- within the fixed limit of a fed capture in golden's precision;
- within ``HIDES_NOTHING`` of the smallest baseline error that counts: the candidate's own rounding
  hides it, whatever the baseline;
- if the baseline rounds more coarsely than golden: within the share of its error that is the ratio
  of their roundings. What magnifies rounding magnifies both; a fault adds the same to both;
- if it rounds more finely (float64): within the excess limit over the distance of proof and
  baseline, which is the rounding of golden's precision as made here.

The last two explain nothing over the ceiling of golden's precision.

If nothing explains it and two runs of the proof differ as much, golden's value is no reference.

**Rounded values.** A second run of golden's code, in golden's precision, on golden's values rounded
to the candidate's type, each operator's result rounded likewise, shows how far rounding alone
drives a result: sin(3500 x 1.001), or a softmax's gradient, whose terms cancel. If it is as far off
as the candidate, the place is ill-conditioned: any such error is rounding. For a float32 candidate
of a float32 golden, float32's last three bits are rounded away."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from accucompare.bundle.flags import roundoff
from accucompare.bundle.format import PROOF, ROUNDED_RUN, Manifest, Record
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.constants import FED_ROUNDINGS_OF_SUMS, FEW, HIDES_NOTHING, RUNS, UNSTEADY
from accucompare.compare.fusions import made_like
from accucompare.compare.judging.sides import Sides
from accucompare.compare.limits import (
    BASELINE_ERRORS,
    EXACT,
    Expected,
    Surrounding,
    Tolerance,
    check_beside,
    differing,
    excess_limit,
    float_dtype,
    floor,
    is_half,
    other_surroundings,
    partners,
    product_formats,
)
from accucompare.compare.measuring import Metrics
from accucompare.compare.pairing import Pair, Renaming, most_changed
from accucompare.compare.remarks import NoReference, NotReproduced, PairRemark
from accucompare.compare.rows import Proof, Reason, Status, Task, Verdict, same_bits
from accucompare.devices import is_a_librarys
from accucompare.numbers import DTYPES
from accucompare.places import Place, is_file


@dataclass(frozen=True)
class Beside:
    """Runs of golden's own code beside a baseline; each may be missing."""

    proof: Bundle | None = None  # on golden's values
    again: Bundle | None = None  # the proof's second run
    rounded: Bundle | None = None  # on golden's values, rounded to the candidate's type
    # of the baseline's error, what golden's precision explains; 0 if golden is coarser
    share: float = 0.0


def open_beside(stack: contextlib.ExitStack, golden: Bundle, baseline: Bundle | None) -> Beside:
    """What was captured beside a baseline, in its directory. Raises BundleError if one of these
    cannot be read; UsageError if one is incomplete, was fed with another golden, or has another
    precision."""

    def found(place: Place, rounded: bool) -> Bundle | None:
        if not is_file(place / "manifest.json"):
            return None
        bundle = stack.enter_context(open_bundle(place))
        check_beside(golden, bundle, rounded)
        return bundle

    if baseline is None or not baseline.manifest.fed:
        return Beside()
    proof = found(baseline.path / PROOF, False)
    again = found(baseline.path / PROOF / "repeat1", False)
    ours, theirs = rounding_of(golden.manifest), rounding_of(baseline.manifest)
    share = min(FED_ROUNDINGS_OF_SUMS * ours / theirs, HIDES_NOTHING) if theirs > ours else 0.0
    return Beside(proof, again, found(baseline.path / ROUNDED_RUN, True), share)


def why_not_proved(
    golden: Bundle, baseline: Bundle | None, beside: Beside
) -> tuple[Surrounding, ...]:
    """Why an unproved baseline needs a proof: other settings or libraries than golden's.

    Variables such as ``OMP_NUM_THREADS`` always differ between machines and do not count."""
    if (
        baseline is None
        or not baseline.manifest.fed
        or beside.proof is not None
        or baseline.manifest.options.mode == BASELINE_ERRORS
    ):
        return ()
    around = other_surroundings(golden.manifest, baseline.manifest)
    return tuple(each for each in around if each.library or not is_a_librarys(each.name))


def rounding_of(manifest: Manifest) -> float:
    """The unit roundoff of a capture's type or products; 0 if unknown."""
    dtype = float_dtype(manifest)
    return max(
        [DTYPES[dtype].rounding if dtype else 0.0, *map(roundoff, product_formats(manifest))]
    )


def with_proofs(
    tasks: list[Task],
    beside: Beside,
    golden: list[Record],
    renamings: list[Renaming],
    fixed: Callable[[Pair], Tolerance],
) -> list[Task]:
    """The tasks with the runs beside the baseline, where their bits are not golden's.

    Args:
        tasks: in execution order, with the baseline's records.
        golden: its records.
        fixed: the limits of a fed capture in golden's precision.
    """
    if beside.proof is None and beside.rounded is None:
        return tasks
    runs = (beside.proof, beside.again, beside.rounded)
    proof, again, rounded = (
        {} if run is None else partners(golden, list(run.records()), renamings) for run in runs
    )

    def with_proof(task: Task) -> Task:
        ours = task.pair.golden
        if ours is None:
            return task
        found, second, other = (
            made_like(run.get(ours.key), ours, run) for run in (proof, again, rounded)
        )
        # of every pair, for limits of gradients depend on earlier ones
        limits = fixed(Pair(ours, found))
        doubtful = (
            beside.proof is not None
            and not same_bits(ours, found)
            and (found is not None or task.baseline is not None)
        )
        return replace(
            task,
            proof=(
                Proof(found, second, limits.rel_l2 or 0.0, limits.ceiling or 0.0, beside.share)
                if doubtful
                else None
            ),
            rounded=None if same_bits(ours, other) else other,
        )

    return [with_proof(task) for task in tasks]


@dataclass(frozen=True)
class Doubt:
    """Golden's own code, run beside the baseline in golden's precision, misses golden's value."""

    # relative L2 error of the proof; inf if its shape, or places of NaN or Inf, differ
    error: float
    # the baseline's distance from the proof; if unmeasurable, fixed limits judge
    expected: Expected | None = None
    # the distance of the proof's runs, if it explains the error: golden is no reference
    apart: float | None = None

    @property
    def remark(self) -> PairRemark:
        return NotReproduced(self.error) if self.apart is None else NoReference(self.apart)

    def settle(self, verdict: Verdict) -> Verdict:
        """The verdict on a pair that was judged by ``expected``."""
        if self.apart is not None:
            if verdict.status is Status.FAIL:
                return replace(verdict, reason=Reason.NOT_DETERMINISTIC, remarks=(self.remark,))
            return verdict
        return replace(verdict, unproved=True, remarks=(*verdict.remarks, self.remark))


def doubt(
    sides: Sides, task: Task, golden: Record, candidate: Record, expected: Expected | None
) -> Doubt | None:
    """Why a pair's baseline may not judge it; ``None`` if it is proved, or no proof was run.
    ``expected``: the baseline's error, if known."""
    proof = task.proof
    if proof is None or sides.proof is None or same_bits(golden, candidate):
        return None
    # EXACT judges integers, whatever the user's limits
    if not (task.tolerance.by_default or task.tolerance == EXACT):
        return None
    record = proof.record
    if record is None or (record.shape, record.components) != (golden.shape, golden.components):
        return Doubt(math.inf)
    if golden.member is None or record.member is None:
        return None
    metrics = sides.measure(sides.golden, golden, sides.proof, record)
    if _explained(sides, task, proof, metrics, candidate, expected):
        return None
    apart = sides.apart(sides.proof, record, sides.proof_again, proof.again)
    error = math.inf if metrics.nonfinite_mismatch else metrics.rel_l2
    baseline = task.baseline
    own = None
    if sides.baseline is not None and baseline is not None and baseline.member is not None:
        metrics = sides.measure(sides.proof, record, sides.baseline, baseline)
        own = None if metrics.nonfinite_mismatch else Expected.of(metrics, candidate, baseline)
    return Doubt(error, own, apart if apart is not None and _unsteady(error, apart) else None)


def _unsteady(error: float, apart: float) -> bool:
    """Whether two runs are too far apart to compare with, or as far as the first is from golden."""
    return apart > UNSTEADY or (apart > 0.0 and error <= RUNS * apart)


def _explained(
    sides: Sides,
    task: Task,
    proof: Proof,
    metrics: Metrics,
    candidate: Record,
    expected: Expected | None,
) -> bool:
    """Whether golden's precision explains how far the proof is from golden."""
    golden, baseline = task.pair.golden, task.baseline
    assert golden is not None
    if metrics.nonfinite_mismatch:
        return False
    if not DTYPES[golden.dtype].digits:
        # a single number tells nothing
        return differing(metrics) <= min(most_changed(0), metrics.compared / FEW)
    if metrics.rel_l2 <= max(proof.limit, HIDES_NOTHING * floor(candidate.dtype)):
        return True
    if expected is None or baseline is None or proof.ceiling < metrics.rel_l2 < math.inf:
        return False
    if proof.share:
        return _of(metrics, expected.rel_l2, expected.rmse) <= proof.share
    if (
        sides.baseline is None
        or sides.proof is None
        or proof.record is None
        or None in (baseline.member, proof.record.member)
    ):
        return False
    own = sides.measure(sides.baseline, baseline, sides.proof, proof.record)
    return not own.nonfinite_mismatch and _of(metrics, own.rel_l2, own.rmse) <= excess_limit(
        metrics.compared, golden.dtype
    )


def _of(metrics: Metrics, rel_l2: float, rmse: float) -> float:
    """An error as a multiple of another; by root mean squares if golden is all zeros."""
    ours, theirs = (
        (metrics.rel_l2, rel_l2)
        if math.isfinite(metrics.rel_l2) and math.isfinite(rel_l2)
        else (metrics.rmse, rmse)
    )
    return ours / theirs if theirs else (math.inf if ours else 0.0)


def driven_by_rounding(
    sides: Sides, task: Task, golden: Record, candidate: Record, error: float
) -> float | None:
    """The relative L2 error of golden's own code on rounded values, beside a proved baseline.

    ``None`` if there is no such run, or a half type's error is not over the ceiling: below it, a
    run that rounds each result is no measure of code that keeps some in float32.

    Args:
        error: the candidate's relative L2 error.
    """
    record, ceiling = task.rounded, task.tolerance.ceiling
    if (
        record is None
        or sides.rounded is None
        or ceiling is None
        or not (task.tolerance.fed and error < math.inf)
        or (error <= ceiling and is_half(candidate.dtype))
    ):
        return None
    # golden's own baseline needs no proof
    if sides.proof is None and (task.baseline is None or task.baseline.error is None):
        return None
    kept = record.error
    if kept is not None:
        driven = kept.rel_l2 or 0.0
    elif golden.member is not None and record.member is not None and record.shape == golden.shape:
        metrics = sides.measure(sides.golden, golden, sides.rounded, record)
        driven = 0.0 if metrics.nonfinite_mismatch else metrics.rel_l2
    else:
        return None
    return driven if math.isfinite(driven) else None

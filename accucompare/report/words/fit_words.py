"""What a fit found, in words."""

from __future__ import annotations

import math

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit, FitAnswer, FitRun, KeptPlaces
from accucompare.text import counted

_SHARES = {"flops": "operations", "bytes": "weights"}


def fit_headline(found: Fit) -> str:
    """The answer in one line."""
    asked, proof = found.goal.rel_l2, found.proof
    if found.answer is FitAnswer.NOTHING_TO_KEEP:
        return f"nothing to keep in float32: {found.dtype} alone is off by {off_by(proof.error)}"
    if found.answer is FitAnswer.UNREACHABLE:
        kept = "everything" if found.goal.budget is None else _budget(found)
        return f"out of reach: with {kept} in float32, it is off by {off_by(proof.error)}"
    if found.answer is FitAnswer.BEST_FOR_BUDGET:
        return (
            f"best for {_budget(found)}: off by {off_by(proof.error)} instead of"
            f" {off_by(found.least.error)}"
        )
    if not len(proof.kept):
        told = " and ".join(proof.switches)
        return f"within {asked:.3g} with {told}: off by {off_by(proof.error)}"
    if proof.kept.are_all:
        return f"only with everything in float32 is it within {asked:.3g}"
    share = share_in_words(proof.flops if found.goal.by == "flops" else proof.bytes)
    return (
        f"within {asked:.3g} with {share} of the {_SHARES[found.goal.by]} in float32:"
        f" off by {off_by(proof.error)}"
    )


def fit_facts_in_words(found: Fit) -> list[str]:
    """What was run, and how far off each was."""
    proof, least = found.proof, found.least
    labels = dict.fromkeys(output.label for output in found.outputs)
    lines = [
        f"judged: {', '.join(labels)}, by the relative L2 error against {found.golden}",
        f"run on {found.device}; nothing in float32 is off by {off_by(least.error)}",
    ]
    everything = _everything(found)
    if everything is not None and everything is not proof:
        lines[-1] += f", everything in float32 by {off_by(everything.error)}"
    if found.answer is FitAnswer.FITS:
        lines.append(
            f"proven by a run: off by {off_by(proof.error)};"
            f" {share_in_words(proof.flops)} of the operations and {share_in_words(proof.bytes)}"
            " of the weights are in float32"
        )
    effort = counted(len(found.runs), "run")
    if found.backwards:
        effort += f", 2 fed captures and {counted(found.backwards, 'backward')} of golden's code"
    lines.append(effort)
    return lines


def fit_hint(found: Fit) -> str:
    """What to do next, where that is not plain; else ``""``."""
    if found.answer is FitAnswer.UNREACHABLE:
        if found.proof.failed:
            return f"it does not run in float32: {found.proof.failed}"
        everything = _everything(found)
        if everything is not None and math.isfinite(everything.error) and found.goal.budget:
            return "ask for a larger share: what overflows costs more than this one"
        return (
            f"float32 on {found.device} is itself that far from golden: `accucompare locate"
            f" --device {found.device} --dtype float32 --golden {found.golden}` shows where"
        )
    if found.misled:
        return (
            "runs were far from their estimates: something is chosen by near ties (experts, a"
            " top-k), and other inputs may choose otherwise; give the case more of them"
        )
    failed = [run for run in found.runs if run.failed]
    if failed:
        return f"{counted(len(failed), 'choice')} did not run: {failed[0].failed}"
    return ""


def _budget(found: Fit) -> str:
    return f"{share_in_words(found.goal.budget or 0)} of the {_SHARES[found.goal.by]}"


def _everything(found: Fit) -> FitRun | None:
    """The run with everything in float32."""
    return next((run for run in found.runs if run.kept.are_all), None)


def kept_in_words(kept: KeptPlaces) -> str:
    """``pooler, layers.*.norm; own code of (root)``."""
    if kept.are_all:
        return "everything"
    parts = [", ".join(kept.whole)] if kept.whole else []
    if kept.own:
        parts.append(f"own code of {', '.join(map(display_name, kept.own))}")
    return "; ".join(parts) or "nothing"


def told_in_words(run: FitRun) -> str:
    """``pooler; with hf32 off``."""
    return "; with ".join([kept_in_words(run.kept), *run.switches])


def run_state(found: Fit, run: FitRun) -> str:
    """Whether a run does what was asked."""
    if run is found.proof and found.answer is not FitAnswer.UNREACHABLE:
        return "the proof"
    if run.failed:
        return "did not run"
    if found.goal.rel_l2 is None:
        return ""
    return "within" if run.error <= found.goal.rel_l2 else "over"


def off_by(error: float) -> str:
    return f"{error:.2e}" if math.isfinite(error) else "more than any number (NaN or Inf)"


def share_in_words(share: float) -> str:
    """A share between 0 and 1 as ``12%``, ``1.4%`` or ``0.03%``."""
    return f"{share * 100:.3g}%" if share < 0.1 else f"{share * 100:.0f}%"

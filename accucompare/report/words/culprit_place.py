"""Where a culprit is, in words."""

from __future__ import annotations

import dataclasses

from accucompare.bundle.format import AT_THE_END, WRITTEN_ROLES, Record, Role
from accucompare.compare.limit_facts import LimitsOfPair
from accucompare.compare.origins import (
    Culprit,
    FactorCause,
    ScaledGradients,
    Stage,
    are_masks,
    differing_choices,
)
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows import OperatorHint, OperatorPlace, Reason, Row, buffer_of, owner_of
from accucompare.compare.shape_facts import ErrorShape, OtherChoices
from accucompare.markup import line
from accucompare.report.words.layout_words import wrong_on
from accucompare.report.words.shape_words import CAUSES, shape_words
from accucompare.report.words.verdict_words import difference_words, option_words

#: What an update's culprit shows, by its row's role; for other roles the update itself.
_UPDATE_WORDS = {
    Role.PARAM_GRAD: "the sum of the gradients",
    Role.PARAM_BEFORE: "the weight that is updated,",
    Role.STATE_BEFORE: "what the update is given",
}

#: What changed a buffer that no call of the model has written into.
_CHANGED = {
    Role.BUFFER_BEFORE: "changed between steps",
    Role.BUFFER_AFTER: "changed in the step, outside of the model",
}


@dataclasses.dataclass(frozen=True, slots=True)
class NamedCulprit(Culprit):
    """A culprit of ``accucompare.diff``, with its place in words."""

    @classmethod
    def of(cls, culprit: Culprit) -> NamedCulprit:
        return cls(
            **{each.name: getattr(culprit, each.name) for each in dataclasses.fields(Culprit)}
        )

    @property
    def place(self) -> str:
        """``encoder.layers.5.attention.self call 1 (glue, before output.dense)``."""
        return culprit_place(self)

    @property
    def words(self) -> tuple[str, ...]:
        """The shape of its error."""
        return error_words(self)

    @property
    def hints(self) -> tuple[str, ...]:
        """Where else it shows, and frequent causes of such an error."""
        return culprit_hints(self)

    def _repr_html_(self) -> str:
        """The place, how large its error is, and the error's shape."""
        sizes = {"excess": self.excess, "x limit": self.over_limit}
        size = ", ".join(f"{name} {value:.3g}" for name, value in sizes.items() if value)
        about = [*self.words, *(f"hint, {hint}" for hint in self.hints)]
        kind = ", ".join(dict.fromkeys((self.site, self.reason.value)))  # both may be glue
        return f"<div>{line(size, strong=self.place)}{line(kind)}{''.join(map(line, about))}</div>"


def culprit_place(culprit: Culprit) -> str:
    if culprit.scaled is not None:
        return _of_scaled(culprit.scaled)
    call = f" call {culprit.call}" if culprit.call else ""
    if culprit.site == "operator":
        differs = "" if culprit.difference is None else difference_words(culprit.difference)
        parts = filter(None, (operator_words(culprit.operator), differs))
        of = "the backward of " if culprit.stage is Stage.BACKWARD else ""
        return f"{of}{culprit.name or '(root)'}{call}: {': '.join(parts)}"
    if culprit.buffer:
        return f"{culprit.buffer} (computed buffer)"
    if culprit.row.record is not None and culprit.row.record.role in WRITTEN_ROLES:
        return _place_written(culprit, culprit.row.record, call)
    if culprit.whole:
        return "the whole update"
    if culprit.stage is not Stage.FORWARD and not culprit.cut:
        return _place_in_training(culprit)
    own = culprit.before.removeprefix(f"{culprit.name}.") if culprit.name else culprit.before
    # it may be of another call than the one that the cut is before
    behind = None if culprit.cut else culprit.row.record
    own += f" call {behind.call}" if own and behind is not None and behind.call else ""
    glue = f" (glue, before {own})" if own else " (glue, at its end)"
    return f"{culprit.name or '(root)'}{call}{glue if culprit.site == 'glue' else ''}"


def _place_written(culprit: Culprit, record: Record, call: str) -> str:
    if record.role is Role.ARGUMENT_UPDATE:
        glue = "glue, " if culprit.site == "glue" else ""
        return f"{culprit.name or '(root)'}{call} ({glue}written into argument {record.path})"
    if record.role is not Role.BUFFER_UPDATE:
        return f"{buffer_of(record)} ({_CHANGED[record.role]})"
    by = "" if owner_of(record) == culprit.name else f" by {culprit.name or '(root)'}"
    return f"{buffer_of(record)}{call} (buffer update{by})"


def _place_in_training(culprit: Culprit) -> str:
    record = culprit.row.record
    assert record is not None
    if record.role is Role.LOSS:
        return "the loss" + (f" of backward {record.call}" if record.call else "")
    if record.role is Role.CLIPPED_NORM:
        return "the clipping of the gradients"
    if culprit.stage is Stage.LOSS:
        return f"the backward of the loss, gradient of {record.path or 'the output'}"
    call = f" call {culprit.call}" if culprit.call else ""
    owner = f"{culprit.name}." if culprit.name else ""
    if culprit.stage is Stage.BETWEEN:  # the call is the number of updates of the step before
        update = "the update" if culprit.call == 1 else f"update {culprit.call}"
        changed = f"changed {owner}{record.path.removesuffix(AT_THE_END)}"
        if culprit.call:
            return f"after {update} of step {record.step} something else {changed}"
        if record.path.endswith(AT_THE_END):
            return f"in step {record.step} something other than an optimizer {changed}"
        return f"between step {record.step - 1} and {record.step} something else {changed}"
    if culprit.stage is Stage.UPDATE:
        what = _UPDATE_WORDS.get(record.role, "the update")
        if record.role is Role.STATE_AFTER:
            parameter, _, state = record.path.partition(".")
            return f"{what} of {owner}{parameter}, {state}"
        if record.role is Role.PARAM_BEFORE:
            return f"{what} {owner}{record.path}"
        return f"{what} of {owner}{record.path}"
    name = culprit.name or "(root)"
    if record.role is Role.CALL_GRAD:
        own = " (glue)" if culprit.site == "glue" else ""
        return f"the backward of {name}{call}{own}, gradient of {record.path.removeprefix('/')}"
    if culprit.site == "glue":
        behind = culprit.before.removeprefix(f"{culprit.name}.") if culprit.name else culprit.before
        where = f"behind {behind}" if behind else "at its beginning"
        return f"the backward of {name}{call} (glue, {where})"
    return f"the backward of {name}{call}, gradient of input {record.path or '0'}"


def _of_scaled(scaled: ScaledGradients) -> str:
    if scaled.of_parameters:
        return f"all {scaled.count} gradients of parameters"
    if scaled.count > 1 or scaled.row.record is None:
        return f"all {scaled.count} gradients of the loss"
    return f"the backward of the loss, gradient of {scaled.row.record.path or 'the output'}"


def scaled_words(scaled: ScaledGradients) -> str:
    """``0.5000 of golden's (spread 1e-07): normalisation, …``."""
    factor = f"{scaled.factor:.4f}" if 0.01 <= abs(scaled.factor) < 1000 else f"{scaled.factor:.6g}"
    spread = f"{scaled.spread:.0e}" if scaled.spread else "0"
    begins = _BEGINS[scaled.of_loss] if scaled.of_parameters else ""
    causes = "normalisation, reduction, clipping or loss scale, not rounding"
    return f"{factor} of golden's (spread {spread}): {causes}{begins}"


_BEGINS = {
    True: "; the loss already gives them so",
    False: "; what the loss gives is right",
    None: "",
}


_CAUSES = {
    FactorCause.OTHER_SIGN: "often: the loss has the other sign",
    FactorCause.LOSS_SCALE: "often: a loss scale that was not undone, or undone twice",
    FactorCause.MEAN: (
        "1/{parts}; often: a mean over {parts} accumulated backwards, or {parts} ranks, that golden"
        " sums or does not have"
    ),
    FactorCause.SUM: (
        "{parts}; often: a sum over {parts} accumulated backwards, or {parts} ranks, that golden"
        " averages, or gradients not zeroed"
    ),
    FactorCause.CLIPPING: (
        "often: clipping at another norm, or a mean over another number of tokens or samples"
    ),
}


def error_words(culprit: Culprit) -> tuple[str, ...]:
    """The shape of its error, one statement each."""
    if culprit.scaled is not None:
        return (scaled_words(culprit.scaled),)
    ranks = wrong_on(culprit.row, culprit.wrong)
    match culprit.shape:
        case ErrorShape():
            return (*ranks, *shape_words(culprit.shape))
        case OtherChoices(off, rows, first):
            in_rows = (f"in {off} of {rows} rows, the first {list(first)}",) if off else ()
            return (*ranks, different_values(culprit.row), *in_rows)
    return ranks


def culprit_hints(culprit: Culprit) -> tuple[str, ...]:
    """Where else it shows, and frequent causes of such an error."""
    if culprit.scaled is not None:
        cause, parts = culprit.scaled.cause
        return (_CAUSES[cause].format(parts=parts),)
    of_shape = culprit.shape.causes if isinstance(culprit.shape, ErrorShape) else ()
    of_precision = (_OF_PRECISION,) if _baseline_likewise(culprit) else ()
    return (*map(_hint_words, culprit.seen_in), *of_precision, *map(CAUSES.__getitem__, of_shape))


_OF_PRECISION = (
    "golden's own code is not finite there in this precision (the baseline): keep it in float32"
)


def _baseline_likewise(culprit: Culprit) -> bool:
    """Whether the baseline, too, has NaN or Inf where golden has none."""
    metrics, limit = culprit.row.metrics, culprit.row.verdict.limit
    return (
        culprit.reason is Reason.NON_FINITE
        and isinstance(limit, LimitsOfPair)
        and BareRemark.BASELINE_NON_FINITE in limit.unjudged
        and metrics is not None
        and not metrics.golden_nan + metrics.golden_inf
    )


def _hint_words(hint: OperatorHint) -> str:
    if isinstance(hint, OperatorPlace):
        return f"seen in {operator_words(hint)}"
    options = "; ".join(map(option_words, hint.options))
    return f"before it, {operator_words(hint.operator)}: {options}"


def operator_words(operator: OperatorPlace | None) -> str:
    """``aten.bmm call 1 (bert/modeling_bert.py:187)``; ``what aten.bmm takes as mat2``."""
    if operator is None:
        return ""
    call = f" call {operator.call}" if operator.call else ""
    place = f" ({operator.source_line})" if operator.source_line else ""
    what = f", gradient of {operator.gradient_of}" if operator.gradient_of else ""
    named = f"{operator.name}{call}{place}{what}"
    if operator.takes is None:
        return named
    taken = f"takes as {operator.takes}" if operator.takes else "is given as gradient"
    elsewhere = f", in golden at {operator.golden_line}" if operator.golden_line else ""
    return f"what {named} {taken}{elsewhere}"


def different_values(row: Row) -> str:
    """``3 of 1000 differ``, for integers, booleans and masks; else ``""``."""
    different, metrics = differing_choices(row), row.metrics
    if not different or metrics is None:
        return ""
    if are_masks(row):
        return f"a mask that lets through other positions: {different} of {metrics.elements} differ"
    return f"{different} of {metrics.compared} differ"

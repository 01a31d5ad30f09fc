"""What to try: a table of hints, the likeliest first, over the properties of ``HintFacts``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from accucompare.bundle.format import display_name
from accucompare.findings.log import Cause, Direction, Finding, Site, TensorRange, WatchStart
from accucompare.findings.origins import DIVISIONS, LOGS, operator_name, snake
from accucompare.numbers import DTYPES

# with less range than float32, unlike bfloat16
_HALVES = ("float16", "float8_e5m2", "float8_e4m3fn", "complex32")
_SATURATED = "saturated"
_EXPLODED = 1e6


class HintFacts:
    """What a hint may ask about a finding; ``scale`` is the loss scale in its step, if any."""

    def __init__(self, finding: Finding, start: WatchStart, scale: float | None = None) -> None:
        self.finding, self.start, self.scale = finding, start, scale
        self.operator = operator_name(finding.operator)
        self.backward = finding.direction is Direction.BACKWARD
        self.forward = not self.backward
        self.nan = "NaN" in finding.kinds
        self.saturated = _SATURATED in finding.kinds or start.saturates
        self.large = any(kind in finding.kinds for kind in ("+Inf", "-Inf", _SATURATED))

    def site(self, *sites: Site) -> bool:
        return self.finding.site in sites

    @property
    def inside(self) -> bool:
        """Whether an operator of the model made it, here."""
        return self.finding.origin and self.site(Site.MODULE, Site.GLUE, Site.POINT)

    def of(self, *names: str) -> bool:
        """Whether the operator is known and one of these."""
        return self.inside and self.operator in names

    @cached_property
    def inputs(self) -> list[TensorRange]:
        """The operator's inputs, or else the module's."""
        return [
            tensor
            for tensor in self.finding.operator_tensors or self.finding.tensors
            if tensor.role == "input"
        ]

    @cached_property
    def outputs(self) -> list[TensorRange]:
        tensors = self.finding.operator_tensors or self.finding.tensors
        return [tensor for tensor in tensors if tensor.role in ("output", "grad")]

    @property
    def dtype(self) -> str:
        """Of the output that is not finite."""
        wrong = (
            [tensor for tensor in self.outputs if not tensor.finite] or self.outputs or self.inputs
        )
        return wrong[0].dtype if wrong else ""

    @property
    def half(self) -> bool:
        """Whether its dtype has less range than float32."""
        return self.dtype in _HALVES

    @property
    def overflow(self) -> bool:
        """Whether a value became too large here: a dtype of more range, or smaller values, help."""
        return self.large and self.inside and not self.of(*_AT_ZERO)

    @property
    def nearest(self) -> tuple[float, float]:
        """The largest finite input magnitude, and its dtype's limit; 0 if there is none."""
        sized = [
            (tensor.abs_max, _limit(tensor))
            for tensor in self.inputs
            if tensor.finite and _limit(tensor)
        ]
        return max(sized, key=lambda pair: pair[0] / pair[1], default=(0.0, 0.0))

    @property
    def exploded(self) -> bool:
        """Whether the inputs were already far too large, in a dtype whose range suffices."""
        return self.inside and not self.half and self.nearest[0] > _EXPLODED

    @property
    def outside_of_powers(self) -> bool:
        """Whether the base of a power reaches 0 or below, and its square would not overflow."""
        base = self.inputs[:1]
        return not any(
            float(each.low) > 0 or each.abs_max > math.sqrt(_limit(each) or math.inf)
            for each in base
        )

    @property
    def negative_variance(self) -> bool:
        """Whether an input running variance is negative somewhere."""
        return any(
            tensor.path == "running_var" and float(tensor.low) < 0
            for tensor in [*self.inputs, *self.finding.weights]
        )

    @property
    def masked(self) -> bool:
        """Whether -Inf went in, as masks put it."""
        return bool(self.finding.legal) or any(
            float(tensor.low) == -math.inf for tensor in self.inputs
        )


def _limit(tensor: TensorRange) -> float:
    dtype = DTYPES.get(tensor.dtype)
    return dtype.largest if dtype is not None else 0.0


class _Hint(NamedTuple):
    """A hint and its condition; ``hints_for`` fills the names in braces."""

    when: Callable[[HintFacts], bool]
    text: str


_ROOTS = ("sqrt", "rsqrt", "pow")
_AT_ZERO = (*LOGS, "log1p", "xlogy", *DIVISIONS, "rsqrt", "logit")
_NORMS = (
    "norm",
    "linalg_vector_norm",
    "linalg_norm",
    "frobenius_norm",
    "std",
    "var",
    "cdist",
    "cdist_forward",
    "dist",
    "euclidean_dist",
)
_EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh", "logsumexp", "softplus")
_BOUNDED = ("acos", "asin", "atanh", "acosh", "erfinv", "arccos", "arcsin", "arctanh")
_NORMALISATIONS = re.compile(
    r"(?:native_|fused_)?(?:layer|batch|group|instance|rms)_?norm"
    r"|cudnn_batch_norm|npu_(?:rms|layer)_norm"
)
_PRODUCTS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "matmul",
    "linear",
    "convolution",
    "dot",
    "einsum",
    "conv1d",
    "conv2d",
    "conv3d",
)
_SUMS = ("add", "sub", "add_n", "")
_LOSSES = re.compile(r"nll_loss|cross_entropy|binary_cross_entropy|kl_div|mse_loss|mean")


def _is_softmax(facts: HintFacts) -> bool:
    attention = "softmax" in facts.operator or "attention" in facts.operator
    return (
        facts.inside
        and facts.forward
        and (attention or (not facts.operator and "ttention" in facts.finding.type))
    )


_HINTS: tuple[_Hint, ...] = (
    # Not made by an operator of the model.
    _Hint(
        lambda facts: facts.site(Site.RANK),
        "accucompare overflow, of the directory of all ranks' logs, says which rank was first, and"
        " where",
    ),
    _Hint(
        lambda facts: not facts.finding.origin and not facts.site(Site.RANK),
        "it came in: look at the finding that comes first, this one only passed it on",
    ),
    _Hint(
        lambda facts: facts.site(Site.WEIGHTS) and facts.finding.step > 0,
        "look at the update before this step: its grad_norm, the learning rate (lower it), clipping"
        " before the gradients are unscaled",
    ),
    _Hint(
        lambda facts: facts.site(Site.WEIGHTS),
        "if it is so from the start: look at the checkpoint, and at how {name} is initialised",
    ),
    _Hint(
        lambda facts: facts.site(Site.HOOK),
        "look at the hook: what does it make of a gradient of 0, or of a large one?",
    ),
    _Hint(
        lambda facts: facts.site(Site.GRADIENTS),
        "look at what is done to gradients between the backward and the update: a clipping that"
        " divides by a norm of 0, a scale of 0",
    ),
    _Hint(
        lambda facts: facts.site(Site.UPDATE),
        "look at the update of step {step}: the learning rate, its grad_norm, the optimizer's eps"
        " (1e-8 is 0 in float16) and its state",
    ),
    _Hint(
        lambda facts: facts.site(Site.INPUT),
        "look at the data of step {step}: missing values, a division in its preparation, a"
        " conversion that overflows",
    ),
    _Hint(
        lambda facts: (
            facts.site(Site.LOSS)
            and facts.backward
            and facts.large
            and not facts.nan
            and ((facts.scale or 0) > 1 or facts.half)
        ),
        "lower the loss scale, or let it be dynamic (torch.amp.GradScaler): what comes from the"
        " loss is too large for {dtype}",
    ),
    _Hint(
        lambda facts: facts.site(Site.LOSS) and bool(facts.finding.legal),
        "the model gave an Inf, as masks do, and the loss has made this of it: a label or a whole"
        " row that is masked, 0 * Inf, Inf - Inf",
    ),
    _Hint(
        lambda facts: facts.site(Site.LOSS) and facts.operator in LOGS,
        "in the loss, log of 0: add eps inside it, or use log_softmax, or a loss of logits"
        " (cross_entropy, …_with_logits)",
    ),
    _Hint(
        lambda facts: facts.site(Site.LOSS) and facts.operator in DIVISIONS,
        "in the loss, division by 0, as by the sum of a mask that hides everything: let the"
        " divisor be 1 at least",
    ),
    _Hint(
        lambda facts: facts.site(Site.LOSS) and facts.operator in (*_ROOTS, *_NORMS),
        "in the loss, a root or a norm at 0, whose slope is Inf: add eps inside it, as sqrt(x * x +"
        " eps)",
    ),
    _Hint(
        lambda facts: facts.site(Site.LOSS) and not facts.operator and (facts.nan or facts.forward),
        "look at the loss: log or root of 0, a label out of range, labels that are all ignored (a"
        " mean of nothing is 0/0)",
    ),
    _Hint(
        lambda facts: (
            facts.site(Site.LOSS)
            and (facts.operator in LOGS or (not facts.operator and (facts.nan or facts.forward)))
        ),
        "compute the loss in float32, from logits (cross_entropy, …_with_logits), not from"
        " probabilities",
    ),
    _Hint(
        lambda facts: facts.site(Site.SUM) and facts.start.ranks > 1,
        "it may be another rank's, since after an all-reduce every rank has it; that rank's own log"
        " names it",
    ),
    _Hint(
        lambda facts: facts.site(Site.SUM) and facts.large,
        "what was added up was finite, its sum is not: add gradients up in float32, or lower the"
        " loss scale",
    ),
    _Hint(
        lambda facts: facts.site(Site.SUM) and not facts.large,
        "look at the ranks and micro-batches that went into the sum: which of them was not finite?",
    ),
    # By what went in.
    _Hint(
        lambda facts: _is_softmax(facts) and facts.nan and facts.masked,
        "a row of -Inf has no softmax (0/0): a mask hides every key of it; leave one, or mask with"
        " torch.finfo(dtype).min in place of -inf",
    ),
    _Hint(
        lambda facts: (
            facts.inside and facts.forward and facts.nan and facts.masked and not _is_softmax(facts)
        ),
        "-Inf went in and NaN came out: Inf - Inf, 0 * Inf, or a mask that hides a whole row; mask"
        " with torch.finfo(dtype).min instead",
    ),
    # By the operator, at the edge of its domain.
    _Hint(
        lambda facts: facts.of(*LOGS, "xlogy") and facts.forward,
        "log of 0 is -Inf, of less is NaN: add eps inside it, or use log_softmax",
    ),
    _Hint(
        lambda facts: facts.of("log1p", "logit"),
        "at the edge of its domain: clamp what goes in, by an eps that {dtype} can hold",
    ),
    _Hint(
        lambda facts: facts.of(*DIVISIONS) and facts.forward,
        "division by 0 (0/0 is NaN): add eps to the divisor",
    ),
    _Hint(
        lambda facts: facts.of("sqrt") and facts.forward,
        "the root of a negative number: clamp at 0 and add eps before it",
    ),
    _Hint(
        lambda facts: facts.of("rsqrt") and facts.forward,
        "1/sqrt of 0 is Inf, of less is NaN: add eps inside, one that {dtype} can hold",
    ),
    _Hint(
        lambda facts: facts.of("pow") and facts.forward and facts.outside_of_powers,
        "0 to a negative power is Inf, a negative number to a fraction is NaN: add eps, or clamp",
    ),
    _Hint(
        lambda facts: facts.of(*_EXPONENTIALS) and facts.large,
        "exp of more than 88.7 (11.1 in float16) is Inf: subtract the maximum before it",
    ),
    _Hint(
        lambda facts: facts.of(*_BOUNDED),
        "outside of its domain, or at its edge: clamp a little inside of it",
    ),
    _Hint(
        lambda facts: facts.backward and facts.of(*_ROOTS, *_NORMS),
        "the slope of a root or a norm is Inf at 0 (and 0 * Inf is NaN): add eps inside it, as"
        " sqrt(x * x + eps)",
    ),
    _Hint(
        lambda facts: facts.backward and facts.of(*_AT_ZERO) and not facts.of(*_ROOTS),
        "its slope is 1/0 at 0: add eps to what goes into it",
    ),
    _Hint(
        lambda facts: (
            facts.backward
            and facts.nan
            and facts.of(*_AT_ZERO, *_ROOTS, *_NORMS, *_BOUNDED, "mul", "where", "exp")
        ),
        "torch.where after it does not help (0 * Inf is NaN): make safe what goes in, not what"
        " comes out",
    ),
    _Hint(
        lambda facts: facts.inside and facts.negative_variance,
        "its running variance is negative, and has no root: look at the checkpoint, or at what has"
        " written into running_var",
    ),
    _Hint(
        lambda facts: facts.of("weight_norm_interface", "weight_norm"),
        "a weight norm divides by the length of a row of its weight, and one is all zeros (0/0):"
        " initialise it otherwise",
    ),
    _Hint(
        lambda facts: (
            facts.inside
            and not facts.negative_variance
            and _NORMALISATIONS.fullmatch(facts.operator or snake(facts.finding.type)) is not None
        ),
        "equal values have no variance, and the eps may be 0 in {dtype} (1e-8 is, in float16): a"
        " larger eps, or this norm in float32",
    ),
    _Hint(
        lambda facts: facts.inside and _LOSSES.match(facts.operator) is not None and facts.nan,
        "a mean of nothing is 0/0: are all labels ignored?",
    ),
    # Too large.
    _Hint(
        lambda facts: facts.inside and facts.finding.cause is Cause.NEAR,
        "what goes in is near the limit already ({low} of {high}): the frames before show where it"
        " grows; scale it down there",
    ),
    _Hint(
        lambda facts: (
            facts.overflow and facts.site(Site.GLUE) and facts.operator in _SUMS and facts.forward
        ),
        "the sum grows from block to block: keep the residual stream in float32 (or bfloat16), or"
        " scale down what is added",
    ),
    _Hint(
        lambda facts: facts.backward and facts.large and facts.half,
        "lower the loss scale, or let it be dynamic (torch.amp.GradScaler)",
    ),
    _Hint(
        lambda facts: facts.backward and facts.finding.origin and (facts.scale or 0) > 1,
        "under a loss scale ({scale}) gradients that overflow now and then are normal: the step is"
        " skipped and the scale lowered",
    ),
    _Hint(
        lambda facts: facts.overflow and facts.half,
        "keep {name} in float32, or use bfloat16: {dtype} ends at {limit}",
    ),
    _Hint(
        lambda facts: facts.overflow and facts.of(*_PRODUCTS) and facts.forward,
        "a product adds up many terms: scale one side before it (q / sqrt(d) before q @ k), not its"
        " result after it",
    ),
    _Hint(
        lambda facts: facts.exploded,
        "values have grown to {low}, step by step or block by block: lower the learning rate, warm"
        " up, clip gradients, or normalise",
    ),
    _Hint(
        lambda facts: facts.overflow and facts.forward and facts.dtype in ("bfloat16", "float32"),
        "{dtype} ends at 3.4e38, so float32 does not help: look at the operator before, what goes"
        " in is far too large",
    ),
    _Hint(
        lambda facts: facts.finding.origin and facts.saturated and facts.large,
        "this device gives the largest number in place of Inf: {limit} is an overflow (newer NPUs"
        " show Inf with INF_NAN_MODE_ENABLE=1)",
    ),
    # Nothing better is known.
    _Hint(
        lambda facts: facts.inside and facts.site(Site.POINT),
        "it was made between the call before the point and the point: see the frames",
    ),
    _Hint(
        lambda facts: facts.inside and not facts.operator,
        'run it with `--level op` (level="op"): it names the operator and its source line',
    ),
    _Hint(
        lambda facts: bool(facts.finding.reproducer),
        "run the reproducer on another device (python SCRIPT cpu): if the values are finite there,"
        " it is the device",
    ),
)


def hints_for(finding: Finding, start: WatchStart, scale: float | None = None) -> list[str]:
    """What to try, the likeliest first; ``scale`` is the loss scale in its step, if any."""
    facts = HintFacts(finding, start, scale)
    low, high = facts.nearest
    limit = DTYPES[facts.dtype].largest if facts.dtype in DTYPES else 0.0
    words = {
        "name": "it" if finding.name == "" else display_name(finding.name),
        "dtype": facts.dtype or "its dtype",
        "limit": f"{limit:.6g}" if limit else "its largest number",
        "step": str(finding.step),
        "scale": f"{scale or 0:g}",
        "low": f"{low:.6g}",
        "high": f"{high:.6g}",
    }
    return [hint.text.format(**words) for hint in _HINTS if hint.when(facts)]

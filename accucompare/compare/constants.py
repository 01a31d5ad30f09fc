"""The numbers that decide a verdict or a culprit: each once, with its unit and its evidence.

Each has a case in ``tests/compare/test_deciding.py``, and ``python -m benchmarks.mutants`` changes
each and expects it to fail. Numbers that others have set stand elsewhere: quantiles in
``limits.baseline``, standards in ``runs.acceptance``, exit codes in ``decide``."""

from __future__ import annotations

from dataclasses import dataclass

# -- limits by type

#: By digits of a type, relative L2 errors: what passes by default; the most that is rounding,
#: whatever the baseline, of a fed and of a free-running candidate.
#: The default goes by the coarsest type that either side has held so far in the step: values after a
#: bfloat16 layer carry its rounding, whatever their own type.
#: Measured: rounding through a deep model stays well below (12 transformer layers: 6e-7 in float32,
#: 7e-4 in float16, 6e-3 in bfloat16), most bugs do not. Fed, rounding alone stays far below the
#: ceilings (7 roundings in float32, 2.5 in half types, on twelve architectures; products in HF32 or
#: TF32 as float16). A baseline that needs more may have the fault itself.
BY_DIGITS = {
    53: (1e-10, 1e-9, 1e-6),
    24: (1e-4, 1e-3, 1e-2),
    11: (1e-2, 3e-2, 0.2),
    8: (5e-2, 0.125, 0.5),
    4: (0.25, 0.5, 1.0),
    3: (0.5, 1.0, 1.0),
    1: (1.0, 1.0, 1.0),
}

#: Roundings of the type that a fed candidate may be off, in which no error is passed on: of a coarse
#: type, where nearly all of a module's error is the rounding of its operands and results.
FED_ROUNDINGS = 4
#: The same of a fine type, where most is that of long sums, which depends on their order. Measured: 4
#: were too few for 71 of 144 correct float32 captures, mostly of wide linear layers.
FED_ROUNDINGS_OF_SUMS = 32

#: Times its limit: an error that is so far over it is no chance. The ratio of two root mean squares
#: of four numbers passes its limit once in a thousand, and twice that once in 15,000. An error that
#: is over by less does not lead before a clear one of a later step.
CLEAR = 2.0

#: Classes that sum over a batch or an image while they train, and the dimension of their outputs that
#: they do not sum over.
SUMMED = {"BatchNorm1d": 1, "BatchNorm2d": 1, "BatchNorm3d": 1, "SyncBatchNorm": 1, "GroupNorm": 0}
#: Times sqrt(n) roundings of float32, by which n terms that are summed in another order may differ
#: (N. J. Higham & T. Mary, SIAM J. Sci. Comput. 41, 2019). Measured against torch's own two orders, n
#: from 128 to 5e5, mean up to five times the spread: up to 2.6, in GroupNorm 4.1.
ORDERS_OF_SUMS = 4.0
#: The largest relative L2 error that another order explains. A variance that is off by 1e-3 has 5e-4.
MOST_OF_SUMS = 1e-4

#: Recurrent classes, and by how many roundings a value comes about where operators compose each step
#: (sums, gates, products, tanh). A fused kernel (cuDNN's; oneDNN's, of LSTM in half types) rounds a
#: step's result alone, so that a baseline made by it is closer than rounding has to be. Roundings add
#: up as their squares; a backward has the forward's and its own; a parameter's gradient is summed up
#: in the half type, step by step.
#: Measured of 1 to 200 steps, in unit roundoffs: LSTM and GRU composed 0.7 to 1.5 in outputs, 0.7 to
#: 2.2 in gradients, 0.8 to 5.6 in those of parameters; RNN 0.5 to 1.2, 0.7 to 1.8, to 5.4; LSTM by
#: oneDNN to 0.75, 1.4 and 1.4.
RECURRENT = {"LSTM": 6, "GRU": 6, "RNN": 2}

#: The smallest cosine similarity that is taken as a limit; below, 1 - cosine was probably meant.
SMALLEST_COSINE = 0.5

# -- a baseline


@dataclass(frozen=True, slots=True)
class PrecisionOfBaseline:
    """What to expect of two computations that differ by rounding alone.

    Attributes:
        floor: the smallest error that counts as a baseline's, in unit roundoffs of the type.
        slack: factor on the limit.
    """

    floor: float
    slack: float


#: In half types, of no more digits than float16, nearly all of a module's error is the rounding of
#: its inputs, weights and outputs, which is the same on every device. Half a unit roundoff is about
#: the root mean square of rounding once, and a factor of 2 is room for accumulation in another order
#: or precision.
HALF = PrecisionOfBaseline(floor=0.5, slack=2.0)
#: With more digits most of the error comes from the order of accumulation, and elementary functions
#: differ between devices by a few units in the last place. Both vary more between devices.
SINGLE = PrecisionOfBaseline(floor=2.0, slack=4.0)

#: Elements below which being closer to golden than the baseline proves nothing.
FEW = 64

#: Joint standard deviations (and one more) by which two counts of changed choices, which are about
#: Poisson variables, hardly ever differ.
DEVIATIONS = 3.0

#: Relative L2 distance of golden's two captures beyond which golden is not compared with.
UNSTEADY = 0.1

#: Times the distance of two runs: an error up to this counts as noise.
RUNS = 2.0

#: Share of the smallest error that counts as a baseline's (and of a coarser baseline's own error)
#: that is explained: a quarter of an error, at right angles to it, makes it 3 % larger.
HIDES_NOTHING = 0.25

# -- a closer look at gradients, updates and masks

#: Roundings that all elements of a gradient may have in common.
COMMON_ROUNDINGS = 2.0
#: Times the baseline's own factor that they may have in common.
OF_BASELINE = 2.0
#: Standard errors by which a factor must be off besides; the standard error is an upper bound.
STANDARD_ERRORS = 4.0
#: Roundings of the largest element of an update: its moments, their quotient and clipping are
#: rounded, each once or twice.
ROUNDINGS_OF_UPDATE = 8.0
#: Share of a type's lowest value beyond which a number may be a mask.
NEAR_LOWEST = 0.99

# -- pairs and rows

#: Relative difference of norms and extrema up to which two sequences of operators may begin or end
#: with a pair.
ALIKE_OPERATORS = 0.1

#: Share of its limit beyond which a row that passes is near it.
NEAR = 0.5

# -- where errors come from

#: Times as far over its limit as an earlier error of a fed call's own code, or of its backward, from
#: which a later one is another.
MUCH_FURTHER = 8.0

#: Times the limit of a value that a free-running gradient may be off: it carries the rounding of the
#: whole forward and of the backward until there. Measured (MiniLM in bfloat16, two steps of
#: training): gradients are off by up to 0.10, values by up to 0.034.
FREE_GRADIENTS = 4.0

#: Factor within which excesses count as equal.
ALIKE = 2.0

#: Free-running, the smallest jump of the excess that counts; a smaller one may come from the way in
#: which errors grow and shrink.
SMALLEST_JUMP = 1.5

#: Share of integers up to which they may have been chosen among nearly equal values. Such rows come
#: last.
MANY = 0.1

#: Roundings of the coarser side's type, relative to the value's norm, up to which a change between
#: updates is rounding: averaged weights that are swapped in and out again are rounded twice, and a
#: change of less than half a rounding may leave the other side's value as it is.
ROUNDINGS_OF_CHANGE = 2.0

#: Share of an update, relative to its norm, that clamping may cut where another update was made of
#: other gradients (Adam's first update makes 1.5e-2 of gradients that are 1e-5 off).
SHARE_OF_UPDATE = 0.05

#: Relative difference up to which factors on gradients are one; in half types their rounding.
SPREAD = 1e-6
#: Times what is left of a gradient without its factor, by which that factor may be off.
OF_REST = 3.0
#: Times what factors may be apart, from which one is not 1.
DISTINCT = 10.0
#: Gradients: fewer tell nothing of all.
FEWEST_GRADIENTS = 2

# -- runs of training

#: Relative difference below which learning rates are one: some optimizers keep them in float32.
SAME_RATE = 1e-6

#: Steps at the beginning of a run whose differences are taken together.
TOGETHER = 10
#: Standard errors from zero at which a mean is a bias.
BIASED = 4.0
#: Steps that it takes to tell one.
FEWEST_STEPS = 10

"""The numbers that decide a verdict or a culprit: each once, with its unit and its evidence.

Each has a case in ``tests/compare/test_deciding.py``; ``python -m benchmarks.mutants`` changes each
and expects it to fail. Numbers set by others stand elsewhere: quantiles in ``limits.baseline``,
standards in ``runs.acceptance``, exit codes in ``decide``."""

from __future__ import annotations

from dataclasses import dataclass

# -- limits by type

#: By digits of a type (bits of its significand, ``DType.digits``), three relative L2 errors: the
#: default limit; then the ceiling of rounding, whatever the baseline, of a fed candidate and of a
#: free-running one.
#: The default follows the coarsest type so far in the step, on either side: values after a bfloat16
#: layer carry its rounding, whatever their own type.
#: Measured: rounding through a deep model stays well below (12 transformer layers: 6e-7 in float32,
#: 7e-4 in float16, 6e-3 in bfloat16), most bugs do not. Fed, rounding stays far below the ceilings
#: (7 roundings in float32, 2.5 in half types, on twelve architectures; products in HF32 or TF32 as
#: float16). A baseline that needs more may have the fault itself.
BY_DIGITS = {
    53: (1e-10, 1e-9, 1e-6),  # float64
    24: (1e-4, 1e-3, 1e-2),  # float32, complex64
    11: (1e-2, 3e-2, 0.2),  # float16
    8: (5e-2, 0.125, 0.5),  # bfloat16
    4: (0.25, 0.5, 1.0),  # float8_e4m3
    3: (0.5, 1.0, 1.0),  # float8_e5m2
    1: (1.0, 1.0, 1.0),  # float8_e8m0fnu
}

#: Times its limit that the worst 8,192 values of what a module takes or gives may be off: one token
#: that is all wrong hides in the norm of a thousand. Measured free-running in bfloat16, ten
#: architectures, each with its weights and with three times its weights: 1.0 to 1.8 times the whole
#: tensor's error, at most 0.072 where the limit is 0.05; 3.5 to 4.1 times, at most 0.16, where a
#: router chooses otherwise or an error grows from token to token (Mixtral, Mamba). A wrong token of
#: 768 values makes 0.43.
IN_PART = 4.0

#: Roundings of the type that a fed candidate may be off. In coarse types nearly all of a module's
#: error is the rounding of its operands and results.
FED_ROUNDINGS = 4
#: The same in fine types, where most of the error is the order of long sums. Measured: 4 were too
#: few for 71 of 144 correct float32 captures, mostly of wide linear layers.
FED_ROUNDINGS_OF_SUMS = 32

#: Errors grow by ``first * ranks ** power`` where partial sums of ranks are rounded to a half type,
#: and added up in it. Measured for a row-parallel bfloat16 linear, in multiples of one device's
#: error: 1.47, 1.89, 2.42, 3.17, 4.27 on 2, 4, 8, 16, 32 ranks (ring); 1.42 on any number if the
#: terms are added up in float32.
SUMS_OF_RANKS = 1.11, 0.4

#: A clear error is this many times its limit. By chance, the ratio of two root mean squares of four
#: numbers passes its limit once in 1000, and twice that once in 15,000. An error that is over by
#: less does not lead before a clear one of a later step.
CLEAR = 2.0

#: Classes that sum over a batch or an image in training, and the one output dimension they keep.
SUMMED = {"BatchNorm1d": 1, "BatchNorm2d": 1, "BatchNorm3d": 1, "SyncBatchNorm": 1, "GroupNorm": 0}
#: Times sqrt(n) roundings of float32: how far n terms summed in another order may differ (N. J.
#: Higham & T. Mary, SIAM J. Sci. Comput. 41, 2019). Measured on torch's own two orders, n from 128
#: to 5e5, mean up to five times the spread: up to 2.6, in GroupNorm 4.1.
ORDERS_OF_SUMS = 4.0
#: The largest relative L2 error that another order explains; a variance off by 1e-3 makes 5e-4.
MOST_OF_SUMS = 1e-4

#: Recurrent classes, and how many roundings a value takes where operators compose each step (sums,
#: gates, products, tanh). A fused kernel (cuDNN; oneDNN for LSTM in half types) rounds only a
#: step's result, so its baseline is closer than rounding has to be. Roundings add up as their
#: squares. A backward has the forward's and its own; a parameter's gradient is summed in the half
#: type, step by step.
#: Measured over 1 to 200 steps, in unit roundoffs, for outputs, gradients and parameters'
#: gradients: LSTM and GRU composed 0.7 to 1.5, 0.7 to 2.2, 0.8 to 5.6; RNN 0.5 to 1.2, 0.7 to 1.8,
#: to 5.4; LSTM by oneDNN to 0.75, 1.4, 1.4.
RECURRENT = {"LSTM": 6, "GRU": 6, "RNN": 2}

#: Patterns of classes whose kernels on an accelerator are less exact in float32 than long sums
#: explain, and how many times as far off they may be as others, gradients too. Measured
#: on an H100 (torch 2.11, cuDNN 9.19; without TF32), as multiples of golden's own error, or of 2
#: roundoffs if that is more: convolutions (Winograd's algorithm) up to 4.4, gradients of weights
#: 6.4; cuDNN's LSTM (elementary functions) 42, gradients 24; the gradient of CTCLoss 18.
KERNELS_OF_DEVICES = {r"Conv(Transpose)?[123]d": 3.0, r"^(LSTM|GRU|RNN)$": 16.0, r"^CTCLoss$": 8.0}

#: The smallest cosine similarity taken as a limit; below it, 1 - cosine was probably meant.
SMALLEST_COSINE = 0.5

# -- a baseline


@dataclass(frozen=True, slots=True)
class PrecisionOfBaseline:
    """What to expect of two computations that differ by rounding alone."""

    floor: float  # the smallest error that counts as a baseline's, in unit roundoffs of the type
    slack: float  # factor on the limit


#: In half types (at most float16's digits) nearly all of a module's error is the rounding of its
#: inputs, weights and outputs, the same on every device. Half a unit roundoff is about the root
#: mean square of one rounding; the factor of 2 leaves room for another accumulation order or
#: precision.
HALF = PrecisionOfBaseline(floor=0.5, slack=2.0)
#: With more digits most of the error is the order of accumulation, and elementary functions differ
#: by a few units in the last place. Both vary more between devices.
SINGLE = PrecisionOfBaseline(floor=2.0, slack=4.0)

#: With fewer elements, being closer to golden than the baseline proves nothing.
FEW = 64

#: Joint standard deviations (plus one) by which two counts of changed choices, roughly Poisson,
#: hardly ever differ.
DEVIATIONS = 3.0

#: How many times as far as a router's scores are apart on average (root mean square) the margin may
#: be by which a token goes to another expert: of a million normal errors, the difference of two is
#: hardly ever larger than 7.
FLIPPED = 8.0

#: Times the root of the share of rows that were chosen otherwise that a later value may be off,
#: relative to its norm: rows that become others of the same norm make 1.4.
OF_CHOSEN = 2.0

#: Relative L2 distance of golden's two captures beyond which nothing is compared with golden.
UNSTEADY = 0.1

#: An error up to this many times the distance of two runs counts as noise.
RUNS = 2.0

#: Share of the smallest baseline error that counts (and of a coarser baseline's own error) that
#: needs no other explanation: a quarter of an error, at right angles to it, makes it 3 % larger.
HIDES_NOTHING = 0.25

# -- a closer look at gradients, updates and masks

#: Roundings that all elements of a gradient may have in common.
COMMON_ROUNDINGS = 2.0
#: Times the baseline's own factor that they may have in common.
OF_BASELINE = 2.0
#: Standard errors, an upper bound each, by which a factor must also be off.
STANDARD_ERRORS = 4.0
#: Roundings of an update's largest element: moments, quotient and clipping, once or twice each.
ROUNDINGS_OF_UPDATE = 8.0
#: Relative error of a mean of squares (Adam's, RMSprop's), and so of an update, whose kernel
#: computes 1 - beta2 in float32: half a spacing below 1, as a share of 1 - 0.999. CUDA's fused Adam
#: does: 1.29e-5.
ROUNDED_DECAY = 3e-5
#: How many times as large as a normalisation's input gradient its terms must be for their rounding
#: to count: they cancel (the mean of squares of a BatchNorm's output does not depend on its input).
#: Measured: 0.3 to 1.3 at the 29 norms of seven trainings, over 1e3 where all of it cancels.
CANCELS = 10.0
#: Share of a type's lowest value beyond which a number may be a mask.
NEAR_LOWEST = 0.99

# -- pairs and rows

#: Relative difference of norms and extrema up to which operators may begin or end a sequence.
ALIKE_OPERATORS = 0.1

#: Share of its limit beyond which a row that passes is near it.
NEAR = 0.5

# -- where errors come from

#: A later error of a fed call's own code, or of its backward, is another one if it is this many
#: times as far over its limit as the earlier one; scores that led to golden's choice may be this
#: many times as far off as others.
MUCH_FURTHER = 8.0

#: Times a value's limit that a free-running gradient may be off: it carries the rounding of the
#: whole forward and of the backward so far. Measured (MiniLM in bfloat16, two training steps):
#: gradients are off by up to 0.10, values by up to 0.034.
FREE_GRADIENTS = 4.0

#: Factor within which excesses count as equal.
ALIKE = 2.0

#: The smallest jump of the excess that counts, free-running; errors grow and shrink by less anyway.
SMALLEST_JUMP = 1.5

#: Share of integers up to which they may be choices among nearly equal values; such rows come last.
MANY = 0.1

#: Roundings of the coarser side's type, relative to the value's norm, up to which a change between
#: updates is rounding. Averaged weights that are swapped in and out are rounded twice, and a change
#: below half a rounding may leave the other side's value as it is.
ROUNDINGS_OF_CHANGE = 2.0

#: Share of an update's norm that clamping may cut if gradients differ (Adam's first update turns
#: gradients that are 1e-5 off into 1.5e-2).
SHARE_OF_UPDATE = 0.05

#: Relative difference up to which factors on gradients are equal; in half types their rounding.
SPREAD = 1e-6
#: A gradient's factor may be off by this many times what is left of the gradient without it.
OF_REST = 3.0
#: A factor is not 1 if it is off by this many times what factors may be apart.
DISTINCT = 10.0
#: Fewer gradients say nothing about all of them.
FEWEST_GRADIENTS = 2

# -- runs of training

#: Relative difference up to which learning rates are equal: some optimizers keep them in float32.
SAME_RATE = 1e-6

#: Steps at the beginning of a run that are taken together.
TOGETHER = 10
#: A mean this many standard errors from zero is a bias.
BIASED = 4.0
#: The fewest steps that show a bias.
FEWEST_STEPS = 10

# -- ranks of one run

#: Share of the norms of what is added up that a gradient may be off its sum: rounding of bfloat16,
#: in which gradients may be reduced on purpose. Measured on correct layouts: up to 1e-7 in float32.
REDUCED_WITHIN = 2.0**-7
#: Relative difference of norms and losses that ranks may have: norms are summed in float32.
SAME_NUMBER = 1e-4
#: The same of the norms of clipped gradients of a half type, whose factor is rounded to it.
SAME_NUMBER_OF_HALVES = 2.0**-7
#: How near golden a way of putting ranks' values together must be to count in a fed capture: in
#: relative L2, and as a part of the likeliest way's distance. For unrelated tensors it is 1.4; one
#: of two terms of a sum is about 0.7 off.
TELLS_LAYOUT = 0.5
#: How near golden's value the sum of two of the candidate's must be to be that value, carried
#: apart: as a part of each term's own distance. Unrelated terms are at 0.7 or more, right ones in
#: bfloat16 below 0.01.
CARRIED_APART = 0.1
#: So many elements that dropout kept or dropped are never alike by chance.
FEWEST_DROPPED = 64

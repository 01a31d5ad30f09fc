"""What the checklist's tables say of each check and each threshold."""

from __future__ import annotations

from typing import NamedTuple


class CheckWords(NamedTuple):
    looks_at: str
    cure: str = ""


#: By the check's id.
CHECK_WORDS = {
    "input-finite": CheckWords(
        "NaN and Inf in what the model is given",
        "clean the data: look at this step's batch, and at divisions and logarithms before the"
        " model",
    ),
    "input-range": CheckWords(
        "large floating inputs, and bytes that reach the first layer as they are",
        "normalise the inputs: mean 0, standard deviation 1",
    ),
    "input-constant": CheckWords(
        "features that are the same in all samples of a batch",
        "check the loader: the same sample stacked, a feature that is never filled, an"
        " augmentation that blanks",
    ),
    "input-type": CheckWords(
        "inputs of a type that none of the first ten steps had; large values in a half type"
        " beside float32 weights",
        "cast inputs and labels where they are loaded, all in the same way",
    ),
    "labels-range": CheckWords(
        "labels and ids beyond the width of the logits or the embedding",
        "check the number of classes and the vocabulary against the tokenizer's; resize the"
        " embedding",
    ),
    "labels-ignored": CheckWords(
        "steps whose labels the loss all ignores",
        "check how labels are masked: a batch whose labels are all ignored has a loss of 0/0",
    ),
    "input-shape": CheckWords(
        "inputs with a number of axes that none of the first ten steps had",
        "check the collate function: a last batch of one sample that is squeezed",
    ),
    "batch-repeated": CheckWords(
        "one batch in two steps in a row, from a loader begun anew",
        "check that the loader's iterator is made once an epoch, not once a step",
    ),
    "order-repeated": CheckWords(
        "the same order as the epoch before, from a loader that should shuffle",
        "call sampler.set_epoch(epoch) before each epoch; do not seed the loader's generator anew",
    ),
    "batch-on-two-ranks": CheckWords(
        "one batch given to two ranks",
        "give each rank its part: DistributedSampler with its rank and the number of ranks",
    ),
    "padding-rows": CheckWords(
        "rows that are all padding", "leave empty samples out before they are batched"
    ),
    "mask-padding": CheckWords(
        "whether the attention mask hides padding at the ends of rows, and nothing else",
        "make the mask of the ids: attention_mask = ids != pad; check on which side the"
        " tokenizer pads",
    ),
    "tokenizer": CheckWords(
        "special ids, side of padding, vocabulary and first token, against the log's earlier run",
        "load the tokenizer that the weights were trained with",
    ),
    "seeded": CheckWords(
        "whether torch's generator was given a seed",
        "call torch.manual_seed(seed) before the model is made; and random.seed,"
        " numpy.random.seed for the data",
    ),
    "drawn-behind": CheckWords(
        "draws from Python's or NumPy's generator inside the model, which torch's seed does not"
        " reach",
        "draw with torch inside of the model; or seed them as well, and save their states in"
        " checkpoints",
    ),
    "same-first-step": CheckWords(
        "whether two runs from the same seed have the same first step",
        "seed every generator before the model and the loader are made; set deterministic"
        " algorithms",
    ),
    "seeds-of-ranks": CheckWords(
        "seeds of all ranks, beside their first weights and batches",
        "seed the data with seed + rank, and the model with seed alone",
    ),
    "seeded-others": CheckWords(
        "whether Python's and NumPy's generators start two runs in the same state",
        "call random.seed(seed) and numpy.random.seed(seed) before the data is loaded",
    ),
    "loader-workers": CheckWords("loaders with workers and no generator"),
    "in-no-optimizer": CheckWords(
        "parameters with a gradient that no optimizer holds",
        "make the optimizer of model.parameters() after the model has its last form, or freeze"
        " these: requires_grad_(False)",
    ),
    "without-gradient": CheckWords(
        "whether the first trained parameter in use never gets a gradient; parameters of an"
        " optimizer that are not the model's",
        "check that what they compute reaches the loss: no detach(), no item(), no no_grad(),"
        " no branch that is never taken; make the optimizer after weights are tied or"
        " exchanged",
    ),
    "frozen-with-gradient": CheckWords(
        "frozen parameters that an older gradient still updates",
        "set their .grad to None when they are frozen, and take them out of the optimizer",
    ),
    "dead-units": CheckWords(
        "units of ReLU, GELU and SiLU that are never above zero",
        "lower the learning rate; check the initialisation of biases; use an activation with a"
        " slope below zero",
    ),
    "output-constant": CheckWords(
        "modules whose output does not change although their weights do, or has one value only",
        "check for weights that are zero, a mask over everything, and inputs that are"
        " multiplied by 0",
    ),
    "shared-by-mistake": CheckWords(
        "one module at several places of a list, as [layer] * n makes",
        "make each entry anew: [make_layer() for _ in range(n)]",
    ),
    "training-mode": CheckWords(
        "dropout and batch norm in evaluation mode, beside trained parameters, in steps that train",
        "call model.train() before training, and again after each evaluation",
    ),
    "evaluation-mode": CheckWords(
        "dropout and batch norm in training mode in evaluations, which are occasional calls without"
        " gradients",
        "call model.eval() before an evaluation",
    ),
    "buffers": CheckWords(
        "running means and variances that are not finite, negative, or suddenly far larger",
        "look at the inputs of this norm in this step; lower its momentum; check the range of"
        " the data",
    ),
    "dropout": CheckWords(
        "the share of values that dropout sets to zero",
        "nn.Dropout(p=) is the share that is set to zero, not the share that is kept",
    ),
    "custom-backward": CheckWords("custom autograd Functions against finite differences"),
    "loss-input": CheckWords(
        "cross entropies of what a softmax or a sigmoid gave",
        "give cross_entropy and binary_cross_entropy_with_logits what the last layer gives,"
        " without softmax; and nll_loss a log_softmax",
    ),
    "loss-shape": CheckWords(
        "predictions and targets of different shapes, which broadcast",
        "give both one shape: output.squeeze(-1), or target.unsqueeze(-1)",
    ),
    "one-class": CheckWords(
        "labels of one class in the whole run; cross entropies over one class",
        "look at how labels are read and how the data is split: sorted by class, or all of it"
        " of one",
    ),
    "padding-in-loss": CheckWords(
        "padding labels that count in the loss",
        "ignore them: labels[mask == 0] = -100, or cross_entropy(ignore_index=pad)",
    ),
    "labels-by-rank": CheckWords(
        "ranks that have no label in common", "shuffle the data before it is divided among ranks"
    ),
    "scale-falling": CheckWords(
        "updates in a row that the loss scaler skips, once it has let one pass",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module"
        " in float32",
    ),
    "scale-at-one": CheckWords(
        "a loss scale that has fallen to 1",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module"
        " in float32, or train in bfloat16",
    ),
    "scale-growing": CheckWords(
        "a loss scale that grows while all gradients are zero, and the loss is not",
        "find out why gradients are zero: a detached loss, a scaler that is not used for the"
        " backward, or all labels ignored",
    ),
    "underflow": CheckWords(
        "gradients that are subnormal in float16, by module, without a loss scale",
        "use a loss scaler with float16; or bfloat16; or keep this module in float32",
    ),
    "near-limit": CheckWords(
        "values near their type's largest number, and gradients without a loss scale, by module",
        "keep this module in float32 or bfloat16, or scale its inputs down, before it overflows",
    ),
    "entropy": CheckWords(
        "outputs that are certain and wrong, or uniform in every step",
        "check the scale of the logits (a temperature, a sum in place of a mean), and that the"
        " labels fit the inputs",
    ),
    "loss-type": CheckWords(
        "the type that the cross entropy is computed in",
        "cast the logits before the loss: loss(logits.float(), labels)",
    ),
    "update-lost": CheckWords(
        "weights in half types that an update is too small to change",
        "keep the weights that are updated in float32 (autocast does), or round stochastically",
    ),
    "label-smoothing": CheckWords(
        "label smoothing, and the lowest loss that it allows",
        "give CrossEntropyLoss(label_smoothing=) the share that is taken from the label, such"
        " as 0.1, not that which it keeps",
    ),
    "autocast-types": CheckWords(
        "positions and ids given in half types, which round whole numbers",
        "make positions and time steps in float32 or int64, outside of autocast and of"
        " model.to(dtype)",
    ),
    "gradient-vanishes": CheckWords(
        "a matrix's gradient norm over its weight's, far below the others'",
        "check the initialisation, the normalisation and saturated activations between this"
        " layer and the loss",
    ),
    "gradient-explodes": CheckWords(
        "a matrix's gradient norm over its weight's, far above the others'",
        "check how this weight was initialised, and the scale of what comes to it; clip gradients",
    ),
    "update-ratio": CheckWords(
        "each matrix's update over its weight",
        "change the learning rate until updates are about 1e-3 of the weights",
    ),
    "second-moment": CheckWords(
        "the root of Adam's second moment beside eps",
        "check whether the loss is divided twice, or a loss scale is taken out twice; lower eps",
    ),
    "state-restored": CheckWords(
        "an optimizer without state, though its scheduler or an earlier run has gone on; one made"
        " anew",
        "load the optimizer's state with the weights: optimizer.load_state_dict(...); make the"
        " optimizer once, before the loop",
    ),
    "zero-grad": CheckWords(
        "new gradients added to those of the last update; gradients cleared unused",
        "call optimizer.zero_grad() once after each update, and not at each micro-batch",
    ),
    "update-skipped": CheckWords(
        "steps with a backward and no update; updates that change no weight",
        "check what stands before optimizer.step(), and that the optimizer holds the model's"
        " parameters",
    ),
    "decay-of-biases": CheckWords(
        "weight decay on biases and norms",
        "give them a parameter group of their own with weight_decay=0",
    ),
    "lr-range": CheckWords(
        "learning rates below 0, not finite, or 0 in many updates",
        "check the number of steps that the schedule was made for: a linear decay goes below 0"
        " after its end",
    ),
    "lr-jump": CheckWords(
        "a warm-up whose last rate does not meet the first of the decay",
        "let the warm-up end where the decay begins",
    ),
    "lr-length": CheckWords(
        "a scheduler stepped more often than it was made for (T_max, total_iters)",
        "make the schedule for the steps of the whole run: epochs x updates in one",
    ),
    "schedule-steps": CheckWords(
        "how often the scheduler steps between two updates",
        "step the scheduler once after each update, or once each epoch if it counts epochs",
    ),
    "schedule-order": CheckWords(
        "a scheduler stepped before the first update",
        "call scheduler.step() after optimizer.step()",
    ),
    "schedule-applied": CheckWords(
        "whether updates have the rates that the scheduler set",
        "make the scheduler of the optimizer that is stepped, after its last replacement; do"
        " not set the rate elsewhere",
    ),
    "clip-share": CheckWords(
        "the share of updates that were clipped, and by how much; clipping after the update",
        "clip between backward() and step(); raise the limit, or lower the learning rate:"
        " clipping always is no more than a smaller learning rate",
    ),
    "gradients-grow": CheckWords(
        "gradients all multiplied by one factor above 1 between backward and update",
        "look at what stands between backward() and step(): unscaling, averaging, clipping by"
        " a wrong factor",
    ),
    "clip-before-unscale": CheckWords(
        "clipping before the loss scale is taken out",
        "call scaler.unscale_(optimizer) before the clipping",
    ),
    "finite": CheckWords(
        "NaN, Inf and overflow in every module call and gradient",
        "see where it began: `accucompare overflow LOG`",
    ),
    "ended": CheckWords(
        "whether the loop ended with an error",
        "see what the last step was given: look at FAIL and WARN of the data first",
    ),
    "loss-finite": CheckWords(
        "losses that are NaN or Inf, and how many in a row",
        "see where it began: `accucompare overflow LOG`; go on from the last checkpoint before",
    ),
    "loss-spike": CheckWords(
        "losses far above their running spread, and above all earlier ones",
        "look at this step's batch and gradient norm; run the step twice: a result that"
        " differs is the hardware's (silent data corruption)",
    ),
    "loss-trend": CheckWords(
        "whether a cross entropy ends above guessing, or another loss far above its beginning",
        "lower the learning rate; check the sign of the loss and the labels",
    ),
    "norm-spike": CheckWords(
        "gradient norms far above their running spread, and above all earlier ones",
        "look at this step's batch; clip gradients; run the step twice: a result that differs"
        " is the hardware's",
    ),
    "ranks-agree": CheckWords(
        "whether replicas on several ranks have the same weights",
        "check that gradients are summed over all ranks, and that all ranks started from the"
        " same weights",
    ),
}

#: By a threshold's name: its meaning. A comment above says where its default is from, if not from
#: sound runs.
THRESHOLD_WORDS = {
    "input-range": "magnitude",
    # all of them
    "constant-features": "share of features, in every floating input",
    # most of them
    "labels-ignored": "share of steps, if their losses are finite",
    "order-repeated": "share of batches after the first epoch",
    # none is meant
    "padding-rows": "share of rows",
    "mask-padding": "share of tokens; the id may also end texts",
    # sound runs: 0.56 at most
    "dead-units": "share of a module's units",
    # sound runs: all, or one
    "evaluated-in-training": "share of steps; more is part of the training",
    # sound runs: 1.75 at most
    "buffer-grows": "times the largest so far",
    # with more, less than one value in ten is left
    "dropout": "share set to zero",
    # a class of 1 in 200 is among them in 99 of 100 runs
    "one-class": "fewest labels judged",
    # one that ends a text is none
    "padding-learnt": "share of labels",
    "rank-labels": "fewest labels judged, of each rank",
    "skips-running": "skipped updates in a row",
    "scale-least": "loss scale",
    "scale-zero-steps": "steps with zero gradients",
    "entropy-least": "share of log(classes), certain below it",
    "entropy-loss": "cross entropy, wrong above it",
    # rounding of float32
    "entropy-flat": "distance from 1, uniform within it",
    # half of them
    "update-lost": "share of weights, median over parameters",
    # more than the label keeps
    "label-smoothing": "share given to all classes",
    # sound runs: 0.004
    "gradient-ratio": "times the others' median, below it",
    # std over std
    "gradient-most": "itself, and times the others' median",
    # float32 rounds away what is less than 6e-8
    "update-least": "median of the matrices, below it",
    # sound runs: 1.3 at most
    "update-most": "median of the matrices, above it",
    # half of the loss is left
    "update-learnt": "last losses over first, above it",
    # sound runs: 2,000
    "second-moment": ("times eps, below it"),
    # torch's own count
    "restored-ahead": "steps of the scheduler",
    # two micro-batches: 0.5
    "accumulating": "share of steps; more are micro-batches",
    # recipes of sound runs have up to 0.2
    "decay-of-biases": "weight decay",
    "lr-zero": "share of updates",
    # sound runs: 1.05
    "lr-jump": "a rate over the one before",
    # one a step, or an epoch
    "schedule-unstepped": "steps without one, and the data gone through",
    "schedule-doubled": "share of updates",
    # a few may be set by hand
    "schedule-overruled": "share of updates",
    "clip-always": "share of updates",
    # sound runs: 0.016 at least
    "clip-strength": "median factor, a WARN below it if always clipped",
    # rounding is below
    "clip-grows": "factor",
    # a limit of clipping is 0.01 to 100
    "clip-scaled": "norm at the update, a FAIL below it",
    # msprobe's AnomalyNan
    "loss-not-finite-running": "in a row, a FAIL; one is a WARN",
    "loss-spike": "spreads above the last ten steps' median",
    "loss-spike-floor": "share of the first losses added to the spread",
    # sound runs: 3.03 at most
    "loss-record": "and times the largest before",
    # sound runs: 0.95
    "loss-rise": "last over first, or over guessing",
    # sound runs: 11
    "loss-diverges": "last over first, of other losses",
    # msprobe's AnomalyTurbulence
    "norm-spike": "spreads above the last ten steps' median",
    # sound runs: 0.46 at most
    "norm-record": "and times the largest before",
}

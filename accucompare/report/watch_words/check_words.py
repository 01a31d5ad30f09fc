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
        "the magnitude of floating inputs and of what the first module makes of them, and"
        " bytes that come to the first layer as they are",
        "normalise the inputs: mean 0, standard deviation 1",
    ),
    "input-constant": CheckWords(
        "features that are the same in all samples of a batch",
        "check the loader: the same sample stacked, a feature that is never filled, an"
        " augmentation that blanks",
    ),
    "input-type": CheckWords(
        "inputs of a type that they had in none of the first ten steps, and large values in a"
        " half type beside weights in float32",
        "cast inputs and labels where they are loaded, all in the same way",
    ),
    "labels-range": CheckWords(
        "labels and ids beyond the width of the logits or the embedding, also in the step that"
        " an error ends",
        "check the number of classes and the vocabulary against the tokenizer's; resize the"
        " embedding",
    ),
    "labels-ignored": CheckWords(
        "labels that the loss ignores altogether",
        "check how labels are masked: a batch whose labels are all ignored has a loss of 0/0",
    ),
    "input-shape": CheckWords(
        "inputs whose number of axes is one that they had in none of the first ten steps",
        "check the collate function: a last batch of one sample that is squeezed",
    ),
    "batch-repeated": CheckWords(
        "one batch given in two steps running, for which a loader of several batches was begun"
        " anew",
        "check that the loader's iterator is made once an epoch, not once a step",
    ),
    "order-repeated": CheckWords(
        "batches that come again in the order of the epoch before, from a loader that was"
        " asked to shuffle",
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
        "whether the attention mask hides the padding at the ends of rows, and padding alone",
        "make the mask of the ids: attention_mask = ids != pad; check on which side the"
        " tokenizer pads",
    ),
    "tokenizer": CheckWords(
        "ids of padding, begin and end, side of padding, vocabulary and first token against"
        " those of the run before in the log",
        "load the tokenizer that the weights were trained with",
    ),
    "seeded": CheckWords(
        "whether torch's generator was given a seed",
        "call torch.manual_seed(seed) before the model is made; and random.seed,"
        " numpy.random.seed for the data",
    ),
    "drawn-behind": CheckWords(
        "Python's and NumPy's generators that are drawn from inside of the model: a seed of"
        " torch does not reach them",
        "draw with torch inside of the model; or seed them as well, and save their states in"
        " checkpoints",
    ),
    "same-first-step": CheckWords(
        "whether two runs from the same seed have the same first step",
        "seed every generator before the model and the loader are made; set deterministic"
        " algorithms",
    ),
    "seeds-of-ranks": CheckWords(
        "the seeds of all ranks, beside their first weights and their batches",
        "seed the data with seed + rank, and the model with seed alone",
    ),
    "seeded-others": CheckWords(
        "whether Python's and NumPy's generators begin twice in the same state, as only seeded"
        " ones do",
        "call random.seed(seed) and numpy.random.seed(seed) before the data is loaded",
    ),
    "loader-workers": CheckWords("loaders with workers and no generator"),
    "in-no-optimizer": CheckWords(
        "trainable parameters that have a gradient, and that no optimizer holds",
        "make the optimizer of model.parameters() after the model has its last form, or freeze"
        " these: requires_grad_(False)",
    ),
    "without-gradient": CheckWords(
        "whether the first trained parameter that is used never gets a gradient, and"
        " parameters in an optimizer that are not the model's",
        "check that what they compute reaches the loss: no detach(), no item(), no no_grad(),"
        " no branch that is never taken; make the optimizer after weights are tied or"
        " exchanged",
    ),
    "frozen-with-gradient": CheckWords(
        "frozen parameters whose optimizer updates them with a gradient of before they were frozen",
        "set their .grad to None when they are frozen, and take them out of the optimizer",
    ),
    "dead-units": CheckWords(
        "units of ReLU, GELU and SiLU that give nothing above zero in any look",
        "lower the learning rate; check the initialisation of biases; use an activation with a"
        " slope below zero",
    ),
    "output-constant": CheckWords(
        "modules whose output does not change although updates move their weights, or has one"
        " value only",
        "check for weights that are zero, a mask over everything, and inputs that are"
        " multiplied by 0",
    ),
    "shared-by-mistake": CheckWords(
        "one module at several places of a list, as [layer] * n makes",
        "make each entry anew: [make_layer() for _ in range(n)]",
    ),
    "training-mode": CheckWords(
        "dropout and batch norm beside trained parameters that are in evaluation, with the"
        " whole model, in steps that train",
        "call model.train() before training, and again behind each evaluation",
    ),
    "evaluation-mode": CheckWords(
        "dropout and batch norm in training in calls without gradients that come now and then,"
        " as evaluations do",
        "call model.eval() before an evaluation",
    ),
    "buffers": CheckWords(
        "running means and variances that are not finite, negative, or all at once far larger",
        "look at the inputs of this norm in this step; lower its momentum; check the range of"
        " the data",
    ),
    "dropout": CheckWords(
        "the share that dropout sets to zero",
        "nn.Dropout(p=) is the share that is set to zero, not the share that is kept",
    ),
    "custom-backward": CheckWords("custom autograd Functions against finite differences"),
    "loss-input": CheckWords(
        "cross entropies that are given what a softmax, a sigmoid or the like gave",
        "give cross_entropy and binary_cross_entropy_with_logits what the last layer gives,"
        " without softmax; and nll_loss a log_softmax",
    ),
    "loss-shape": CheckWords(
        "predictions and targets whose shapes differ, so that each value of one meets each of"
        " the other",
        "give both one shape: output.squeeze(-1), or target.unsqueeze(-1)",
    ),
    "one-class": CheckWords(
        "labels that are one class in the whole run, and cross entropies over one class",
        "look at how labels are read and how the data is split: sorted by class, or all of it"
        " of one",
    ),
    "padding-in-loss": CheckWords(
        "labels that are padding and have a share in the loss",
        "ignore them: labels[mask == 0] = -100, or cross_entropy(ignore_index=pad)",
    ),
    "labels-by-rank": CheckWords(
        "ranks that have no label in common", "shuffle the data before it is divided among ranks"
    ),
    "scale-falling": CheckWords(
        "updates that the loss scaler skips one after the other, after the first that it has"
        " let pass",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module"
        " in float32",
    ),
    "scale-at-one": CheckWords(
        "a loss scale that has come down to 1",
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
        "values near the largest number of their type, and gradients without a loss scale, by"
        " module",
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
        "weights in half types that an update does not change, since it is smaller than their"
        " rounding",
        "keep the weights that are updated in float32 (autocast does), or round stochastically",
    ),
    "label-smoothing": CheckWords(
        "label smoothing, and the lowest loss that it allows",
        "give CrossEntropyLoss(label_smoothing=) the share that is taken from the label, such"
        " as 0.1, not that which it keeps",
    ),
    "autocast-types": CheckWords(
        "positions and ids that modules are given in half types, in which neighbouring whole"
        " numbers are one",
        "make positions and time steps in float32 or int64, outside of autocast and of"
        " model.to(dtype)",
    ),
    "gradient-vanishes": CheckWords(
        "the gradient's norm over the weight's, of each matrix, beside that of the others",
        "check the initialisation, the normalisation and saturated activations between this"
        " layer and the loss",
    ),
    "gradient-explodes": CheckWords(
        "the gradient's norm over the weight's, of each matrix, beside that of the others",
        "check how this weight was initialised, and the scale of what comes to it; clip gradients",
    ),
    "update-ratio": CheckWords(
        "what an update adds over the weight, of each matrix",
        "change the learning rate until updates are about 1e-3 of the weights",
    ),
    "second-moment": CheckWords(
        "the root of Adam's second moment beside the eps that is added to it",
        "check whether the loss is divided twice, or a loss scale is taken out twice; lower eps",
    ),
    "state-restored": CheckWords(
        "an optimizer whose state is empty beside a scheduler, or an earlier run in the log,"
        " that has gone on; one that is made anew",
        "load the optimizer's state with the weights: optimizer.load_state_dict(...); make the"
        " optimizer once, before the loop",
    ),
    "zero-grad": CheckWords(
        "gradients of before the last update to which the next one's are added, and gradients"
        " that are cleared unused",
        "call optimizer.zero_grad() behind each update, once, and not at each micro-batch",
    ),
    "update-skipped": CheckWords(
        "steps with a backward and without an update, or updates that change no weight",
        "check what stands before optimizer.step(), and that the optimizer holds the model's"
        " parameters",
    ),
    "decay-of-biases": CheckWords(
        "weight decay on biases and on weights of norms",
        "give them a parameter group of their own with weight_decay=0",
    ),
    "lr-range": CheckWords(
        "learning rates below 0, not finite, or all 0 in many updates",
        "check the number of steps that the schedule was made for: a linear decay goes below 0"
        " behind its end",
    ),
    "lr-jump": CheckWords(
        "a warm-up whose last rate does not meet the first of the decay",
        "let the warm-up end where the decay begins",
    ),
    "lr-length": CheckWords(
        "a scheduler that is stepped more often than it was made for (T_max, total_iters), so"
        " that its rate rises again or stays",
        "make the schedule for the steps of the whole run: epochs x updates in one",
    ),
    "schedule-steps": CheckWords(
        "how often the scheduler was stepped between one update and the next",
        "step the scheduler once behind each update, or once each epoch if it counts epochs",
    ),
    "schedule-order": CheckWords(
        "a scheduler that is stepped before the first update",
        "call scheduler.step() behind optimizer.step()",
    ),
    "schedule-applied": CheckWords(
        "whether updates are made with the rates that the scheduler has set",
        "make the scheduler of the optimizer that is stepped, after its last replacement; do"
        " not set the rate elsewhere",
    ),
    "clip-share": CheckWords(
        "the share of updates whose gradients were made smaller before, and by how much;"
        " clipping that comes behind the update",
        "clip between backward() and step(); raise the limit, or lower the learning rate:"
        " always to clip is only a smaller learning rate",
    ),
    "gradients-grow": CheckWords(
        "gradients that were all multiplied by one factor above 1 between the backward and the"
        " update",
        "look at what stands between backward() and step(): unscaling, averaging, clipping by"
        " a wrong factor",
    ),
    "clip-before-unscale": CheckWords(
        "clipped gradients whose norm is the same before the loss scale is taken out, and tiny"
        " behind it",
        "call scaler.unscale_(optimizer) before the clipping",
    ),
    "finite": CheckWords(
        "NaN, Inf and overflow in every module call and gradient",
        "see where it began: `accucompare overflow LOG`",
    ),
    "ended": CheckWords(
        "whether the loop ended with an error",
        "see what the step was given that it ended in: FAIL and WARN of the data say so first",
    ),
    "loss-finite": CheckWords(
        "losses that are NaN or Inf, and how many running",
        "see where it began: `accucompare overflow LOG`; go on from the last checkpoint before",
    ),
    "loss-spike": CheckWords(
        "losses far above their running spread, and above all before",
        "look at this step's batch and gradient norm; run the step twice: a result that"
        " differs is the hardware's (silent data corruption)",
    ),
    "loss-trend": CheckWords(
        "whether a cross entropy ends above guessing, or another loss far above its beginning",
        "lower the learning rate; check the sign of the loss and the labels",
    ),
    "norm-spike": CheckWords(
        "gradient norms far above their running spread, and above all before",
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
    "constant-features": "share of features, from it on, of every floating input in every look",
    # most of them
    "labels-ignored": "share of steps without any label, if their losses are finite",
    "order-repeated": "share of the batches behind the first epoch",
    # none is meant
    "padding-rows": "share of rows of any batch",
    "mask-padding": "share of tokens; the id may also end texts",
    # sound runs: 0.56 at most
    "dead-units": "share of a module's units",
    # sound runs: all, or one
    "evaluated-in-training": "share of steps; from it on it is a part of the training",
    # sound runs: 1.75 at most
    "buffer-grows": "times the most of all looks before, after five",
    # with more, less than one value in ten is left
    "dropout": "share, above it",
    # a class of 1 in 200 is among them in 99 of 100 runs
    "one-class": "labels, below which nothing is said",
    # one that ends a text is none
    "padding-learnt": "share of labels that are padding behind padding",
    "rank-labels": "labels of each rank, below which nothing is said",
    "skips-running": "skipped updates running",
    "scale-least": "loss scale",
    "scale-zero-steps": "steps with zero gradients, the scale not below the first",
    "entropy-least": "entropy over log(classes), below which an output is certain",
    "entropy-loss": "cross entropy above which a certain output is wrong",
    # rounding of float32
    "entropy-flat": "how near to 1 that share is, if an output is uniform",
    # half of them
    "update-lost": "share of weights, the median over parameters",
    # more than the label keeps
    "label-smoothing": "share of the label that is given to all classes",
    # sound runs: 0.004
    "gradient-ratio": "times the median of the others, below it; of each the largest of all looks",
    # std over std
    "gradient-most": "above it in every look, and so many times the median of the others",
    # float32 rounds away what is less than 6e-8
    "update-least": "below it, the median of the matrices",
    # sound runs: 1.3 at most
    "update-most": "above it, the median of the matrices: weights are replaced",
    # half of the loss is left
    "update-learnt": "and the last losses over the first losses, above it",
    # sound runs: 2,000
    "second-moment": (
        "times eps, below it the median of the matrices; of each the largest of all looks"
    ),
    # torch's own count
    "restored-ahead": "steps of the scheduler; it takes one when it is made",
    # two micro-batches: 0.5
    "accumulating": "share of steps without; from it on they are micro-batches",
    # recipes of sound runs have up to 0.2
    "decay-of-biases": "weight decay, above it",
    "lr-zero": "share of updates with a learning rate of 0",
    # sound runs: 1.05
    "lr-jump": "one update's rate over the last one's, between ten that rise and three that fall",
    # one a step, or an epoch
    "schedule-unstepped": "steps without one, and the data gone through",
    "schedule-doubled": "share of updates with more than one step of the scheduler between",
    # a few may be set by hand
    "schedule-overruled": "share of updates",
    "clip-always": "share of updates",
    # sound runs: 0.016 at least
    "clip-strength": "median of the factor; below it, clipping that always acts is a WARN",
    # rounding is below
    "clip-grows": "norm at the update over that behind the backward",
    # a limit of clipping is 0.01 to 100
    "clip-scaled": "norm at the update below which it is a FAIL",
    # msprobe's AnomalyNan
    "loss-not-finite-running": "so many running are a FAIL; one is a WARN",
    "loss-spike": "spreads above the median of the ten steps before",
    "loss-spike-floor": "share of the first losses that is added to all",
    # sound runs: 3.03 at most
    "loss-record": "and so many times the largest before",
    # sound runs: 0.95
    "loss-rise": "last cross entropy over the first, or over that of guessing if that is larger",
    # sound runs: 11
    "loss-diverges": "last losses over first losses, of what is no cross entropy",
    # msprobe's AnomalyTurbulence
    "norm-spike": "spreads above the median of the ten steps before",
    # sound runs: 0.46 at most
    "norm-record": "and so many times the largest before",
}

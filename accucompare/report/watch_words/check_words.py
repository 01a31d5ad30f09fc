"""What the checklist's tables say of each check and each threshold."""

from __future__ import annotations

from typing import NamedTuple


class CheckWords(NamedTuple):
    looks_at: str
    why: str
    cure: str = ""


#: By the check's id.
CHECK_WORDS = {
    "input-finite": CheckWords(
        "NaN and Inf in what the model is given",
        "one NaN in a batch is a NaN in every weight after the next update",
        "clean the data: look at this step's batch, and at divisions and logarithms before the"
        " model",
    ),
    "input-range": CheckWords(
        "the magnitude of floating inputs and of what the first module makes of them, and"
        " bytes that come to the first layer as they are",
        "large inputs saturate activations, and overflow in half types",
        "normalise the inputs: mean 0, standard deviation 1",
    ),
    "input-constant": CheckWords(
        "features that are the same in all samples of a batch",
        "a stacked sample is a batch of one",
        "check the loader: the same sample stacked, a feature that is never filled, an"
        " augmentation that blanks",
    ),
    "input-type": CheckWords(
        "inputs of a type that they had in none of the first ten steps, and large values in a"
        " half type beside weights in float32",
        "another type computes other numbers, and nobody says so",
        "cast inputs and labels where they are loaded, all in the same way",
    ),
    "labels-range": CheckWords(
        "labels and ids beyond the width of the logits or the embedding, also in the step that"
        " an error ends",
        "a GPU stops with an assertion that names nothing; an NPU may read memory that is not"
        " the logits'",
        "check the number of classes and the vocabulary against the tokenizer's; resize the"
        " embedding",
    ),
    "labels-ignored": CheckWords(
        "labels that the loss ignores altogether",
        "the mean over no labels is 0/0",
        "check how labels are masked: a batch whose labels are all ignored has a loss of 0/0",
    ),
    "input-shape": CheckWords(
        "inputs whose number of axes is one that they had in none of the first ten steps",
        "broadcasting hides it: the loss is then of every sample with every other",
        "check the collate function: a last batch of one sample that is squeezed",
    ),
    "batch-repeated": CheckWords(
        "one batch given in two steps running, for which a loader of several batches was begun"
        " anew",
        "the model learns one batch by heart, and the loss looks well",
        "check that the loader's iterator is made once an epoch, not once a step",
    ),
    "order-repeated": CheckWords(
        "batches that come again in the order of the epoch before, from a loader that was"
        " asked to shuffle",
        "without shuffling, gradients of neighbours are correlated; a sampler without"
        " set_epoch repeats one order",
        "call sampler.set_epoch(epoch) before each epoch; do not seed the loader's generator anew",
    ),
    "batch-on-two-ranks": CheckWords(
        "one batch given to two ranks",
        "two ranks that compute the same are one rank",
        "give each rank its part: DistributedSampler with its rank and the number of ranks",
    ),
    "padding-rows": CheckWords(
        "rows that are all padding",
        "attention over nothing is 0/0, or an average over padding",
        "leave empty samples out before they are batched",
    ),
    "mask-padding": CheckWords(
        "whether the attention mask hides the padding at the ends of rows, and padding alone",
        "what is attended to is noise, and what is hidden is lost",
        "make the mask of the ids: attention_mask = ids != pad; check on which side the"
        " tokenizer pads",
    ),
    "tokenizer": CheckWords(
        "ids of padding, begin and end, side of padding, vocabulary and first token against"
        " those of the run before in the log",
        "a model that was trained with right padding answers otherwise with left",
        "load the tokenizer that the weights were trained with",
    ),
    "seeded": CheckWords(
        "whether torch's generator was given a seed",
        "a run that cannot be repeated cannot be compared",
        "call torch.manual_seed(seed) before the model is made; and random.seed,"
        " numpy.random.seed for the data",
    ),
    "drawn-behind": CheckWords(
        "Python's and NumPy's generators that are drawn from inside of the model: a seed of"
        " torch does not reach them",
        "such numbers are in no checkpoint of torch's state, and differ between ranks and runs",
        "draw with torch inside of the model; or seed them as well, and save their states in"
        " checkpoints",
    ),
    "same-first-step": CheckWords(
        "whether two runs from the same seed have the same first step",
        "if the first step differs already, no later difference means anything",
        "seed every generator before the model and the loader are made; set deterministic"
        " algorithms",
    ),
    "seeds-of-ranks": CheckWords(
        "the seeds of all ranks, beside their first weights and their batches",
        "with different seeds, replicas may begin with different weights; with the same ones,"
        " they may be given the same data",
        "seed the data with seed + rank, and the model with seed alone",
    ),
    "seeded-others": CheckWords(
        "whether Python's and NumPy's generators begin twice in the same state, as only seeded"
        " ones do",
        "data pipelines draw from them",
        "call random.seed(seed) and numpy.random.seed(seed) before the data is loaded",
    ),
    "loader-workers": CheckWords(
        "loaders with workers and no generator",
        "workers of a loader may all draw the same numbers",
    ),
    "in-no-optimizer": CheckWords(
        "trainable parameters that have a gradient, and that no optimizer holds",
        "they stay as they were initialised",
        "make the optimizer of model.parameters() after the model has its last form, or freeze"
        " these: requires_grad_(False)",
    ),
    "without-gradient": CheckWords(
        "whether the first trained parameter that is used never gets a gradient, and"
        " parameters in an optimizer that are not the model's",
        "what the loss does not depend on is carried along, decayed, and never learns",
        "check that what they compute reaches the loss: no detach(), no item(), no no_grad(),"
        " no branch that is never taken; make the optimizer after weights are tied or"
        " exchanged",
    ),
    "frozen-with-gradient": CheckWords(
        "frozen parameters whose optimizer updates them with a gradient of before they were frozen",
        "an optimizer goes on updating what has a gradient, and Adam's momentum with it",
        "set their .grad to None when they are frozen, and take them out of the optimizer",
    ),
    "dead-units": CheckWords(
        "units of ReLU, GELU and SiLU that give nothing above zero in any look",
        "a unit that gives nothing for any input gets no gradient, and stays so",
        "lower the learning rate; check the initialisation of biases; use an activation with a"
        " slope below zero",
    ),
    "output-constant": CheckWords(
        "modules whose output does not change although updates move their weights, or has one"
        " value only",
        "what comes behind it cannot depend on the input",
        "check for weights that are zero, a mask over everything, and inputs that are"
        " multiplied by 0",
    ),
    "shared-by-mistake": CheckWords(
        "one module at several places of a list, as [layer] * n makes",
        "n layers train as one",
        "make each entry anew: [make_layer() for _ in range(n)]",
    ),
    "training-mode": CheckWords(
        "dropout and batch norm beside trained parameters that are in evaluation, with the"
        " whole model, in steps that train",
        "dropout is off, and batch norm does not learn its statistics",
        "call model.train() before training, and again behind each evaluation",
    ),
    "evaluation-mode": CheckWords(
        "dropout and batch norm in training in calls without gradients that come now and then,"
        " as evaluations do",
        "dropout spoils the evaluation, and the evaluation spoils batch norm's statistics",
        "call model.eval() before an evaluation",
    ),
    "buffers": CheckWords(
        "running means and variances that are not finite, negative, or all at once far larger",
        "evaluation divides by them",
        "look at the inputs of this norm in this step; lower its momentum; check the range of"
        " the data",
    ),
    "dropout": CheckWords(
        "the share that dropout sets to zero",
        "a share that is kept, given as the share that is set to zero, leaves next to nothing",
        "nn.Dropout(p=) is the share that is set to zero, not the share that is kept",
    ),
    "custom-backward": CheckWords(
        "custom autograd Functions against finite differences",
        "autograd believes whatever a custom Function says",
    ),
    "loss-input": CheckWords(
        "cross entropies that are given what a softmax, a sigmoid or the like gave",
        "the function has a softmax of its own: what it is given lies between 0 and 1, and its"
        " gradients are small",
        "give cross_entropy and binary_cross_entropy_with_logits what the last layer gives,"
        " without softmax; and nll_loss a log_softmax",
    ),
    "loss-shape": CheckWords(
        "predictions and targets whose shapes differ, so that each value of one meets each of"
        " the other",
        "the mean over all pairs is least where each prediction is the mean of all targets",
        "give both one shape: output.squeeze(-1), or target.unsqueeze(-1)",
    ),
    "one-class": CheckWords(
        "labels that are one class in the whole run, and cross entropies over one class",
        "the model learns to say this class",
        "look at how labels are read and how the data is split: sorted by class, or all of it"
        " of one",
    ),
    "padding-in-loss": CheckWords(
        "labels that are padding and have a share in the loss",
        "the loss is small, since padding is easy",
        "ignore them: labels[mask == 0] = -100, or cross_entropy(ignore_index=pad)",
    ),
    "labels-by-rank": CheckWords(
        "ranks that have no label in common",
        "each rank's gradient pulls to its own classes",
        "shuffle the data before it is divided among ranks",
    ),
    "scale-falling": CheckWords(
        "updates that the loss scaler skips one after the other, after the first that it has"
        " let pass",
        "a scaler skips now and then; many skips running are no longer too large a scale",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module"
        " in float32",
    ),
    "scale-at-one": CheckWords(
        "a loss scale that has come down to 1",
        "there is nothing left to give",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module"
        " in float32, or train in bfloat16",
    ),
    "scale-growing": CheckWords(
        "a loss scale that grows while all gradients are zero, and the loss is not",
        "with zero gradients nothing can overflow",
        "find out why gradients are zero: a detached loss, a scaler that is not used for the"
        " backward, or all labels ignored",
    ),
    "underflow": CheckWords(
        "gradients that are subnormal in float16, by module, without a loss scale",
        "what is subnormal loses digits, and then is zero",
        "use a loss scaler with float16; or bfloat16; or keep this module in float32",
    ),
    "near-limit": CheckWords(
        "values near the largest number of their type, and gradients without a loss scale, by"
        " module",
        "the next step may overflow",
        "keep this module in float32 or bfloat16, or scale its inputs down, before it overflows",
    ),
    "entropy": CheckWords(
        "outputs that are certain and wrong, or uniform in every step",
        "a certain wrong answer has a gradient of full size; a uniform one has learnt nothing",
        "check the scale of the logits (a temperature, a sum in place of a mean), and that the"
        " labels fit the inputs",
    ),
    "loss-type": CheckWords(
        "the type that the cross entropy is computed in",
        "a bfloat16 loss has three digits: 4.97 and 4.98 are one number",
        "cast the logits before the loss: loss(logits.float(), labels)",
    ),
    "update-lost": CheckWords(
        "weights in half types that an update does not change, since it is smaller than their"
        " rounding",
        "bfloat16 holds 8 bits: an update below 1/512 of a weight is rounded away",
        "keep the weights that are updated in float32 (autocast does), or round stochastically",
    ),
    "label-smoothing": CheckWords(
        "label smoothing, and the lowest loss that it allows",
        "a smoothed loss cannot go to 0",
        "give CrossEntropyLoss(label_smoothing=) the share that is taken from the label, such"
        " as 0.1, not that which it keeps",
    ),
    "autocast-types": CheckWords(
        "positions and ids that modules are given in half types, in which neighbouring whole"
        " numbers are one",
        "bfloat16 holds whole numbers up to 256 one by one, float16 up to 2,048; rotary"
        " embeddings and time steps are spoilt beyond",
        "make positions and time steps in float32 or int64, outside of autocast and of"
        " model.to(dtype)",
    ),
    "gradient-vanishes": CheckWords(
        "the gradient's norm over the weight's, of each matrix, beside that of the others",
        "the layer stands still",
        "check the initialisation, the normalisation and saturated activations between this"
        " layer and the loss",
    ),
    "gradient-explodes": CheckWords(
        "the gradient's norm over the weight's, of each matrix, beside that of the others",
        "one step undoes what thousands have learnt",
        "check how this weight was initialised, and the scale of what comes to it; clip gradients",
    ),
    "update-ratio": CheckWords(
        "what an update adds over the weight, of each matrix",
        "about 1e-3 is healthy; what is rounded away wastes steps, and what replaces the"
        " weight forgets",
        "change the learning rate until updates are about 1e-3 of the weights",
    ),
    "second-moment": CheckWords(
        "the root of Adam's second moment beside the eps that is added to it",
        "where its root comes near eps, Adam's step is no longer of the size of the learning rate",
        "check whether the loss is divided twice, or a loss scale is taken out twice; lower eps",
    ),
    "state-restored": CheckWords(
        "an optimizer whose state is empty beside a scheduler, or an earlier run in the log,"
        " that has gone on; one that is made anew",
        "Adam without its moments takes steps that are far too large",
        "load the optimizer's state with the weights: optimizer.load_state_dict(...); make the"
        " optimizer once, before the loop",
    ),
    "zero-grad": CheckWords(
        "gradients of before the last update to which the next one's are added, and gradients"
        " that are cleared unused",
        "gradients of all steps add up, and their norm grows linearly",
        "call optimizer.zero_grad() behind each update, once, and not at each micro-batch",
    ),
    "update-skipped": CheckWords(
        "steps with a backward and without an update, or updates that change no weight",
        "data is used up, and nothing is learnt",
        "check what stands before optimizer.step(), and that the optimizer holds the model's"
        " parameters",
    ),
    "decay-of-biases": CheckWords(
        "weight decay on biases and on weights of norms",
        "it pulls norms towards 0, where they have no reason to be",
        "give them a parameter group of their own with weight_decay=0",
    ),
    "lr-range": CheckWords(
        "learning rates below 0, not finite, or all 0 in many updates",
        "with a negative rate the loss is maximised",
        "check the number of steps that the schedule was made for: a linear decay goes below 0"
        " behind its end",
    ),
    "lr-jump": CheckWords(
        "a warm-up whose last rate does not meet the first of the decay",
        "a jump at the edge of a warm-up skips most of it",
        "let the warm-up end where the decay begins",
    ),
    "lr-length": CheckWords(
        "a scheduler that is stepped more often than it was made for (T_max, total_iters), so"
        " that its rate rises again or stays",
        "a cosine goes up again behind its end",
        "make the schedule for the steps of the whole run: epochs x updates in one",
    ),
    "schedule-steps": CheckWords(
        "how often the scheduler was stepped between one update and the next",
        "the schedule ends at half of the run, or never",
        "step the scheduler once behind each update, or once each epoch if it counts epochs",
    ),
    "schedule-order": CheckWords(
        "a scheduler that is stepped before the first update",
        "the first rate is never used",
        "call scheduler.step() behind optimizer.step()",
    ),
    "schedule-applied": CheckWords(
        "whether updates are made with the rates that the scheduler has set",
        "the schedule is drawn, and nobody follows",
        "make the scheduler of the optimizer that is stepped, after its last replacement; do"
        " not set the rate elsewhere",
    ),
    "clip-share": CheckWords(
        "the share of updates whose gradients were made smaller before, and by how much;"
        " clipping that comes behind the update",
        "it is a smaller learning rate in disguise",
        "clip between backward() and step(); raise the limit, or lower the learning rate:"
        " always to clip is only a smaller learning rate",
    ),
    "gradients-grow": CheckWords(
        "gradients that were all multiplied by one factor above 1 between the backward and the"
        " update",
        "between the backward and the update gradients only get smaller, if anything",
        "look at what stands between backward() and step(): unscaling, averaging, clipping by"
        " a wrong factor",
    ),
    "clip-before-unscale": CheckWords(
        "clipped gradients whose norm is the same before the loss scale is taken out, and tiny"
        " behind it",
        "the limit is applied to gradients times the loss scale, so that nothing is left of them",
        "call scaler.unscale_(optimizer) before the clipping",
    ),
    "finite": CheckWords(
        "NaN, Inf and overflow in every module call and gradient",
        "see [Loss is NaN](nan.md)",
        "see where it began: `accucompare overflow LOG`",
    ),
    "ended": CheckWords(
        "whether the loop ended with an error",
        "the last step's batch is what it died of, often",
        "see what the step was given that it ended in: FAIL and WARN of the data say so first",
    ),
    "loss-finite": CheckWords(
        "losses that are NaN or Inf, and how many running",
        "after one update with it, the weights are NaN",
        "see where it began: `accucompare overflow LOG`; go on from the last checkpoint before",
    ),
    "loss-spike": CheckWords(
        "losses far above their running spread, and above all before",
        "a bad batch, an unstable layer, or a bit that flipped",
        "look at this step's batch and gradient norm; run the step twice: a result that"
        " differs is the hardware's (silent data corruption)",
    ),
    "loss-trend": CheckWords(
        "whether a cross entropy ends above guessing, or another loss far above its beginning",
        "it does not learn, but forget",
        "lower the learning rate; check the sign of the loss and the labels",
    ),
    "norm-spike": CheckWords(
        "gradient norms far above their running spread, and above all before",
        "it comes before the spike of the loss",
        "look at this step's batch; clip gradients; run the step twice: a result that differs"
        " is the hardware's",
    ),
    "ranks-agree": CheckWords(
        "whether replicas on several ranks have the same weights",
        "replicas that part train different models",
        "check that gradients are summed over all ranks, and that all ranks started from the"
        " same weights",
    ),
}

#: By a threshold's name: its meaning, and where its default is from.
THRESHOLD_WORDS = {
    "input-range": ("magnitude", "issue 15"),
    "constant-features": (
        "share of features, from it on, of every floating input in every look",
        "all of them",
    ),
    "labels-ignored": (
        "share of steps without any label, if their losses are finite",
        "most of them",
    ),
    "order-repeated": ("share of the batches behind the first epoch", "sound runs pass"),
    "padding-rows": ("share of rows of any batch", "none is meant"),
    "mask-padding": ("share of tokens; the id may also end texts", "sound runs pass"),
    "dead-units": ("share of a module's units", "sound runs: 0.56 at most"),
    "evaluated-in-training": (
        "share of steps; from it on it is a part of the training",
        "sound runs: all, or one",
    ),
    "buffer-grows": ("times the most of all looks before, after five", "sound runs: 1.75 at most"),
    "dropout": (
        "share, above it",
        "with more, less than one value in ten is left; sound runs pass",
    ),
    "one-class": (
        "labels, below which nothing is said",
        "a class of 1 in 200 is among them in 99 of 100 runs",
    ),
    "padding-learnt": (
        "share of labels that are padding behind padding",
        "one that ends a text is none; sound runs pass",
    ),
    "rank-labels": ("labels of each rank, below which nothing is said", "sound runs pass"),
    "skips-running": ("skipped updates running", "issue 15"),
    "scale-least": ("loss scale", "issue 15"),
    "scale-zero-steps": (
        "steps with zero gradients, the scale not below the first",
        "sound runs pass",
    ),
    "entropy-least": (
        "entropy over log(classes), below which an output is certain",
        "sound runs pass",
    ),
    "entropy-loss": ("cross entropy above which a certain output is wrong", "sound runs pass"),
    "entropy-flat": ("how near to 1 that share is, if an output is uniform", "rounding of float32"),
    "update-lost": ("share of weights, the median over parameters", "half of them"),
    "label-smoothing": (
        "share of the label that is given to all classes",
        "more than the label keeps",
    ),
    "gradient-ratio": (
        "times the median of the others, below it; of each the largest of all looks",
        "sound runs: 0.004",
    ),
    "gradient-most": (
        "above it in every look, and so many times the median of the others",
        "std over std, issue 15",
    ),
    "update-least": (
        "below it, the median of the matrices",
        "float32 rounds away what is less than 6e-8",
    ),
    "update-most": (
        "above it, the median of the matrices: weights are replaced",
        "sound runs: 1.3 at most",
    ),
    "update-learnt": (
        "and the last losses over the first losses, above it",
        "half of the loss is left",
    ),
    "second-moment": (
        "times eps, below it the median of the matrices; of each the largest of all looks",
        "sound runs: 2,000",
    ),
    "restored-ahead": ("steps of the scheduler; it takes one when it is made", "torch's own count"),
    "accumulating": (
        "share of steps without; from it on they are micro-batches",
        "two micro-batches: 0.5",
    ),
    "decay-of-biases": ("weight decay, above it", "recipes of sound runs have up to 0.2"),
    "lr-zero": ("share of updates with a learning rate of 0", "sound runs pass"),
    "lr-jump": (
        "one update's rate over the last one's, between ten that rise and three that fall",
        "sound runs: 1.05",
    ),
    "schedule-unstepped": (
        "steps without one, and the data gone through",
        "one a step, or an epoch",
    ),
    "schedule-doubled": (
        "share of updates with more than one step of the scheduler between",
        "issue 15",
    ),
    "schedule-overruled": ("share of updates", "a few may be set by hand"),
    "clip-always": ("share of updates", "issue 15"),
    "clip-strength": (
        "median of the factor; below it, clipping that always acts is a WARN",
        "sound runs: 0.016 at least",
    ),
    "clip-grows": ("norm at the update over that behind the backward", "rounding is below"),
    "clip-scaled": (
        "norm at the update below which it is a FAIL",
        "a limit of clipping is 0.01 to 100",
    ),
    "loss-not-finite-running": (
        "so many running are a FAIL; one is a WARN",
        "issue 15; msprobe's AnomalyNan",
    ),
    "loss-spike": ("spreads above the median of the ten steps before", "sound runs pass"),
    "loss-spike-floor": ("share of the first losses that is added to all", "sound runs pass"),
    "loss-record": ("and so many times the largest before", "sound runs: 3.03 at most"),
    "loss-rise": (
        "last cross entropy over the first, or over that of guessing if that is larger",
        "sound runs: 0.95",
    ),
    "loss-diverges": (
        "last losses over first losses, of what is no cross entropy",
        "sound runs: 11",
    ),
    "norm-spike": (
        "spreads above the median of the ten steps before",
        "msprobe's AnomalyTurbulence; sound runs",
    ),
    "norm-record": ("and so many times the largest before", "sound runs: 0.46 at most"),
}

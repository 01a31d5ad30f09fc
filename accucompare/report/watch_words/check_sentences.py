"""A sentence for each remark of the checklist's checks."""

from __future__ import annotations

#: By remark. See ``remark_words`` for what stands in braces and brackets.
CHECK_SENTENCES = {
    # why a check was not looked at
    "no-vitals": (
        "the log holds no numbers for the checklist: an earlier version wrote it, or the watch"
        " had none (checks_every=0)"
    ),
    "not-begun": (
        "the log holds no numbers for the checklist, not even of a step that an error ended"
    ),
    "no-update": "no update was seen",
    "no-losses": (
        "no loss was seen: no backward reached the model inside the watch, and step() was given"
        " none"
    ),
    "no-norms": "no gradient norm was seen: no backward reached the model inside the watch",
    "no-close-look": "no step with an update was looked at closely",
    "no-scaler": "there is no loss scaler, or the watch was not told of it (scaler=)",
    "no-scheduler": "the watch was given no scheduler (scheduler=; in a case, Case(scheduler=))",
    "not-called": "the model was not called inside the watch",
    "called-without-gradients": (
        "only forwards without gradients were seen, which this does not look at"
    ),
    "no-targets": "no cross entropy was seen in the graph of the loss",
    "no-adam": "no optimizer keeps Adam's moments",
    "no-earlier-run": (
        "the log holds no earlier run to compare with: watch twice with the same --out"
    ),
    "one-rank": "one rank",
    "loader-workers": ("each worker draws in a process of its own, seeded by torch"),
    "custom-backward": (
        "finite differences need calls of their own: run `accucompare gradcheck CASE`"
    ),
    # data
    "inputs-finite": "{count:,} inputs were finite",
    "input-held-and-harmless": (
        "{input} held values from {low} to {high}, but all that the model made of them was finite"
    ),
    "values": "values from {low} to {high}",
    "inputs-at-most": "floating inputs were {size:.4g} at most",
    "made-small": "{measured}; what {module} made of them was {size:.4g} at most",
    "made-large": "{measured}, and {module} made {size:.4g} of them",
    "bytes-as-they-are": (
        "the first layer was given values of 0 to 255, as bytes are, in {looks:steps} looked at"
    ),
    "no-floating-input": "the model was given no floating input",
    "no-samples": "no floating input had several samples in a step that was looked at closely",
    "features-constant": (
        "{share:.0%} of its features had the same value in all samples of a batch, in each of"
        " {looks:,} looks"
    ),
    "of-input": "{input}: {measured}",
    "type-changed": "it was {before}, and then {after}",
    "types-kept": "the types of {inputs:count input} stayed the same",
    "coarse": (
        "it is {dtype}, with values up to {size:.4g}, where its numbers are {apart:g} apart, and"
        " the weights are float32"
    ),
    "labels-beyond": "labels from {low:g} to {high:g}, and logits of {classes:,} classes",
    "no-labels-no-embedding": (
        "no cross entropy was seen in the graph of the loss, or all of its labels were ignored;"
        " nor an embedding"
    ),
    "labels-at-most": "labels were {high:g} at most, and logits of {classes:,} classes",
    "ids-have-rows": "the ids given to {embeddings:count embedding} have rows there",
    "several": "{parts:parts}",
    "ids-beyond": "ids from {low:g} to {high:g}, and the embedding has {rows:,} rows",
    "all-labels-ignored": "all labels were ignored in {emptied:,} of {steps:steps}",
    "labels-ignored": "{share:.1%} of the labels were ignored at most",
    "ignored-and-finite": "{measured}, whose losses were finite",
    "axes-changed": "it had {before} axes, and then {after}: {shape}",
    "axes-kept": "the number of axes of {inputs:count input} stayed the same",
    "one-input-again": "the command uses the one input of the case in every step",
    "same-batch": (
        "{twice:,} of {steps:steps} had the same batch as the step before, by a sample of its"
        " values"
    ),
    "same-batch-of-no-loader": (
        "{measured}, and no DataLoader of torch's gave it: whether it is meant is not known"
    ),
    "loader-begun-anew": (
        "{measured}; its loader of {batches:,} batches was begun anew for {anew:,}"
    ),
    "loader-not-begun-anew": "{measured}; no loader of several batches was begun anew for it",
    "inputs-again": "the command uses the {inputs:count input} of the case again and again",
    "no-batch-again": "no batch of {batches:,} came again after others",
    "batches-in-order": (
        "{share:.0%} of the batches from the second epoch on came {period:,} steps after the same"
        " batch before"
    ),
    "order-of-no-loader": (
        "{measured}, and no DataLoader of torch's gave them: whether it is meant is not known"
    ),
    "order-not-shuffled": "{measured}; no loader was asked to shuffle",
    "order-of-shuffling-loader": (
        "{measured}, from a loader that was asked for another order in each epoch"
    ),
    "no-mask": "the model was given no attention_mask of rows",
    "rows-of-padding": (
        "the mask leaves nothing of {share:.0%} of the rows at most, in {looks:,} looks"
    ),
    "no-ids-with-mask": (
        "no input_ids with an attention_mask were given, or the id of padding is not known"
    ),
    "mask-and-padding": (
        "{kept:.1%} of what the mask keeps is padding, and {hidden:.1%} of what it hides is none"
    ),
    "no-setup": "one of the two runs has no setup",
    "other-model": "the run before in the log was of another model",
    "tokens-differ": "{what}: {before} in the run before, {now} in this one",
    "tokens-alike": "the same as in the run before: {known:pairs}",
    "no-ids": "the model is given no ids of tokens",
    "not-always-the-same": "not always the same",
    "ranks-split-a-model": (
        "ranks that split a model are given the same batch; which of them are replicas is not"
        " looked at"
    ),
    "one-batch-on-two-ranks": (
        "ranks {one} and {other} had the same batch, in {count:,} of {steps:steps}"
    ),
    "batches-differ": "no two of {ranks} ranks had the same batch in {steps:steps}",
    # randomness
    "not-seeded": "torch's generator still has its initial seed: none was set",
    "seeds": "seeds: {seeds:pairs}",
    "drawn-inside": "{names:list} was drawn from inside of calls of the model, in {steps:steps}",
    "not-drawn-inside": (
        "inside of the model's calls neither Python's nor NumPy's generator was drawn from"
    ),
    "first-step-parts": (
        "two runs from the same seed part in the {what} of their first step[: {values:and}]"
    ),
    "same-first-step": (
        "two runs from the same seed have the same first step: batch, weights, loss and gradient"
        " norm"
    ),
    "other-seeds": "the run before in the log had other seeds",
    "other-case": "the run before in the log was of another case, or on another device",
    "goes-on-elsewhere": (
        "one of the two runs goes on from another step: their optimizers had not taken the same"
        " number of steps"
    ),
    "no-states": (
        "the run before in the log was watched by an earlier version, which noted no states"
    ),
    "other-state": (
        "{generator}'s generator began in another state than in the run before, and was drawn from"
        " in {steps:steps}"
    ),
    "other-states-unused": (
        "the generators of {names:and} began otherwise than in the run before, and nothing was"
        " drawn from them"
    ),
    "same-states": "the generators of {names:and} began in the same states as in the run before",
    "no-setup-of-a-rank": "a rank's log holds no setup",
    "same-seeds-same-batch": (
        "all {ranks} ranks have the same seeds, and ranks {one} and {other} had the same batch:"
        " they compute the same"
    ),
    "same-seeds": (
        "all {ranks} ranks have the same seeds, so that dropout masks agree; their batches do not"
    ),
    "different-seeds": "{seeds:,} different seeds on {ranks} ranks",
    "different-weights": "{measured}, and different weights in the first step: {difference}",
    "no-different-weights": "{measured}, and no different weights in the first step",
    # model
    "in-no-optimizer": (
        "{left:,} of {trainable:,} trainable parameters have a gradient, and are in no optimizer:"
        " {names:names}"
    ),
    "in-none-without-gradient": (
        "{outside:,} of {trainable:,} trainable parameters are in no optimizer, and have no"
        " gradient"
    ),
    "all-in-an-optimizer": "all {trainable:,} trainable parameters are in an optimizer",
    "too-few-updates": "too few looks at an update: {looks}, and {least} are needed",
    "none-with-gradient": (
        "no parameter that an optimizer holds had a gradient in {looks:,} looks at an update[;"
        " {elsewhere:,} backwards began with a loss that leads to no parameter of the model]"
    ),
    "without-gradient": (
        "{never:,} parameters that an optimizer holds had no gradient, or zero, in {looks:,}"
        " looks: {names:names}"
    ),
    "entrance-without-gradient": "{measured}; {entrance} is the first one that is used",
    "strangers": (
        "an optimizer holds {parameters:,} parameters that are not the model's, and had no"
        " gradient in {steps:steps}"
    ),
    "entrance-with-gradient": "{measured}; the first one that is used had one",
    "all-with-gradient": "every parameter in an optimizer had a gradient in one of {looks:,} looks",
    "frozen-updated": (
        "frozen parameters had a gradient when their optimizer made an update: {names:names}"
    ),
    "none-frozen-updated": (
        "no frozen parameter had a gradient when its optimizer made an update[; {held:,} of them"
        " are in an optimizer, which leaves them as they are]"
    ),
    "no-cut-off": (
        "no module of a kind that cuts off below zero (ReLU, GELU, SiLU) was looked at in three"
        " steps"
    ),
    "idle-units": (
        "{share:.0%} of the units of {module} gave nothing above zero in any of {looks:,} looks"
    ),
    "too-few-looks": "too few looks: {looks}, and {least} are needed",
    "one-value": "all values that it gave were one and the same in each of {looks:,} looks",
    "one-output": (
        "what it gave was between {low:.4g} and {high:.4g} in each of {looks:,} looks, for other"
        " inputs and after updates of its weights"
    ),
    "nothing-moved": "no update moved the weights of a module",
    "outputs-changed": "the outputs of {modules:,} modules that were trained changed",
    "one-module": "{one} and {other} are one and the same module; {pairs:,} such pairs in lists",
    "no-one-module": "no two entries of a list are one and the same module",
    "no-modes": "no module computes otherwise in training than in evaluation",
    "too-few-trained": "too few steps that trained: {steps}, and {least} are needed",
    "in-evaluation": (
        "{count:,} of {modules:,} dropouts and batch norms beside what is trained were in"
        " evaluation, as the whole model, in {found:,} of {steps:steps} that trained"
    ),
    "few-in-evaluation": (
        "fewer than half of {modules:,} dropouts and batch norms beside what is trained were in"
        " evaluation with the whole model in {steps:steps} that trained"
    ),
    "evaluated-well": "no call without gradients had a dropout or a batch norm in training",
    "evaluated-in-training": (
        "{modules:,} dropouts and batch norms were in training in calls without gradients, in"
        " {steps:steps}"
    ),
    "not-as-evaluations": "{measured}: too seldom, or too often, for evaluations",
    "no-running-statistics": "the model has no running statistics",
    "buffer-holds": "it holds values from {low} to {high}",
    "buffer-grew": (
        "it holds values up to {size:.4g}; the largest in {looks:,} looks before was {before:.4g}"
    ),
    "buffers-grew": (
        "running statistics never grew to more than {times:.3g} x their largest before, after"
        " {looks} looks"
    ),
    "no-dropout": "the model has no dropout",
    "dropout-sets": (
        "dropout sets {share:.0%} of what it is given to zero at most[; likewise {others:names}]"
    ),
    # loss
    "no-cross-entropy": (
        "no cross entropy, with logits or of logarithms, was seen in the graph of the loss"
    ),
    "made-twice": (
        "{function} was given what {made_by} gave, as it is, in {count:,} of {looks:steps} looked"
        " at"
    ),
    "not-made-twice": (
        "{functions:list}: not given what a softmax or the like gave, in {looks:steps}"
    ),
    "no-loss-of-one-shape": (
        "no loss of a prediction and a target of one shape was seen in the graph"
    ),
    "spread": (
        "{function}: the prediction is {shape}, and each of its values met each of the target's:"
        " {spread}"
    ),
    "one-shape": "prediction and target had one shape in {looks:steps} that were looked at",
    "one-class-only": (
        "the cross entropy is over one class, so that it is 0 whatever the model gives"
    ),
    "too-few-labels": (
        "too few labels: {labels:,} of classes that are the rows of a weight of the model"
    ),
    "one-label": "all of {labels:,} labels were {label:g}",
    "labels-span": "labels of {parameter} were {low:g} to {high:g}",
    "labels-not-on-every-rank": (
        "too few labels on some rank, of classes that are the rows of a weight of the model"
    ),
    "no-label-in-common": (
        "ranks {one} and {other} had no label in common: {low:g} to {high:g} and {other_low:g} to"
        " {other_high:g}"
    ),
    "labels-in-common": "any two of {ranks} ranks had labels in common",
    "padding-not-known": (
        "the id of padding is not known, is ignored by the loss, or the classes are no tokens"
    ),
    "padding-in-labels": (
        "{share:.1%} of the labels were padding that follows padding, and none of it is ignored"
    ),
    # precision
    "scale-skipped": (
        "{skipped:,} of {updates:,} updates were skipped, at most {running} in a row after the"
        " first update"
    ),
    "scale-least": "the loss scale was {least:g} at least, and {first:g} at first",
    "scale-most": "the loss scale was {most:g} at most; all gradients were zero in {steps:steps}",
    "alert": "{text}[; likewise {others:names}]",
    "none-subnormal": "no module's values or gradients were subnormal in 10 % of a sample or more",
    "none-near": (
        "no module's finite values or gradients came near the largest number of their type"
    ),
    "no-entropy": (
        "no entropy was looked at: the output has one class, or axes after its classes, or is no"
        " log-probability"
    ),
    "certain-and-wrong": (
        "the entropy of the output was {share:.2g} of its most, with a cross entropy of {loss:.4g}"
    ),
    "uniform-output": (
        "the output was uniform in {steps:steps}: its entropy was its most, log(classes)"
    ),
    "entropy-between": (
        "the entropy of the output was between {least:.2g} and {most:.2g} of its most"
    ),
    "log-probabilities": "the log-probabilities that the loss is computed of are {kinds:list}",
    "no-half-parameter": "no parameter that is updated is float16 or bfloat16",
    "updates-rounded-away": (
        "{share:.0%} of the weights did not change in an update (median of {parameters} parameters"
        " in half types)"
    ),
    "no-smoothing": "the cross entropy has no label smoothing",
    "smoothing": (
        "label smoothing is {amount:.3g} over {classes:,} classes, with which no mean loss can be"
        " below {floor:.4g}"
    ),
    "none-narrowed": (
        "no module was given positions or ids in a half type, beyond the whole numbers that it"
        " holds exactly"
    ),
    "narrowed": (
        "input {path} is {dtype}, and as large as {high}, where {dtype} holds no odd numbers[;"
        " likewise {others:names}]"
    ),
    # optimizer
    "too-few-matrices": (
        "fewer than two matrices that are updated have a gradient: one is compared with the others"
    ),
    "gradient-at-most": (
        "the gradient's norm over the weight's was {value:.3g} at most in all looks, and"
        " {usual:.3g} in the middle of the others[; likewise {others:names}]"
    ),
    "of-parameter": "{parameter:module}: {measured}",
    "gradient-at-least": (
        "the gradient's norm over the weight's was {value:.3g} at least in all looks, and"
        " {usual:.3g} in the middle of the others"
    ),
    "no-matrix-updated": "no matrix was seen to be updated",
    "update-ratios": (
        "update over weight is {least:.3g} to {most:.3g}, {usual:.3g} in the middle: of each"
        " matrix the most of all looks"
    ),
    "loss-came-to": "{measured}; the loss came to {share:.2g} x what it was at first",
    "no-second-moment": (
        "no matrix with a gradient is updated by an optimizer that has a second moment, and an eps"
        " of 1e-6 or less"
    ),
    "second-moment": (
        "the root of the second moment was {times:.3g} x eps at most in all looks, in the middle"
        " of all matrices"
    ),
    "optimizer-renewed": (
        "{times:,} times an optimizer without state took the place of one that had some, in"
        " {steps:steps}"
    ),
    "no-count-of-steps": "no optimizer keeps count of its steps",
    "taken-none": (
        "at the beginning {optimizer} had taken 0 steps by its state, and {scheduler} {steps:,}"
    ),
    "restarted": (
        "the run goes on with the weights of the one before, whose optimizer had taken {steps:,}"
        " steps; now: {counts:pairs ,}"
    ),
    "steps-taken": "steps taken by the optimizers' state at the beginning: {counts:pairs ,}",
    "from-second-update": "it shows from the second update on",
    "stale-gradient": (
        "{parameters:,} parameters were updated with a gradient in which there was that of before"
        " the last update, in {steps:steps}"
    ),
    "cleared-unused": (
        "the gradients of {backwards:,} backwards were cleared before an update had used them,"
        " before {thrown:,} of {updates:,} updates"
    ),
    "no-stale-gradient": (
        "no update had the gradient of before the last one in its own, in {steps:steps}"
    ),
    "updates-changed-nothing": "updates changed no weight in any of {looks:,} looks",
    "no-backward": "no backward was seen",
    "no-optimizer": (
        "the watch was given no optimizer, and saw none: it does not see updates that are made by"
        " hand"
    ),
    "given-optimizer-idle": "no update was seen of the optimizer that the watch was given",
    "without-update": "{without:,} of {trained:,} steps with a backward had no update",
    "matrix-unmoved": "an update changed no weight of a matrix, in {still:,} of {looks:,} looks",
    "biases-decayed": "{count:,} biases and weights of norms have a weight decay of {decay:g}",
    "decay-at-most": (
        "the weight decay is {decay:g} at most; that of biases and norms is within the threshold"
    ),
    # schedule and clipping
    "rate-was": "the learning rate was {rate:.4g}",
    "rates-zero": (
        "all learning rates were 0, or below the rounding of their most, in {zeros:,} of"
        " {updates:,} updates"
    ),
    "rates": "learning rates from {low:.4g} to {high:.4g} in {steps:steps}",
    "jump": (
        "the learning rate rose step by step, then from {before:.4g} to {after:.4g} in one, and"
        " fell from there"
    ),
    "no-jump": (
        "before a learning rate began to fall, it rose by no more than {times:.3g} x in one step"
    ),
    "beyond-its-length": (
        "{scheduler} was made for {length:,} steps, and had been stepped {taken:,} times"
    ),
    "no-lengths": "no scheduler says how many steps it is made for",
    "within-lengths": "no scheduler went beyond the steps that it is made for ({least:,} at least)",
    "scheduler-stepped": "{scheduler} was stepped {times:g} times in {steps:steps}",
    "never-stepped": "{measured}[, in which the data was gone through {epochs:,} times]",
    "stepped-between": "{scheduler} was stepped {times:.3g} times between one update and the next",
    "one-update": "one update was seen: it shows from the second on",
    "stepped-before": (
        "{scheduler} was stepped {times:times} before the first update, so that its first rate is"
        " left out"
    ),
    "not-stepped-before": "no scheduler was stepped before the first update",
    "no-rates": "no scheduler says what rates it has set",
    "overruled": (
        "the update was made with {made:list .4g}, and {scheduler} had set {rates:list .4g};"
        " likewise in {count:,} of {steps:steps}"
    ),
    "rates-followed": (
        "{followed:,} of {steps:steps} had an update with the rate that a scheduler had set"
    ),
    "clipped-behind": (
        "gradients were clipped after the update that used them, in {behind:,} of {updates:,}"
        " updates, and before it in none"
    ),
    "gradients-zero": "all gradients were zero, or their norms not finite",
    "made-smaller": (
        "gradients were made smaller before {clipped:,} of {updates:,} updates[, to {times:.3g} x]"
    ),
    "not-grown": (
        "gradients were not multiplied by a factor above 1 between the backward and the update"
    ),
    "gradients-grown": (
        "all gradients were {times:.4g} x as large at the update as at the end of the backward, in"
        " {steps:steps}"
    ),
    "not-clipped": "gradients were not made smaller before any update with a loss scale",
    "clipped-scaled": (
        "at each clipped update the gradient norm times the loss scale was {product:.4g}; the norm"
        " itself {norm:.4g}"
    ),
    "clipped-norm": (
        "clipped gradients had a norm of {norm:.4g} at the update, without the loss scale"
    ),
    # run
    "gave": "{place} gave {kinds:list}",
    "unexplained": "something was not finite, and no call was found",
    "all-finite": "everything that was looked at was finite in {steps:steps}",
    "loop-ended": "the loop ended after {steps:steps}: {ending}",
    "loop-failed": "the loop ended with an error, after {steps:steps}: {reason:printable 200}",
    "loss-finite": "the loss was finite in {steps:steps}",
    "loss-not-finite": "the loss was {value:g} in {steps:steps}, {running} in a row",
    "too-few-for-spread": (
        "{steps:steps} with a number above 0 are too few to know a spread: 21 at least"
    ),
    "no-spike": (
        "{what} never rose more than {times:g} spreads above the median of the ten steps before,"
        " to {record:g} x all before"
    ),
    "spike": (
        "{what} was {value:.4g}, {spreads:.3g} spreads above the median of the ten before"
        " ({usual:.4g})[; {steps:,} such steps]"
    ),
    "loss-not-positive": (
        "the loss is not positive ({lowest:.4g} at least), and spreads are measured in its"
        " logarithm"
    ),
    "the-loss": "the loss",
    "the-gradient-norm": "the gradient norm",
    "too-few-for-trend": "{steps:steps} are too few for a trend: {least} at least",
    "no-ratio": (
        "the loss is not positive ({first:.4g} at first), and a trend is judged by its ratio"
    ),
    "loss-went": (
        "the loss went from {first:.4g} to {last:.4g} (medians of the first and the last"
        " {steps:steps})"
    ),
    "cross-entropy-went": (
        "the cross entropy went from {then:.4g} to {now:.4g} (medians of {looks} looks), where"
        " guessing has {guessing:.4g}"
    ),
    "ranks-hold-parts": (
        "ranks hold different parts of the model, and which are replicas is not looked at"
    ),
    "nothing-on-two-ranks": (
        "no step was looked at closely on two ranks, or all parameters are sharded"
    ),
    "weights-agree": "{weights:,} weights have the same norm on all of {ranks} ranks",
    "weights-differ": (
        "the norm of the weights is {mine} on rank {rank} and {theirs} on rank {other}"
    ),
}

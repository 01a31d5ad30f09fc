"""A sentence for each remark of a watch and a gradcheck."""

from __future__ import annotations

#: By remark. See ``remark_words`` for what stands in braces and brackets.
WATCH_SENTENCES = {
    # how a run ended, and what its log proves
    "no-end": (
        "the log has no end: the process was killed, its disk was full, or it is still running"
    ),
    "ended": "ended after {steps:steps}, {watched:,} watched: {reason:printable 300}",
    "ended-all-watched": "ended after {steps:steps}, all watched: {reason:printable 300}",
    "stopped-as-asked": "stopped after step {step}, as asked",
    "paused": "paused after step {step}: {saved}",
    "state-saved": "the state before the first of them is in {state}",
    "no-state-saved": "no earlier state could be saved",
    "nothing-watched": "no step was watched; {ending}",
    "not-every-rank": "nothing was found, but not in every rank's log: {notes:parts}",
    "not-all-seen": (
        "nothing was found, but not all was seen: {what}, of {module:module}[, and {more:,} more]"
    ),
    "ended-otherwise": "nothing was found, but {ending}",
    "left-out": "{log}: left out, of a run with {ranks} ranks",
    "no-log": "no log of rank {missing:ranges} of {ranks}",
    "rank-ends": "rank {rank} ends at step {step}, others go on to step {last}; {ending}",
    "rank-has-no-step": "rank {rank} has no step, others go on to step {last}; {ending}",
    # the loss scale
    "scale-went": "the loss scale went from {before:g} to {after:g}",
    "gradients-overflowed": (
        "gradients overflowed[ in {where}], and the update was skipped[; {change}]; {verdict}"
    ),
    "skip-normal": "this is normal now and then",
    "scale-down-to-1": (
        "the loss scale is down to 1: this is not normal, the gradients are not finite at any scale"
    ),
    "skipped-in-a-row": (
        "{count} updates in a row were skipped: this is not normal, the gradients are not finite at"
        " any scale"
    ),
    # notes of a finding
    "neither-input-nor-weight": (
        "{paths:list} of {operator}, which is neither an input nor a weight"
    ),
    "swallowed": "in the forward {operator}[ at {line}] gave a value that is not finite",
    "first-at": (
        "input {path}: the first at index {index}; in {rows} of {length} along its first axis"
    ),
    "first-seen": "by outputs alone it was first seen in {place}",
    "updated-by-others": (
        "in step {step} parameters were updated with gradients that another rank had spoilt"
    ),
    "updated-in-spite": (
        "parameters were updated in step {step}, in spite of what was found there"
    ),
    "reproducer-not-written": "the reproducer was not written: {error}",
    # why a step was not run again, or what came of it
    "not-run-again": "the step was not run again: {why}",
    "in-transform": "it was called inside a function transform",
    "other-parameters": (
        "its parameters are not those with which the watch began, as under functional_call"
    ),
    "sharded": "its parameters are sharded over ranks",
    "deepspeed": "DeepSpeed's calls may talk to other ranks",
    "sync-batch-norm": "its SyncBatchNorm talks to other ranks",
    "stateful": "it was given a {type}, which it changes",
    "second-backward": "it was in a second backward, through gradients",
    "not-kept": "what that call was given was not kept",
    "written-since": "the parameters have been written into since",
    "being-captured": "the model is being captured",
    "module-talks": "{module:module} {talks}",
    "talks": "talks to other ranks[ ({error})]",
    "may-talk": "may talk to other ranks",
    "transformer-engine": "may talk to other ranks, by Transformer Engine",
    "no-gradient-arrived": (
        "the backward was not run again: no gradient arrived at what the model gave"
    ),
    "could-not-run": "the step could not be run again: {error}",
    "did-not-show": (
        "it did not show when the step was run again: the model or its device may not be"
        " deterministic"
    ),
    "did-not-show-backward": (
        "it did not show when the step was run again: the model or its device may not be"
        " deterministic, or a hook on a tensor has made it"
    ),
    "second-run-differs": (
        "the second run differs, and the step is believed: the largest gradient in {module:module}"
        " ({operator}) was {largest:.4g} in the step and {other:.4g} in the second run, where hooks"
        " on tensors of the step are missing"
    ),
    # what a reproducer lacks, or why there is none
    "sum-over-calls": "none, since one call cannot show a sum over several",
    "hook-made-it": "none, since a hook on the module made it, not the module",
    "part-of-rank": (
        "it holds what this rank has of {module:module}: inputs, weights, random states; to run it,"
        " every rank is needed, since it {talks}"
    ),
    # what could not be looked at
    "hook-error": "an error in a hook",
    "transform-gradients": "the gradients that a function transform takes",
    "not-looked-at": "not looked at: {failure}",
    # warnings
    "about": "{module:module} ({type}): {text}",
    "values-near": "values up to {largest:.4g} come near the limit of {dtype}",
    "gradients-near": "gradients up to {largest:.4g} come near the limit of {dtype}",
    "gradients-subnormal": (
        "{subnormal:.0%} of gradients are subnormal in {dtype}, and {zero:.0%} are zero[; in"
        " {more:count more module}, too, {least:.0%} or more are subnormal]"
    ),
    "sum-spoilt": (
        "the gradient of {name} is not finite after the sum over ranks, but this rank's own was:"
        " another rank made it, and that rank's log names where"
    ),
    "sums-spoilt": (
        "{count} gradients, such as that of {name}, are not finite after the sum over ranks, but"
        " this rank's own were: another rank made it, and that rank's log names where"
    ),
    "step-without-end": (
        "this step has no end: call step() of the watch at the end of each; what was seen so far is"
        " finite, and is dropped"
    ),
    "several-updates": (
        "the optimizer updates several times in one step: call step() of the watch at the end of"
        " each"
    ),
    "no-call-seen": (
        "no call of the model was seen in this step: is it this very model, not a copy, that is"
        " called inside the watch?"
    ),
    "masked-gradient": (
        "its gradient ({operator}) held {kinds:and}, which came to no parameter's gradient"
    ),
    "came-to-nothing": (
        "{kinds:and} began there, and came to nothing: no output, gradient or loss has it"
    ),
    "flag-unexplained": (
        "the device's overflow flag is up, and no value shows it; flag_per_module=True"
        " (--flag-per-module) names the module"
    ),
    "no-backward-reached": (
        "no backward reached the model, so that no gradient was looked at; is it inside the watch,"
        " and the loss not detached?"
    ),
    "forward-only": (
        "the case has no loss: only its forward was watched; give Case(…, loss=…) to watch"
        " gradients"
    ),
    "no-flag-here": (
        "--flag-per-module: this device has no overflow flag, since its overflows give Inf; only"
        " values were looked at"
    ),
    # a gradcheck
    "derivative": (
        "its backward is the derivative of its forward, to {allowed:.0e}[; {notes:parts}]"
    ),
    "derivative-beside": (
        "its backward is the derivative beside the recorded inputs; at them, as at a kink, {how}"
    ),
    "differences-tell-nothing": "finite differences tell nothing",
    "independent": (
        "the output does not depend on {argument}, and the backward gives it a gradient"
    ),
    "no-gradient-of": ("the backward gives no gradient of {argument}, on which the output depends"),
    "times-derivative": "the gradient of {argument} is {factor:g} times the derivative",
    "off-by": "the gradient of {argument} is off by {error:.1e} of the derivative",
    "gradient-not-asked": "it gives no gradient of {argument}, and the run asks for none",
    "alone-raises": (
        "where only the gradient of {argument} is asked for, the backward raises {error}"
    ),
    "not-in-float64": "{measured}; it does not run in float64 ({why})",
    "not-again-in-float64": "it does not run again in float64: {why}",
    "in-given-types": (
        "{measured}; in the types that it was given, since it does not run in float64 ({why})"
    ),
    "no-output-with-gradient": "it has no output with a gradient",
    "no-output-has-gradient": "none of its outputs has a gradient",
    "too-coarse": (
        "finite differences of {argument} are too coarse to tell: it has jumps, or computes in few"
        " digits"
    ),
    "not-repeatable": (
        "it gives other values when it is called again with the same arguments and the same seed"
    ),
    "too-slow": (
        "one call takes {seconds:.1f} s, and {calls} are needed; give a case with smaller inputs"
    ),
    "given-layout": "it is given a {layout} tensor",
    "no-floating-tensor": "it is given no floating tensor",
    "seconds-over": ("{seconds:g} seconds were over; give a case with smaller inputs, or --only"),
    "not-from-python": (
        "it is in the graph, but was not applied from Python, so that its arguments are not known"
    ),
}

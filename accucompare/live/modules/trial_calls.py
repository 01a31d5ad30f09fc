"""Calls of a stage by which ``torch.distributed.pipelining`` finds the shapes of what it sends."""

from __future__ import annotations

import sys

_HOME = "torch.distributed.pipelining.stage"
#: The methods that make such calls, in this version of torch and in older ones.
_MAKERS = ("_forward_metadata_inference", "_backward_metadata_inference", "_shape_inference")
#: The most callers that are looked at: wrappers lie between a stage and its module.
_MOST_FRAMES = 40


def in_trial_call() -> bool:
    """Whether the running code only tries a stage out: on zeros or ones, for no training step."""
    if _HOME not in sys.modules:
        return False
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame.f_code.co_name in _MAKERS and frame.f_globals.get("__name__") == _HOME:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False

"""Wrote the logs beside it, by DebugMode of torch 2.13: ``python tests/data/debug_mode/make.py``.
``tests/data`` is in PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path

from small_model import inputs, model
from torch.utils._debug_mode import DebugMode

HERE = Path(__file__).parent

for name, kinds, hash_inputs in (("norm", "norm", False), ("both", ["norm", "hash_tensor"], True)):
    net = model()
    with (
        DebugMode(record_nn_module=True) as mode,
        DebugMode.log_tensor_hashes(hash_fn=kinds, hash_inputs=hash_inputs),
    ):
        net(inputs()).square().mean().backward()
    (HERE / f"{name}.txt").write_text(mode.debug_string() + "\n")

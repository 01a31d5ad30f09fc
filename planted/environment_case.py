"""A model with an operator whose kernel is in no Python file: a variable, a library or a file
chooses it at run time.

``PLANTED_LIBRARY`` is the library. ``PLANTED_KERNEL``, or what stands in the file ``PLANTED_FLAG``,
chooses its kernel: 0 is the right one.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch
from torch import nn

from accucompare import Case

#: Halves each number; the other kernels do otherwise in the last columns, or in all. ``-DKERNEL=n``
#: builds a library that knows that one.
SOURCE = """
#ifndef KERNEL
#define KERNEL 0
#endif
void gate(const float *x, float *y, long rows, long columns, int chosen) {
    int kernel = KERNEL ? KERNEL : chosen;
    for (long row = 0; row < rows; row++)
        for (long column = 0; column < columns; column++) {
            float factor = 0.5f;
            if (kernel == 1 && column >= columns - 16) factor = 0.515f;
            if (kernel == 2 && column >= columns - 16) factor = 0.75f;
            if (kernel == 3) factor = -0.5f;
            y[row * columns + column] = x[row * columns + column] * factor;
        }
}
"""

#: The wrong kernels.
KERNELS = {1: "last 16 of 64 columns x 1.03", 2: "last 16 of 64 columns x 1.5", 3: "wrong sign"}

#: The module that has the operator.
PLACE = "gate"


def case() -> Case:
    torch.manual_seed(0)
    layers = {
        "up": nn.Linear(48, 64),
        PLACE: _Gate(),
        "act": nn.GELU(),
        "norm": nn.LayerNorm(64),
        "down": nn.Linear(64, 48),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return Case(model.eval(), torch.randn(32, 48, generator=torch.Generator().manual_seed(1)))


class _Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.compute = ctypes.CDLL(os.environ["PLANTED_LIBRARY"]).gate
        self.compute.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_int,
        ]

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        given = data.detach().float().contiguous()
        made = torch.empty_like(given)
        self.compute(given.data_ptr(), made.data_ptr(), given.shape[0], given.shape[1], _chosen())
        return made.to(data.dtype)


def _chosen() -> int:
    flag = Path(os.environ.get("PLANTED_FLAG", os.devnull)).read_text(encoding="utf-8").strip()
    return int(os.environ.get("PLANTED_KERNEL") or flag or 0)

"""Made the files beside it: ``python tests/data/polygraphy/make.py FOLDER``, with ``tests/data`` in
PYTHONPATH.

By polygraphy 0.53.6, onnxruntime 1.32.0, onnx 1.23.2 and torch 2.13.0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import small_model
import torch
from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs, OnnxFromPath
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator
from polygraphy.constants import MARK_ALL
from torch import nn


def make(
    folder: Path, model: nn.Module, inputs: torch.Tensor, *, dynamo: bool, output: str | None = None
) -> None:
    """``model.onnx`` by one of the two exporters, and ``outputs.json``: all that ONNX Runtime
    computes of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = None if output is None else [output]
    torch.onnx.export(
        model,
        (inputs,),
        folder / "model.onnx",
        dynamo=dynamo,
        input_names=["x"],
        output_names=names,
        external_data=False,
    )
    # as --onnx-outputs mark all
    marked = BytesFromOnnx(
        ModifyOutputs(OnnxFromPath(str(folder / "model.onnx")), outputs=MARK_ALL)
    )
    Comparator.run(
        [OnnxrtRunner(SessionFromOnnx(marked))], data_loader=[{"x": inputs.numpy()}]
    ).save(str(folder / "outputs.json"))


if __name__ == "__main__":
    to = Path(sys.argv[1])
    make(to, small_model.model(), small_model.inputs(), dynamo=False, output="logits")
    for name, (model, inputs) in small_model.EXPORTED.items():
        for dynamo in (False, True):
            make(
                to / f"{name}-{'default' if dynamo else 'older'}", model(), inputs(), dynamo=dynamo
            )

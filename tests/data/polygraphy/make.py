"""Made outputs.json, by polygraphy 0.53.6, onnxruntime 1.32.0 and onnx 1.23.2: ``python tests/data/polygraphy/make.py FOLDER``.

``tests/data`` is in PYTHONPATH.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs, OnnxFromPath
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator
from polygraphy.constants import MARK_ALL
from small_model import inputs, model

folder = Path(sys.argv[1])
torch.onnx.export(model(), (inputs(),), folder / "model.onnx", dynamo=False, input_names=["x"], output_names=["logits"])
marked = BytesFromOnnx(ModifyOutputs(OnnxFromPath(str(folder / "model.onnx")), outputs=MARK_ALL))  # as --onnx-outputs mark all
feed = [{"x": inputs().numpy()}]
Comparator.run([OnnxrtRunner(SessionFromOnnx(marked))], data_loader=feed).save(str(folder / "outputs.json"))

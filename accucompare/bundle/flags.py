"""Device flags that change numbers, and the formats that they let products be rounded to."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Explicit mantissa bits of the formats that float32 operands of a product may be rounded to;
# ``selection.Precision`` has the sources.
MANTISSA = {"hf32": 11, "tf32": 10, "fp16": 10, "bf16": 7}


class Flag(NamedTuple):
    """A flag, as ``Cpu.flags`` names it, that changes numbers when it has some value."""

    name: str
    values: tuple[object, ...]
    effect: str
    cure: str
    types: tuple[str, ...]  # the device types that it matters for
    # the float32 products that it lets round: ``"matmul"``, ``"conv"`` or ``""``
    products: str = ""
    # what the products are rounded to if it is True; ``""`` where its value says so
    format: str = ""
    # whether overflow then gives the largest finite value instead of infinity
    saturates: bool = False

    def rounds_to(self, value: Any) -> str:
        """The format that products are rounded to with this value; ``""`` if they are not."""
        if value is True:
            return self.format
        return value if self.products and isinstance(value, str) and value in MANTISSA else ""


FLAGS = (
    Flag(
        "cuda.matmul.allow_tf32",
        (True,),
        "matrix products may round what goes into them to TF32: 10 of 23 mantissa bits",
        "capture --no-tf32, or torch.backends.cuda.matmul.allow_tf32 = False",
        ("cuda",),
        "matmul",
        "tf32",
    ),
    Flag(
        "cudnn.allow_tf32",
        (True,),
        "convolutions may round what goes into them to TF32: 10 of 23 mantissa bits",
        "capture --no-tf32, or torch.backends.cudnn.allow_tf32 = False",
        ("cuda",),
        "conv",
        "tf32",
    ),
    Flag(
        "mkldnn.matmul.fp32_precision",
        ("tf32", "bf16"),
        "matrix products may round what goes into them to TF32 or bfloat16",
        "torch.backends.mkldnn.matmul.fp32_precision = 'ieee'",
        ("cpu",),
        "matmul",
    ),
    Flag(
        "mkldnn.conv.fp32_precision",
        ("tf32", "bf16"),
        "convolutions may round what goes into them to TF32 or bfloat16",
        "torch.backends.mkldnn.conv.fp32_precision = 'ieee'",
        ("cpu",),
        "conv",
    ),
    Flag(
        "npu.matmul.allow_hf32",
        (True,),
        "matrix products may round what goes into them to HF32: 11 of 23 mantissa bits",
        "capture --no-hf32, or torch.npu.matmul.allow_hf32 = False",
        ("npu",),
        "matmul",
        "hf32",
    ),
    Flag(
        "npu.conv.allow_hf32",
        (True,),
        "convolutions may round what goes into them to HF32: 11 of 23 mantissa bits",
        "capture --no-hf32, or torch.npu.conv.allow_hf32 = False",
        ("npu",),
        "conv",
        "hf32",
    ),
    Flag(
        "cudnn.benchmark",
        (True,),
        "a convolution may take another algorithm in every run",
        "capture --deterministic, or torch.backends.cudnn.benchmark = False",
        ("cuda",),
    ),
    Flag(
        "npu.inf_nan_mode",
        (False,),
        "what overflows becomes the largest finite value, and NaN 0",
        "unset INF_NAN_MODE_ENABLE and INF_NAN_MODE_FORCE_DISABLE, where the NPU has the choice",
        ("npu",),
        saturates=True,
    ),
    Flag(
        "deterministic_algorithms",
        (False,),
        "sums may be taken in another order in every run",
        "capture --deterministic, or torch.use_deterministic_algorithms(True)",
        ("cuda", "npu"),
    ),
)


def roundoff(format: str) -> float:
    """Unit roundoff of a float32 product whose operands are rounded to a format; 0 for none."""
    return 2.0 ** -(MANTISSA[format] + 1) if format in MANTISSA else 0.0

"""Flags and environment variables that make numbers differ between devices or runs. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """A flag, as ``Backend.flags`` names it, that changes numbers when it has some value.

    Attributes:
        values: the values that do.
        effect: what they do.
        cure: how to set it otherwise.
        types: of the devices that it matters for.
    """

    flag: str
    values: tuple[object, ...]
    effect: str
    cure: str
    types: tuple[str, ...]


SETTINGS = (
    Setting(
        "mkldnn.matmul.fp32_precision",
        ("tf32", "bf16"),
        "matrix products may round what goes into them to TF32 or bfloat16",
        "torch.backends.mkldnn.matmul.fp32_precision = 'ieee'",
        ("cpu",),
    ),
    Setting(
        "mkldnn.conv.fp32_precision",
        ("tf32", "bf16"),
        "convolutions may round what goes into them to TF32 or bfloat16",
        "torch.backends.mkldnn.conv.fp32_precision = 'ieee'",
        ("cpu",),
    ),
    Setting(
        "cuda.matmul.allow_tf32",
        (True,),
        "matrix products may round what goes into them to TF32: 10 of 23 mantissa bits",
        "capture --no-tf32, or torch.backends.cuda.matmul.allow_tf32 = False",
        ("cuda",),
    ),
    Setting(
        "cudnn.allow_tf32",
        (True,),
        "convolutions may round what goes into them to TF32: 10 of 23 mantissa bits",
        "capture --no-tf32, or torch.backends.cudnn.allow_tf32 = False",
        ("cuda",),
    ),
    Setting(
        "cudnn.benchmark",
        (True,),
        "a convolution may take another algorithm in every run",
        "capture --deterministic, or torch.backends.cudnn.benchmark = False",
        ("cuda",),
    ),
    Setting(
        "npu.matmul.allow_hf32",
        (True,),
        "matrix products may round what goes into them to HF32: 11 of 23 mantissa bits",
        "capture --no-hf32, or torch.npu.matmul.allow_hf32 = False",
        ("npu",),
    ),
    Setting(
        "npu.conv.allow_hf32",
        (True,),
        "convolutions may round what goes into them to HF32: 11 of 23 mantissa bits",
        "capture --no-hf32, or torch.npu.conv.allow_hf32 = False",
        ("npu",),
    ),
    Setting(
        "npu.inf_nan_mode",
        (False,),
        "what overflows becomes the largest finite value, and NaN 0",
        "unset INF_NAN_MODE_ENABLE and INF_NAN_MODE_FORCE_DISABLE, where the NPU has the choice",
        ("npu",),
    ),
    Setting(
        "deterministic_algorithms",
        (False,),
        "sums may be taken in another order in every run",
        "capture --deterministic, or torch.use_deterministic_algorithms(True)",
        ("cuda", "npu"),
    ),
)

#: Environment variables that change numbers, or what devices are there.
ENVIRONMENT = {
    "ACCUCOMPARE_KERNEL": "numpy switches the compiled kernel off",
    "ASCEND_HOME_PATH": "where CANN is",
    "ASCEND_LAUNCH_BLOCKING": "1 runs NPU operations one by one",
    "ASCEND_RT_VISIBLE_DEVICES": "which NPUs are seen",
    "ASCEND_TOOLKIT_HOME": "where CANN is",
    "ATEN_CPU_CAPABILITY": "which vector instructions torch takes, and so the order of its sums",
    "CUBLAS_WORKSPACE_CONFIG": "whether cuBLAS can be deterministic",
    "CUDA_VISIBLE_DEVICES": "which GPUs are seen",
    "HCCL_DETERMINISTIC": "whether sums over several NPUs have one order",
    "INF_NAN_MODE_ENABLE": "0 lets an NPU saturate instead of giving Inf and NaN",
    "INF_NAN_MODE_FORCE_DISABLE": "1 allows INF_NAN_MODE_ENABLE=0 on newer NPUs",
    "MKL_CBWR": "which vector instructions MKL takes",
    "NVIDIA_TF32_OVERRIDE": "0 forbids TF32",
    "OMP_NUM_THREADS": "how many threads share a sum, and so its order",
    "ONEDNN_DEFAULT_FPMATH_MODE": "lets oneDNN round float32 to less",
    "ONEDNN_MAX_CPU_ISA": "which vector instructions oneDNN takes",
    "TASK_QUEUE_ENABLE": "how an NPU's operations are queued",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1 allows TF32 in matrix products",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0 keeps `import torch` from importing torch_npu",
    "TORCH_TRANSFER_TO_NPU": "1 turns every cuda into npu",
}

"""Environment variables that change numbers or which devices are visible. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import xxhash

from accucompare.text import without_credentials

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

#: Prefixes of variables by which libraries choose kernels, precisions, devices, order of sums.
_OF_LIBRARIES = re.compile(
    "TORCH_|TORCHINDUCTOR_|PYTORCH_|ATEN_|TRITON_|XLA_|JAX_"
    "|CUDA_|CUBLAS|CUDNN_|NVIDIA_TF32|NCCL_|NVTE_|ROCM_|HIP_|HSA_|MIOPEN_|ROCBLAS_|HIPBLASLT_"
    "|ASCEND_|HCCL_|NPU_|ACL_|INF_NAN_MODE_|TASK_QUEUE_ENABLE"
    "|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|BLIS_|ONEDNN_|DNNL_"
    "|TRANSFORMERS_|DIFFUSERS_|HF_|FLASH_ATTENTION|FLASH_ATTN|XFORMERS_|VLLM_|DEEPSPEED_|DS_"
    "|MEGATRON_|BITSANDBYTES_|BNB_|USE_"
)
#: Paths, caches, users: no number depends on them, and torch sets some in some runs only.
_WHERE = {
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
}
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)


def variables(environment: Mapping[str, str], named: Iterable[str] = ()) -> dict[str, str]:
    """The variables that may change what a run computes, with their values by name.

    Values that look secret become digests; URLs lose their credentials. ``named``: variables that
    the run's own code names."""
    chosen = {name for name in environment if is_a_librarys(name)} | {
        name for name in named if name in environment
    }
    return {name: _shown(name, environment[name]) for name in sorted(chosen - _WHERE)}


def is_a_librarys(name: str) -> bool:
    """Whether a library chooses kernels by this variable; else only the run's own code knows it."""
    return name in ENVIRONMENT or _OF_LIBRARIES.match(name) is not None


def _shown(name: str, value: str) -> str:
    if _SECRET.search(name):
        return f"digest {xxhash.xxh3_64_hexdigest(value.encode(errors='surrogateescape'))}"
    return without_credentials(value).encode(errors="backslashreplace").decode()

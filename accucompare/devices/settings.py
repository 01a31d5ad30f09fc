"""Environment variables that change numbers or which devices are visible. Needs no torch."""

from __future__ import annotations

#: What each does.
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

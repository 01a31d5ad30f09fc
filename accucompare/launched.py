"""What a launcher of ranks, such as torchrun, tells the processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

#: Begin the variables that torchrun sets.
_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)

_LAUNCHERS = (
    *("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun"),
    *("torch.distributed.run", "torch.distributed.launch"),
)


def launched_as() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) without a launcher."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def starts_ranks(command: Sequence[str]) -> bool:
    """Whether a command names a launcher of ranks."""
    return any(os.path.basename(word) in _LAUNCHERS for word in command)


def is_of_launcher(variable: str) -> bool:
    """Whether a launcher sets this variable."""
    return variable.startswith(_VARIABLES)


def as_one_process(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what a launcher has put there."""
    return {name: value for name, value in environment.items() if not is_of_launcher(name)}

"""What a launcher of ranks, such as torchrun, tells the processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")


def launched_as() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) without a launcher."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def is_of_launcher(variable: str) -> bool:
    """Whether a launcher sets this variable."""
    return variable.startswith(_VARIABLES)


def as_one_process(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what a launcher has put there."""
    return {name: value for name, value in environment.items() if not is_of_launcher(name)}

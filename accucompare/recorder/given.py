"""What the user tells a capture of a training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from accucompare.errors import UsageError
from accucompare.live.names import Modules


@dataclass(frozen=True)
class Given:
    """What the user has told of the loop.

    Attributes:
        optimizers: that step the model's parameters; those that are not told are found when they step.
        scaler: of the loss; ``GradScaler`` and its like are found without.
    """

    optimizers: Sequence[Any] = ()
    scaler: Any = None

    @classmethod
    def of(cls, optimizer: Any, scaler: Any, modules: Modules) -> Given:
        """Check what was given.

        Args:
            optimizer: one, several, or ``None``.

        Raises:
            UsageError: if one is no optimizer, or holds no parameter of the model.
        """
        found = [] if optimizer is None else [optimizer] if hasattr(optimizer, "param_groups") else optimizer
        if not isinstance(found, Iterable) or not all(hasattr(each, "param_groups") for each in found):
            raise UsageError(f"optimizer must be a torch.optim.Optimizer, or a list of them, but is a {type(optimizer).__name__}")
        own = {id(tensor) for module in modules.named.values() for tensor in module._parameters.values()}
        for each in found:
            if not any(id(tensor) in own for group in each.param_groups for tensor in group["params"]):
                raise UsageError(
                    f"optimizer: the {type(each).__name__} holds no parameter of the model; make it of model.parameters() after the model "
                    "has its final parameters"
                )
        return cls(tuple(found), scaler)


#: Of a loop of which nothing was told.
NOTHING_GIVEN = Given()

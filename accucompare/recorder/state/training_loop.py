"""What a training loop has beside its model, and one step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from accucompare.asked import Loop
from accucompare.bundle.format import Component
from accucompare.case import Case
from accucompare.errors import CaseError, UsageError
from accucompare.live.autograd import stepped_by
from accucompare.live.modules import Modules
from accucompare.live.operators import calls_models
from accucompare.text import with_article

calls_models(__file__)

_METHODS = {
    "optimizer": ("an optimizer, or a list of them", ("step", "zero_grad", "param_groups")),
    "scheduler": ("a learning rate scheduler, or a list of them", ("step",)),
    "scaler": ("a GradScaler", ("scale", "step")),
}


@dataclass(frozen=True)
class Training:
    optimizers: tuple[Any, ...] = ()
    schedulers: tuple[Any, ...] = ()
    scaler: Any = None

    @classmethod
    def of(cls, loop: Loop | Case) -> Training:
        """From what a user gives: one of each, or a list of optimizers and of schedulers.

        Raises:
            UsageError: if one of them is something else.
        """
        lists = {
            name: tuple(_listed(value))
            for name, value in (("optimizer", loop.optimizer), ("scheduler", loop.scheduler))
        }
        for name, values in {
            **lists,
            "scaler": () if loop.scaler is None else (loop.scaler,),
        }.items():
            what, methods = _METHODS[name]
            for value in values:
                if isinstance(value, type) or not all(hasattr(value, method) for method in methods):
                    found = (
                        f"the class {value.__name__}"
                        if isinstance(value, type)
                        else with_article(type(value).__name__)
                    )
                    raise UsageError(f"{name} must be {what}, but is {found}")
        return cls(lists["optimizer"], lists["scheduler"], loop.scaler)

    def check(self, modules: Modules) -> None:
        own = {id(tensor) for _, _, tensor in modules.tensors()}
        for each in self.optimizers:
            if not own & stepped_by(each).keys():
                raise UsageError(
                    f"optimizer: the {type(each).__name__} holds no parameter of the model; make it"
                    " of model.parameters() after the model has its final parameters"
                )

    @property
    def parts(self) -> list[TrainingPart]:
        """All of them; a scaler only if it is enabled."""
        scalers = (
            ()
            if self.scaler is None or not getattr(self.scaler, "is_enabled", lambda: True)()
            else (self.scaler,)
        )
        kinds = (
            (Component.OPTIMIZER, self.optimizers),
            (Component.SCHEDULER, self.schedulers),
            (Component.SCALER, scalers),
        )
        return [
            TrainingPart(kind, number, live)
            for kind, lives in kinds
            for number, live in enumerate(lives)
        ]

    def update(self, loss: torch.Tensor) -> None:
        """Step what there is, as a training loop does after the backward."""
        for optimizer in self.optimizers:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.optimizers and hasattr(self.scaler, "update"):
            self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(loss.item())
            else:
                scheduler.step()

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as it is sent backward."""
        return loss if self.scaler is None else self.scaler.scale(loss)


NOTHING = Training()


@dataclass(frozen=True)
class TrainingPart:
    """An optimizer, a scheduler or a scaler of a loop; ``number`` counts those of its kind."""

    component: Component
    number: int
    live: Any

    @property
    def place(self) -> str:
        return f"{self.component} {self.number}"

    @property
    def kind(self) -> str:
        return f"{type(self.live).__module__}.{type(self.live).__qualname__}"

    @property
    def has_state(self) -> bool:
        return all(
            callable(getattr(self.live, method, None))
            for method in ("state_dict", "load_state_dict")
        )

    def options(self) -> dict[str, Any]:
        """What it holds, by name; for an optimizer the options of its groups, such as ``0.lr``."""
        if self.component is not Component.OPTIMIZER:
            return (
                {str(name): value for name, value in self.live.state_dict().items()}
                if self.has_state
                else {}
            )
        groups = enumerate(getattr(self.live, "param_groups", ()))
        return {
            f"{number}.{name}": value
            for number, group in groups
            for name, value in group.items()
            if name != "params"
        }

    def parameters(self) -> list[list[torch.Tensor]]:
        """For an optimizer: the parameters of each group."""
        return [list(group["params"]) for group in getattr(self.live, "param_groups", ())]


def _listed(value: Any) -> Iterable[Any]:
    """One, several or none as a list. An object with ``step``, or a mapping, counts as one."""
    several = (
        isinstance(value, Iterable)
        and not hasattr(value, "step")
        and not isinstance(value, (str, Mapping))
    )
    return value if several else () if value is None else (value,)


def run_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Callable[[Any], Any] | None,
    training: Training = NOTHING,
    grad: bool = False,
) -> Any:
    """One step: the forward; with a loss its backward, with an optimizer its update.

    Without a loss, gradients are off, unless ``grad``.

    Returns:
        The loss, a tensor of one element; ``None`` without one.
    """
    if loss is None:
        with torch.set_grad_enabled(grad):
            model(*args, **kwargs)
        return None
    value = loss(model(*args, **kwargs))
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = (
            f"a tensor of shape {list(value.shape)}"
            if isinstance(value, torch.Tensor)
            else with_article(type(value).__name__)
        )
        raise CaseError(
            f"the case's loss must return a tensor of one element, but returned {found}"
        )
    if not value.requires_grad:
        raise CaseError(
            "the case's loss has no gradient: it was computed under torch.no_grad(), of detached"
            " tensors, or of a model that is frozen as a whole; to compare the forward alone, leave"
            " loss and optimizer out of the case"
        )
    training.scaled(value).backward()  # type: ignore[no-untyped-call]
    training.update(value)
    return value.detach()

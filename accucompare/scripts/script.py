"""Inside a script's process: finds the model, counts steps, begins and ends capture or watch."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from accucompare.errors import NonFiniteError, UsageError, WatchEndedError
from accucompare.live.operators import entrances
from accucompare.places import is_url
from accucompare.scripts.arming import Arming
from accucompare.scripts.calls import OutermostCalls
from accucompare.scripts.exits import before_os_exit
from accucompare.scripts.handshake import Claim, Seen, SeenModel, claim, started_by
from accucompare.scripts.models import (
    Models,
    Optimizers,
    Scalers,
    beside,
    contains,
    is_one_being_made,
    whole_of,
)
from accucompare.scripts.plan import Action, Plan, read_plan
from accucompare.selection import Steps

#: Errors that the script itself gets, since the user has asked for them.
_MEANT = (NonFiniteError, WatchEndedError)


def begin(path: str) -> None:
    """Follow the plan at this path, from the import of torch on."""
    if not Path(path).exists():  # this process has outlived the command
        return
    plan = read_plan(path)
    rank = os.environ.get("RANK", "")
    seen = Seen(
        pid=os.getpid(), torch=str(torch.__version__), rank=int(rank) if rank.isdigit() else None
    )
    seen.write(plan.folder)
    _prepare_numbers(plan)
    Script(plan, seen).install()


def _prepare_numbers(plan: Plan) -> None:
    """Seed the generators and use deterministic algorithms, if asked to."""
    if plan.seed is not None:
        import numpy as np

        random.seed(plan.seed)
        np.random.seed(plan.seed)
        torch.manual_seed(plan.seed)
    if plan.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)


@dataclass
class _Chosen:
    """The model that is observed."""

    model: nn.Module
    seen: SeenModel  # its entry in the handshake
    optimizers: list[Any]  # hold its parameters; without any, each call is a step
    steps: Steps | None  # those to observe; ``None`` for all


class Script:
    """Our work in one process. If it fails, our hooks come off, and the handshake tells why."""

    def __init__(self, plan: Plan, seen: Seen) -> None:
        self._plan = plan
        self._seen = seen
        self._calls = OutermostCalls(
            functools.partial(self._guarded, self._before),
            functools.partial(self._guarded, self._after),
        )
        self._models = Models()
        self._optimizers = Optimizers()
        self._scalers = Scalers()
        self._arming = Arming(plan)
        self._chosen: _Chosen | None = None
        self._observation: Any = None
        self._awake = False
        self._over = False  # nothing is observed any more
        self._gone = False  # whether this process is a copy of ours, or a worker, and left alone
        self._is_copy = False  # whether it was forked before anything was seen
        self._ended = False
        self._aside: contextlib.ExitStack | None = None  # while a call runs that is not observed
        self._failed: Exception | None = None  # our own failure
        # by the id of a model's entry: why it could not be observed before it is trained
        self._refused: dict[int, UsageError] = {}
        self._claimed: int | None = None  # the rank that this process writes as
        self._updates = 0  # of any optimizer
        # whether the step ends with the next call of the model: only one of several optimizers has
        # stepped, or possibly none will
        self._updated = False
        # the arguments of the optimizer step that is running, as its hooks get them
        self._stepping: tuple[Any, ...] | None = None
        self._handle: Any = None
        self._scaling: list[tuple[Any, str, entrances.Before]] = []
        seen.models = self._models.seen

    def install(self) -> None:
        entrances.observe_function(torch.optim.Optimizer, "add_param_group", self._made)
        entrances.observe_function(torch.amp.GradScaler, "__init__", self._made_scaler)
        register_optimizer_step_pre_hook(self._steps)
        self._listen_to_updates()
        self._calls.install()
        atexit.register(self.end)
        before_os_exit(self.end, lambda: not self._gone and not self._ended)
        os.register_at_fork(after_in_child=self._go_on_in_copy)

    # what happens in the script

    def _before(self, module: nn.Module) -> None:
        if _is_worker():
            self._leave()
            return
        seen = self._models.note(module)
        seen.calls += 1
        if self._failed is not None:
            self._finish(self._failed)
        if self._over or self._plan.action is Action.LIST:
            return
        if self._chosen is None or self._is_trained_now(module):
            self._choose(module, seen)
        chosen = self._chosen
        if chosen is None or not contains(chosen.model, module):
            return
        seen.part = seen is not chosen.seen
        if chosen.optimizers and not torch.is_grad_enabled():
            self._evaluates()
        else:
            if self._updated:
                self._end_step()
            self._arrange()

    def _after(self, module: nn.Module, raised: BaseException | None) -> None:
        if self._aside is not None:
            self._aside.close()
            self._aside = None
        elif raised is not None and not isinstance(raised, Exception):
            return  # after sys.exit: the script is over, not the step
        elif (
            self._chosen is not None
            and not self._chosen.optimizers
            and contains(self._chosen.model, module)
            and not self._over
        ):
            if torch.is_grad_enabled() and any(
                parameter.requires_grad for parameter in module.parameters()
            ):
                # a backward may follow, and the script may update parameters by itself
                self._updated = True
                return
            self._end_step()
            self._arrange()

    def _steps(self, *given: Any) -> None:
        self._stepping = given
        self._guarded(self._find_scaler, given[0])

    def _find_scaler(self, optimizer: Any) -> None:
        """Find the loss scaler: it is known by now, whether the optimizer steps or is skipped."""
        if self._observation is not None and self._is_ours(optimizer):
            self._observation.scaled_by(self._scaler)

    @property
    def _scaler(self) -> Any:
        return None if self._chosen is None else self._scalers.of(self._chosen.optimizers)

    def _is_ours(self, optimizer: Any) -> bool:
        return self._chosen is not None and any(
            each is optimizer for each in self._chosen.optimizers
        )

    def _stepped(self, optimizer: Any, *arguments: Any) -> None:
        """An optimizer has stepped, or a scaler has skipped its step."""
        self._stepping = None
        self._updates += 1
        self._optimizers.note(optimizer)
        self._models.trained(optimizer, counts=self._plan.action is Action.LIST)
        chosen = self._chosen
        if chosen is None or self._over or not self._is_ours(optimizer):
            return
        if len(chosen.optimizers) > 1 or self._scaler is not None:
            # other optimizers may still step, or the scale change: the step ends then, or with the
            # next call
            self._updated = True
        else:
            self._end_step()
        self._look_at_calls()

    def _made(self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is made, or given more parameters."""
        self._guarded(self._optimizers.note, args[0])
        if self._chosen is not None and not self._chosen.optimizers and not self._gone:
            self._over = self._failed is not None
            # a model that seemed only to run may be trained from now on
            self._calls.install()

    def _scaled(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """A scaler is about to step an optimizer, or to skip it."""
        updates, optimizer = self._updates, args[1] if len(args) > 1 else kwargs.get("optimizer")
        if optimizer is not None:
            self._guarded(self._scalers.steps, args[0], optimizer)
            self._guarded(self._find_scaler, optimizer)
        return lambda result: (
            self._guarded(self._stepped, optimizer) if self._updates == updates else None
        )

    def _made_scaler(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None]:
        return lambda result: self._guarded(self._scalers.note, args[0])

    def _scale_updates(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None]:
        """A scaler updates its scale from this step's gradients: the last part of a step."""
        return lambda result: self._guarded(self._scale_updated, args[0])

    def _scale_updated(self, scaler: Any) -> None:
        chosen = self._chosen
        if (
            self._updated
            and not self._over
            and chosen is not None
            and len(chosen.optimizers) == 1
            and scaler is self._scaler
        ):
            self._end_step()
            self._look_at_calls()

    # the model and its steps

    def _is_trained_now(self, module: nn.Module) -> bool:
        """Whether a model that seemed only to run has an optimizer now."""
        chosen = self._chosen
        return (
            chosen is not None
            and not chosen.optimizers
            and bool(self._optimizers.alive() and self._optimizers.of(module))
        )

    def _choose(self, module: nn.Module, seen: SeenModel) -> None:
        """Observe the called model if it is the wanted one."""
        optimizers = self._optimizers.of(module)
        if optimizers and not torch.is_grad_enabled():
            return  # an evaluation before the training
        if not optimizers and (
            not seen.parameters
            or (self._plan.model is None and self._optimizers.alive())
            or is_one_being_made()
        ):
            return
        model = whole_of(module, optimizers) if optimizers else module
        whole = self._models.note(model)
        if self._plan.model not in (None, seen.name, whole.name) or (
            not optimizers and id(whole) in self._refused
        ):
            return
        if self._chosen is not None:
            self._start_again()
        steps = self._arming.steps(self._seen.steps)
        self._chosen = _Chosen(
            model, whole, self._optimizers.of(model) if optimizers else [], steps
        )
        whole.chosen = True
        self._seen.write(self._plan.folder)

    def _start_again(self) -> None:
        """Forget what was recorded before the model was trained."""
        self._close(None)
        if self._chosen is not None:
            self._chosen.seen.chosen = False
        self._seen.begin_anew(self._plan.folder)
        self._updated = False
        self._clear()

    def _clear(self) -> None:
        """Remove what this rank recorded of another model, or in a child process."""
        if (
            self._claimed is not None
            and self._plan.action is Action.CAPTURE
            and not is_url(self._plan.out)
        ):
            shutil.rmtree(Path(self._plan.out) / f"rank{self._claimed}", ignore_errors=True)

    def _end_step(self) -> None:
        chosen, step, recorded = self._chosen, self._seen.steps, False
        self._updated = False
        if chosen is not None and self._observation is not None:
            self._observation.step()  # also without observing: steps are numbered alike
            recorded = self._is_wanted(step)
        self._seen.count(self._plan.folder, recorded)

    def _is_wanted(self, step: int) -> bool:
        chosen = self._chosen
        if chosen is not None and not self._arming.armed:
            chosen.steps = self._arming.steps(step)
        return (
            self._arming.armed
            and chosen is not None
            and (chosen.steps is None or chosen.steps.has(step))
        )

    @property
    def _is_last(self) -> bool:
        return (
            self._chosen is not None
            and self._chosen.steps is not None
            and self._seen.steps >= self._chosen.steps.count
        )

    def _arrange(self) -> None:
        """Between two steps, outside all hooks: observe the next one, or not."""
        chosen = self._chosen
        if chosen is None:
            return
        wanted = self._is_wanted(self._seen.steps)
        if self._is_last:
            self._finish(None)
        elif wanted and not self._awake:
            known = {*_hooks_before_updates()}
            if self._observation is None:
                self._open(chosen)
            else:
                self._observation.wake()
                self._awake = True
            self._listen_to_updates()
            # a closure calls the model: run the hooks of observers that came too late for this step
            if self._stepping is not None:
                for number, hook in _hooks_before_updates().items():
                    if number not in known:
                        hook(*self._stepping)
        elif self._observation is not None and self._awake and not wanted:
            self._observation.rest()
            self._awake = False
        self._look_at_calls()

    def _look_at_calls(self) -> None:
        """Look at outermost calls only while needed: they cost time."""
        chosen = self._chosen
        if self._over or chosen is None:
            needed = not self._over
        else:
            trains_with_one = len(chosen.optimizers) == 1
            needed = (
                self._awake
                or self._updated
                or not trains_with_one
                or self._is_last
                or self._is_wanted(self._seen.steps)
            )
        if self._plan.action is Action.LIST or needed:
            self._calls.install()
        else:
            self._calls.remove()

    def _open(self, chosen: _Chosen) -> None:
        from accucompare.recorder.session import rank_and_ranks
        from accucompare.scripts.observing import observe

        rank, _ = rank_and_ranks()
        self._seen.rank = rank
        if self._claimed is None:
            own = Claim(pid=os.getpid(), within=started_by(), trains=bool(chosen.optimizers))
            may, note = claim(self._plan.folder, rank, own)
            self._seen.notes += [note] if note else []
            if not may:
                self._over = True
                return
            self._claimed = rank
            self._clear()
        scaler = self._scalers.likely(chosen.optimizers)
        told = self._plan.model is not None
        try:
            self._observation = observe(
                self._plan,
                chosen.model,
                chosen.optimizers,
                scaler,
                chosen.steps,
                self._seen.steps,
                [] if told else beside(chosen.model, self._optimizers.alive()),
            )
        except UsageError as error:
            if chosen.optimizers:
                raise
            # golden may be of a model to come: one that has this as a part, or is trained
            self._refused[id(chosen.seen)] = error
            chosen.seen.chosen, self._chosen = False, None
            return
        self._awake = True
        self._seen.write(self._plan.folder)

    def _evaluates(self) -> None:
        """The model is called without gradients between training steps."""
        self._seen.evaluations += 1
        if self._observation is not None and self._awake:
            self._aside = contextlib.ExitStack()
            self._aside.enter_context(self._observation.aside())

    def _close(self, error: BaseException | None) -> None:
        observation, self._observation, self._awake = self._observation, None, False
        if observation is not None:
            observation.close(error)

    def _finish(self, error: BaseException | None) -> None:
        """Stop observing: the script goes on as if we had never been there."""
        self._over = True
        if self._chosen is not None:
            self._models.mark_parts_of(self._chosen.model)
        self._close(error)
        self._look_at_calls()
        self._seen.write(self._plan.folder)

    def _listen_to_updates(self) -> None:
        """Get told of updates last: a step is over when all others have seen it."""
        if self._handle is not None:
            self._handle.remove()
        for place in self._scaling:
            entrances.observe_function_no_more(*place)
        self._handle = register_optimizer_step_post_hook(
            functools.partial(self._guarded, self._stepped)
        )
        told = (("step", self._scaled), ("update", self._scale_updates))
        self._scaling = [(kind, name, act) for kind in entrances.scalers() for name, act in told]
        for place in self._scaling:
            entrances.observe_function(*place)

    # the end

    def end(self) -> None:
        """Write everything at Python's end."""
        # such as a worker that loads data
        if self._gone or self._ended or (self._is_copy and not self._seen.models):
            return
        self._ended = True
        if self._updated:
            self._guarded(self._end_step)
        if self._awake and isinstance(getattr(sys, "last_value", None), _MEANT):
            self._seen.recorded.append(self._seen.steps)  # a step that its finding has ended
        self._guarded(self._finish, self._failed or getattr(sys, "last_value", None))
        if self._refused and self._chosen is None:
            error = [*self._refused.values()][-1]
            self._seen.error = self._seen.error or f"{type(error).__name__}: {error}"
        self._seen.ended = True
        with contextlib.suppress(OSError):
            self._seen.write(self._plan.folder)

    def _go_on_in_copy(self) -> None:
        """Observe a forked copy, which may train, if no model was called before the fork."""
        if self._models.seen or self._gone:
            self._leave()
            return
        self._is_copy = True
        self._seen = msgspec.structs.replace(self._seen, pid=os.getpid())
        self._seen.models = self._models.seen

    def _leave(self) -> None:
        """In a copy or a data worker: look at nothing and write nothing."""
        self._gone = True
        self._calls.remove()
        if self._observation is not None:
            self._observation.aside().__enter__()

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Run our code; if it fails, our hooks come off at the next module call, outside hooks."""
        if self._gone:
            return
        try:
            act(*arguments)
        except _MEANT:
            raise
        except Exception as error:
            self._seen.error = self._seen.error or f"{type(error).__name__}: {error}"
            if self._failed is None:
                self._failed = error
                self._calls.install()


def _hooks_before_updates() -> dict[int, Any]:
    """PyTorch's global hooks before an optimizer's step, by number."""
    return dict(getattr(sys.modules["torch.optim.optimizer"], "_global_optimizer_pre_hooks", {}))


def _is_worker() -> bool:
    """Whether this process loads data for another."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None

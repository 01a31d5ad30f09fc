"""After a finding the step is run again; whatever follows is what it would have been."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.findings.log import remark
from accucompare.findings.log.events import Direction, Finding, Site
from accucompare.report.watch_words import answer, said
from accucompare.reproduce.reproducer import Reproducer
from fixtures.cnn import Net
from tests.asked import looking
from tests.combinations import pairwise
from tests.forkserver import with_torch
from tests.reproduce import reproduced
from tests.reproduce.reproduced import run_here
from tests.watcher.watched import Glue, Subject, assert_same, differing, origins, run, trained

NAN, INF = float("nan"), float("inf")


def _spoilt_once(part: nn.Module, by: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A model that is spoilt in its second step: a buffer counts them."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return by(self.part(x)) if self.calls == 2 else self.part(x)

    model: Any = Glue(forward, part=part)
    model.register_buffer("calls", torch.tensor(0))
    return model


def _trained(model: nn.Module, inputs: Callable[[int], Any]) -> Subject:
    """Trained by a loop that leaves out updates by what is not finite, so that later steps say
    something.
    """
    subject = trained(model, inputs)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(number: int) -> Any:
        output = model(*inputs(number))
        loss = output.square().mean()
        loss.backward()
        grads = [
            None if parameter.grad is None else parameter.grad.clone()
            for parameter in model.parameters()
        ]
        if all(grad is None or bool(grad.isfinite().all()) for grad in grads):
            optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), output.detach(), grads

    return Subject(subject.model, step, optimizer)


def _log_of_zero(x: torch.Tensor) -> torch.Tensor:
    return (x * 0).log() * 0


def _root_of_zero(x: torch.Tensor) -> torch.Tensor:
    return (x - x).sqrt() + x


class _Draws(nn.Module):
    """Draws from every generator that is there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(()) + random.random() + float(np.random.rand())


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[int], Any]]]] = {
    "dropout": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        lambda number: (torch.randn(3, 4),),
    ),
    "batch norm": lambda: (Net(), lambda number: (torch.randn(4, 3, 24, 24),)),
    "random numbers of three kinds": lambda: (
        nn.Sequential(nn.Linear(4, 4), _Draws()),
        lambda number: (torch.randn(3, 4),),
    ),
    "in place on its input": lambda: (
        Glue(lambda self, x: self.fc(x.add_(1)), fc=nn.Linear(4, 4)),
        lambda number: (torch.randn(3, 4),),
    ),
    "checkpoint": lambda: (
        Glue(
            lambda self, x: checkpoint(self.inner, x, use_reentrant=False),
            inner=nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        ),
        lambda number: (torch.randn(3, 4),),
    ),
    "checkpoint, reentrant": lambda: (
        Glue(
            lambda self, x: checkpoint(self.inner, self.first(x), use_reentrant=True),
            first=nn.Linear(4, 4),
            inner=nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        ),
        lambda number: (torch.randn(3, 4),),
    ),
    "spectral norm": lambda: (
        torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        lambda number: (torch.randn(3, 4),),
    ),
    "lstm": lambda: (
        Glue(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(4, 4, 2, dropout=0.5)),
        lambda number: (torch.randn(3, 2, 4),),
    ),
}


@pytest.mark.parametrize(
    ("name", "by", "on_finding"),
    pairwise(MODELS, (_log_of_zero, _root_of_zero), ("warn", "snapshot")),
)
def test_steps_after_a_finding_are_what_they_would_have_been(
    name: str, by: Any, on_finding: str, tmp_path: Path
) -> None:
    def make() -> Subject:
        part, inputs = MODELS[name]()
        return _trained(_spoilt_once(part, by), inputs)

    watch = assert_same(make, tmp_path, steps=4, on_finding=on_finding)
    found = origins(watch)[0]
    assert found.step == 1
    assert found.direction is (Direction.FORWARD if by is _log_of_zero else Direction.BACKWARD)
    assert found.operator == ("aten.log.default" if by is _log_of_zero else "SqrtBackward0")
    assert bool(found.reproducer) is (on_finding == "snapshot")


@pytest.mark.parametrize(
    "options", [{"frames": 0}, {"level": "op"}, {"trace_steps": [1, 2]}, {"near": 100.0}], ids=str
)
@pytest.mark.parametrize("by", [_log_of_zero, _root_of_zero])
def test_steps_after_a_finding_are_the_same_however_closely_it_is_watched(
    by: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    def make() -> Subject:
        part, inputs = MODELS["dropout"]()
        return _trained(_spoilt_once(part, by), inputs)

    assert origins(assert_same(make, tmp_path, steps=4, on_finding="warn", **options))[0].step == 1


def test_gradients_that_were_accumulated_before_are_left_as_they_are(tmp_path: Path) -> None:
    model: Any = Glue(
        lambda self, x: _log_of_zero(self.fc(x)) if x.max() > 1 else self.fc(x), fc=nn.Linear(2, 2)
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2)).sum().backward()
        grad = model.fc.weight.grad
        before = grad.clone()
        model(torch.full((1, 2), 2.0))
        watch.step()
    assert origins(watch)[0].operator == "aten.log.default"
    assert model.fc.weight.grad is grad
    assert torch.equal(grad, before)


def test_hooks_on_gradients_are_not_called_again(tmp_path: Path) -> None:
    called = []
    model: Any = Glue(lambda self, x: _root_of_zero(self.fc(x)), fc=nn.Linear(2, 2))
    model.fc.weight.register_post_accumulate_grad_hook(
        lambda parameter: called.append("accumulated")
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    assert origins(watch)[0].operator == "SqrtBackward0"
    assert called == ["accumulated"]


def _remembering(remember: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
    model: Any = Glue(lambda self, x: remember(self, self.fc(x)) * NAN, fc=nn.Linear(2, 2))
    model.total, model.history, model.generator, model.count = (
        torch.zeros(()),
        [],
        torch.Generator().manual_seed(1),
        0,
    )
    return model


def _watched_once(model: nn.Module, tmp_path: Path) -> None:
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    assert origins(watch)


def test_a_number_that_a_module_counts_is_put_back(tmp_path: Path) -> None:
    def count(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x

    model = _remembering(count)
    _watched_once(model, tmp_path)
    assert model.count == 1


def test_a_tensor_that_a_module_sums_up_is_put_back(tmp_path: Path) -> None:
    def add(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + 1
        return x

    model = _remembering(add)
    _watched_once(model, tmp_path)
    assert model.total.item() == 1


def test_a_tensor_that_a_module_writes_into_is_put_back(tmp_path: Path) -> None:
    def add(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.total += 1
        return x

    model = _remembering(add)
    _watched_once(model, tmp_path)
    assert model.total.item() == 1


def test_a_list_that_a_module_adds_to_is_put_back(tmp_path: Path) -> None:
    def add(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.history.append(float(x.detach().sum()))
        return x

    model = _remembering(add)
    _watched_once(model, tmp_path)
    assert len(model.history) == 1


def test_a_generator_of_the_models_own_is_put_back(tmp_path: Path) -> None:
    def draw(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand((), generator=self.generator)

    model, alone = _remembering(draw), torch.Generator().manual_seed(1)
    _watched_once(model, tmp_path)
    torch.rand((), generator=alone)
    assert torch.equal(model.generator.get_state(), alone.get_state())


@pytest.mark.parametrize(
    "calls", [pytest.param(2, id="two calls"), pytest.param(6, id="more calls than are remembered")]
)
def test_of_several_forwards_the_one_whose_gradient_is_nan_is_run_again(
    calls: int, tmp_path: Path
) -> None:
    model: Any = nn.Sequential(
        nn.Linear(2, 2, bias=False), Glue(lambda self, x: x.square().sum(-1).sqrt())
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        loss = sum(model(torch.full((2, 2), float(number))).sum() for number in range(calls))
        loss.backward()
        watch.step()
    found = origins(watch)[0]
    assert (found.place, found.operator, found.line.partition(":")[0]) == (
        "1, backward",
        "SqrtBackward0",
        "test_second_run.py",
    )


def test_more_forwards_than_are_remembered_name_the_one_that_made_it(tmp_path: Path) -> None:
    model: Any = nn.Sequential(
        nn.Linear(2, 2), Glue(lambda self, x: (x * 0 + (5 if self.last else 0)).log() * 0)
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        for number in range(7):
            model[1].last = number != 5
            model(torch.ones(1, 2))
        watch.step()
    assert [(found.name, found.call) for found in origins(watch)] == [("1", 5)]


def test_a_model_that_is_not_deterministic_is_said_to_be_so(tmp_path: Path) -> None:
    state = iter([0.0, 1.0, 1.0, 1.0])
    model: Any = Glue(lambda self, x: self.fc(x) / next(state), fc=nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    (found,) = origins(watch)
    assert "the model or its device may not be deterministic" in said(found.notes[0])


def test_a_model_that_raises_when_it_is_run_again_is_said_to(tmp_path: Path) -> None:
    state = iter([0.0])
    model: Any = Glue(lambda self, x: self.fc(x) / next(state), fc=nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    (found,) = origins(watch)
    assert found.place == "(root) (glue, after fc)"
    assert said(found.notes[0]).startswith("the step could not be run again: StopIteration")


def test_after_the_update_a_step_is_not_run_again(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: self.fc(x).mul(0).log(), fc=nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        with torch.no_grad():  # an update that is no torch.optim.Optimizer's
            model.fc.weight.mul_(2)
        watch.step()
    assert any(
        "the parameters have been written into since" in said(note)
        for found in origins(watch)
        for note in found.notes
    )


def test_a_nan_that_the_model_is_given_and_one_of_its_weights_are_told_apart(
    tmp_path: Path,
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].bias[0] = NAN
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
        model(torch.full((1, 2), NAN))
        watch.step()
    assert [(found.step, found.site) for found in origins(watch)] == [
        (0, Site.WEIGHTS),
        (1, Site.INPUT),
    ]
    assert [seen.path for seen in origins(watch)[0].weights] == ["bias"]


def test_a_planted_nan_in_a_watch_under_autocast_changes_nothing(tmp_path: Path) -> None:
    def make() -> Subject:
        model = _spoilt_once(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), _log_of_zero)
        subject = _trained(model, lambda number: (torch.randn(3, 4),))
        inner = subject.step

        def step(number: int) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return inner(number)

        subject.step = step
        return subject

    assert (
        origins(assert_same(make, tmp_path, steps=4, on_finding="warn"))[0].operator
        == "aten.log.default"
    )


def test_inference_goes_on_as_it_would_have(tmp_path: Path) -> None:
    def make() -> Subject:
        model = _spoilt_once(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), _log_of_zero)

        def step(number: int) -> Any:
            with torch.inference_mode():
                return model(torch.randn(3, 4)).clone()

        return Subject(model, step)

    plain, _ = run(make)
    watched, watch = run(make, tmp_path, on_finding="warn")
    assert watch is not None
    assert differing(plain, watched) == []
    assert origins(watch)[0].operator == "aten.log.default"


def test_what_modules_keep_in_containers_and_generators_of_any_kind_is_put_back(
    tmp_path: Path,
) -> None:
    def use(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.nested["calls"][0].append(1)
        self.array[0] += 1
        self.drawn += [
            self.numpy.random(),
            self.python.random(),
            float(torch.rand((), generator=self.torch[0])),
        ]
        return self.fc(x).mul(0).log()

    model: Any = Glue(use, fc=nn.Linear(2, 2))
    model.nested, model.array, model.drawn = {"calls": [[]]}, np.zeros(1), []
    model.numpy, model.python, model.torch = (
        np.random.default_rng(1),
        random.Random(1),
        [torch.Generator().manual_seed(1)],
    )
    alone = copy.deepcopy(
        {name: vars(model)[name] for name in ("nested", "array", "drawn", "numpy", "python")}
    )
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    drawn = [
        alone["numpy"].random(),
        alone["python"].random(),
        float(torch.rand((), generator=torch.Generator().manual_seed(1))),
    ]
    assert (model.nested, model.array.tolist(), model.drawn) == ({"calls": [[1]]}, [1.0], drawn)
    assert (model.numpy.random(), model.python.random()) == (
        alone["numpy"].random(),
        alone["python"].random(),
    )
    assert origins(watch)[0].operator == "aten.log.default"


class _Answer(nn.Module):
    """Gives a loss and what it is computed of, as models with labels do."""

    def __init__(self, head: nn.Module, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), head

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]))
        logits = self.head(states[-1])
        return {
            "loss": logits.float().square().sum(),
            "logits": logits,
            "hidden_states": tuple(states),
        }


def test_an_output_that_the_loss_is_computed_of_has_the_gradient_that_it_had(
    tmp_path: Path,
) -> None:
    model: Any = _Answer(
        nn.Linear(2, 2),
        nn.Linear(2, 2),
        Glue(lambda self, x: (x * 0).abs().sqrt() + x),
        nn.Linear(2, 2),
    )
    arrived: list[torch.Tensor] = []
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        output = model(torch.ones(1, 2))
        output["hidden_states"][2].register_hook(lambda grad: arrived.append(grad.clone()))
        output["loss"].backward()
        watch.step()
    (found,) = origins(watch)
    assert (found.place, found.operator) == ("layers.1, backward", "SqrtBackward0")
    with Reproducer.open(tmp_path / found.reproducer).bundle as bundle:
        (record,) = [record for record in bundle.state() if record.name == "grad."]
        assert np.array_equal(bundle.values(record), arrived[0].numpy())


def test_gradients_near_the_limit_are_not_doubled_into_an_overflow_elsewhere(
    tmp_path: Path,
) -> None:
    model: Any = _Answer(
        *(Glue(lambda self, x, by=by: x * self.scale * by) for by in (1.0, 4.0, 2.0))
    )
    for layer in (model.head, *model.layers):
        layer.scale = nn.Parameter(torch.ones((), dtype=torch.float16))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        # 20000 of the logits
        (
            model(torch.full((1, 1), 0.1, dtype=torch.float16, requires_grad=True))["loss"]
            * 12500.0
        ).backward()
        watch.step()
    (found,) = origins(watch)
    assert (found.place, found.notes) == ("layers.0, backward", [])


def test_gradients_that_come_in_by_a_loss_too_long_to_follow_go_into_the_second_run_too(
    tmp_path: Path,
) -> None:
    model: Any = _Answer(
        nn.Linear(2, 2),
        nn.Linear(2, 2),
        Glue(lambda self, x: (x * 0).abs().sqrt() + x),
        nn.Linear(2, 2),
    )

    def losses(output: Any) -> list[torch.Tensor]:
        other = output["hidden_states"][3]
        for _ in range(600):
            other = other * 1.001
        return [output["loss"], other.sum() * 1000]

    plain = model(torch.ones(1, 2))
    (expected,) = torch.autograd.grad(losses(plain), plain["hidden_states"][2])
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        torch.autograd.backward(losses(model(torch.ones(1, 2))))
        watch.step()
    (found,) = origins(watch)
    with Reproducer.open(tmp_path / found.reproducer).bundle as bundle:
        (record,) = [record for record in bundle.state() if record.name == "grad."]
        assert np.array_equal(bundle.values(record), expected.numpy())


class _Remembered(torch.autograd.Function):
    """Twice a tensor; ``gone`` says later whether the memory of the gradient that it was given is
    free again.
    """

    gone: Callable[[], bool]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        _Remembered.gone = StorageWeakRef(grads[0].untyped_storage()).expired
        return grads[0] * 2


def test_a_gradient_that_comes_about_inside_the_model_is_not_kept(tmp_path: Path) -> None:
    """Of a model that gives its loss and its logits: these are the largest tensors of a step, and
    plain training frees their gradient.
    """
    model = _Answer(Glue(lambda self, x: _Remembered.apply(x)), nn.Linear(2, 2))  # type: ignore[no-untyped-call]
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 2))["loss"].backward()
        assert _Remembered.gone()
        watch.step()


def test_outputs_of_a_reproduced_module_that_depend_on_each_other_have_the_gradients_that_they_had(
    tmp_path: Path,
) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        y = self.fc(x) * torch.tensor([3e4, 1.0], dtype=torch.float16)
        return y, y * 1.0

    inner: Any = Glue(forward, fc=nn.Linear(1, 2, dtype=torch.float16))
    model: Any = Glue(lambda self, x: sum(self.inner(x)), inner=inner)
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        (model(torch.zeros(1, 1, dtype=torch.float16)) * 1.2).sum().backward()
        watch.step()
    (found,) = origins(watch)
    rerun = Reproducer.open(tmp_path / found.reproducer)
    with rerun.bundle:
        outcome = rerun.run(rerun.restore(inner))
    assert sorted(
        float(row[2].max()) for row in outcome.inputs if row[0] == "output's gradient"
    ) == pytest.approx([1.2, 2.4], rel=1e-3)
    (bias,) = [row[2].tolist() for row in outcome.gradients if row[1] == "fc.bias"]
    assert bias == pytest.approx([INF, 2.4], rel=1e-3)


def _found_once(
    model: nn.Module, tmp_path: Path, call: Callable[[], Any] | None = None, **options: Any
) -> tuple[Finding, str]:
    """The one origin that a call shows, and the answer to it."""
    with ac.watch(
        model, **looking(out=tmp_path, on_finding="warn", quiet=True, **options)
    ) as watch:
        call() if call is not None else model(torch.ones(1, 2))
        watch.step()
    (found,) = origins(watch)
    return found, answer(found, watch._start)


@pytest.mark.parametrize("frames", [0, 21])
def test_a_parameter_that_a_module_with_children_uses_itself_is_one_of_its_inputs(
    frames: int, tmp_path: Path
) -> None:
    model: Any = nn.Sequential(
        Glue(lambda self, x: self.fc(x) * self.scale, fc=nn.Linear(2, 2)), nn.ReLU()
    )
    model[0].scale = nn.Parameter(torch.tensor([1.0, NAN]))
    found, said = _found_once(model, tmp_path, frames=frames)
    assert (found.place, [seen.path for seen in found.weights]) == ("0 (weights)", ["scale"])
    assert "finite" not in said.splitlines()[1].replace("not finite", "")


def test_a_parameter_of_a_child_that_is_not_called_is_one_of_its_inputs(tmp_path: Path) -> None:
    model: Any = Glue(
        lambda self, x: self.first(x) @ self.other.weight,
        first=nn.Linear(2, 2),
        other=nn.Linear(2, 2),
    )
    nn.init.constant_(model.other.weight, NAN)
    assert _found_once(model, tmp_path)[0].place == "(root) (weights)"


def test_a_bad_parameter_that_had_no_part_in_it_is_not_blamed(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: self.fc(x).mul(0).div(0), fc=nn.Linear(2, 2))
    model.unused = nn.Parameter(torch.tensor(NAN))
    found, _ = _found_once(model, tmp_path)
    assert (found.place, found.operator) == ("(root) (glue, after fc)", "aten.div.Tensor")


def test_weights_of_functional_call_are_looked_at_and_the_models_own_are_not_blamed(
    tmp_path: Path,
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights["1.weight"][0, 0] = NAN
    found, _ = _found_once(
        model, tmp_path, lambda: torch.func.functional_call(model, weights, (torch.ones(1, 2),))
    )
    assert (found.place, [seen.path for seen in found.weights]) == ("1 (weights)", ["weight"])
    assert said(found.notes[0]).startswith(
        "the step was not run again: its parameters are not those with which the watch began"
    )


def test_weights_of_functional_call_that_were_not_looked_at_are_not_called_finite(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 2)
    weights = {"weight": torch.full((2, 2), NAN), "bias": torch.zeros(2)}
    found, said = _found_once(
        model,
        tmp_path,
        lambda: torch.func.functional_call(model, weights, (torch.ones(1, 2),)),
        frames=0,
    )
    assert (found.site, found.unseen) == (Site.MODULE, ["weights"])
    assert "not looked at: weights" in said


def test_a_tensor_that_is_neither_an_input_nor_a_weight_is_not_called_finite(
    tmp_path: Path,
) -> None:
    model: Any = Glue(lambda self, x: self.fc(x) * self.table, fc=nn.Linear(2, 2))
    model.table = torch.tensor([1.0, NAN])
    found, said = _found_once(model, tmp_path)
    assert (found.operator, found.unseen) == (
        "aten.mul.Tensor",
        [remark("neither-input-nor-weight", paths=["other"], operator="aten.mul.Tensor")],
    )
    assert (
        "what went in was finite, but for what was not looked at: other of aten.mul.Tensor" in said
    )


def _zero_weight_norm() -> nn.Module:
    linear = nn.Linear(2, 2)
    nn.init.zeros_(linear.weight)
    return torch.nn.utils.parametrizations.weight_norm(linear)


def _negative_variance() -> nn.Module:
    norm = nn.BatchNorm1d(2).eval()
    assert norm.running_var is not None
    norm.running_var.fill_(-1)
    return norm


@pytest.mark.parametrize(
    ("make", "right", "wrong"),
    [
        (_negative_variance, "its running variance is negative", "equal values"),
        (_zero_weight_norm, "one is all zeros", "eps"),
    ],
)
def test_hints_go_by_what_went_in(
    make: Callable[[], nn.Module], right: str, wrong: str, tmp_path: Path
) -> None:
    _, said = _found_once(nn.Sequential(nn.Linear(2, 2), make()), tmp_path)
    assert right in said
    assert wrong not in said


# reproducers


def _reproduced(
    model: nn.Module, tmp_path: Path, backward: bool = True, calls: int = 1
) -> tuple[Finding, Path]:
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        for _ in range(calls):
            output = model(torch.ones(2, 2))
            if backward:
                output.sum().backward()
        watch.step()
    found = origins(watch)[0]
    return found, tmp_path / found.reproducer


class _RootOfZero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x).sqrt() + x


class _Point(nn.Module):
    """Its output does not show what a point of the user's own has seen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ac.check_finite((x * 0).log(), "log")
        return x


def test_a_call_that_a_reentrant_checkpoint_makes_again_is_reproduced(tmp_path: Path) -> None:
    model: Any = Glue(
        lambda self, x: checkpoint(self.inner, self.first(x), use_reentrant=True),
        first=nn.Linear(2, 2),
        inner=nn.Sequential(nn.Linear(2, 2), _RootOfZero(), nn.Linear(2, 2)),
    )
    found, script = _reproduced(model, tmp_path)
    assert found.place == "inner.1, backward"
    assert run_here(script).returncode == 1


def test_a_point_of_ones_own_is_reproduced(tmp_path: Path) -> None:
    found, script = _reproduced(nn.Sequential(nn.Linear(2, 2), _Point()), tmp_path)
    assert found.place == "1 (point, log)"
    answered = run_here(script)
    assert (answered.returncode, "It shows again" in answered.stdout) == (1, True)


class _First(nn.Module):
    """NaN in its first call only; it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (NAN if self.calls == 1 else 1.0)


def test_a_module_that_counts_its_calls_is_reproduced_with_the_count_that_it_had(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), _First())
    _, script = _reproduced(model, tmp_path)
    assert run_here(script).returncode == 1
    assert model[1].calls == 1


def _hooked() -> nn.Module:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, output: output / 0)
    return model


class _Twice(nn.Module):
    """The gradients of both uses of its weight are finite, their sum is not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(2, 2, bias=False, dtype=torch.float16)
        nn.init.zeros_(self.scale.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.half() * 3e4
        return self.scale(x) * 0.9 + self.scale(x) * 0.9


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (_hooked, "none, since a hook on the module made it, not the module"),
        (_Twice, "none, since one call cannot show a sum over several"),
        (
            lambda: _once_only(),
            (
                "it did not show when the step was run again: the model or its device may not be"
                " deterministic"
            ),
        ),
    ],
    ids=["a hook", "a sum over calls", "a NaN that does not come again"],
)
def test_no_reproducer_is_written_that_cannot_show_it(
    make: Callable[[], nn.Module], note: str, tmp_path: Path
) -> None:
    found, _ = _reproduced(make(), tmp_path)
    assert (found.reproducer, note in map(said, [*found.notes, *found.reproducer_notes])) == (
        "",
        True,
    )


def _once_only() -> nn.Module:
    state = iter([0.0])
    return nn.Sequential(nn.Linear(2, 2), Glue(lambda self, x: x / next(state, 1.0)))


def test_a_reproducer_names_no_directory_and_can_be_moved_with_what_it_imports(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "net_to_move.py").write_text(
        "import torch\nfrom torch import nn\nclass Log(nn.Module):\n    def forward(self, x):\n    "
        "    return (-x.abs() - 1).log()\n"
    )
    code = (
        "import torch, accucompare as ac, net_to_move\nwith"
        " ac.watch(torch.nn.Sequential(net_to_move.Log()), out='watch', on_finding='snapshot',"
        " quiet=True) as watch:\n    watch_me = watch._explainer.modules.named['']\n   "
        " watch_me(torch.ones(1, 2))\n    watch.step()\n"
    )
    assert with_torch()(code, cwd=project, variables=os.environ).returncode == 0
    (script,) = (project / "watch").glob("*.py")
    assert str(tmp_path) not in script.read_text()
    project.rename(tmp_path / "moved")
    assert reproduced.run(tmp_path / "moved" / "watch" / script.name).returncode == 1


def _steep(x: torch.Tensor) -> torch.Tensor:
    """About x; a gradient of 1e30 overflows in it, after it was doubled."""
    return (x * 1e-9) * 1e9 * 2


def test_a_gradient_that_a_hook_on_the_output_has_changed_is_the_one_of_the_second_run(
    tmp_path: Path,
) -> None:
    model: Any = Glue(lambda self, x: _steep(self.fc(x)), fc=nn.Linear(4, 4))
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        output = model(torch.randn(3, 4))
        output.register_hook(lambda grad: grad * 0.5)
        (output * 1e30).sum().backward()
        watch.step()
    found, *_ = origins(watch)
    assert (found.place, found.operator, found.notes) == (
        "(root) (glue, after fc), backward",
        "MulBackward0",
        [],
    )
    reproducer = Reproducer.open(tmp_path / found.reproducer)
    outcome = reproducer.run(reproducer.restore(model))
    assert [
        float(grad.max()) for what, _, grad in outcome.inputs if what == "output's gradient"
    ] == [pytest.approx(0.5e30)]


def test_a_second_run_without_a_hook_on_a_tensor_inside_is_said_to_differ_and_the_step_is_believed(
    tmp_path: Path,
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.steep(self.fc(x))
        return self.hidden * 1.0

    model: Any = Glue(forward, fc=nn.Linear(4, 4), steep=Glue(lambda self, x: _steep(x)))
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        output = model(torch.randn(3, 4))
        model.hidden.register_hook(lambda grad: grad * 0.5)
        (output * 1e30).sum().backward()
        watch.step()
    found, *_ = origins(watch)
    assert (found.place, found.operator) == ("steep, backward", "MulBackward0")
    assert list(map(said, found.notes)) == [
        "the second run differs, and the step is believed: the largest gradient in steep"
        " (MulBackward0) was 1e+30 in the step and 2e+30 in the second run, where hooks on tensors"
        " of the step are missing"
    ]


def test_a_gradient_that_only_the_second_run_lets_overflow_is_no_operator_of_the_finding(
    tmp_path: Path,
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.steep(self.root(self.fc(x)))
        return self.hidden * 1.0

    model: Any = Glue(
        forward,
        fc=nn.Linear(4, 4),
        root=Glue(lambda self, x: (x - x).sqrt() + x),
        steep=Glue(lambda self, x: _steep(x)),
    )
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        output = model(torch.randn(3, 4))
        model.hidden.register_hook(lambda grad: grad * 1e-20)
        (output * 1e30).sum().backward()
        watch.step()
    found, *_ = origins(watch)
    assert (found.place, found.reproducer) == ("root, backward", "")
    assert "differs" in said(found.notes[0])


def test_an_operator_of_torchs_own_modules_has_no_line_in_the_second_run(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, 3e38)
    found, _ = _reproduced(nn.Sequential(layer), tmp_path, backward=False)
    assert (found.operator, found.line) == ("aten.addmm.default", "")

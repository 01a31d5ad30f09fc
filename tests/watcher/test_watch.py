"""A watch from beginning to end: it changes nothing, it says what it cannot do, and it leaves
nothing behind.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import io
import itertools
import math
import os
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.errors import NonFiniteError, UsageError, WatchEndedError
from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.log.events import Alert, End, Finding, Frames, Step, WatchStart
from accucompare.report.watch_words import said
from fixtures.cnn import Net
from tests.asked import looking
from tests.watcher.watched import (
    Counting,
    Glue,
    Subject,
    assert_same,
    events,
    origins,
    run,
    trained,
)

NAN, INF = float("nan"), float("inf")


# what is trained

SUBJECTS: dict[str, Callable[[], Subject]] = {}


def subject(make: Callable[[], Subject]) -> Callable[[], Subject]:
    SUBJECTS[make.__name__] = make
    return make


@subject
def gpt2_with_dropout() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    )
    ids = torch.randint(0, 50, (3, 2, 8))
    return trained(
        model,
        lambda number: {"input_ids": ids[number], "labels": ids[number], "use_cache": False},
        lambda output: output.loss,
    )


@subject
def t5() -> Subject:
    from fixtures.t5 import training

    case = training()
    return trained(case.model, lambda number: case.inputs[number % 2], lambda output: output.loss)


@subject
def cnn_with_batch_norm() -> Subject:
    images = torch.randn(3, 4, 3, 24, 24)
    return trained(Net(), lambda number: (images[number],))


@subject
def lstm_with_dropout() -> Subject:
    model: Any = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    return trained(
        model,
        lambda number: (torch.randn(5, 2, 3),),
        lambda output: output[0].square().mean() + output[1][1].mean(),
    )


@subject
def in_place_on_what_a_child_gave() -> Subject:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y += 1
        y[:, 0].mul_(2)
        return self.relu(y)

    model: Any = Glue(forward, fc=nn.Linear(4, 4), relu=nn.ReLU(inplace=True))
    return trained(model, lambda number: (torch.randn(2, 4),))


@subject
def a_shared_module() -> Subject:
    model: Any = Glue(lambda self, x: self.fc(self.again(self.fc(x)).tanh()), fc=nn.Linear(4, 4))
    model.add_module("again", model.fc)
    return trained(model, lambda number: (torch.randn(2, 4),))


@subject
def views_as_outputs() -> Subject:
    model: Any = nn.Sequential(
        nn.Linear(4, 6),
        nn.Unflatten(1, (2, 3)),
        Glue(lambda self, x: x.transpose(1, 2)[:, :2]),
        nn.Flatten(),
    )
    return trained(
        model,
        lambda number: (torch.randn(2, 4),),
        lambda output: output.unbind(0)[0].square().sum(),
    )


@subject
def vmap_inside() -> Subject:
    model: Any = Glue(lambda self, x: torch.func.vmap(self.fc)(x), fc=nn.Linear(4, 4))
    return trained(model, lambda number: (torch.randn(3, 2, 4),))


@subject
def gradient_inside() -> Subject:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        grad: torch.Tensor = torch.func.grad(lambda x: self.fc(x).tanh().sum())(x)
        return grad

    return trained(Glue(forward, fc=nn.Linear(4, 4)), lambda number: (torch.randn(2, 4),))


@subject
def complex_numbers() -> Subject:
    model: Any = Glue(
        lambda self, x: self.fc(torch.fft.fft(x)).conj() * 2j,
        fc=nn.Linear(4, 4, dtype=torch.complex64),
    )
    return trained(
        model, lambda number: (torch.randn(2, 4),), lambda output: output.abs().square().sum()
    )


@subject
def sparse_gradients() -> Subject:
    model: Any = nn.Embedding(9, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number: int) -> Any:
        model(torch.tensor([1, 1, 2 + number])).square().sum().backward()
        grad = model.weight.grad
        assert grad is not None
        optimizer.step()
        optimizer.zero_grad()
        return grad.to_dense()

    return Subject(model, step, optimizer)


@subject
def float8_between() -> Subject:
    model: Any = Glue(
        lambda self, x: self.cast(self.fc(x)).float() + self.fc(x),
        fc=nn.Linear(4, 4),
        cast=Glue(lambda self, x: x.to(torch.float8_e4m3fn)),
    )
    return trained(model, lambda number: (torch.randn(2, 4),))


@subject
def empty_tensors() -> Subject:
    return trained(
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        lambda number: (torch.randn(0, 4),),
        lambda output: output.sum(),
    )


@subject
def weight_norm_parametrization() -> Subject:
    model: Any = nn.Sequential(
        weight_norm(nn.Linear(4, 4)), torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))
    )
    return trained(model, lambda number: (torch.randn(2, 4),))


@subject
def hooks_that_change_what_passes() -> Subject:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[1].register_full_backward_hook(lambda module, grads, given: (grads[0] * 3,))
    model[0].weight.register_hook(lambda grad: grad + 1)
    return trained(model, lambda number: (torch.randn(2, 4),))


class _Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


@subject
def a_function_of_ones_own() -> Subject:
    return trained(
        Glue(lambda self, x: _Cubed.apply(self.fc(x)), fc=nn.Linear(4, 4)),
        lambda number: (torch.randn(2, 4),),
    )


def _checkpointed(reentrant: bool) -> Subject:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
    model: Any = Glue(
        lambda self, x: self.last(checkpoint(self.inner, self.first(x), use_reentrant=reentrant)),
        inner=inner,
    )
    model.first, model.last = nn.Linear(4, 4), nn.Linear(4, 4)
    return trained(model, lambda number: (torch.randn(2, 4),))


@subject
def checkpointed() -> Subject:
    return _checkpointed(reentrant=False)


@subject
def checkpointed_reentrantly() -> Subject:
    return _checkpointed(reentrant=True)


@subject
def compiled() -> Subject:
    plain = trained(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        lambda number: (torch.randn(2, 4),),
    )
    model: Any = torch.compile(plain.model, backend="eager")
    return trained(model, lambda number: (torch.randn(2, 4),))


@subject
def autocast() -> Subject:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    cast: Any = Glue(
        lambda self, x: torch.autocast("cpu", torch.bfloat16)(self.inner)(x).float(), inner=model
    )
    return trained(cast, lambda number: (torch.randn(2, 4),))


@pytest.mark.parametrize("name", SUBJECTS)
def test_training_is_the_same_with_a_watch_and_without(name: str, tmp_path: Path) -> None:
    watch = assert_same(SUBJECTS[name], tmp_path)
    assert watch.findings == []


@pytest.mark.parametrize(
    "options", [{"frames": 0}, {"level": "op"}, {"every": 2}, {"trace_steps": [1]}], ids=str
)
@pytest.mark.parametrize(
    "name",
    [
        "gpt2_with_dropout",
        "cnn_with_batch_norm",
        "lstm_with_dropout",
        "checkpointed",
        "sparse_gradients",
    ],
)
def test_training_is_the_same_however_closely_it_is_watched(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    assert assert_same(SUBJECTS[name], tmp_path, **options).findings == []


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_inference_is_the_same_with_a_watch(mode: Callable[[], Any], tmp_path: Path) -> None:
    def make() -> Subject:
        model = Net().eval()

        def step(number: int) -> Any:
            with mode():
                return model(torch.randn(2, 3, 24, 24)).clone()

        return Subject(model, step)

    assert assert_same(make, tmp_path).grad_norms == []


def test_a_model_of_whole_numbers_without_parameters_is_watched(tmp_path: Path) -> None:
    model: Any = nn.Sequential(Glue(lambda self, x: x * 2), nn.Identity())
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        assert model(torch.tensor([1, 2])).tolist() == [2, 4]
        watch.step()
    assert events(watch, WatchStart)[0].parameters == 0
    assert watch.findings == []


def test_a_second_backward_through_the_gradients_is_the_same(tmp_path: Path) -> None:
    def make() -> Subject:
        model: Any = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())

        def step(number: int) -> Any:
            x = torch.randn(5, 3, requires_grad=True)
            output = model(x).sum()
            (grad,) = torch.autograd.grad(output, x, create_graph=True)
            (output + grad.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            return grad.detach()

        return Subject(model, step, optimizer)

    assert_same(make, tmp_path)


def test_several_backwards_through_one_graph_are_the_same(tmp_path: Path) -> None:
    def make() -> Subject:
        model: Any = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(number: int) -> Any:
            one, other = model(torch.randn(5, 3)).sum(0)
            one.backward(retain_graph=True)
            other.backward()
            optimizer.step()
            optimizer.zero_grad()
            return one.detach()

        return Subject(model, step, optimizer)

    assert_same(make, tmp_path)


def test_gradients_accumulated_over_many_forwards_are_the_same(tmp_path: Path) -> None:
    def make() -> Subject:
        model: Any = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(number: int) -> Any:
            for _ in range(9):
                model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return Subject(model, step, optimizer)

    assert_same(make, tmp_path)


def test_two_optimizers_of_one_model_update_the_same(tmp_path: Path) -> None:
    def make() -> Subject:
        model: Any = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizers = [
            torch.optim.SGD(model[0].parameters(), 0.1),
            torch.optim.Adam(model[1].parameters()),
        ]

        def step(number: int) -> Any:
            model(torch.randn(5, 3)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

        return Subject(model, step)

    assert_same(make, tmp_path)


def test_lbfgs_which_runs_the_model_inside_its_update_is_the_same(tmp_path: Path) -> None:
    def make() -> Subject:
        model: Any = nn.Linear(3, 1)
        x, y = torch.randn(8, 3), torch.randn(8, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        def step(number: int) -> Any:
            return optimizer.step(closure).detach()

        return Subject(model, step, optimizer)

    assert_same(make, tmp_path)


def test_gradients_of_each_sample_by_function_transforms_are_the_same(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    parameters, x = (
        {name: parameter.detach() for name, parameter in model.named_parameters()},
        torch.randn(5, 3),
    )

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    plain = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        watched = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        model(x).sum().backward()
        watch.step()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert watch.findings == []
    assert len(watch.grad_norms) == 1


def test_a_model_that_is_called_inside_a_function_transform_is_heard(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        torch.func.grad(lambda x: model(x).sum())(torch.ones(1, 2))
        assert watch._watcher.errors == []


def test_calls_under_vmap_are_looked_at_forward_and_backward(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(lambda self, x: (x * 0).log()), nn.ReLU())
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        torch.func.vmap(model)(torch.ones(3, 2))
        watch.step()
    assert [found.place for found in origins(watch)] == ["1"]
    model[1] = Glue(lambda self, x: (x * 0).sqrt() + x)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        torch.func.vmap(model)(torch.ones(3, 2)).sum().backward()
        watch.step()
    assert [(found.place, found.operator) for found in origins(watch)] == [
        ("1, backward", "SqrtBackward0")
    ]
    assert events(watch, Step)[0].unseen == {}


def test_gradients_that_a_function_transform_takes_are_said_not_to_have_been_seen(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 1)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        torch.func.vmap(torch.func.grad(lambda x: model(x).sum()))(torch.ones(3, 2))
        watch.step()
    assert watch.findings == []
    trouble = read_logs(tmp_path).trouble
    assert trouble is not None
    assert (
        said(trouble)
        == "nothing was found, but not all was seen: the gradients that a function transform takes,"
        " of (root)"
    )


def test_a_transform_inside_the_model_hides_nothing(tmp_path: Path) -> None:
    _, watch = run(gradient_inside, tmp_path)
    assert watch is not None
    assert read_logs(tmp_path).trouble is None


def test_a_backward_that_raised_and_is_tried_again_is_heard(tmp_path: Path) -> None:
    def refuse(grad: torch.Tensor) -> None:
        if not tried:
            tried.append(True)
            raise ValueError("not yet")

    tried: list[bool] = []
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        loss = model(torch.ones(1, 2)).sum()
        model.bias.register_hook(refuse)
        with pytest.raises(ValueError, match="not yet"):
            loss.backward(retain_graph=True)
        loss.backward()
        watch.step()
    assert len(watch.grad_norms) == 1


def test_a_copy_or_a_pickle_made_meanwhile_has_no_hooks_and_works_on_after_the_watch(
    tmp_path: Path,
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.randn(3, 2)
    with ac.watch(model, out=tmp_path, quiet=True) as watch, warnings.catch_warnings():
        warnings.simplefilter("error")
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies = [
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(saved, weights_only=False),
        ]
        for each in copies:
            each(torch.full((1, 2), NAN)).sum().backward()
        watch.step()
    assert watch.findings == []
    assert all(torch.equal(each(x), model(x)) for each in copies)


def test_an_output_can_be_saved_without_a_warning(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, quiet=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(model(torch.ones(1, 2)), io.BytesIO())


# what it costs


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    )


def test_no_number_is_brought_to_the_host_during_forward_and_backward(tmp_path: Path) -> None:
    model, ids = _gpt2(), torch.randint(0, 50, (2, 8))
    with ac.watch(model, out=tmp_path, quiet=True, look=ac.LookAt(frames=0)) as watch:
        for _ in range(2):
            with Counting() as plain, watch._watcher.paused():
                model(input_ids=ids, labels=ids).loss.backward()
            with Counting() as watched:
                model(input_ids=ids, labels=ids).loss.backward()
            watch.step()
    assert watched.reads == plain.reads


def test_nothing_of_a_step_is_kept_after_it(tmp_path: Path) -> None:
    outputs: list[weakref.ref[torch.Tensor]] = []
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    for module in model:
        module.register_forward_hook(
            lambda module, args, output: outputs.append(weakref.ref(output))
        )
    gc.collect()
    gc.disable()
    try:
        with ac.watch(model, out=tmp_path, quiet=True) as watch:
            x = torch.randn(2, 4)
            given = weakref.ref(x)
            output = model(x)
            output.sum().backward()
            del output, x
            assert len(outputs) == 3
            watch.step()
            assert given() is None
            assert [reference() for reference in outputs] == [None] * 3
    finally:
        gc.enable()


def _train(tmp_path: Path, steps: int, seen: Callable[[], Any]) -> list[Any]:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    after = []
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        for _ in range(steps):
            model(torch.randn(4, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
            after.append(seen())
    return after


def _tensors() -> int:
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_a_long_loop_does_not_grow(tmp_path: Path) -> None:
    steps = itertools.count()

    def objects() -> tuple[int, int]:
        if next(steps) not in (2, 49):  # collecting takes long
            return 0, 0
        gc.collect()
        return _tensors(), len(gc.get_objects())

    after = _train(tmp_path, 50, objects)
    assert after[49][0] <= after[2][0]
    assert after[49][1] <= after[2][1] + 100  # numbers are kept: norms


def test_nothing_of_a_step_waits_to_be_collected(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        after = _train(tmp_path, 8, _tensors)
    finally:
        gc.enable()
    assert after[-1] <= after[2]


def test_idle_steps_have_no_hooks(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    hooked = []
    with ac.watch(model, out=tmp_path, quiet=True, look=ac.LookAt(every=3)) as watch:
        for _ in range(7):
            hooked.append(
                bool(
                    model[0]._forward_hooks
                    or model[0]._forward_pre_hooks
                    or model[0].weight._backward_hooks
                )
            )
            model(torch.ones(1, 2)).sum().backward()
            watch.step()
    assert hooked == [True, False, False, True, False, False, True]
    assert [step.step for step in events(watch, Step)] == [0, 3, 6]
    assert events(watch, End)[0].watched == 3


# beginning and end


def _hooks(model: nn.Module) -> int:
    parameters = sum(len(parameter._backward_hooks or ()) for parameter in model.parameters())
    return parameters + sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no data"), "ValueError: no data"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(1), "SystemExit: 1"),
    ],
    ids=["error", "ctrl-c", "exit"],
)
def test_whatever_ends_the_loop_hooks_are_removed_and_the_log_says_why(
    error: BaseException, reason: str, tmp_path: Path
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    with (  # noqa: PT012
        pytest.raises(type(error)) as raised,
        ac.watch(model, out=tmp_path, quiet=True) as watch,
    ):
        model(torch.ones(1, 2)).sum().backward()
        raise error
    assert raised.value is error
    assert _hooks(model) == 0
    assert events(watch, End)[0].reason == reason
    assert watch._log._file is None


def test_an_error_in_the_model_comes_through_as_it_is_and_the_watch_goes_on(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if x.max() > 1:
            raise ValueError("too large")
        return x

    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(forward))
    nn.init.ones_(model[0].weight)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        with pytest.raises(ValueError, match="too large"):
            model(torch.full((1, 2), 9.0))
        with torch.no_grad():
            model[0].weight.fill_(NAN)
        model(torch.zeros(1, 2))
        watch.step()
    assert [(found.place, found.site.value) for found in origins(watch)] == [
        ("0 call 1 (weights)", "weights")
    ]


def test_what_was_found_before_an_error_in_the_loop_is_in_the_log(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: self.fc(x) / 0, fc=nn.Linear(2, 2))
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        ac.watch(model, out=tmp_path, quiet=True) as watch,
    ):
        model(torch.ones(1, 2))
        raise ZeroDivisionError
    assert [found.place for found in events(watch, Finding)] == ["(root) (glue, after fc)"]
    assert events(watch, End)[0].reason == "ZeroDivisionError"


def test_a_generator_that_is_closed_early_leaves_no_hooks(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)

    def steps() -> Iterator[Any]:
        with ac.watch(model, out=tmp_path, quiet=True) as watch:
            while True:
                yield watch
                watch.step()

    loop = steps()
    watch = next(loop)
    model(torch.ones(1, 2))
    next(loop)
    loop.close()  # type: ignore[attr-defined]
    assert _hooks(model) == 0
    assert events(watch, End)


def test_a_watch_that_has_ended_does_nothing(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        pass
    model(torch.full((1, 2), NAN)).sum().backward()
    optimizer.step()
    watch.step()
    watch.step()
    assert watch.findings == []
    assert not watch.overflowed
    assert len(events(watch, End)) == 1


def test_a_loop_that_goes_on_after_a_finding_was_raised_is_let_go_on(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.full((1, 2), NAN))
        with pytest.raises(NonFiniteError):
            watch.step()
        assert _hooks(model) == 0
        watch.step()
    assert [event.reason for event in events(watch, End)] == ["a finding"]


def test_a_finding_is_raised_before_parameters_change(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: (self.fc(x) - self.fc(x)).sqrt(), fc=nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model.fc.weight.detach().clone()
    with (  # noqa: PT012
        pytest.raises(NonFiniteError) as raised,
        ac.watch(model, optimizer, out=tmp_path, quiet=True),
    ):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert torch.equal(model.fc.weight, before)
    assert raised.value.finding.operator == "SqrtBackward0"
    assert 3 <= len(str(raised.value).splitlines()) <= 5


def test_what_comes_after_the_last_step_is_looked_at(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with pytest.raises(NonFiniteError), ac.watch(model, out=tmp_path, quiet=True):
        model(torch.full((1, 2), NAN))


def test_the_watch_ends_after_the_step_that_was_named(tmp_path: Path) -> None:
    model, steps = nn.Linear(2, 2), 0
    with (  # noqa: PT012
        pytest.raises(WatchEndedError, match="after step 1, as asked"),
        ac.watch(model, out=tmp_path, abort_after_step=1, quiet=True) as watch,
    ):
        for _ in range(5):
            model(torch.ones(1, 2))
            steps += 1
            watch.step()
    assert steps == 2
    assert said(events(watch, End)[0].reason) == "stopped after step 1, as asked"


def test_runs_are_added_to_a_log(tmp_path: Path) -> None:
    from accucompare.findings.log.log import read_log

    for _ in range(2):
        with ac.watch(nn.Linear(2, 2), out=tmp_path, quiet=True):
            pass
    assert len(read_log(tmp_path / "rank0.jsonl")) == 2


# what is shown


def test_the_last_frames_before_a_finding_are_in_the_log_in_execution_order(tmp_path: Path) -> None:
    model: Any = nn.Sequential(
        *(nn.Linear(2, 2) for _ in range(6)), Glue(lambda self, x: x / 0), nn.ReLU()
    )
    with ac.watch(
        model, out=tmp_path, on_finding="warn", quiet=True, look=ac.LookAt(frames=3)
    ) as watch:
        model(torch.ones(1, 2))
        watch.step()
    (shown,) = events(watch, Frames)
    assert [frame.name for frame in shown.frames] == ["4", "5", "6"]
    weight = next(seen for seen in shown.frames[0].tensors if seen.path == "weight")
    assert weight.abs_max == pytest.approx(model[4].weight.abs().max().item())
    assert weight.abs_min == pytest.approx(model[4].weight.abs().min().item())
    output = shown.frames[-1].tensors[-1]
    assert (output.nan, output.inf) == (0, 2)


def test_all_frames_of_a_traced_step_are_in_the_log(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with ac.watch(
        model, out=tmp_path, quiet=True, look=ac.LookAt(frames=0, trace_steps=[1])
    ) as watch:
        for _ in range(3):
            model(torch.ones(1, 2))
            watch.step()
    (traced,) = events(watch, Frames)
    assert (traced.step, traced.traced, [frame.name for frame in traced.frames]) == (
        1,
        True,
        ["0", "1", ""],
    )


def test_a_module_that_may_give_nan_is_left_alone(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(lambda self, x: x * NAN), nn.ReLU())
    with ac.watch(model, out=tmp_path, quiet=True, look=ac.LookAt(allow="1")) as watch:
        model(torch.ones(1, 2))
        watch.step()
    assert watch.findings == []


def test_at_the_level_of_operators_the_operator_and_its_line_are_named(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: self.fc(x).abs().mul(0).log().exp(), fc=nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True, look="op") as watch:
        torch.log(model(torch.ones(1, 2)) - 1)
        watch.step()
    assert watch.findings == []  # -Inf is legal: exp makes it 0 again
    model = Glue(lambda self, x: self.fc(x).abs().mul(0).log().mul(0), fc=nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True, look="op") as watch:
        model(torch.ones(1, 2))
        watch.step()
    (found,) = origins(watch)
    assert found.operator == "aten.log.default"
    assert found.line.startswith("test_watch.py:")


def test_a_loop_can_skip_an_update_that_overflowed(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    asked = []
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        for number in range(4):
            (model(torch.ones(1, 2)) * (INF if number == 1 else 1.0)).sum().backward()
            asked.append(watch.overflowed)
            if not watch.overflowed:
                optimizer.step()
            optimizer.zero_grad()
            watch.step()
    assert asked == [False, True, False, False]
    assert bool(model.weight.isfinite().all())
    assert watch.findings == []


# bad input


def test_two_watches_on_one_model_are_refused(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path / "one", quiet=True):
        for second in (model, model[0], nn.Sequential(model[0])):
            with (
                pytest.raises(
                    UsageError, match="is being watched already; end the other watch first"
                ),
                ac.watch(second, out=tmp_path / "two"),
            ):
                pass
    with ac.watch(model, out=tmp_path / "three", quiet=True):
        pass


def test_watches_of_two_models_need_directories_of_their_own(tmp_path: Path) -> None:
    with ac.watch(nn.Linear(2, 2), out=tmp_path, quiet=True) as one:
        with (
            pytest.raises(UsageError, match=r"another watch is writing its log there; .* \(out=\)"),
            ac.watch(nn.Linear(2, 2), out=tmp_path),
        ):
            pass
        with ac.watch(nn.Linear(2, 2), out=tmp_path / "other", quiet=True):
            pass
        one.step()
    with ac.watch(nn.Linear(2, 2), out=tmp_path, quiet=True):
        pass


def test_a_watch_inside_a_capture_is_refused(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden"):
        with (
            pytest.raises(UsageError, match="is being captured: watch it in a run of its own"),
            ac.watch(model, out=tmp_path),
        ):
            pass
        model(torch.ones(1, 2))
    assert _hooks(model) == 0


def test_a_capture_inside_a_watch_records_what_it_would_without(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(3, 2)
    with ac.capture(model, tmp_path / "plain"):
        model(x)
    with (
        ac.watch(model, out=tmp_path / "watch", quiet=True) as watch,
        ac.capture(model, tmp_path / "watched"),
    ):
        model(x)
        watch.step()
    with (
        ac.open_bundle(tmp_path / "plain") as plain,
        ac.open_bundle(tmp_path / "watched") as watched,
    ):
        assert [(record.name, record.role, record.digest) for record in plain.records()] == [
            (record.name, record.role, record.digest) for record in watched.records()
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_finding": "stop"}, "on_finding must be one of raise, warn, snapshot, but is 'stop'"),
        ({"level": "layer"}, "level must be one of module, op, but is 'layer'"),
        ({"frames": -1}, "frames must be at least 0, but is -1"),
        ({"frames": "all"}, "frames must be a whole number, but is 'all'"),
        ({"every": 0}, "every must be at least 1, but is 0"),
        ({"every": 1.5}, "every must be a whole number, but is 1.5"),
        ({"near": NAN}, "near must be at least 1, but is nan"),
        ({"near": "4"}, "near must be a number, but is '4'"),
        ({"abort_after_step": "1"}, "abort_after_step must be a whole number, but is '1'"),
        ({"trace_steps": 3}, "trace_steps must hold numbers of steps, but is 3"),
        ({"trace_steps": "13"}, "trace_steps must hold numbers of steps, but is '13'"),
        ({"allow": 5}, "allow must hold globs of names, but is 5"),
        (
            {"optimizer": 5},
            r"optimizer must be a torch.optim.Optimizer, or a list of them, but is an int",
        ),
        ({"scaler": 5}, r"scaler must be a torch.amp.GradScaler, but is an int"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_option_that_makes_no_sense_is_named(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(UsageError, match=message),
        ac.watch(nn.Linear(2, 2), **looking(out=tmp_path / "new", **options)),
    ):
        pass
    assert not (tmp_path / "new").exists()


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"model must be a torch.nn.Module, but is a function"),
        ac.watch(lambda x: x, out=tmp_path),
    ):  # type: ignore[arg-type]
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UsageError, match="the log of the watch cannot be written"),
        ac.watch(nn.Linear(2, 2), out=tmp_path / "file"),
    ):
        pass
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path / "other", quiet=True):
        pass  # the model is not taken for watched


def test_a_loop_without_a_backward_is_told_of_it(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    assert [said(event.text) for event in events(watch, Alert)] == [
        "no backward reached the model, so that no gradient was looked at; is it inside the watch,"
        " and the loss not detached?"
    ]


def test_several_optimizers_may_be_given(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizers = [
        torch.optim.SGD(model[0].parameters(), 0.1),
        torch.optim.Adam(model[1].parameters()),
    ]
    with ac.watch(model, optimizers, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        watch.step()
    assert events(watch, Alert) == []
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    with (
        pytest.raises(UsageError, match="optimizer updates no parameter"),
        ac.watch(model, [*optimizers, other], out=tmp_path, quiet=True),
    ):
        pass


def test_the_model_itself_is_allowed_by_the_name_that_is_printed(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: self.fc(x) * NAN, fc=nn.Linear(2, 2))
    with ac.watch(model, out=tmp_path, quiet=True, look=ac.LookAt(allow="(root)")) as watch:
        model(torch.ones(1, 2))
        watch.step()
    assert watch.findings == []


def test_an_optimizer_of_another_model_is_told(tmp_path: Path) -> None:
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    with (
        pytest.raises(UsageError, match="optimizer"),
        ac.watch(nn.Linear(2, 2), other, out=tmp_path, quiet=True),
    ):
        pass


def test_a_full_disk_does_not_hide_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(lambda self, x: x / 0))
    with (  # noqa: PT012
        pytest.raises(NonFiniteError, match=r"Inf.* in 1 ") as raised,
        ac.watch(model, out=tmp_path, quiet=True),
    ):
        model(torch.ones(1, 2))
        monkeypatch.setattr(os, "replace", full)
    assert "No space left on device" in str(raised.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_log_on_a_full_disk_ends_with_a_warning_and_the_watch_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(lambda self, x: x / 0))
    with (  # noqa: PT012
        pytest.raises(NonFiniteError),
        ac.watch(model, out=tmp_path, on_finding="raise", quiet=True) as watch,
    ):
        watch._log._file.close()
        watch._log._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        model(torch.ones(1, 2))
        watch.step()
    assert (
        "the log of the watch ends here (No space left on device); free some space" in caplog.text
    )


def test_a_scripted_module_is_passed_over(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()


def test_a_lazy_module_is_watched(tmp_path: Path) -> None:
    model: Any = nn.LazyLinear(3)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.ones(2, 4)).sum().backward()
        watch.step()


def test_a_model_can_be_traced_meanwhile(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    with ac.watch(model, out=tmp_path, quiet=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))


def test_a_loss_of_the_loops_own_that_is_nan_is_told_though_every_gradient_is_finite(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 3)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        # all labels ignored
        loss = nn.functional.cross_entropy(model(torch.ones(1, 2)), torch.tensor([-100]))
        loss.backward()
        watch.step(loss)
    (found,) = origins(watch)
    assert (found.place, found.kinds) == ("the loss", ["NaN"])
    assert events(watch, Step)[0].loss == "nan"


@pytest.mark.parametrize("bad", [False, True])
def test_an_evaluation_after_training_is_no_step_and_is_looked_at(
    tmp_path: Path, bad: bool
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.watch(model, optimizer, out=tmp_path, quiet=True, on_finding="warn") as watch:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            watch.step()
        with torch.no_grad():
            model(torch.full((1, 2), math.nan if bad else 1.0))
    (end,) = events(watch, End)
    assert (end.watched, bool(watch.findings)) == (3 if bad else 2, bad)


def test_a_message_with_codes_of_colour_is_logged_without_them(tmp_path: Path) -> None:
    with (
        contextlib.suppress(ValueError),
        ac.watch(nn.Linear(2, 2), out=tmp_path, quiet=True) as watch,
    ):
        raise ValueError("\x1b[1mno\x1b[0m such file")
    assert events(watch, End)[0].reason == "ValueError: no such file"


def test_steps_in_which_a_copy_of_the_model_is_called_are_not_counted_as_watched(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        copy.deepcopy(model)(torch.ones(1, 2))
        watch.step()
    assert events(watch, End)[0].watched == 0
    assert "not a copy" in said(events(watch, Alert)[0].text)


def test_a_loop_that_forgets_to_end_its_steps_is_told_so(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert ["step()" in said(warned.text) for warned in events(watch, Alert)] == [True]


def test_a_finding_told_before_the_first_update_does_not_say_that_there_was_no_backward(
    tmp_path: Path,
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(lambda self, x: (x * 0).log()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with (  # noqa: PT012
        pytest.raises(ac.NonFiniteError),
        ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch,
    ):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert events(watch, Alert) == []


def test_a_point_outside_of_the_model_is_not_looked_for_by_running_the_model_again(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, on_finding="snapshot", quiet=True) as watch:
        ac.check_finite(model(torch.ones(1, 2)).sum() * float("inf"), "the loss")
        watch.step()
    (found,) = origins(watch)
    assert (found.near, found.notes, found.reproducer) == ("the loss", [], "")


def test_the_place_of_a_nan_in_the_data_is_told(tmp_path: Path) -> None:
    x = torch.zeros(4, 3)
    x[2, 1] = float("nan")
    model: Any = nn.Linear(3, 3)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(x)
        watch.step()
    assert list(map(said, origins(watch)[0].notes)) == [
        "input 0: the first at index [2, 1]; in 1 of 4 along its first axis"
    ]


def test_what_a_parent_makes_before_a_child_is_its_own_in_the_backward_too(tmp_path: Path) -> None:
    model: Any = Glue(
        lambda self, x: self.b((self.a(x) * 0).sqrt()), a=nn.Linear(2, 2), b=nn.Linear(2, 2)
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    (found,) = origins(watch)
    assert (found.place, found.operator) == ("(root) (glue, after a), backward", "SqrtBackward0")


def test_an_overflow_beside_a_legal_mask_is_told(tmp_path: Path) -> None:
    def attend(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = (x[:, None] + mask).softmax(-1)
        return (self.fc(x).abs() + 1) * weights.sum(-1) * 1e38 * 10

    model: Any = nn.ModuleDict({"layer": Glue(attend, fc=nn.Linear(2, 2))})["layer"]
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(2, 2), torch.tensor([[0.0, -float("inf")], [0.0, 0.0]]))
        watch.step()
    (found,) = origins(watch)
    assert (found.place, found.kinds, found.operator) == (
        "(root) (glue, after fc)",
        ["+Inf"],
        "aten.mul.Tensor",
    )


def test_a_closure_of_the_optimizers_is_checked_before_the_update(tmp_path: Path) -> None:
    model: Any = Glue(lambda self, x: (self.fc(x) * 0).sqrt(), fc=nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    with pytest.raises(ac.NonFiniteError), ac.watch(model, optimizer, out=tmp_path, quiet=True):
        optimizer.step(closure)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_an_update_with_a_closure_after_the_loop_asked_for_overflow_is_not_called_skipped(
    tmp_path: Path,
) -> None:
    model: Any = Glue(lambda self, x: (self.fc(x) * 0).sqrt(), fc=nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    with (
        ac.watch(model, optimizer, out=tmp_path, on_finding="warn", quiet=True) as watch,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        assert not watch.overflowed
        optimizer.step(closure)
        watch.step()
    assert [step.skipped for step in events(watch, Step)] == [False]


def test_a_mask_that_a_module_keeps_is_not_taken_for_a_bad_weight(tmp_path: Path) -> None:
    model: Any = Glue(
        lambda self, x: (-self.fc(x).abs() - 1).log() + self.mask.exp(), fc=nn.Linear(2, 2)
    )
    model.register_buffer("mask", torch.tensor([0.0, -float("inf")]))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    (found,) = origins(watch)
    assert (found.site.value, found.operator) == ("glue", "aten.log.default")


def test_a_bound_of_inf_in_the_code_hides_no_overflow(tmp_path: Path) -> None:
    model: Any = Glue(
        lambda self, x, high: (self.fc(x).abs() + 1).clamp(max=high) * 1e38 * 10, fc=nn.Linear(2, 2)
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2), high=float("inf"))
        watch.step()
    assert [found.place for found in origins(watch)] == ["(root) (glue, after fc)"]


def test_gradients_whose_squares_overflow_and_that_are_clipped_are_no_finding(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        (model(torch.ones(1, 2)).sum() * 1e20).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        watch.step()
    assert watch.findings == []
    assert 1e20 <= watch.grad_norms[0] < 3e20


def _clip_by_a_norm_of_zero(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= parameter.grad.norm()


@pytest.mark.parametrize("closure", [False, True])
def test_gradients_that_turn_nan_after_the_backward_are_told_before_the_update(
    closure: bool, tmp_path: Path
) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def backward() -> None:
        (model(torch.ones(1, 2)) * 0).sum().backward()
        _clip_by_a_norm_of_zero(model)

    with (  # noqa: PT012
        pytest.raises(NonFiniteError) as raised,
        ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch,
    ):
        if closure:
            optimizer.step(backward)  # type: ignore[arg-type]
        else:
            backward()
            optimizer.step()
    assert raised.value.finding.place == "0 (gradients before the update), backward"
    assert raised.value.finding.parameters == [name for name, _ in model.named_parameters()]
    assert "not when the update began" in str(raised.value)
    assert all(map(torch.equal, before, model.parameters()))
    assert [step.finite for step in events(watch, Step)] == [False]


def test_gradients_that_are_clipped_as_they_should_be_are_no_finding(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        (model(torch.ones(1, 2)).sum() * 1e30).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e30)
        optimizer.step()
        watch.step()
    assert watch.findings == []


def _spoil(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].fill_(INF)


@pytest.mark.parametrize("on_finding", ["warn", "raise"])
def test_parameters_that_turn_nan_in_the_last_update_are_told_at_the_end(
    on_finding: str, tmp_path: Path
) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    raises = (
        pytest.raises(NonFiniteError, match="made by the last update")
        if on_finding == "raise"
        else contextlib.nullcontext()
    )
    with (
        raises,
        ac.watch(model, optimizer, out=tmp_path, on_finding=on_finding, quiet=True) as watch,
    ):
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            if step == 2:
                _spoil(optimizer)
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
    (found,) = origins(watch)
    assert (found.place, found.step, [seen.path for seen in found.weights]) == (
        "(root) (weights after the update)",
        2,
        ["weight", "bias"],
    )
    assert events(watch, End)[0].reason == ("a finding" if on_finding == "raise" else "finished")


def test_parameters_that_are_not_finite_from_the_start_and_unused_are_no_update_of_the_watchs(
    tmp_path: Path,
) -> None:
    model: Any = Glue(lambda self, x: self.fc(x), fc=nn.Linear(2, 2))
    model.mask = nn.Parameter(torch.tensor(-INF), requires_grad=False)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    assert watch.findings == []


def _filled(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.tensor([False, True]), -INF)


class _Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([0.0, torch.finfo(x.dtype).min], dtype=x.dtype)


MASKED: dict[str, Callable[[], nn.Module]] = {
    "masked_fill": lambda: Glue(lambda self, x: _filled(x)),
    "masked_fill after a child": lambda: Glue(
        lambda self, x: _filled(self.fc(x)), fc=nn.Linear(2, 2)
    ),
    "where": lambda: Glue(
        lambda self, x: torch.where(torch.tensor([False, True]), torch.tensor(-INF), x)
    ),
    "the maximum of what is masked": lambda: Glue(lambda self, x: _filled(x).unsqueeze(1).amax(1)),
    "the lowest number added twice": lambda: nn.Sequential(_Masked(), _Masked()),
}


@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize("name", MASKED)
def test_an_output_that_is_filled_with_minus_inf_is_legal(
    name: str, level: str, tmp_path: Path
) -> None:
    dtype = torch.float16 if "lowest" in name else torch.float32
    model = nn.Sequential(MASKED[name](), nn.Softmax(-1)).to(dtype)
    with ac.watch(model, out=tmp_path, quiet=True, look=level) as watch:
        for _ in range(3):
            model(torch.full((1, 2), -40.0, dtype=dtype))
            watch.step()
    assert watch.findings == []


def test_a_step_is_run_again_once_for_what_is_filled_with_minus_inf(tmp_path: Path) -> None:
    calls: list[int] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return _filled(x)

    model: Any = nn.Sequential(nn.Linear(2, 2), Glue(forward))
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        for _ in range(5):
            model(torch.ones(1, 2))
            watch.step()
    assert len(calls) == 6


def test_what_is_filled_with_minus_inf_is_told_where_it_does_harm(tmp_path: Path) -> None:
    model: Any = nn.Sequential(Glue(lambda self, x: x.masked_fill(x > 0, -INF)), nn.Softmax(-1))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        for value in (-1.0, 1.0):
            model(torch.tensor([[-1.0, value]]))
            watch.step()
        model(torch.ones(1, 2))
        watch.step()
    assert [(found.step, found.place, found.kinds) for found in origins(watch)] == [
        (2, "1", ["NaN"])
    ]


def test_a_minus_inf_that_was_computed_is_told(tmp_path: Path) -> None:
    model: Any = nn.Sequential(Glue(lambda self, x: _filled((x * 0).log())), nn.Softmax(-1))
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.tensor([[1.0, 1.0]]))
        watch.step()
    assert [(found.place, found.operator) for found in origins(watch)] == [
        ("0", "aten.log.default")
    ]


def test_compiled_code_is_compiled_again_after_two_watches_that_end_in_the_order_they_began(
    tmp_path: Path,
) -> None:
    import torch._dynamo.testing

    one, other = (
        ac.watch(nn.Linear(2, 2), out=tmp_path / name, quiet=True) for name in ("one", "two")
    )
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    torch._dynamo.reset()
    frames = torch._dynamo.testing.CompileCounterWithBackend("eager")
    torch.compile(nn.Linear(2, 2), backend=frames)(torch.ones(1, 2))
    assert frames.frame_count == 1

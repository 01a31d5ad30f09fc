"""Random numbers: the same on every device and in every dtype, and right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everyone calls it
from torch import nn
from torch.utils.checkpoint import checkpoint

from accucompare.live.operators import dispatch as interception
from accucompare.live.operators import randomness
from accucompare.live.operators.randomness import Draws, matched_randomness
from accucompare.numbers import kernel

aten = torch.ops.aten
DTYPES = [torch.float64, torch.bfloat16, torch.float16]


def drawn(function: Callable[[], Any], seed: int = 0) -> Any:
    with matched_randomness(seed):
        return function()


def counted(function: Callable[[], Any]) -> int:
    with matched_randomness(0) as draws:
        assert draws is not None
        function()
        return draws.count


def lstm(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(3)
    model = nn.LSTM(3, 8, 2, dropout=0.5).to(dtype)
    nn.init.eye_(model.weight_ih_l0.data)
    output: torch.Tensor = model(torch.ones(2, 64, 3, dtype=dtype))[1][0][1]
    return output


#: Each gives a tensor whose *decisions* (kept or dropped, which index, which value up to rounding)
# must not depend on the dtype.
OPERATIONS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "F.dropout": lambda dtype: F.dropout(torch.ones(500, dtype=dtype), 0.3),
    "F.dropout in place": lambda dtype: F.dropout(torch.ones(500, dtype=dtype), 0.3, inplace=True),
    "nn.Dropout": lambda dtype: nn.Dropout(0.3)(torch.ones(500, dtype=dtype)),
    "dropout2d": lambda dtype: F.dropout2d(torch.ones(20, 30, 2, 2, dtype=dtype), 0.3),
    "alpha_dropout": lambda dtype: F.alpha_dropout(
        torch.ones(500, dtype=dtype), 0.3, training=True
    ),
    "native_dropout": lambda dtype: aten.native_dropout(torch.ones(500, dtype=dtype), 0.3, True)[0],
    "sdpa": lambda dtype: F.scaled_dot_product_attention(
        *torch.ones(3, 2, 9, 9, dtype=dtype), dropout_p=0.5
    ),
    "lstm": lstm,
    "rand": lambda dtype: torch.rand(500, dtype=dtype),
    "rand_like": lambda dtype: torch.rand_like(torch.ones(500, dtype=dtype)),
    "uniform_": lambda dtype: torch.empty(500, dtype=dtype).uniform_(-2, 3),
    "randn": lambda dtype: torch.randn(500, dtype=dtype),
    "normal": lambda dtype: torch.normal(torch.ones(500, dtype=dtype), 0.5),
    "normal of two tensors": lambda dtype: torch.normal(
        torch.ones(500, dtype=dtype), torch.ones(500, dtype=dtype)
    ),
    "bernoulli": lambda dtype: torch.bernoulli(torch.full((500,), 0.25, dtype=dtype)),
    "bernoulli p": lambda dtype: torch.bernoulli(torch.ones(500, dtype=dtype), 0.25),
    "bernoulli_": lambda dtype: torch.ones(500, dtype=dtype).bernoulli_(0.25),
    "bernoulli_ of a tensor": (
        lambda dtype: torch.ones(500, dtype=dtype).bernoulli_(torch.full((500,), 0.25))
    ),
    "multinomial": lambda dtype: torch.multinomial(torch.ones(100, dtype=dtype), 20),
    "multinomial with replacement": lambda dtype: torch.multinomial(
        torch.ones(64, dtype=dtype), 50, replacement=True
    ),
    "poisson": lambda dtype: torch.poisson(torch.full((500,), 2.0, dtype=dtype)),
    "exponential_": lambda dtype: torch.empty(500, dtype=dtype).exponential_(2.0),
    "init": lambda dtype: nn.init.xavier_uniform_(torch.empty(20, 20, dtype=dtype)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_dtype_draws_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    single, other = (
        drawn(lambda kind=kind: OPERATIONS[name](kind)) for kind in (torch.float32, dtype)
    )
    torch.testing.assert_close(other.double(), single.double(), rtol=2e-2, atol=4e-2)
    if not single.is_floating_point():
        assert torch.equal(other, single)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_seed_decides_and_not_the_global_generator(name: str) -> None:
    def draw(seed: int) -> torch.Tensor:
        return drawn(lambda: OPERATIONS[name](torch.float32), seed)

    torch.manual_seed(1)
    first = draw(7)
    torch.manual_seed(2)
    assert torch.equal(draw(7), first)
    assert not torch.equal(draw(8), first)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "lstm"])
def test_two_operations_draw_different_numbers(name: str) -> None:
    with matched_randomness(0):
        assert not torch.equal(OPERATIONS[name](torch.float32), OPERATIONS[name](torch.float32))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randint(0, 1000, (50,)),
        lambda: torch.randperm(50),
        lambda: torch.rand(5, 3).t(),
    ],
)
def test_integers_and_permutations_come_from_the_seed(draw: Callable[[], torch.Tensor]) -> None:
    first = drawn(draw, 4)
    torch.manual_seed(99)
    assert torch.equal(drawn(draw, 4), first)
    assert not torch.equal(drawn(draw, 5), first)


def test_the_kernel_that_devices_use_for_dropout_drops_what_the_cpus_drops() -> None:
    x = torch.randn(400)
    on_cpu = drawn(lambda: F.dropout(x, 0.4))
    on_device, mask = drawn(lambda: aten.native_dropout(x, 0.4, True))
    assert torch.equal(mask, on_cpu != 0)
    torch.testing.assert_close(on_device, on_cpu)


def test_a_device_whose_generator_gives_other_numbers_agrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs, between which the plain generator is in quite different states: as on two
    devices."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4), nn.Dropout(0.2))
    x, results = torch.randn(3, 4), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.rand(seed * 100)
        results.append(drawn(lambda: model(x)))
    assert torch.equal(*results)


def test_nothing_is_caught_outside_of_a_capture() -> None:
    drawn(lambda: torch.rand(1))
    torch.manual_seed(6)
    first = torch.rand(5)
    torch.manual_seed(6)
    drawn(lambda: None)
    assert torch.equal(torch.rand(5), first)


def test_a_generator_of_the_users_own_is_respected() -> None:
    def draw() -> list[torch.Tensor]:
        own = torch.Generator().manual_seed(3)
        return [
            torch.rand(4, generator=own),
            torch.randperm(9, generator=own),
            torch.multinomial(torch.ones(9), 3, generator=own),
            torch.empty(3).normal_(generator=own),
            torch.bernoulli(torch.full((9,), 0.5), generator=own),
        ]

    for ours, plain in zip(drawn(draw), draw(), strict=True):
        assert torch.equal(ours, plain)
    assert counted(draw) == 0


def test_another_thread_is_not_affected() -> None:
    torch.manual_seed(1)
    plain = torch.rand(3)
    found: list[torch.Tensor] = []
    with matched_randomness(0) as draws:
        torch.manual_seed(1)
        thread = threading.Thread(target=lambda: found.append(torch.rand(3)))
        thread.start()
        thread.join()
        assert draws is not None
        assert draws.count == 0
    assert torch.equal(found[0], plain)


def test_nested_captures_each_draw_under_their_own_seed() -> None:
    def draw() -> torch.Tensor:
        return torch.rand(4)

    with matched_randomness(1):
        first = draw()
        with matched_randomness(1) as inner:  # at this point, both have drawn alike
            assert torch.equal(draw(), first)
            assert inner is not None
        second = draw()
        assert inner.count == 1
    with matched_randomness(1):
        draw()
        assert torch.equal(draw(), second)


def test_a_model_in_eval_mode_draws_nothing() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.Dropout(0.5),
        nn.RReLU(),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ).eval()
    x = torch.randn(2, 3, 4)
    assert counted(lambda: model(x)) == 0


def test_each_random_operation_is_counted_once() -> None:
    assert (
        counted(
            lambda: [
                F.dropout(torch.ones(3), 0.5),
                torch.rand(2),
                torch.randn(2),
                torch.randperm(4),
            ]
        )
        == 4
    )


# the numbers are right

N = 20_000
MOMENTS: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "rand": (lambda: torch.rand(N), 0.5, 1 / 12**0.5),
    "uniform_": (lambda: torch.empty(N).uniform_(-1, 3), 1.0, 4 / 12**0.5),
    "randn": (lambda: torch.randn(N), 0.0, 1.0),
    "normal_": (lambda: torch.empty(N).normal_(3, 2), 3.0, 2.0),
    "normal": (lambda: torch.normal(torch.full((N,), -1.0), 0.5), -1.0, 0.5),
    "exponential_": (lambda: torch.empty(N).exponential_(4), 0.25, 0.25),
    "log_normal_": (lambda: torch.empty(N).log_normal_(0, 0.25), 1.0317, 0.2619),
    "geometric_": (lambda: torch.empty(N).geometric_(0.5), 2.0, 2**0.5),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.25)), 0.25, 0.4330),
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.75), 0.75, 0.4330),
    "dropout": (lambda: F.dropout(torch.ones(N), 0.2), 1.0, 0.5),
    "native_dropout": (lambda: aten.native_dropout(torch.ones(N), 0.2, True)[0], 1.0, 0.5),
    "poisson": (lambda: torch.poisson(torch.full((N,), 4.0)), 4.0, 2.0),
    "binomial": (
        lambda: torch.binomial(torch.full((N,), 10.0), torch.full((N,), 0.5)),
        5.0,
        2.5**0.5,
    ),
    "gamma": (lambda: torch._standard_gamma(torch.full((N,), 4.0)), 4.0, 2.0),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 3.0]), N, replacement=True),
        0.75,
        0.4330,
    ),
    "randint": (lambda: torch.randint(0, 2, (N,)), 0.5, 0.5),
    "random_ from to": (lambda: torch.empty(N).random_(0, 2), 0.5, 0.5),
    "bfloat16 rand": (lambda: torch.rand(N, dtype=torch.bfloat16), 0.5, 1 / 12**0.5),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_the_distribution_is_right(name: str) -> None:
    draw, mean, deviation = MOMENTS[name]
    values = drawn(draw).double()
    assert values.mean().item() == pytest.approx(mean, abs=5 * deviation / N**0.5)
    assert values.std().item() == pytest.approx(deviation, rel=0.1)


def test_a_permutation_is_one() -> None:
    assert sorted(drawn(lambda: torch.randperm(100)).tolist()) == list(range(100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_uniform_number_is_never_one(dtype: torch.dtype) -> None:
    values = drawn(lambda: torch.rand(100_000, dtype=dtype))
    assert values.min() >= 0
    assert values.max() < 1


def test_dtype_shape_strides_and_device_are_the_plain_operations() -> None:
    x = torch.ones(2, 3, 4, 5, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    for function in (torch.rand_like, F.dropout, torch.bernoulli):
        plain, ours = function(x), drawn(lambda function=function: function(x))
        assert (ours.dtype, ours.shape, ours.stride()) == (plain.dtype, plain.shape, plain.stride())


# gradients


@pytest.mark.parametrize(
    "dropout",
    [lambda x: F.dropout(x, 0.4), lambda x: aten.native_dropout(x, 0.4, True)[0]],
    ids=["cpu", "device"],
)
def test_the_gradient_of_dropout_is_its_mask(
    dropout: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.ones(200, requires_grad=True)
    with matched_randomness(0):
        y = dropout(x)
        y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < (y == 0).sum() < 200


def test_a_sample_that_can_be_differentiated_is() -> None:
    concentration = torch.full((4,), 2.0, dtype=torch.float64, requires_grad=True)
    with matched_randomness(0):
        torch.distributions.Gamma(
            concentration, torch.ones(4, dtype=torch.float64)
        ).rsample().sum().backward()
    assert concentration.grad is not None
    assert (concentration.grad > 0).all()


def test_in_place_on_a_tensor_that_needs_a_gradient() -> None:
    x = torch.ones(5, requires_grad=True)
    with matched_randomness(0):
        y = (x * 2).exponential_()
        (y * x).sum().backward()
    assert torch.equal(x.grad, y.detach())  # exponential_ cuts the way through x * 2


def test_a_leaf_is_still_protected_and_init_works_without_grad() -> None:
    layer = nn.Linear(3, 3)
    with matched_randomness(0):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            layer.weight.normal_()
        nn.init.normal_(layer.weight)
    assert layer.weight.requires_grad
    assert layer.weight.is_leaf


def attention(dropout: float, **options: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    own = torch.Generator().manual_seed(0)
    leaves = [torch.randn(2, 2, 5, 8, generator=own, requires_grad=True) for _ in range(3)]
    return F.scaled_dot_product_attention(*leaves, dropout_p=dropout, **options), leaves


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.ones(5, 5).tril().bool()},
        {"attn_mask": torch.randn(5, 5)},
        {"scale": 0.3},
    ],
    ids=["plain", "causal", "bool mask", "float mask", "scale"],
)
def test_attention_with_little_dropout_is_nearly_attention_without(options: dict[str, Any]) -> None:
    (ours, leaves), (plain, plain_leaves) = (
        drawn(lambda: attention(1e-9, **options)),
        attention(0.0, **options),
    )
    torch.testing.assert_close(ours, plain)
    ours.sum().backward()
    plain.sum().backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], [leaf.grad for leaf in plain_leaves])


def test_attention_leaves_the_generator_as_a_devices_own_kernel_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plainly = randomness.without_dispatch

    def on_device(op: Any, *args: Any, **kwargs: Any) -> Any:
        """A fused kernel that draws other numbers, and more of them, than the mathematical form."""
        if op is not aten.scaled_dot_product_attention.default:
            return plainly(op, *args, **kwargs)
        plainly(torch.rand, 7)
        return plainly(op, *args[:4], 0.0, *args[5:], **kwargs)

    monkeypatch.setattr(randomness, "without_dispatch", on_device)
    monkeypatch.setattr(randomness, "_is_mathematical", lambda *_: False)
    torch.manual_seed(1)
    drawn(lambda: attention(0.5))
    found = torch.get_rng_state()
    torch.manual_seed(1)
    torch.rand(7)
    assert torch.equal(found, torch.get_rng_state())


def test_attention_dropout_under_autocast_has_the_plain_dtype_and_values() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, plain = drawn(lambda: attention(1e-9))[0], attention(0.0)[0]
    assert ours.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(ours, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("outside", [False, True], ids=["one block", "two blocks"])
def test_a_recomputed_dropout_has_the_mask_of_the_first_time(
    reentrant: bool, outside: bool
) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5)

    x = torch.ones(100, requires_grad=True)
    with matched_randomness(0):
        y = checkpoint(block, x, use_reentrant=reentrant)
        if outside:
            y = checkpoint(block, F.dropout(y, 0.1), use_reentrant=reentrant)
        y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < (y == 0).sum() < 100


@pytest.mark.parametrize("steps", [1, 2])
def test_the_mask_is_found_again_when_the_backward_follows_the_end_of_its_step(steps: int) -> None:
    x = torch.ones(100, requires_grad=True)
    with matched_randomness(0) as draws:
        assert draws is not None
        y = checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=False)
        for _ in range(steps):
            draws.end_step()
        y.sum().backward()
    assert torch.equal(x.grad, y.detach()) == (steps == 1)  # but not for ever: memory is bounded


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_attention_has_the_dropout_of_the_first_time(reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), 0.5)

    gradients = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=reentrant)):
        x = torch.linspace(-1, 1, 60).reshape(3, 5, 4).requires_grad_()
        with matched_randomness(0):
            run(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_dropout_inside_vmap_and_grad_keeps_working() -> None:
    x = torch.ones(50)
    with matched_randomness(0):
        gradient = torch.func.grad(lambda x: F.dropout(x, 0.5).sum())(x)
        batched = torch.func.vmap(lambda x: F.dropout(x, 0.5), randomness="different")(
            torch.ones(4, 50)
        )
    assert set(gradient.tolist()) == {0.0, 2.0}
    assert set(batched.ravel().tolist()) == {0.0, 2.0}
    assert not torch.equal(batched[0], batched[1])


@pytest.mark.filterwarnings("ignore:.*(prototype|beta)")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_draw_plainly(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
    with matched_randomness(0):
        parts = F.dropout(nested, 0.5).unbind()
    assert [part.shape for part in parts] == [(2, 4), (3, 4)]
    assert {value for part in parts for value in part.ravel().tolist()} <= {0.0, 2.0}


def test_fake_and_meta_tensors_draw_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert counted(lambda: F.dropout(torch.ones(3), 0.5)) == 0
    assert counted(lambda: torch.rand(3, device="meta")) == 0


def test_a_fused_operation_that_cannot_be_matched_is_named(tmp_path: Any) -> None:
    import accucompare as ac

    with ac.capture(nn.RReLU(), tmp_path / "out") as session:
        session._recorder._modules.named[""](torch.randn(9))
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert "rrelu_with_noise drew its random numbers on the device" in bundle.manifest.notes
        assert bundle.manifest.environment["random"] == "drawn on the CPU"


def test_a_torch_without_our_dispatch_key_still_captures_and_says_so(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import accucompare as ac

    monkeypatch.setattr(interception, "_KEY", "NoSuchKey")
    model = nn.Dropout(0.5)
    with ac.capture(model, tmp_path / "out"):
        model(torch.ones(3))
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert bundle.complete
        assert bundle.manifest.environment["random"] == "drawn on the device"
        assert any(
            "does not let random operations be matched" in note for note in bundle.manifest.notes
        )


def test_draws_are_told_apart_by_identity() -> None:
    assert Draws(1) != Draws(1)


def test_a_loop_that_seeds_again_draws_the_same_again() -> None:
    def twice() -> list[torch.Tensor]:
        return [(torch.manual_seed(7), F.dropout(torch.ones(64)))[1] for _ in range(2)]

    first, second = drawn(twice)
    assert torch.equal(first, second)


def test_checkpointed_segments_under_one_seed_have_the_gradients_of_their_own_masks() -> None:
    def gradients() -> list[tuple[torch.Tensor, torch.Tensor]]:
        inputs = [torch.arange(1.0, 33.0, requires_grad=True) for _ in range(2)]
        outputs = []
        for x in inputs:
            torch.manual_seed(7)
            outputs.append(checkpoint(lambda value: F.dropout(value) ** 2, x, use_reentrant=False))
        sum(output.sum() for output in outputs).backward()
        return [(output, x.grad) for output, x in zip(outputs, inputs, strict=True)]

    for output, gradient in drawn(gradients):
        assert torch.equal(output != 0, gradient != 0)


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
def test_uniform_numbers_never_reach_the_upper_bound(dtype: torch.dtype) -> None:
    numbers = drawn(lambda: torch.empty(200_000, dtype=dtype).uniform_(1, 2))
    assert (numbers.min() >= 1, numbers.max() < 2) == (True, True)


@pytest.mark.parametrize("count", [0, 1, 17, 623, 624, 625, 100_000])
@pytest.mark.parametrize("seed", [0, 7, 3_000_000_000, (1 << 63) - 1])
def test_the_compiled_draw_is_pytorch_s(count: int, seed: int) -> None:
    values = torch.empty(count)
    if not kernel.fill_uniform(seed, values.numpy()):
        pytest.skip("no kernel is built")
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(values, drawn)
    kernel.fill_uniform(seed, values.numpy(), 0.9)
    assert torch.equal(values, (drawn < 0.9).float())

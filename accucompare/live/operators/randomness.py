"""The same random numbers on every device and in every dtype: random operations draw on the CPU.

Device generators never match (an NPU's state is 16 bytes, a CPU's 5,056), and even CPUs differ in
how they fill a tensor. So during a capture each random operation first runs plainly, which leaves
all generators as in a plain run. Then its numbers are replaced by float32 draws on the CPU, from a
Mersenne Twister seeded with the seed and the operation's number.

Activation checkpointing restores the plain generators before it computes a forward again. A draw
then finds its number by their state, so a recomputed dropout mask equals the first one.

For a ``DTensor`` the numbers of the whole are drawn, of which each rank takes those of its part.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch.nn.attention import SDPBackend

from accucompare.bundle.format import SavedDraws, Shard
from accucompare.live.around import is_of_mesh
from accucompare.live.operators.dispatch import (
    intercepting,
    of_this_thread,
    register,
    registered_name,
    without_dispatch,
)
from accucompare.live.operators.random_state import get_state, set_state
from accucompare.live.values import local_part, seen_by_numpy
from accucompare.numbers import kernel as compiled
from accucompare.text import with_article

# how many uniform numbers a narrow type has between 0 and 1
_STEPS = {torch.bfloat16: 2.0**8, torch.float16: 2.0**11}
_aten = torch.ops.aten


@dataclass(eq=False)  # two captures may have drawn alike
class Draws:
    """The random operations of one capture."""

    seed: int
    count: int = 0  # how many draws there were
    # operations whose numbers still came from the device
    unmatched: set[str] = field(default_factory=set)
    # whether a step repeated the last one's draws, as generators were seeded again
    repeated: bool = False
    # gives the layout of a tensor, if there are several ranks
    shard_of: Callable[[torch.Tensor], Shard | None] | None = None
    # on several ranks, how many draws were for tensors whose layout is not known: they are drawn as
    # if the tensor were whole
    unplaced: int = 0
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _earlier: dict[bytes, int] = field(default_factory=dict)

    def generator(self, state: bytes) -> torch.Generator:
        """The generator of the draw that found the plain generator in this state; else the next.

        So a loop that seeds again, or a recomputation, draws the same numbers again, as it should.
        """
        number = self._numbers.get(state)
        if number is None and state in self._earlier:
            number, self.repeated = self._earlier[state], True
        if number is None:
            number = self.count
            self.count += 1
        self._numbers[state] = number
        return torch.Generator("cpu").manual_seed((self.seed * 1_000_003 + number) % (1 << 63))

    def end_step(self) -> None:
        """Forget the states of the step before; the ending step's backward may still come."""
        self._earlier, self._numbers = self._numbers, {}

    def saved(self) -> SavedDraws:
        """What the draws of the next step depend on. Call it between two steps."""
        return SavedDraws(
            self.count,
            {state.hex(): number for state, number in self._earlier.items()},
            self.repeated,
        )

    def restore(self, saved: SavedDraws) -> None:
        """Go on drawing from a saved state. Raises ValueError if it is damaged."""
        self.count, self.repeated = saved.count, saved.repeated
        self._earlier, self._numbers = (
            {bytes.fromhex(state): number for state, number in saved.numbers.items()},
            {},
        )


_active: list[tuple[int, Draws]] = []
_registered: list[bool] = []


@contextlib.contextmanager
def matched_randomness(seed: int) -> Iterator[Draws | None]:
    """Draw every random number of this thread on the CPU while the context lasts.

    Yields:
        The draws, or ``None`` if this version of torch does not let them be caught.
    """
    try:
        register_kernels()
        switch = contextlib.ExitStack()
        switch.enter_context(intercepting())
    except (AttributeError, RuntimeError, TypeError):
        yield None
        return
    draws = Draws(seed)
    entered = (threading.get_ident(), draws)
    _active.append(entered)
    try:
        with switch:
            yield draws
    finally:
        _active.remove(entered)


def register_kernels() -> None:
    """Let random operations be caught; call it first. Raises as ``register``."""
    if not _registered:
        register(_kernels())
        _registered.append(True)


def _kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "uniform_", _uniform_
    for name in ("normal_", "exponential_", "geometric_", "log_normal_", "cauchy_"):
        yield name, _filling(getattr(_aten, name).default)
    for overload in ("default", "from", "to"):
        op = getattr(_aten.random_, overload)
        yield registered_name(op), _filling(op)
    yield "bernoulli_.float", _bernoulli(_aten.bernoulli_.float, default=0.5)
    for op in (_aten.bernoulli_.Tensor, _aten.bernoulli.p, _aten.bernoulli.out):
        yield registered_name(op), _bernoulli(op)
    yield "native_dropout", _native_dropout
    yield "scaled_dot_product_attention", _scaled_dot_product_attention
    yield "randperm.generator_out", _randperm_out
    for op in (
        _aten.multinomial.default,
        _aten.poisson.default,
        _aten.binomial.default,
        _aten._standard_gamma.default,
        _aten._sample_dirichlet.default,
        _aten.normal.Tensor_float,
        _aten.normal.float_Tensor,
        _aten.normal.Tensor_Tensor,
    ):
        yield registered_name(op), _on_cpu(op)
    for op in (
        _aten._cudnn_rnn.default,
        _aten.rrelu_with_noise.default,
        _aten.rrelu_with_noise_.default,
        _aten._fused_dropout.default,
    ):
        yield registered_name(op), _unmatched(op)


def _generator_for(
    tensor: torch.Tensor, given: torch.Generator | None, in_parts: bool = True
) -> torch.Generator | None:
    """The generator to draw from; ``None`` if the plain numbers stay.

    They stay for a user's own CPU generator, which agrees on every device, and without plain data.
    ``in_parts``: whether ``_of_part`` is asked, so that a DTensor can be drawn for."""
    draws = of_this_thread(_active)
    if draws is None or (given is not None and given.device.type == "cpu"):
        return None
    placed = in_parts and _shard_of(tensor) is not None
    if not (placed and is_of_mesh(tensor)) and not _is_plain(tensor, draws):
        return None
    # a number has no parts: a loader draws its seed so
    draws.unplaced += draws.shard_of is not None and not placed and tensor.dim() > 0
    state = given.get_state() if given is not None else get_state(tensor.device)
    return draws.generator(xxhash.xxh3_128_digest(state.numpy()))


def _is_plain(tensor: torch.Tensor, draws: Draws) -> bool:
    """Whether data can be overwritten: no subclass with own dispatch, no torch.func, not meta."""
    # DTensor, FakeTensor
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        draws.unmatched.add(f"an operation on {with_article(type(tensor).__name__)}")
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        draws.unmatched.add("an operation inside torch.func")
        return False
    return not (tensor.is_meta or tensor.is_nested)


def _uniform(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """The first numbers of a fresh generator."""
    options = {"dtype": torch.float32, "device": "cpu"}
    drawn: torch.Tensor = without_dispatch(torch.empty, shape, **options)
    if not compiled.fill_uniform(generator.initial_seed(), seen_by_numpy(drawn)):
        drawn = without_dispatch(torch.rand, shape, generator=generator, **options)
    return drawn


def _shard_of(tensor: torch.Tensor) -> Shard | None:
    draws = of_this_thread(_active)
    return None if draws is None or draws.shard_of is None else draws.shard_of(tensor)


def _of_part(tensor: torch.Tensor, draw: Callable[[torch.Size], torch.Tensor]) -> torch.Tensor:
    """What ``draw`` gives for a tensor's shape; of the whole's, if it is a part, that part."""
    shard = _shard_of(tensor)
    if shard is None:
        return draw(tensor.shape)
    whole, shape = draw(torch.Size(shard.shape)), local_part(tensor).shape
    part = torch.empty(shape, dtype=whole.dtype, device=whole.device)
    for where, start in shard.boxes(tuple(shape)):
        box = part[where]
        box.copy_(whole[tuple(slice(at, at + n) for at, n in zip(start, box.shape, strict=True))])
    return part


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Replace the plain values as data: to autograd, the plain operation made the tensor."""
    local_part(tensor.detach()).copy_(values)
    return tensor


def _filling(op: Any) -> Callable[..., torch.Tensor]:
    """For ``tensor.normal_()`` and its like."""
    # random_'s range depends on the dtype, so it is drawn in the tensor's own
    wide = "random_" not in str(op)

    def kernel(
        tensor: torch.Tensor, *args: Any, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        ours = _generator_for(tensor, generator)
        without_dispatch(op, tensor, *args, generator=generator)
        if ours is None:
            return tensor
        dtype = torch.float32 if wide and tensor.is_floating_point() else tensor.dtype
        return _overwrite(
            tensor,
            _of_part(
                tensor,
                lambda shape: without_dispatch(
                    op, torch.empty(shape, dtype=dtype, device="cpu"), *args, generator=ours
                ),
            ),
        )

    return kernel


def _uniform_(
    tensor: torch.Tensor,
    low: float = 0.0,
    high: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    ours = _generator_for(tensor, generator)
    without_dispatch(_aten.uniform_.default, tensor, low, high, generator=generator)
    if ours is None:
        return tensor
    values = _of_part(tensor, lambda shape: _uniform(shape, ours))
    if tensor.dtype in _STEPS:  # rounding to nearest would often give `high`, which is never drawn
        values = values.mul_(_STEPS[tensor.dtype]).floor_().div_(_STEPS[tensor.dtype])
    values = values.mul_(high - low).add_(low).to(tensor.dtype)
    return _overwrite(tensor, values.masked_fill_(values >= high, low) if high > low else values)


def _bernoulli(op: Any, default: float | None = None) -> Callable[..., torch.Tensor]:
    """For ``bernoulli``. ``default``: the probability; ``None`` if the tensor holds them."""

    def kernel(
        tensor: torch.Tensor,
        *args: Any,
        generator: torch.Generator | None = None,
        **out: torch.Tensor,
    ) -> torch.Tensor:
        ours = _generator_for(tensor, generator)
        result: torch.Tensor = without_dispatch(op, tensor, *args, generator=generator, **out)
        if ours is None:
            return result
        p = args[0] if args else tensor if default is None else default
        whole = _shard_of(tensor) is None
        if whole and isinstance(p, float) and result.is_cpu and result.dtype is torch.float32:
            values = result.detach()
            if values.is_contiguous() and compiled.fill_uniform(
                ours.initial_seed(), seen_by_numpy(values), p
            ):
                return result
        return _overwrite(
            result,
            _of_part(tensor, lambda shape: _uniform(shape, ours))
            < (local_part(p.detach()).cpu() if isinstance(p, torch.Tensor) else p),
        )

    return kernel


def _native_dropout(
    tensor: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    ours = _generator_for(tensor, None) if train is not False and p > 0 else None
    result: tuple[torch.Tensor, torch.Tensor] = without_dispatch(
        _aten.native_dropout.default, tensor, p, train
    )
    if ours is None:
        return result
    kept = (_of_part(tensor, lambda shape: _uniform(shape, ours)) < 1 - p).to(tensor.device)
    if is_of_mesh(tensor):
        kept = _overwrite(result[1], kept)
    return tensor * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def _scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Dropout inside fused kernels cannot be matched; the mathematical form calls an operation."""
    plain = _aten.scaled_dot_product_attention.default
    inputs: tuple[Any, ...] = (query, key, value, attn_mask, dropout_p, is_causal)
    draws = of_this_thread(_active)
    if dropout_p == 0 or draws is None or not _is_plain(query, draws):
        return without_dispatch(plain, *inputs, **options)  # type: ignore[no-any-return]
    if _is_mathematical(inputs, options):  # its dropout is caught on the way
        return _mathematical(inputs, options)
    before = get_state(query.device)
    result = _advance_generators(plain, *inputs, **options)
    if torch.is_autocast_enabled(query.device.type):
        inputs = (*(tensor.to(result.dtype) for tensor in inputs[:3]), *inputs[3:])
    after = get_state(query.device)
    # the dropout inside is known by the state that the plain operation found
    set_state(query.device, before)
    output = _mathematical(inputs, options)
    set_state(query.device, after)
    return output


def _is_mathematical(inputs: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the plain operation uses the mathematical form, too, as a CPU's does."""
    if inputs[0].device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return torch._fused_sdp_choice(*inputs, **options) == SDPBackend.MATH.value


def _mathematical(inputs: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor:
    query, key, value, attn_mask, dropout_p, is_causal = inputs
    if attn_mask is not None:
        attn_mask = _additive(attn_mask, query.dtype)
    options = {name: option for name, option in options.items() if option not in (None, False)}
    math = _aten._scaled_dot_product_attention_math.default
    with torch.autocast(query.device.type, enabled=False):
        output: torch.Tensor = math(query, key, value, attn_mask, dropout_p, is_causal, **options)[
            0
        ]
    return output


def _advance_generators(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator only to advance the generators, as a plain run would. It is not the model's.

    Whoever looks for the source line of an operator inside meets this function's frame, which is
    not in ``RUN_FOR_THE_MODEL``.
    """
    return without_dispatch(op, *args, **kwargs)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An attention mask in its additive form."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))
    return mask.to(dtype)


def _randperm_out(n: int, *, generator: torch.Generator | None, out: torch.Tensor) -> torch.Tensor:
    ours = _generator_for(out, generator)
    without_dispatch(_aten.randperm.generator_out, n, generator=generator, out=out)
    if ours is None:
        return out
    return _overwrite(out, without_dispatch(torch.randperm, n, generator=ours, device="cpu"))


def _on_cpu(op: Any) -> Callable[..., torch.Tensor]:
    """For operations with tensors as parameters: run them again on the CPU, in float32."""

    def kernel(*args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        generators = [arg for arg in args if isinstance(arg, torch.Generator)]
        given = generator or (generators[0] if generators else None)
        ours = _generator_for(tensors[0], given, in_parts=False)
        args = tuple(arg for arg in args if not isinstance(arg, torch.Generator))
        result: torch.Tensor = without_dispatch(op, *args, generator=given, **kwargs)
        if ours is None:
            return result
        hosts = [_host(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        drawn: torch.Tensor = without_dispatch(op, *hosts, generator=ours, **kwargs)
        return drawn.to(result.device, result.dtype)

    return kernel


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().float() if tensor.is_floating_point() else tensor.cpu()


def _unmatched(op: Any) -> Callable[..., Any]:
    """For operations that draw inside a fused kernel: they are listed in the bundle."""
    names = [argument.name for argument in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        draws = of_this_thread(_active)
        if draws is not None and (
            given.get("dropout") or given.get("training") or "dropout" in registered_name(op)
        ):
            draws.unmatched.add(registered_name(op))
        return without_dispatch(op, *args, **kwargs)

    return kernel


#: Code of the kernels that run the model's own operators. All else that runs here is part of a
#: draw.
RUN_FOR_THE_MODEL = (
    _scaled_dot_product_attention.__code__,
    _mathematical.__code__,
    _unmatched(_aten._cudnn_rnn.default).__code__,
)

"""The extrema of tensors, computed where they lie, and brought to the host all at once.

A NaN makes both extrema NaN, and an Inf is one of the two. So one pass over a tensor shows whether
it is finite and how near to its type's limit it comes. Nothing is read until ``Meter.fetch``, which
waits for a device once."""

from __future__ import annotations

import functools
import math
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from accucompare.bundle.format import Layout
from accucompare.findings.log import TensorRange, number
from accucompare.live.values import dtype_name, layout_of, outside_transforms, writes_into
from accucompare.numbers import DTYPES, kernel

#: Elements per tensor sampled for underflow: shares are known to within 2 percentage points.
_SAMPLE = 4096
#: Elements up to which the kernel is faster than PyTorch's dispatcher alone.
_SMALL = 2048
#: Elements up to which it also counts faster.
_COUNTED = 8192
#: Elements up to which it finds a range faster than PyTorch; of float32 any number, unless PyTorch
#: has more threads for it than this: for the extrema alone, and with the smallest magnitude.
_LOOKED_AT = {torch.float32: 1 << 15, torch.float64: 1 << 13, torch.float16: 1 << 13}
_LOOKED_AT[torch.bfloat16] = 1 << 14
_THREADS, _THREADS_FOR_FRAMES = 1, 4
_PLAIN_CLASSES = frozenset((torch.Tensor, nn.Parameter))
_PLAIN_TYPES = frozenset(_LOOKED_AT)
#: Types that hold neither NaN nor Inf.
_EXACT_TYPES = frozenset(
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
)
_name_of = functools.cache(dtype_name)
#: Elements of a block that fits a processor's cache.
_BLOCK = 1 << 18


class Extrema:
    """The extrema of one tensor or one Python number.

    Attributes:
        low, high: the smallest and the largest value; NaN if there is one, or until they are read.
        abs_min, nan, inf: the smallest magnitude and the numbers of NaN and Inf, if asked for.
        zero, subnormal: the shares of a sample that are zero and subnormal, if asked for.
    """

    __slots__ = (
        "abs_min",
        "dtype",
        "high",
        "inf",
        "low",
        "nan",
        "shape",
        "subnormal",
        "waiting",
        "zero",
    )

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.low = self.high = math.nan
        self.abs_min: float | None = None
        self.nan: float | None = None
        self.inf: float | None = None
        self.zero: float | None = None
        self.subnormal: float | None = None
        self.waiting: dict[str, torch.Tensor] = {}  # by attribute, tensors of one element

    @property
    def finite(self) -> bool:
        return -math.inf < self.low <= self.high < math.inf  # False with a NaN

    def range_of(self, role: str, path: str) -> TensorRange:
        """The extrema as an event shows them."""
        return TensorRange(
            role,
            path,
            self.dtype,
            self.shape,
            number(self.low),
            number(self.high),
            None if self.abs_min is None else number(self.abs_min),
            *self._counts(),
        )

    def _counts(self) -> tuple[int | None, int | None]:
        if self.finite:
            return 0, 0
        return None if self.nan is None else int(self.nan), None if self.inf is None else int(
            self.inf
        )


class _Known(NamedTuple):
    """A tensor that was looked at: which, at which version, and for what."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    frames: bool
    underflow: bool
    extrema: Extrema


class Meter:
    """Looks at tensors, at each one once while it holds the same values."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._waiting: list[Extrema] = []

    def look(self, value: Any, frames: bool = False, underflow: bool = False) -> Extrema | None:
        """Begin to find the extrema of a tensor or a float. Returns what ``fetch`` will fill in;
        ``None`` for what can hold neither NaN nor Inf, or no data.

        Args:
            frames: also find the smallest magnitude, and count NaN and Inf.
            underflow: also find the shares of values that are zero or subnormal.
        """
        if type(value) not in _PLAIN_CLASSES:
            if type(value) is float:
                return _of_number(value)
            if not isinstance(value, torch.Tensor):
                return None
        elif value.dtype in _EXACT_TYPES:
            return None
        version = writes_into(value)
        known = self._known.get(id(value))
        if (
            known is not None
            and known.version == version >= 0
            and known.tensor() is value
            and (known.frames or not frames)
            and (known.underflow or not underflow)
        ):
            return known.extrema
        extrema = _of_small(value, frames, underflow)
        if extrema is None:
            extrema = self._begin(value, frames, underflow)
        if extrema is not None:
            self._known[id(value)] = _Known(weakref.ref(value), version, frames, underflow, extrema)
        return extrema

    def _begin(self, value: torch.Tensor, frames: bool, underflow: bool) -> Extrema | None:
        with outside_transforms(), torch.no_grad():
            data = data_of(value)
            if data is None:
                return None
            extrema = Extrema(
                dtype_name(value.dtype), tuple(data.shape if value.is_nested else value.shape)
            )
            distinct = _distinct(data)
            low, high = torch.aminmax(distinct)
            extrema.waiting = {"low": low, "high": high}
            if frames:
                extrema.waiting.update(
                    _details(distinct, low, high, data.numel() // distinct.numel())
                )
            if underflow:
                extrema.waiting.update(_small(distinct, value.dtype))
            self._wait_for(extrema)
        return extrema

    def norm(self, tensors: Iterable[torch.Tensor]) -> list[Extrema]:
        """Begin to find the L2 norms of tensors, as ``low`` and ``high``; not finite if a tensor is
        not."""
        found = []
        alike: dict[tuple[torch.device, torch.dtype], list[tuple[Extrema, torch.Tensor]]] = (
            defaultdict(list)
        )
        for tensor in tensors:
            data = tensor if _is_plain(tensor) else data_of(tensor.detach())
            extrema = Extrema(_name_of(tensor.dtype), tuple(tensor.shape))
            found.append(extrema)
            if data is None:
                extrema.low = extrema.high = 0.0
            else:
                alike[data.device, data.dtype].append((extrema, data))
        for (device, dtype), pairs in alike.items():
            with torch.no_grad():
                if dtype in (torch.float32, torch.float64):
                    norms = torch._foreach_norm([data for _, data in pairs])
                else:  # in half types a norm soon overflows
                    norms = tuple(
                        torch.linalg.vector_norm(data, dtype=torch.float32) for _, data in pairs
                    )
                if device.type == "cpu":
                    for (extrema, _), value in zip(
                        pairs, torch.stack(norms).numpy().tolist(), strict=True
                    ):
                        extrema.low = extrema.high = value
                    continue
            for (extrema, _), norm in zip(pairs, norms, strict=True):
                extrema.waiting = {"low": norm, "high": norm}
                self._waiting.append(extrema)
        return found

    def later(self, low: torch.Tensor, high: torch.Tensor | None = None) -> Extrema:
        """Leave ``low`` and ``high``, one-element tensors on any device, to ``fetch``."""
        extrema = Extrema(dtype_name(low.dtype), ())
        extrema.waiting = {"low": low, "high": low if high is None else high}
        with outside_transforms(), torch.no_grad():
            self._wait_for(extrema)
        return extrema

    def _wait_for(self, extrema: Extrema) -> None:
        """Leave computed results to ``fetch``.

        Results in host memory are read at once, past PyTorch's dispatcher: kept to the end of a
        step, thousands of one-element tensors would fragment the model's memory."""
        for name, tensor in list(extrema.waiting.items()):
            if tensor.device.type == "cpu":
                setattr(
                    extrema,
                    name,
                    float((tensor.double() if tensor.dtype is torch.bfloat16 else tensor).numpy()),
                )
                del extrema.waiting[name]
        if extrema.waiting:
            self._waiting.append(extrema)

    def fetch(self) -> None:
        """Fill in everything looked at since the last reading; waits for each device once."""
        alike: dict[tuple[torch.device, torch.dtype], list[tuple[Extrema, str, torch.Tensor]]] = (
            defaultdict(list)
        )
        for extrema in self._waiting:
            for name, tensor in extrema.waiting.items():
                alike[tensor.device, tensor.dtype].append((extrema, name, tensor))
        for parts in alike.values():
            values = (
                torch.stack([tensor for *_, tensor in parts]).to("cpu").to(torch.float64).tolist()
            )
            for (extrema, name, _), value in zip(parts, values, strict=True):
                setattr(extrema, name, value)
        for extrema in self._waiting:
            extrema.waiting = {}
        self._waiting.clear()

    def forget_one(self, value: Any) -> None:
        """Look at a tensor anew when it comes again."""
        self._known.pop(id(value), None)

    def forget(self) -> None:
        """Forget the tensors of the step that ends."""
        self._known.clear()


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a parameter's values exist; not before a lazy module's first call, or freed by
    FSDP."""
    if is_lazy(tensor) or tensor.is_meta:
        return False
    return (
        type(tensor.data) is not torch.Tensor
        or tensor.layout is not torch.strided
        or tensor.untyped_storage().size() > 0
    )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside a function transform's wrapper: under ``vmap`` that of all samples."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_hidden(value: Any) -> bool:
    """Whether a value that ``Meter.look`` cannot look at may hold NaN or Inf."""
    if not isinstance(value, torch.Tensor) or value.is_meta or value.is_quantized:
        return False
    return (value.is_floating_point() or value.is_complex()) and (
        value.is_nested or value.numel() > 0
    )


def look_now(value: Any) -> Extrema | None:
    """The extrema of a tensor with all details, at once."""
    meter = Meter()
    extrema = meter.look(value, frames=True)
    meter.fetch()
    return extrema


def norm_now(tensor: torch.Tensor) -> float:
    """A tensor's L2 norm, at once."""
    meter = Meter()
    (extrema,) = meter.norm([tensor])
    meter.fetch()
    return extrema.low


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers lie in memory, or on a device, as they are."""
    return (
        type(tensor) in _PLAIN_CLASSES
        and tensor.dtype in _PLAIN_TYPES
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.numel() > 0
        and not tensor.is_meta
        and not tensor.is_neg()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.untyped_storage().size() > 0
    )


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in host memory and costs less than one call of PyTorch."""
    return tensor.is_cpu and _is_plain(tensor) and tensor.numel() <= _SMALL


def known(low: float, high: float | None = None) -> Extrema:
    """Extrema that are computed already."""
    extrema = Extrema("float64", ())
    extrema.low, extrema.high = low, low if high is None else high
    return extrema


def _of_small(tensor: torch.Tensor, frames: bool, underflow: bool) -> Extrema | None:
    """The extrema of a small tensor in host memory, past PyTorch's slower dispatcher."""
    if not (tensor.is_cpu and _is_plain(tensor)):
        return None
    count = tensor.numel()
    if count > (_SMALL if underflow else _LOOKED_AT[tensor.dtype]) and (
        underflow
        or tensor.dtype is not torch.float32
        or torch.get_num_threads() > (_THREADS_FOR_FRAMES if frames else _THREADS)
    ):
        return None
    if not tensor.is_contiguous() and not _has_no_gaps(tensor):
        return None
    address, extrema = tensor.data_ptr(), Extrema(_name_of(tensor.dtype), tuple(tensor.shape))
    ends = None if underflow else kernel.range_at(address, count, extrema.dtype)
    if ends is not None:
        extrema.low, extrema.high, smallest = ends
        if not frames:
            return extrema
        if extrema.finite:
            extrema.abs_min, extrema.nan, extrema.inf = smallest, 0.0, 0.0
            return extrema
    # what is not finite is counted, of large tensors by PyTorch
    if count > _COUNTED or (found := kernel.extrema_at(address, count, extrema.dtype)) is None:
        return None
    low, high, smallest, nan, inf, zero, subnormal = found
    if not nan:
        extrema.low, extrema.high = low, high
    if frames:
        extrema.abs_min = math.nan if nan else smallest
        extrema.nan, extrema.inf = float(nan), float(inf)
    if underflow:  # the sample is all of it
        extrema.zero, extrema.subnormal = zero / count, subnormal / count
    return extrema


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a permutation of a contiguous one: each value once, one after another."""
    apart = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != apart:
            return False
        apart *= size
    return True


def _of_number(value: float) -> Extrema:
    extrema = Extrema("float64", ())
    extrema.low = extrema.high = value
    extrema.abs_min, extrema.nan, extrema.inf = (
        abs(value),
        float(math.isnan(value)),
        float(math.isinf(value)),
    )
    return extrema


def data_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's own numbers as a real floating tensor; ``None`` if it has none to reduce."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    tensor = plain(tensor)
    if dtype_name(tensor.dtype) not in DTYPES:  # such as one with two numbers per byte
        return None
    if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
        tensor = tensor.to_local()
    tensor = tensor.detach()
    layout = layout_of(tensor)
    if layout is Layout.SPARSE:
        # coalesced: entries at the same place add up
        tensor = (
            tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
        )
    elif layout is Layout.NESTED:
        tensor = tensor.values()
    elif layout is not Layout.STRIDED:
        return None
    elif tensor.layout is not torch.strided:  # oneDNN's own order
        tensor = tensor.to_dense()
    if tensor.numel() == 0 or not has_memory(tensor):
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() == 1:  # fp8 has no reductions
        tensor = tensor.to(torch.float32)
    return tensor if tensor.is_contiguous() else _in_memory_order(tensor)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory order: reduces a transposed matrix in a fifteenth of the time."""
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))


def _distinct(data: torch.Tensor) -> torch.Tensor:
    """The distinct memory of an expanded tensor, as gradients often are: every value once."""
    if data.is_contiguous():
        return data
    for dimension, (size, stride) in enumerate(zip(data.shape, data.stride(), strict=True)):
        if stride == 0 and size > 1:
            data = data.narrow(dimension, 0, 1)
    return data


def _details(
    data: torch.Tensor, low: torch.Tensor, high: torch.Tensor, times: int
) -> dict[str, torch.Tensor]:
    """The smallest magnitude; the numbers of NaN and Inf, unless they are seen to be 0 without
    waiting for a device. ``times``: how often each value is there."""
    found = {"abs_min": _abs_min(data)}
    if data.device.type != "cpu" or not (math.isfinite(low.item()) and math.isfinite(high.item())):
        found |= {"nan": data.isnan().sum() * times, "inf": data.isinf().sum() * times}
    return found


def _abs_min(data: torch.Tensor) -> torch.Tensor:
    """The smallest magnitude; block by block on the CPU: memory for all costs nine times the
    rest."""
    if data.device.type != "cpu" or data.numel() <= 4 * _BLOCK or not data.is_contiguous():
        return data.abs().amin()
    magnitudes = torch.empty(_BLOCK, dtype=data.dtype)
    blocks = torch.split(data.view(-1), _BLOCK)
    return torch.stack(
        [torch.abs(block, out=magnitudes[: block.numel()]).amin() for block in blocks]
    ).amin()


def sample_of(data: torch.Tensor) -> torch.Tensor:
    """Up to about 2 x ``_SAMPLE`` values, at places given by the shape: a view if there are no
    gaps."""
    flat = data.permute(sorted(range(data.dim()), key=data.stride, reverse=True)).reshape(-1)
    apart = max(1, flat.numel() // _SAMPLE)
    while math.gcd(apart, flat.numel()) > 1:  # otherwise it might be one column of a matrix
        apart -= 1
    return flat[::apart]


def _small(data: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The shares of a sample that are zero and subnormal."""
    sample = sample_of(data).abs()
    zero = sample == 0
    subnormal = (sample < torch.finfo(dtype.to_real() if dtype.is_complex else dtype).tiny) & ~zero
    return {"zero": zero.float().mean(), "subnormal": subnormal.float().mean()}

"""From a live tensor to bits on the host, where nothing can overwrite them later."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from accucompare import devices
from accucompare.bundle.format import Layout
from accucompare.bundle.writing import LENT, BundleWriter, Lease, Sketched
from accucompare.live.values import device_sketch
from accucompare.live.values.nested import Shapes, joined
from accucompare.live.values.values import describe_value, telling_name
from accucompare.numbers import DTYPES, Array, DType, Statistics, digest, summarize

_LOGGER = logging.getLogger(__name__)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# bytes; finding a block of memory for reuse takes longer than copying one of them
_SMALL = 16 << 10
_LARGE = 32 << 20  # bytes; starting a thread takes as long as copying one of them
_SHARED = 4 << 20  # bytes; starting a thread takes as long as summarizing one of them
# bytes; starting a hundred kernels takes as long as copying one of them and sketching it here
_WORTH_A_SKETCH = 1 << 20


class HostValue(msgspec.Struct, frozen=True, gc=False):
    """A value as a record keeps it: its bits, or why there are none."""

    array: Array | None  # its bits; ``None`` if there are none, or if the writer has them already
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    detail: str = ""
    # of the bits, if known; or of a string, which has no array but can be compared
    digest: str | None = None
    statistics: Statistics | None = None  # of the bits, if known
    lease: Lease | None = None  # the writer's memory that holds the array
    # call it before reading the array; a device may still be filling it
    ready: Callable[[], None] | None = None
    # of a nested tensor, whose values are one array: the shapes of its parts
    components: Shapes | None = None
    # if the device makes a sketch and there is no array: returns that after ``ready``
    sketched: Callable[[], Sketched] | None = None


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name without ``torch.``"""
    return str(dtype).removeprefix("torch.")


class Bits(Enum):
    """What is known of a tensor's bits.

    ``NEW``: probably no record of the step has them, so they need not be digested before they are
    copied. ``OURS``: nobody else writes into them any more, so they need not be copied either.
    """

    ANY = "any"
    NEW = "new"
    OURS = "ours"


def to_host(
    tensor: torch.Tensor,
    writer: BundleWriter | None = None,
    needed: bool = False,
    bits: Bits = Bits.ANY,
) -> HostValue:
    """Bring a tensor's bits to the host; never raises.

    Bits that are on the host already are digested in place, and copied only if the writer does not
    have equal bits from this step. Their content decides: PyTorch does not count all writes into a
    tensor (``.data``, ``.numpy()``, other libraries). For a writer that keeps no tensors it is
    summarized here, unless the array is ``needed``. Without a writer, the array may be the tensor's
    own memory. For a writer that keeps sketches, a device sketches its large tensors itself, if it
    can.

    A nested tensor comes as one array of its values and the shapes of its components. A tensor
    without plain data (sparse, meta, quantized, inside vmap), or that cannot be copied, comes
    without an array.
    """
    dtype = dtype_name(tensor.dtype)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        with outside_transforms():
            return to_host(tensor, writer, needed, bits)
    try:
        array = _in_place(tensor)
        if array is None:
            layout = layout_of(tensor)
            if layout is Layout.NESTED:
                return _nested(tensor, writer, needed)
            if layout is not Layout.STRIDED or dtype not in DTYPES:
                return _without_data(tensor, dtype, layout)
            if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                raise RuntimeError("a transform of torch.func has wrapped it")
            with torch.no_grad():
                tensor = _plain(tensor.detach())
                array = _in_place(tensor)
                if array is None:
                    if type(tensor) in _PLAIN:
                        _refuse_without_memory(tensor)
                    devices.backend(tensor.device.type).refuse_in_graph(tensor.device)
                    made = None if writer is None or needed else _sketched(tensor, writer)
                    return made or _copied(tensor, writer)
        if writer is None or bits is Bits.OURS:
            return HostValue(array, array.shape, dtype, Layout.STRIDED)
        return _on_host(array, dtype, writer, needed, bits)
    except Exception as error:  # a tensor subclass may raise anything: the record says what
        return HostValue(
            None, (), dtype, Layout.UNREADABLE, f"{type(error).__name__}: {error}"[:200]
        )


def _without_data(tensor: torch.Tensor, dtype: str, layout: Layout) -> HostValue:
    if layout is Layout.BATCHED:
        return HostValue(None, (), dtype, layout)
    shape = tuple(tensor.shape)
    if layout is not Layout.STRIDED:
        return HostValue(None, shape, dtype, layout)
    return HostValue(None, shape, dtype, Layout.UNREADABLE, "accucompare does not know this dtype")


def _on_host(array: Array, dtype: str, writer: BundleWriter, needed: bool, bits: Bits) -> HostValue:
    """What the writer lacks of a tensor whose bits are in host memory, as ``array``."""
    shape = array.shape
    if bits is Bits.NEW:
        if writer.wants_values:
            return _kept(array, dtype, None, writer)
        if not needed and writer.wants_statistics and array.nbytes >= _SHARED:
            known = _digested_and_summarized(array, DTYPES[dtype])
            return HostValue(None, shape, dtype, Layout.STRIDED, **known)
    checksum = digest(array, helped=True)
    if not writer.has(dtype, shape, checksum):
        if writer.wants_values or needed:
            return _kept(array, dtype, checksum, writer)
        if writer.wants_statistics:
            statistics = summarize(array, DTYPES[dtype], helped=True)
            return HostValue(
                None, shape, dtype, Layout.STRIDED, digest=checksum, statistics=statistics
            )
    return HostValue(None, shape, dtype, Layout.STRIDED, digest=checksum)


def _digested_and_summarized(array: Array, dtype: DType) -> dict[str, Any]:
    """The digest and the statistics of an array, computed by two threads."""
    found: list[Statistics] = []
    helper = threading.Thread(target=lambda: found.append(summarize(array, dtype)), daemon=True)
    helper.start()
    checksum = digest(array)
    helper.join()
    return {"digest": checksum, "statistics": found[0] if found else summarize(array, dtype)}


def _kept(array: Array, dtype: str, checksum: str | None, writer: BundleWriter) -> HostValue:
    """A copy of bits that are in host memory."""
    shape = array.shape
    if array.nbytes <= _SMALL:
        return HostValue(array.copy(), shape, dtype, Layout.STRIDED, digest=checksum)
    lease = writer.take(array.nbytes, devices.backend("cpu").host_memory)
    assert lease.block is not None
    kept = _as_array(lease.block, dtype, shape)
    _copy(array, kept)
    return HostValue(kept, shape, dtype, Layout.STRIDED, digest=checksum, lease=lease)


def _nested(tensor: torch.Tensor, writer: BundleWriter | None, needed: bool) -> HostValue:
    """A nested tensor's values in one array; without array if they have no plain data."""
    with torch.no_grad():
        values, components = joined(tensor)
    host = to_host(values, writer, needed)
    known = host.layout is Layout.STRIDED
    return msgspec.structs.replace(
        host,
        layout=Layout.NESTED if known else host.layout,
        components=components if known else None,
    )


def _copied(tensor: torch.Tensor, writer: BundleWriter | None) -> HostValue:
    """A copy of a tensor that is on a device or not contiguous. The writer digests it."""
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    backend = devices.backend(tensor.device.type)
    nbytes = tensor.numel() * tensor.element_size()
    lease = None if writer is None else writer.take(nbytes, backend.host_memory)
    try:
        block = np.empty(nbytes, np.uint8) if lease is None else lease.block
        assert block is not None
        ready = backend.copy_to_host(tensor, torch.from_numpy(block).view(tensor.dtype).view(shape))
        if ready is not None and lease is None:
            ready()
        return HostValue(
            _as_array(block, dtype, shape),
            shape,
            dtype,
            Layout.STRIDED,
            lease=lease,
            ready=lease and ready,
        )
    except BaseException:
        if lease is not None:
            lease.release()
        raise


def _sketched(tensor: torch.Tensor, writer: BundleWriter) -> HostValue | None:
    """What the device makes of a tensor instead of its values; ``None``: copy the values."""
    dtype = dtype_name(tensor.dtype)
    size = writer.sketch_size
    backend = devices.backend(tensor.device.type)
    if size is None or tensor.numel() * tensor.element_size() < max(_WORTH_A_SKETCH, 8 * size):
        return None
    if backend.SKETCHES_IN is None or not device_sketch.can_sketch(tensor, backend.SKETCHES_IN):
        return None
    try:
        packed, made = device_sketch.begin_sketch(tensor, size, backend.SKETCHES_IN)
    except (RuntimeError, TypeError) as error:  # no memory there, or no such operator
        _LOGGER.debug(
            "a tensor of %s is copied, for no sketch could be made there: %s", tensor.device, error
        )
        return None
    lease = writer.take(packed.nbytes, backend.host_memory)
    try:
        block = lease.block
        assert block is not None
        ready = backend.copy_to_host(packed, torch.from_numpy(block))
    except BaseException:
        lease.release()
        raise
    shape = tuple(tensor.shape)
    return HostValue(
        None, shape, dtype, Layout.STRIDED, lease=lease, ready=ready, sketched=lambda: made(block)
    )


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Let what is computed meanwhile be no part of the transforms of torch.func that are
    running."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


def copy_of(tensor: torch.Tensor, lend: Callable[[int], Array]) -> torch.Tensor:
    """A copy of our own on the same device. ``lend`` gives memory for a large one on the host."""
    tensor = tensor.detach()
    if (local := local_part(tensor)) is not tensor:
        return with_local_part(tensor, copy_of(local, lend))
    array = _in_place(tensor)
    if array is None or array.nbytes <= _SMALL:
        return tensor.clone()
    block = lend(array.nbytes)
    _copy(array, _as_array(block, dtype_name(tensor.dtype), array.shape))
    return torch.from_numpy(block).view(tensor.dtype).view(tensor.shape)


def added(one: Any, other: Any, lend: Callable[[int], Array]) -> Any:
    """The sum of two tensors. ``lend`` gives memory for a large one on the host."""
    nbytes = one.numel() * one.itemsize
    if (
        nbytes <= _SMALL
        or (one.dtype, one.shape) != (other.dtype, other.shape)
        or _in_place(one) is None
        or _in_place(other) is None
    ):
        return one + other
    result = torch.from_numpy(lend(nbytes)).view(one.dtype).view(one.shape)
    return torch.add(one, other, out=result)


def difference(
    after: torch.Tensor, before: torch.Tensor, take: Callable[[int], Lease], spare: bool
) -> tuple[torch.Tensor, Lease | None]:
    """``after`` minus ``before``, of one shape and dtype, in float32 if that is wider.

    ``take`` gives memory for large results on the host, which is returned with the difference.
    With ``spare``, nobody reads ``before`` any more, so it may become the difference.
    """
    after = after.detach()
    if (part := local_part(before)) is not before:  # DTensor's own subtraction costs much more
        found, lease = difference(local_part(after), part, take, spare)
        return with_local_part(before, found), lease
    wide = torch.float32 if before.itemsize < 4 else before.dtype
    nbytes = before.numel() * wide.itemsize
    if nbytes <= _SMALL or _in_place(after) is None or _in_place(before) is None:
        return after.to(wide) - before.to(wide), None
    if spare and wide is before.dtype:
        return torch.sub(after, before, out=before), LENT
    lease = take(nbytes)
    assert lease.block is not None
    result = torch.from_numpy(lease.block).view(wide).view(before.shape)
    if wide is before.dtype:
        torch.sub(after, before, out=result)
    else:
        result.copy_(after).sub_(before)
    return result, lease


def scalar_to_host(value: Any) -> HostValue:
    """A Python number as a 0-d array; an int too large for 64 bits, and what is no number, as
    ``other_to_host``."""
    kinds = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    name = next((name for kind, name in kinds.items() if isinstance(value, kind)), None)
    if name is None:
        return other_to_host(value)
    try:
        return HostValue(np.array(value, DTYPES[name].storage), (), name, Layout.SCALAR)
    except OverflowError:
        return other_to_host(value)


def tensor_of(value: Any) -> torch.Tensor | None:
    """NumPy's numbers as a tensor of their own; ``None`` of anything else."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    try:
        return torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
    except TypeError:  # strings, objects
        return None


def other_to_host(value: Any) -> HostValue:
    """A value that no array can hold: a string, large int, or what a text tells, by its digest;
    another by its class. A dtype is that of the record, too."""
    text = telling_name(value)
    digest = None if text is None else xxhash.xxh3_128_hexdigest(text.encode())
    dtype = dtype_name(value) if isinstance(value, torch.dtype) else ""
    return HostValue(None, (), dtype, Layout.OPAQUE, describe_value(value), digest)


def from_bits(raw: Array, dtype: str) -> torch.Tensor:
    """The inverse of the copy: a CPU tensor of the true type over the bits."""
    tensor = torch.from_numpy(raw)
    true = getattr(torch, dtype)
    if tensor.dtype == true:
        return tensor
    return torch.from_numpy(raw.view(f"i{raw.dtype.itemsize}")).view(true)


def layout_of(tensor: torch.Tensor) -> Layout:
    if torch._C._functorch.is_batchedtensor(tensor):
        return Layout.BATCHED
    if tensor.is_nested:
        return Layout.NESTED
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return Layout.META
    if tensor.is_quantized:
        return Layout.QUANTIZED
    if tensor.layout not in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
        return Layout.SPARSE
    return Layout.STRIDED


def local_part(tensor: Any) -> torch.Tensor:
    """The part of a ``DTensor`` that this rank has, found without asking the others; of any other
    tensor, itself. What a collective is still to fill is waited for, as the model does before it
    reads it."""
    local = getattr(tensor, "_local_tensor", tensor)
    waits = getattr(local, "trigger_wait", None)  # of an AsyncCollectiveTensor
    found: torch.Tensor = local if waits is None else waits()
    return found


def writes_into(tensor: torch.Tensor) -> int:
    """PyTorch's count of the writes into a tensor; -1 of one of inference, or without values yet,
    which has none."""
    return -1 if is_lazy(tensor) or tensor.is_inference() else tensor._version


def with_local_part(like: Any, local: torch.Tensor) -> torch.Tensor:
    """A ``DTensor`` that lies as another does, with another part of this rank; ``local`` itself if
    ``like`` is none. The other ranks are not asked."""
    if getattr(like, "_local_tensor", None) is None:
        return local
    made: torch.Tensor = type(like).from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return made


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with data of its own on this rank, oneDNN's layout made plain."""
    tensor = local_part(tensor)
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _in_place(tensor: torch.Tensor) -> Array | None:
    """A tensor's bits in place, if they are contiguous in host memory; else ``None``.

    Makes few calls that release the GIL: getting it back takes longer than the call. Raises
    RuntimeError if its memory was given back."""
    plain = (
        type(tensor) in _PLAIN  # else its data may be anywhere
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
    if not plain:
        return None
    _refuse_without_memory(tensor)
    name = dtype_name(tensor.dtype)
    if name not in DTYPES or tensor.is_conj() or tensor.is_neg():
        return None
    return seen_by_numpy(tensor)


class _Bits:
    """A tensor as NumPy sees it, and keeps it alive."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": DTYPES[dtype_name(tensor.dtype)].storage.str,
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def seen_by_numpy(tensor: torch.Tensor) -> Array:
    """The bits of a contiguous tensor in host memory, in place. After ``tensor.numpy()`` its memory
    could not be resized any more, which FSDP does to its parameters."""
    return np.asarray(_Bits(tensor))


def _refuse_without_memory(tensor: torch.Tensor) -> None:
    """Raise RuntimeError if a tensor's memory was given back, as FSDP does: NumPy would take new
    memory for it, of whatever bits, and a copy may read what is nobody's."""
    if not tensor.untyped_storage().nbytes() and tensor.numel():
        raise RuntimeError("its memory was given back")


def _as_array(block: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """The beginning of a row of bytes as an array of the storage type."""
    return np.ndarray(shape, DTYPES[dtype].storage, block)


def _copy(source: Array, target: Array) -> None:
    """Copy a contiguous array; a large one by two threads: fresh pages take most of the time."""
    source, target = source.reshape(-1), target.reshape(-1)
    half = source.size // 2 if source.nbytes >= _LARGE else 0
    helper = (
        threading.Thread(target=np.copyto, args=(target[:half], source[:half]), daemon=True)
        if half
        else None
    )
    if helper is not None:
        helper.start()
    np.copyto(target[half:], source[half:])
    if helper is not None:
        helper.join()


def round_tensor(values: Array, dtype: DType) -> Array:
    """As ``numbers.dtypes.round_to``, by PyTorch's instructions; NumPy rounds bit by bit."""
    array = _in_place(torch.from_numpy(values).to(getattr(torch, dtype.name)))
    assert array is not None
    return array

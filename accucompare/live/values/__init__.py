"""Values: nested ones, tensors on their way to the host, sketches on the device."""

from accucompare.live.values import nested
from accucompare.live.values.subclasses import dressed_as, is_plain_class, plainly
from accucompare.live.values.tensors import (
    Bits,
    HostValue,
    added,
    copy_of,
    difference,
    dtype_name,
    from_bits,
    layout_of,
    local_part,
    other_to_host,
    outside_transforms,
    round_tensor,
    scalar_to_host,
    tensor_of,
    to_host,
    with_local_part,
)
from accucompare.live.values.values import (
    Scalar,
    describe_value,
    is_cache,
    leaves,
    replaced,
    telling_name,
)

__all__ = [
    "Bits",
    "HostValue",
    "Scalar",
    "added",
    "copy_of",
    "describe_value",
    "difference",
    "dressed_as",
    "dtype_name",
    "from_bits",
    "is_cache",
    "is_plain_class",
    "layout_of",
    "leaves",
    "local_part",
    "nested",
    "other_to_host",
    "outside_transforms",
    "plainly",
    "replaced",
    "round_tensor",
    "scalar_to_host",
    "telling_name",
    "tensor_of",
    "to_host",
    "with_local_part",
]

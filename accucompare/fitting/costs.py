"""What each module's own code costs: operations, counted as they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by the running module: two for each term of a product, one for each element
    of any other result, none for a view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.running = [""]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        packet = func._overloadpacket
        if _is_view(func):
            return output
        try:
            if packet in flop_registry:
                count = flop_registry[packet](*args, **kwargs, out_val=output)
            elif "scaled_dot_product" in str(packet):
                shapes = (tensor.shape for tensor in args[:3])
                count = sdpa_flop_count(*shapes)  # type: ignore[no-untyped-call]
            else:
                count = sum(
                    leaf.numel() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)
                )
        except Exception:  # a count is no reason to stop: an unusual form of an operator
            count = 0
        self.counts[self.running[-1]] += int(count)
        return output


def _is_view(func: Any) -> bool:
    """Whether an operator returns what it was given, and writes nothing."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)

"""What changes parameters between updates: clamping, an average swapped in, a loaded checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch.nn.parameter import is_lazy

from accucompare.live.autograd import Parameter
from accucompare.live.operators import is_plain
from accucompare.live.values import local_part, outside_transforms, writes_into
from accucompare.recorder.recording.series import BitsNow, bits_now

_Kind = tuple[torch.dtype, torch.device]

#: Elements, about: the most that is looked at of a parameter that nothing has trained.
_SAMPLE = 1024


class Between:
    """Finds the parameters that no longer hold what the last update left.

    It compares bits: PyTorch does not count writes through ``.data``.
    """

    def __init__(self) -> None:
        # by id: the parameter, and what all its bits were
        self._whole: dict[int, tuple[Parameter, BitsNow]] = {}
        self._looks: list[_Look] = []
        # the same of those of which a sample is looked at, to be read once more at the end
        self._once: dict[int, tuple[Parameter, BitsNow]] = {}
        self._age = 0  # steps that have ended since this was known

    def leave(
        self, parameters: Iterable[Parameter], sampled: bool = False, once: bool = False
    ) -> None:
        """Accept these parameters, as when an update has ended.

        Args:
            sampled: look at a sample of each, because nothing has trained them.
            once: and at all of it at the capture's end, because nothing will.
        """
        given = {id(each.tensor): each for each in parameters}
        for key in given:
            self._whole.pop(key, None)
            self._once.pop(key, None)
            for each in self._looks:
                each.parameters.pop(key, None)
        look = _Look(given, sampled)
        self._looks = [each for each in (*self._looks, look) if each.parameters]
        for key in given.keys() - look.parameters.keys():
            self._whole[key] = given[key], bits_now(given[key].tensor)
        for key in look.partly if once else ():
            self._once[key] = given[key], bits_now(given[key].tensor)

    @property
    def known(self) -> set[int]:
        """Ids of the parameters that are accepted."""
        return {*self._whole, *(key for look in self._looks for key in look.parameters)}

    def changed(self, last: bool = False) -> set[int]:
        """Ids of parameters whose bits changed since they were accepted. Accepts the new bits.
        ``last``: at the capture's end."""
        found: set[int] = set()
        for number, before in enumerate(self._looks):
            self._looks[number] = _Look(before.parameters, sampled=True)
            found |= self._looks[number].differing(before)
        sums = []
        once = {key: each for key, each in self._once.items() if last or key in found}
        for key, (each, then) in (self._whole | once).items():
            now = bits_now(each.tensor)
            (self._once if key in once else self._whole)[key] = each, now
            if isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor):
                sums.append((key, then != now.to(then.device)))
            elif isinstance(then, str) and isinstance(now, str) and then != now:
                found.add(key)
        if sums:  # read together: each reading waits for the device
            differ = torch.stack([each for _, each in sums]).tolist()
            found |= {key for (key, _), other in zip(sums, differ, strict=True) if other}
        self._age = 0
        return found

    def next_step(self) -> None:
        """A step is over. After an unrecorded one, with updates of its own, nothing is known."""
        self._age += 1
        if self._age > 1:
            self._whole.clear()
            self._looks.clear()
            self._once.clear()


class _Look:
    """What parameters hold: all of small ones; of others a sample, and the count of their writes.

    They are read all at once, in a tenth of the time of one by one."""

    def __init__(self, parameters: Mapping[int, Parameter], sampled: bool) -> None:
        """``sampled``: not only the small ones."""
        self.parameters: dict[int, Parameter] = {}
        self._writes: dict[int, int] = {}
        rows: defaultdict[_Kind, dict[int, torch.Tensor]] = defaultdict(dict)
        with torch.no_grad(), outside_transforms():
            for key, each in parameters.items():
                if (row := _row(each.tensor)) is None:
                    continue
                # an odd distance meets all columns of most matrices
                if (apart := len(row) // _SAMPLE | 1) > 1:
                    if not sampled:
                        continue
                    row = row[::apart]
                    self._writes[key] = writes_into(each.tensor)
                self.parameters[key] = each
                rows[row.dtype, row.device][key] = row
            self._bits = {
                kind: torch.cat([*each.values()]).view(torch.uint8) for kind, each in rows.items()
            }
        self._sizes = {
            kind: {key: row.nbytes for key, row in each.items()} for kind, each in rows.items()
        }

    @property
    def partly(self) -> Iterable[int]:
        """Ids of those of which it is a sample."""
        return self._writes.keys()

    def differing(self, before: _Look) -> set[int]:
        """Ids of the parameters that held something else before."""
        if (self._writes, self._sizes) == (before._writes, before._sizes) and all(
            torch.equal(bits, before._bits[kind]) for kind, bits in self._bits.items()
        ):
            return set()
        ours, theirs = self._by_parameter(), before._by_parameter()
        return {
            key
            for key in ours.keys() & theirs.keys()
            if self._writes.get(key) != before._writes.get(key)
            or not torch.equal(ours[key], theirs[key].to(ours[key].device))
        }

    def _by_parameter(self) -> dict[int, torch.Tensor]:
        return {
            key: part
            for kind, sizes in self._sizes.items()
            for key, part in zip(
                sizes, torch.split(self._bits[kind], [*sizes.values()]), strict=True
            )
        }


def _row(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's elements in a row, without a copy; ``None`` if there is none."""
    if is_lazy(tensor):
        return None
    local = local_part(tensor)
    plain = (
        type(local) in (torch.Tensor, torch.nn.Parameter)
        and is_plain(local)
        and not (local.is_meta or local.is_quantized or local.is_nested)
        and local.is_contiguous()
        and local.untyped_storage().nbytes()  # else it is empty, or its memory was given back
    )
    return local.flatten() if plain else None

"""The whole tensor, put together from what several ranks have recorded of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from accucompare.bundle.format.records import Record
from accucompare.bundle.reading.reader import Bundle

#: How the terms of a reduction become its result.
REDUCTIONS = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}


def put_together(bundle: Bundle, records: Iterable[Record]) -> np.ndarray[Any, Any]:
    """The tensor of which these records, one of each rank, are parts, in float64.

    Parts at the same place must be replicas, bit for bit, unless they are terms of a reduction over
    the mesh's dimensions that they name. Every element must have been found.
    """
    records = list(records)
    shards = [record.shard for record in records]
    first = shards[0]
    assert first is not None, f"{records[0].key} has no layout"
    whole = np.zeros(int(np.prod(first.shape)) if first.flat else first.shape)
    filled = np.zeros(whole.shape, bool)
    terms: dict[Any, list[Any]] = {}  # by the place, the index along the partial dimensions
    for record, shard in zip(records, shards, strict=True):
        assert shard is not None
        assert (shard.shape, shard.partial, shard.over) == (first.shape, first.partial, first.over)
        values = np.asarray(bundle.values(record), np.float64)
        values = values.reshape(-1) if shard.flat else values
        mesh = bundle.manifests[record.rank].mesh
        term = tuple(mesh[name][0] for name in shard.over)
        for where, start in shard.boxes(record.shape):
            box = values[where]
            place = (start, box.shape)
            known = [each for number, each in terms.get(place, []) if number == term]
            assert all(np.array_equal(each, box) for each in known), (
                f"{record.key}: replicas differ"
            )
            if not known:
                terms.setdefault(place, []).append((term, box))
    for (start, shape), found in terms.items():
        target = tuple(slice(at, at + length) for at, length in zip(start, shape, strict=True))
        assert not filled[target].any(), f"{records[0].key}: parts overlap"
        filled[target] = True
        boxes = [box for _, box in sorted(found, key=lambda each: each[0])]
        whole[target] = REDUCTIONS[first.partial](boxes) if first.partial else boxes[0]
    assert filled.all(), f"{records[0].key}: a part is missing"
    return whole.reshape(first.shape)

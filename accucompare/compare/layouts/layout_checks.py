"""Whether a free-running capture can tell how the ranks of another one share golden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.golden_parts import records_of_step
from accucompare.errors import UsageError
from accucompare.numbers import DTYPES, Array, Kind

#: So many neighbouring tokens tell a part of a sequence, and this share of a rank's its batch:
#: where its parts of the sequence end, neighbours are none of golden's.
_NEIGHBOURS, _ENOUGH = 4, 0.25

#: The inputs of a model's calls, by path and type.
_Given = Mapping[tuple[str, str], list[Record]]


def check_layout(golden: Bundle, layout: Bundle, ranks: int) -> None:
    """Refuse a bundle whose ranks cannot tell how this capture's share golden. Raises UsageError if
    it has other ranks, lacks one, is incomplete or fed itself, has other steps, or was given other
    inputs. ``ranks``: how many processes capture."""
    held, path = layout.manifest.ranks, layout.path
    if held != ranks:
        raise UsageError(
            f"--layout-of: {path} was captured by {held} rank(s), but this capture has {ranks};"
            " name a free-running capture of the same command"
        )
    if layout.missing_ranks:
        raise UsageError(
            f"--layout-of: {path} lacks rank {layout.missing_ranks[0]}; capture it again"
        )
    if not layout.complete:
        raise UsageError(
            f"--layout-of: {path} is incomplete; capture it again, and wait until all ranks have"
            " ended it"
        )
    if layout.manifest.fed:
        raise UsageError(
            f"--layout-of: {path} is itself fed; name a free-running capture of the same ranks"
        )
    steps = {entry.step for _, entry in layout.steps()}
    if not steps & {entry.step for _, entry in golden.steps()}:
        raise UsageError(
            f"--layout-of: {path} has none of the steps of golden {golden.path}; capture the same"
            " steps (--steps)"
        )
    if not _are_given_alike(golden, layout):
        raise UsageError(
            f"--layout-of: {path} was given other inputs than golden {golden.path}, so it is of"
            " another run and tells nothing of this one; capture the command of this capture again,"
            " free-running (without --feed), with golden's batches"
        )


def _are_given_alike(golden: Bundle, layout: Bundle) -> bool:
    """Whether some rank was given rows of golden's first batch, or tokens of them. What is wrong
    with some of them may be the fault that is looked for."""
    steps = [{entry.step for _, entry in bundle.steps()} for bundle in (golden, layout)]
    step = min(set.intersection(*steps))
    ours, theirs = (_given(records_of_step(bundle, step)) for bundle in (golden, layout))
    known = [*(ours.keys() & theirs.keys())]
    whole = [each for each in known if DTYPES[each[1]].kind is Kind.INT]
    return all(
        _are_alike(
            [golden.raw(record) for record in ours[each]],
            [layout.raw(record) for record in theirs[each]],
            (1, layout.manifest.ranks),
        )
        for each in whole or known
    )


def _given(records: Iterable[Record]) -> _Given:
    """What the models were given, but for what has a gradient: another stage gives that."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        given = record.role is Role.INPUT and record.parent is None and not record.requires_grad
        if given and record.member and record.shape and record.dtype in DTYPES:
            found[record.path, record.dtype].append(record)
    return found


def _are_alike(golden: list[Array], ranks: list[Array], apart: Iterable[int]) -> bool:
    """Whether a rank has one of golden's rows, or a good part of its tokens are neighbours there.
    ``apart``: how many tokens may lie from a rank's token to its next one."""
    rows = {row.tobytes() for values in golden for row in values}
    if any(row.tobytes() in rows for values in ranks for row in values):
        return True
    for values in ranks:
        if values.dtype.kind not in "iu" or values.ndim < 2:
            continue
        many = _NEIGHBOURS if values.shape[-1] >= _NEIGHBOURS**2 else min(2, values.shape[-1])
        own = _runs(values, many)
        for each in apart:
            known = {run for whole in golden for run in _runs(whole, many, each)}
            if sum(run in known for run in own) >= _ENOUGH * len(own):
                return True
    return False


def _runs(values: Array, many: int, apart: int = 1) -> list[bytes]:
    """All runs of so many tokens that lie so far apart in a row."""
    last = values.shape[-1] - (many - 1) * apart
    if last < 1:
        return []
    rows = values.reshape(-1, values.shape[-1])
    places = np.arange(last)[:, None] + apart * np.arange(many)
    return [run.tobytes() for run in rows[:, places].reshape(-1, many)]

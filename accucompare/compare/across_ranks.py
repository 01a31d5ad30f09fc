"""What a diff does where one side's model is spread over several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from accucompare.bundle.format import GlobalRecord, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare import preflight_facts as facts
from accucompare.compare.layouts import (
    NameEvidence,
    RankRecords,
    UnderGoldenNames,
    Unified,
    as_one,
    sizes_of_fed_sums,
    without_parts,
)
from accucompare.compare.opened import Opened
from accucompare.compare.origins import not_fed, parameter_of
from accucompare.compare.pairing import Renaming
from accucompare.compare.preflight_facts import About, BesideGolden, PreflightFinding
from accucompare.compare.rows import Row, Task


def described_as_one(opened: Opened, unified: Unified) -> Opened:
    """The bundles with manifests of the global model, where one has several ranks."""
    if opened.golden_ranks is opened.candidate_ranks is None:
        return opened
    golden, candidate = opened.golden, opened.candidate
    if opened.golden_ranks is not None:
        golden = as_one(golden, opened.golden_ranks, unified, None)
    if opened.candidate_ranks is not None:
        candidate = as_one(candidate, opened.candidate_ranks, unified, golden.manifest)
    golden, candidate = without_parts(golden, candidate), without_parts(candidate, golden)
    baseline = opened.baseline
    if baseline.bundle is not None:
        baseline = replace(baseline, bundle=without_parts(baseline.bundle, candidate))
    return replace(opened, golden=golden, candidate=candidate, baseline=baseline)


def weights_in_parts_of(
    as_captured: Opened, opened: Opened, rows: Sequence[Row]
) -> tuple[str, ...]:
    """The parameters that ``described_as_one`` left out of the manifests, and no row compares."""
    names = (opened.models[0].get("parameters") or {}).keys()
    left_out = [name for name in as_captured.models[0].get("parameters") or {} if name not in names]
    if not left_out:
        return ()
    compared = {
        parameter_of(row.golden)
        for row in rows
        if row.golden is not None and row.golden.role is Role.PARAM_BEFORE
    }
    return tuple(name for name in left_out if name not in compared)


def on_runs(opened: Opened) -> Iterator[PreflightFinding]:
    """Findings about sides whose ranks are of several runs."""
    for side, ranks in (
        (BesideGolden.GOLDEN, opened.golden_ranks),
        (BesideGolden.CANDIDATE, opened.candidate_ranks),
    ):
        runs: dict[str, list[int]] = {}
        for rank, manifest in sorted(() if ranks is None else ranks.manifests.items()):
            runs.setdefault(manifest.options.run, []).append(rank)
        if len(runs) > 1:
            yield PreflightFinding(facts.SeveralRuns(side, tuple(map(tuple, runs.values()))))


def on_stages(
    named: UnderGoldenNames, renamings: Sequence[Renaming] = ()
) -> list[PreflightFinding]:
    """Findings about the names of ranks that were put back, about maps that gave none, and about
    microbatches."""
    unused = (
        renaming
        for renaming in renamings
        if named.names
        and not any(
            (renaming.apply(each.golden) or "").removeprefix(f"rank{rank}:") == each.own
            for rank, names in named.names.items()
            for each in names.put_back
            if each.evidence is NameEvidence.GIVEN
        )
    )
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = {}
    for rank, names in named.names.items():
        for evidence in NameEvidence:
            own = tuple(
                (each.own, each.golden)
                for each in names.put_back
                if each.evidence is evidence and each.own not in names.stages
            )
            if own:
                alike.setdefault((evidence.value, own), []).append(rank)
    places: dict[tuple[tuple[int, ...], ...], list[tuple[int, int]]] = {}
    for each in named.schedule.odd:
        what = each.doubled, each.dropped, each.order
        places.setdefault(what, []).append((each.rank, each.step))
    first = named.holders.begins.get("", frozenset())
    return [
        *(PreflightFinding(facts.LeadsNowhere(each.text), serious=False) for each in unused),
        *(
            PreflightFinding(
                facts.OddMicrobatches(
                    tuple(sorted({rank for rank, _ in held})),
                    tuple(sorted({step for _, step in held})),
                    doubled,
                    dropped,
                    order,
                ),
                # the order in which microbatches begin is no fault
                serious=not (order and first.issuperset(rank for rank, _ in held)),
                about=(
                    About.GIVEN
                    if (dropped or doubled)
                    and (not named.names or first.issuperset(rank for rank, _ in held))
                    else About.OTHER
                ),
            )
            for (doubled, dropped, order), held in places.items()
        ),
        *(
            PreflightFinding(facts.NamesPutBack(tuple(ranks), names, evidence), serious=False)
            for (evidence, names), ranks in alike.items()
        ),
    ]


def with_layouts(
    tasks: list[Task],
    unified: Unified,
    ranks: RankRecords | None,
    baseline: Bundle | None,
    fed: bool,
) -> list[Task]:
    """The tasks with what else the ranks' records may make up, or why they make up nothing."""
    if ranks is None and not unified.unknown and not unified.means:
        return tasks
    made_as = None if baseline is None else baseline.manifest.options.as_layout
    # no baseline of their own layout, which adds up as many terms
    alone = baseline is not None and (
        made_as is None or ranks is None or made_as.mesh != ranks.mesh.sizes
    )
    sizes = sizes_of_fed_sums(unified.pairs) if fed else {}
    return [
        msgspec.structs.replace(
            task,
            terms=sizes.get(place, 1.0),
            arranged=unified.others.get(place, ()),
            unknown=unified.unknown.get(place),
            means=unified.means,
            summed=(
                ranks.adding(record)
                if ranks is not None and alone and isinstance(record, GlobalRecord)
                else 1
            ),
        )
        for place, task in enumerate(tasks)
        for record in [task.pair.candidate]
    ]


def outputs_fed_there_alone(opened: Opened, baseline: Bundle) -> set[tuple[int, str]]:
    """Steps and modules of outputs that golden's did not replace in the candidate alone."""
    theirs, ours = (
        {(step, name) for _, step, name, _, role, _ in not_fed(each) if role == Role.OUTPUT.value}
        for each in (opened.candidate.manifests, baseline.manifests)
    )
    return theirs - ours

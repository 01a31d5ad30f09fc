"""Findings about what was asked in vain: renamings, selections and rules that apply to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accucompare.bundle.format import SERIES_ROLES, Record
from accucompare.compare import preflight_facts as facts
from accucompare.compare.layouts import GivenLayout
from accucompare.compare.limits import Rule
from accucompare.compare.pairing import Model, Renaming, clashes, renaming_leads, renaming_matches
from accucompare.compare.preflight_facts import PreflightFinding
from accucompare.compare.rows import Row
from accucompare.selection import Selection


def unused_options(
    renamings: list[Renaming],
    selection: Selection,
    records: tuple[list[Record], list[Record]],
    models: tuple[Model, Model],
) -> list[PreflightFinding]:
    """Findings about maps and selections without effect on golden's and the candidate's records."""
    names, others = ({record.name for record in side} for side in records)
    found: list[facts.FindingFact] = []
    for renaming in renamings:
        new = {renaming.apply(name) for name in names} - {None}
        if not new and not renaming_matches(renaming, models[0]):
            found.append(facts.MatchesNothing("map", renaming.text))
        elif not new & others and not renaming_leads(renaming, *models):
            found.append(facts.LeadsNowhere(renaming.text))
    found += [
        facts.MatchesNothing("only", glob)
        for glob in selection.only
        if not any(Selection((glob,)).allows(name) for name in names)
    ]
    found += [
        facts.MatchesNothing("skip", glob)
        for glob in selection.skip
        if all(Selection((), (glob,)).allows(name) for name in names)
    ]
    return [PreflightFinding(each, serious=False) for each in found]


def on_maps(
    renamings: list[Renaming], proposed: list[str], auto: bool, models: tuple[Model, Model]
) -> list[PreflightFinding]:
    """Findings about what ``--map`` did, or would do."""
    findings = [
        PreflightFinding(facts.MapClash(old[0], old[1], new))
        for old, new in clashes(*models, renamings)
    ]
    if auto:
        findings.append(PreflightFinding(facts.MapsTaken(tuple(proposed)), serious=False))
    elif proposed:
        findings.append(PreflightFinding(facts.MapsProposed(tuple(proposed))))
    return findings


def unused_rules(
    rules: Sequence[Rule], candidate: list[Record], rows: Iterable[Row]
) -> list[PreflightFinding]:
    """Findings about rules of a tolerance file that judge no record and no number of a step."""
    if not rules:
        return []
    of_series = (
        row.candidate
        for row in rows
        if row.candidate is not None and row.candidate.role in SERIES_ROLES
    )
    records = [*candidate, *of_series]
    return [
        PreflightFinding(facts.RuleJudgesNothing(rule.file, rule.number))
        for rule in rules
        if not any(rule.applies_to(record) for record in records)
    ]


def unused_layouts(
    layouts: Iterable[GivenLayout], candidate: Iterable[Record]
) -> list[PreflightFinding]:
    """Findings about layouts that the user gave and that no record of the candidate has."""
    records = [*candidate]
    return [
        PreflightFinding(facts.LayoutMatchesNothing(each.layer, each.role))
        for each in layouts
        if not any(each.applies_to(record) for record in records)
    ]

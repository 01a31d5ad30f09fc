"""The page of a comparison: verdict, culprits, divergence, the model's tree, rows, environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    NODE_ROLES,
    ROLES_OF,
    UPDATE_ROLES,
    Role,
    display_name,
)
from accucompare.compare.constants import NEAR
from accucompare.compare.decide import decide
from accucompare.compare.origins import Culprit
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row
from accucompare.numbers import Array
from accucompare.report.contents import group_columns, made_by, meaning, sized, step_columns
from accucompare.report.page.page_data import PageData
from accucompare.report.page.page_file import write_page
from accucompare.report.page.page_graph import write_graph
from accucompare.report.table import (
    EXCESS,
    NONE,
    SCIENTIFIC,
    TEXT,
    Chosen,
    Column,
    EnvironmentEntry,
    Overview,
    comparison_columns,
    entries,
    heat_maps,
    heat_note,
    layer,
    limit_on_error,
    overview_of,
    what_is_held,
)
from accucompare.report.terminal import shown
from accucompare.report.words import (
    compiled_words,
    decision_words,
    preflight_words,
    training_words,
    verdict_words,
)
from accucompare.report.words import culprit_words as culprits
from accucompare.selection import RoleGroup
from accucompare.text import printable

_MOST_LISTED = 50  # pre-flight findings and damaged records
_MOST_CULPRITS = 20


def _glue_of(row: Row) -> str:
    """The module whose own code made a failing value for another module; ``""`` for other rows."""
    record = row.record
    if (
        row.reason is not Reason.GLUE
        or record is None
        or record.parent is None
        or record.role not in (Role.INPUT, Role.GRAD_OUTPUT)
    ):
        return ""
    return display_name(record.parent[0])


#: What the page knows of a row besides the columns of every report.
_MORE = (
    Column("limit on relative L2", limit_on_error, SCIENTIFIC, group="judgement", folded=2),
    Column("glue of", lambda row: _glue_of(row), TEXT, folded=2),
    Column("source line", lambda row: row.record.source_line if row.record else "", TEXT, folded=2),
)


#: Headings of the heat maps, which show the worst error of each layer.
_HEAT_TITLES = {
    "rank": "x limit of each layer on each rank",
    "step": "x limit of each layer in each step",
}


class Phase(NamedTuple):
    """A part of a step with its own chart of errors."""

    title: str
    roles: tuple[Role, ...]  # of its rows
    drawn: tuple[Role, ...]  # roles that are drawn; of others only rows that glue made wrong


PHASES = (
    Phase("forward", (*ROLES_OF[RoleGroup.FORWARD], Role.LOSS), (Role.OUTPUT, Role.OP_OUTPUT)),
    Phase(
        "backward",
        (*GRADIENT_ROLES, *NODE_ROLES),
        (Role.GRAD_INPUT, Role.CALL_GRAD, Role.OP_GRAD_INPUT),
    ),
    Phase(
        "update",
        (*UPDATE_ROLES, Role.CLIPPED_NORM),
        (Role.PARAM_GRAD, Role.PARAM_UPDATE, Role.STATE_AFTER),
    ),
)


class StepChart(NamedTuple):
    """A chart of two runs' steps: titles of columns with looks; a logarithmic y axis or not."""

    title: str
    series: tuple[tuple[str, str], ...]
    logarithmic: bool = False


STEP_CHARTS = (
    StepChart("loss", (("golden loss", "golden"), ("candidate loss", "candidate"))),
    StepChart(
        "relative difference of the loss",
        (("loss difference", "golden"), ("loss limit", "limit")),
        True,
    ),
    StepChart("gradient norm", (("golden norm", "golden"), ("candidate norm", "candidate")), True),
    StepChart(
        "relative difference of the gradient norm",
        (("norm difference", "golden"), ("norm limit", "limit")),
        True,
    ),
    StepChart(
        "learning rate",
        (("golden learning rate", "golden"), ("candidate learning rate", "candidate")),
    ),
    StepChart(
        "loss scale", (("golden loss scale", "golden"), ("candidate loss scale", "candidate")), True
    ),
)


def write_comparison_page(comparison: Result, path: Path) -> Path:
    """Write the page of a comparison, and return its path. Errors as ``write_page``."""

    found = overview_of(comparison)

    def write_data(data: PageData) -> dict[str, Any]:
        return _head(comparison, found, data)

    return write_page(path, "comparison.html", _content(comparison, found), write_data)


def _head(comparison: Result, found: Overview, data: PageData) -> dict[str, Any]:
    """Write the tables, and return what the page's script needs."""
    places = None if found.places is None else np.sort(found.places)  # in execution order here
    rows = comparison.rows if places is None else Chosen(comparison.rows, places)
    numbers = None if places is None else (places + 1).tolist()
    columns = [*sized(comparison_columns(comparison), found.layers.names), *_MORE]
    tables = [data.table("rows", columns, rows, numbers)]
    summaries, heats = _summaries(found, data) if found.summarised else ([], [])
    tables += summaries
    more, graph = write_graph(comparison, found, data)
    tables += more
    if (training := comparison.training) is not None:
        tables.append(data.table("steps", step_columns(training), training.pairs))
    return {
        "kind": "comparison",
        "tables": tables,
        "phases": [
            {"title": title, "roles": roles, "drawn": drawn} for title, roles, drawn in PHASES
        ],
        "charts": (
            [{"table": "steps", **chart._asdict()} for chart in STEP_CHARTS]
            if training is not None
            else []
        ),
        "first": _place(places, found.first),
        "until": _place(places, found.until),
        "culprits": [_place(places, each) for each in found.culprits],
        "heats": heats,
        "graph": graph,
        "near": NEAR,
        "meanings": {reason.value: words for reason, words in verdict_words.MEANING.items()},
        "parting": (
            training.parting.step if training is not None and training.parting is not None else None
        ),
    }


def _place(places: Array | None, place: int | None) -> int | None:
    """The index of a place in the page's table, which holds the rows of these places, or all."""
    return place if place is None or places is None else int(np.searchsorted(places, place))


def _summaries(
    found: Overview, data: PageData
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write the tables and heat maps that sum up all rows, and return their heads."""
    groups = [("layer", found.layers), ("rank", found.ranks), ("step", found.steps)]
    tables = [
        data.table(f"by {name}", group_columns(name, each), range(len(each.names)))
        for name, each in groups
        if name == "layer" or len(each.names) > 1
    ]
    heats = [
        {
            "title": _HEAT_TITLES[heat.across],
            "steps": heat.columns,
            "across": heat.across,
            "layers": [printable(name) for name in heat.layers],
            "limit": 1,
            "at": data.matrix(
                [None if size == NONE else size for size in heat.sizes.ravel().tolist()]
            ),
        }
        for heat in heat_maps(found)
    ]
    return tables, heats


def anchor(row: Row) -> str:
    """A row's link fragment, stable when the page is written anew: ``a.fc;role=output;step=2``."""
    parts = [quote(printable(layer(row)), safe="")]
    if (record := row.record) is not None:
        known = (
            ("role", record.role.value),
            ("path", printable(record.path)),
            ("call", record.call),
            ("step", record.step),
        )
        parts += [
            f"{name}={quote(str(value), safe='')}"
            for name, value in (*known, ("rank", record.rank))
            if value
        ]
    return ";".join(parts)


def _content(comparison: Result, found: Overview) -> dict[str, Any]:
    """The template's content: only words, shared by all reports."""
    decided = decide(comparison)
    third = comparison.baseline
    listed = entries(
        comparison.golden.manifest,
        comparison.candidate.manifest,
        None if third is None else third.manifest,
    )
    paths = [
        str(side.path)
        for side in (comparison.golden, comparison.candidate, *([third] if third else []))
    ]
    counts = comparison.counts()
    first = comparison.first_divergence
    return {
        "title": f"{comparison.golden.path.name} and {comparison.candidate.path.name} compared",
        "verdict": decision_words.verdict(decided.answer),
        "passed": decided.passed,
        "sentence": decision_words.conclusion(decided, comparison),
        "meaning": [meaning(comparison)],
        "facts": list(_facts(comparison)),
        "until": culprits.identical_until(comparison),
        "until_anchor": (
            anchor(comparison.identical_until) if comparison.identical_until is not None else ""
        ),
        "first": (
            None
            if first is None
            else {
                "place": comparison.place(first),
                "anchor": anchor(first),
                "what": verdict_words.MEANING[first.reason],
            }
        ),
        "note": culprits.note(comparison) if comparison.culprits else "",
        "culprits": [
            _culprit(comparison, culprit) for culprit in comparison.culprits[:_MOST_CULPRITS]
        ],
        "more_culprits": max(0, len(comparison.culprits) - _MOST_CULPRITS),
        "compiled": [
            *(compiled_words.compiled_lines(comparison.compiled) if comparison.compiled else ())
        ],
        "preflight": [
            {"serious": each.serious, "message": preflight_words.message(each)}
            for each in comparison.preflight[:_MOST_LISTED]
        ],
        "more_preflight": max(0, len(comparison.preflight) - _MOST_LISTED),
        "counts": [
            (reason.value, counts[reason], verdict_words.MEANING[reason])
            for reason in Reason
            if counts[reason]
        ],
        "left_out": comparison.left_out,
        "total": len(comparison.rows),
        "held": (
            ""
            if found.places is None
            else what_is_held(found, "This page", "something in it leads to")
        ),
        "summarised": [
            name
            for name, groups in (
                ("layer", found.layers),
                ("rank", found.ranks),
                ("step", found.steps),
            )
            if found.summarised and (name == "layer" or len(groups.names) > 1)
        ],
        "heat_notes": [heat_note(heat) for heat in heat_maps(found)] if found.summarised else [],
        "damage": comparison.damage[:_MOST_LISTED],
        "more_damage": max(0, len(comparison.damage) - _MOST_LISTED),
        "training": list(_training(comparison)),
        "environment": [EnvironmentEntry("path", paths, [False] * len(paths)), *listed],
        "sides": ("golden", "candidate", "baseline")[: len(paths)],
    }


def _facts(comparison: Result) -> Iterator[tuple[str, str]]:
    yield "golden", str(comparison.golden.path)
    yield "candidate", str(comparison.candidate.path)
    if comparison.baseline is not None:
        yield "baseline", str(comparison.baseline.path)
    if comparison.reference is not None:
        yield "reference", str(comparison.reference.path)
    if fed := culprits.fed(comparison):
        yield "fed", fed
    yield "tolerance", culprits.tolerance(comparison)
    yield "report made", made_by()


def _culprit(comparison: Result, culprit: Culprit) -> dict[str, Any]:
    """A culprit with its numbers and statements."""
    numbers = (
        ("excess", EXCESS, culprits.excess_words(culprit)),
        ("x limit", EXCESS, culprits.over_limit(culprit)),
        ("relative L2", SCIENTIFIC, culprits.error(culprit)),
    )
    return {
        "place": culprits.place_words(comparison, culprit),
        "anchor": anchor(culprit.row),
        "kind": culprits.kind(culprit),
        "numbers": [
            (title, shown(Column(title, None, form), value))
            for title, form, value in numbers
            if value is not None
        ],
        "said": culprits.statements(culprit),
    }


def _training(comparison: Result) -> Iterator[tuple[str, str]]:
    """Lines on the steps of two runs, each with its look."""
    found = comparison.training
    if found is None:
        return
    sentence = training_words.steps_sentence(comparison) or training_words.FED_STEPS
    yield "bad" if found.parting is not None else "strong", sentence
    for line in training_words.settings(found):
        yield "warn", f"told otherwise: {line}"
    for line in training_words.details(comparison, found):
        yield "muted", line
    if comparison.acceptance is not None:
        yield "strong", training_words.acceptance_sentence(comparison.acceptance)
        for met in comparison.acceptance.rules:
            yield "" if met.passed else "bad", training_words.rule_words(met)

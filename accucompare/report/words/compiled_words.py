"""What is said of a model that was compiled region by region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from accucompare.bundle.format import display_name
from accucompare.compare.compiled_facts import BlamedOperator, CompiledFound, Nearer
from accucompare.text import counted, first_few, printable


def near_float64(nearer: Nearer) -> str:
    """Compiled beside eager: which of the two is nearer to float64."""
    return (
        f"compiled is as near to float64 as eager, or nearer, in {nearer.nearer} of"
        f" {counted(nearer.values, 'value')} (median: {nearer.middle:.2g} of eager's error)"
    )


def ran_eagerly(modules: Mapping[str, str]) -> str:
    name, why = next(iter(modules.items()))
    return (
        f"{first_few([display_name(each) for each in modules])} could not be compiled, so"
        f" {'its' if len(modules) == 1 else 'their'} own code ran eagerly and was not looked at"
        f" ({display_name(name)}: {printable(why)})"
    )


def blamed(operator: BlamedOperator) -> str:
    of = "the backward of " if operator.backward else ""
    line = f" ({printable(operator.line)})" if operator.line else ""
    kernel = f", kernel {operator.kernel}" if operator.kernel else ""
    return f"in {of}{printable(operator.operator)}{line}{kernel}"


def compiled_lines(found: CompiledFound) -> Iterator[str]:
    """What a reader should know beside the answer, one line each."""
    yield f"backend {found.backend}: {', '.join(map(str, _levels(found)))}"
    names = dict.fromkeys(name for level in found.levels for name in level.compiled.regions)
    yield f"regions: {first_few([display_name(name) for name in names], 12)}"
    operator = found.operator
    if operator is not None:
        yield (
            f"{blamed(operator)}: rel_l2 from float64 {operator.compiled:.2g} compiled,"
            f" {operator.eager:.2g} eager"
            + ("; compiled alone, too" if operator.alone else "; compiled with all before it")
        )
        if operator.code:
            yield f"generated code: {operator.code}"
    elif found.no_operator:
        yield f"no operator is named: {found.no_operator}"
    for name, why in found.eager.items():
        yield f"{display_name(name)} ran eagerly: {printable(why)}"
    for name, breaks in found.breaks.items():
        yield f"graph break in {display_name(name)}: {printable(first_few(list(breaks), 1))}"
    if again := found.recompiled:
        name = next(iter(again))
        yield (
            f"{counted(len(again), 'region')} compiled again, the first {display_name(name)}:"
            f" {printable(again[name][0])}"
        )


def _levels(found: CompiledFound) -> Iterator[str]:
    for level in found.levels:
        graphs = sum(each.graphs for each in level.compiled.regions.values())
        seconds = sum(each.seconds for each in level.compiled.regions.values())
        count = counted(len(level.compiled.regions), "region")
        yield f"{count} ({counted(graphs, 'graph')}, {seconds:.0f} s)"

"""The numbers that decide: ``python -m benchmarks.mutants``. Each is changed, up and down; does a
test near it fail?

A number decides if a verdict or a culprit depends on its value. They are found in the source of
``compare/``: numbers in assignments of a module, also inside tables, and numbers other than 0, 1
and 2 that a condition in a function compares with. What decides nothing is exempt, with the reason.
The module is changed in memory, in a process of its own, forked from one that has imported all but
the package."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "accucompare" / "compare"

#: The tests that have each number's case, see there.
TABLE = "tests/compare/test_deciding.py"

#: By how much a number is changed; of a share of nearly all, what is left. An integer is changed by
#: one at least.
FACTOR = 1.1

#: What decides no verdict and no culprit: a module, or a number, and why.
EXEMPT = {
    "align": "for how many names the nearest is looked up, which is words",
    "renames": "how long a pattern may take",
    "task_batches": "how work is divided",
    "arrange.whole_shapes": "which of several shapes is tried first",
    "routing.may_be_choice": "how many axes there are: batch, sequence, choices",
    "sequence_parts": "how tokens are numbered, and how much is tried to find where they lie",
    "steps_at_once": "which pairs are looked at alone, with the same result",
    "blocks": "the width of a type, and which slices are read for the shape of an error",
    "bounds": (
        "how far float64 itself rounds: the bounds are proved, and tested against exact arithmetic"
    ),
    "carried_apart": "how many calls are looked at for a sum",
    "gradient_pieces": "how many pieces there may be for every order to be tried",
    "called_tree": "how small blocks are; a run proves what is kept",
    "cluster": "how work is divided, and how long a machine is waited for",
    "describing": "how many culprits are described, and how much of a tensor is read for it",
    "error_terms": "what is tried first; a run proves what is kept",
    "estimates._HELD": "memory",
    "estimates._SQUARES": (
        "where squares of float64 lose digits; beyond, the same is computed in another way"
    ),
    "tolerance._THREE_DIGITS_UP": "how many digits are printed",
    "gradient_checks": "how a gradient that is wrong is described",
    "marginals": "the shape of an error",
    "given_layouts._MOST_BYTES": "memory",
    "learned_errors": "what is tried next; a run proves what is kept",
    "keeping_search": "how long a search takes, and what it tries; a run proves what is kept",
    "layout_checks._NEIGHBOURS": "how long the runs of tokens are that are looked up",
    "part_ways": "how much of a tensor is read to tell its layout",
    "masks.MOST_BROADCAST": "memory",
    "off_at_padding": "which dimensions are batch entries and tokens",
    "norms": "exact sums: which of two formulas loses fewer digits",
    "patterns": "the shape of an error",
    "preflight": "how many differences are listed",
    "proposals": "how long a renaming is searched for; what is found is checked",
    "scaled._LOSS_SCALE": "what a factor is explained by, in words",
    "scaled._MOST_PARTS": "what a factor is explained by, in words",
    "scan": "widths of types, and where counting can be left out",
    "sequences._LIKE": "an order of what counts more, which is tested; not an amount",
    "sequences._LINE": "the same",
    "sequences._OPTIONS": "the same",
    "sequences._PAIR": "the same",
    "sequences.SEQUENCE_WINDOW": "time and memory",
    "rank_facts.MOST_KEPT": "how many violations are listed",
    "limits_in_force._MOST_BYTES": "memory",
    "limits_in_force.read_rules": "a version of Python",
    "transforms": "the shape of an error",
    "put_together.FUSED": "what is tried: the values prove what fits",
    "put_together._MOST_REORDERED": "how many orders are tried to describe what fails",
    "routing._MOST_CHOSEN": "which integers may be choices: golden's scores must prove them",
    "routing._MOST_EXPERTS": "the same",
    "expert_calls._MOST_AROUND": "how far a call's tokens are looked for; their bits must be found",
    "row_labels._DIRECTIONS": "how long rows are looked for by values, which must be alike",
    "expert_calls._MOST_BESIDE": "where counts are looked for, which must add up",
    "worker": "memory",
}

_INVARIANTS = "tests/compare/test_invariants.py"

#: Numbers whose tests are elsewhere.
ELSEWHERE = {
    "baseline.NORMAL": (
        "tests/compare/test_baseline.py::test_the_limit_of_a_ratio_is_the_root_of_an_f_quantile"
    ),
    "baseline._STUDENT": (
        "tests/compare/test_baseline.py::test_the_limit_of_a_ratio_is_the_root_of_an_f_quantile"
    ),
    "decide.EXIT_CODES": (
        "tests/compare/test_decide.py::test_every_answer_has_its_exit_code_and_its_verdict"
    ),
    "constants.FEWEST_DROPPED": f"{_INVARIANTS}::test_few_elements_may_be_dropped_alike_by_chance",
    "constants.REDUCED_WITHIN": f"{_INVARIANTS}::test_a_gradient_may_be_off_by_rounding",
    "constants.SAME_NUMBER": f"{_INVARIANTS}::test_the_norm_that_clips_is_that_of_all_gradients",
    "constants.SAME_NUMBER_OF_HALVES": (
        f"{_INVARIANTS}::test_the_norm_that_clips_is_that_of_all_gradients"
    ),
    "rank_facts.RANK_EXIT_CODES": f"{_INVARIANTS}::test_every_answer_has_its_exit_code",
    "trend_facts.TREND_EXIT_CODES": (
        "tests/trending/test_trend.py::test_every_answer_has_its_exit_code"
    ),
    "constants.TELLS_LAYOUT": (
        "tests/compare/test_golden_parts.py::test_values_far_from_goldens_tell_no_layout"
    ),
    "constants.HIDES_NOTHING": (
        "tests/compare/test_proof.py::"
        "test_a_deviation_far_below_the_candidates_rounding_hides_nothing"
    ),
    "constants.SUMMED": (
        "tests/compare/test_summing.py::"
        "test_a_normalisation_sums_over_all_but_its_channels_or_samples"
    ),
}


@dataclass(frozen=True)
class Number:
    """A number in the source of a module.

    Attributes:
        path: of its module.
        name: ``tolerance._BY_DIGITS[53][0]``; of one in a condition, the function's.
        place: of the text that it is written with: first character and the one behind the last.
        value: it.
    """

    path: Path
    name: str
    place: tuple[int, int]
    value: float

    def changed(self, up: bool) -> float:
        """The number in its place."""
        if isinstance(self.value, int):
            step = max(1, round(abs(self.value) * (FACTOR - 1)))
            return self.value + step if up else self.value - step
        if 2 / 3 < self.value < 1:
            return 1 - (1 - self.value) * (1 / FACTOR if up else FACTOR)
        return self.value * FACTOR if up else self.value / FACTOR


def _of(node: ast.expr) -> float | None:
    """The value of an expression of numbers alone; ``None`` of any other."""
    if isinstance(node, ast.Constant):
        return (
            node.value
            if isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
            else None
        )
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if not isinstance(node, (ast.BinOp, ast.UnaryOp)) or None in map(_of, inner):
        return None
    found: float = eval(compile(ast.Expression(node), "", "eval"), {})
    return found


def _inside(node: ast.expr, name: str) -> Iterator[tuple[str, ast.expr]]:
    """The numbers inside an expression, with their names."""
    if _of(node) is not None:
        yield name, node
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from _inside(value, f"{name}[{ast.unparse(key) if key else '**'}]")
    elif isinstance(node, ast.Call):
        for argument in node.keywords:
            yield from _inside(argument.value, f"{name}.{argument.arg}")
        for place, value in enumerate(node.args):
            yield from _inside(value, f"{name}[{place}]")
    elif not isinstance(node, ast.Subscript):
        for place, value in enumerate(
            child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
        ):
            yield from _inside(value, f"{name}[{place}]")


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement of a module gives values to."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield ast.unparse(statement.target), statement.value
    elif isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(map(ast.unparse, target.elts), value.elts, strict=True)
        else:
            yield ast.unparse(target), value


def _compared_with(node: ast.AST, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Numbers in conditions, with the name of the function around them."""
    for child in ast.iter_child_nodes(node):
        inner = (
            f"{name}.{child.name}" if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else name
        )
        if isinstance(child, ast.Compare) and inner:
            for side in (child.left, *child.comparators):
                yield from (
                    (inner, each)
                    for _, each in _inside(side, "")
                    if abs(_of(each) or 0) not in (0, 1, 2)
                )
        yield from _compared_with(child, inner)


def numbers(path: Path) -> list[Number]:
    """All numbers of a module that may decide something."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    tree = ast.parse(text)
    found = [
        each
        for statement in tree.body
        for name, value in _assigned(statement)
        for each in _inside(value, f".{name}")
    ]
    found += _compared_with(tree, "")
    made = []
    for name, node in found:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        place = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        made.append(Number(path, f"{path.stem}{name}", place, _of(node) or 0))
    return made


def belongs(name: str, listed: str) -> bool:
    """Whether a number is the one that a list names, or is inside it."""
    return name == listed or (name.startswith(listed) and name[len(listed)] in ".[")


def deciding() -> list[Number]:
    """The numbers of ``compare/`` that decide."""
    every = [each for path in sorted(PACKAGE.rglob("*.py")) for each in numbers(path)]
    stale = [
        listed
        for listed in (*EXEMPT, *ELSEWHERE)
        if not any(belongs(each.name, listed) for each in every)
    ]
    assert not stale, f"no such numbers: {stale}"
    return [each for each in every if not any(belongs(each.name, listed) for listed in EXEMPT)]


def near(name: str, cases: Sequence[str]) -> list[str]:
    """The tests that must fail if a number changes. ``cases``: the names in ``TABLE``."""
    own = [
        f"{TABLE}::test_a_number_decides_where_it_says[{case}]"
        for case in cases
        if belongs(name, case)
    ]
    return [*own, *(tests for listed, tests in ELSEWHERE.items() if belongs(name, listed))]


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads one module with one number changed."""

    def __init__(self, number: Number, new: float) -> None:
        module = ".".join(number.path.relative_to(ROOT).with_suffix("").parts)
        super().__init__(module, str(number.path))
        source, (first, end) = Path(self.path).read_bytes(), number.place
        self._source = source[:first] + f"({new!r})".encode() + source[end:]

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec")
        return code

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.util.spec_from_file_location(name, self.path, loader=self)
            if name == self.name
            else None
        )


def _passes(number: Number | None, up: bool, tests: Sequence[str]) -> tuple[bool, float]:
    """Whether tests pass with a number changed, and the seconds that they took; run in a process of
    its own.
    """
    import pytest

    began = time.monotonic()
    if number is not None:
        sys.meta_path.insert(0, _Changed(number, number.changed(up)))
    with (
        contextlib.redirect_stdout(io.StringIO()) as said,
        contextlib.redirect_stderr(said),
        tempfile.TemporaryDirectory() as folder,
    ):
        code = pytest.main(
            [
                "-x",
                "-q",
                "-n0",
                "--assert=plain",
                "-p",
                "no:cacheprovider",
                f"--basetemp={folder}/t",
                *tests,
            ]
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise RuntimeError(said.getvalue())
    if number is None and code:
        sys.stdout.write(said.getvalue())
    return code == pytest.ExitCode.OK, time.monotonic() - began


def _cases() -> list[str]:
    return list(importlib.import_module("tests.compare.test_deciding").CASES)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "names", nargs="*", help="modules or numbers, such as judge or judge.RUNS; by default all"
    )
    options.add_argument(
        "--list", action="store_true", help="list the numbers and their tests, and change none"
    )
    options.add_argument("--jobs", type=int, default=2, help="processes at a time")
    given = options.parse_args()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = False  # else each process would compile the package anew
    import pandas
    import pytest
    import torch

    del pandas, pytest, torch  # what takes seconds is imported once, before processes are forked
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=1) as pool:
        cases = pool.apply(_cases)
        chosen = [
            each
            for each in deciding()
            if not given.names or any(belongs(each.name, name) for name in given.names)
        ]
        tests = {each.name: near(each.name, cases) for each in chosen}
        if given.list:
            for each in chosen:
                print(f"{each.name} = {each.value:g}: {', '.join(tests[each.name]) or 'NO TEST'}")
            return 0
        without = [each for each in chosen if not tests[each.name]]
        for each in without:
            print(f"SURVIVES {each.name} = {each.value:g}: has no test")
        sound, _ = pool.apply(
            _passes, (None, True, sorted({test for each in chosen for test in tests[each.name]}))
        )
        if not sound:
            print("the tests fail as it is")
            return 2
        began = [
            (each, up, pool.apply_async(_passes, (each, up, tests[each.name])))
            for each in chosen for up in (True, False) if tests[each.name]
        ]  # fmt: skip
        survived = len(without)
        for each, up, result in began:
            passes, seconds = result.get(600)
            survived += passes
            state = "SURVIVES" if passes else "killed  "
            print(
                f"{state} {each.name} = {each.value:g} -> {each.changed(up):g} ({seconds:.1f} s)",
                flush=True,
            )
    print(f"{len(chosen)} numbers that decide; {survived} changes that no test sees")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

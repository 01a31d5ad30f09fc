"""Limits: which are taken, which apply to a record, and what is said of those that make no
sense."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from accucompare.bundle.format.records import Record
from accucompare.compare.limits import DEFAULT_REL_L2, LimitsInForce, Tolerance, read_rules
from accucompare.errors import UsageError
from accucompare.numbers.dtypes import DTYPES, Kind
from accucompare.report.words import limit_words
from tests.compare.builder import item


def record(
    name: str = "encoder.fc1", dtype: str = "float32", type: str = "Linear", role: str = "output"
) -> Record:
    return item(name, [1.0], dtype, type=type, role=role).record


def rules_of(tmp_path: Path, text: str) -> LimitsInForce:
    path = tmp_path / "limits.toml"
    path.write_text(text, encoding="utf-8")
    return LimitsInForce(read_rules(path))


def error_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        rules_of(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path / 'limits.toml'}")


@pytest.mark.parametrize("name", ["atol", "rtol", "rel_l2", "cosine"])
@pytest.mark.parametrize("value", [-1e-3, math.nan, math.inf, -math.inf, True, "1e-3", 10**400])
def test_a_limit_that_is_no_finite_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(
        UsageError, match=f"^{name} must be a finite number that is not negative, but is "
    ):
        Tolerance(**{name: value})


@pytest.mark.parametrize("value", [1e-3, 0.49, 1.001, 0])
def test_a_cosine_limit_that_is_no_similarity_is_refused_with_the_likely_mistake(
    value: float,
) -> None:
    with pytest.raises(UsageError, match=r"between 0\.5 and 1 .* it is not 1 - cosine"):
        Tolerance(cosine=value)


def test_the_limit_of_a_dtype_is_rounded_for_reading_and_the_users_own_is_not() -> None:
    assert (
        limit_words.tolerance_words(Tolerance(rel_l2=16 * 2.0**-23, by_default=True))
        == "rel_l2 1.91e-06"
    )
    assert (
        limit_words.tolerance_words(Tolerance(rel_l2=16 * 2.0**-23)) == "rel_l2 1.9073486328125e-06"
    )


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({}, "exact"),
        ({"atol": 1e-3}, "atol 0.001"),
        ({"rtol": 0, "atol": 2, "cosine": 0.999}, "atol 2, rtol 0, cosine 0.999"),
    ],
)
def test_a_tolerance_is_written_as_its_limits(limits: dict[str, float], text: str) -> None:
    assert limit_words.tolerance_words(Tolerance(**limits)) == text


@pytest.mark.parametrize(
    "dtype", [dtype.name for dtype in DTYPES.values() if dtype.kind in (Kind.FLOAT, Kind.COMPLEX)]
)
def test_every_floating_type_has_a_default_limit(dtype: str) -> None:
    tolerance = LimitsInForce().tolerance_for(record(dtype=dtype), record(dtype=dtype))
    assert (tolerance.rel_l2, limit_words.source(tolerance.source)) == (
        DEFAULT_REL_L2[dtype],
        f"default for {dtype}",
    )
    assert tolerance.rel_l2 > DTYPES[dtype].rounding


@pytest.mark.parametrize(
    ("golden", "candidate", "judged"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float64", "float32", "float32"),
        ("float16", "bfloat16", "bfloat16"),
        ("float32", "float8_e4m3fn", "float8_e4m3fn"),
        ("complex128", "complex64", "complex64"),
    ],
)
def test_the_default_is_that_of_the_coarser_type(golden: str, candidate: str, judged: str) -> None:
    assert (
        limit_words.source(
            LimitsInForce().tolerance_for(record(dtype=golden), record(dtype=candidate)).source
        )
        == f"default for {judged}"
    )


def test_the_first_rule_that_applies_wins(tmp_path: Path) -> None:
    tolerances = rules_of(
        tmp_path,
        """
        [[rule]]
        layer = "*.fc1"
        rel_l2 = 1e-2
        [[rule]]
        layer = "encoder.*"
        atol = 1e-3
        """,
    )
    first, second = (
        tolerances.tolerance_for(record(name), record(name))
        for name in ("encoder.fc1", "encoder.fc2")
    )
    assert (first.rel_l2, first.atol) == (1e-2, None)
    assert (second.rel_l2, second.atol) == (None, 1e-3)


def test_a_layer_without_rule_has_the_default(tmp_path: Path) -> None:
    tolerances = rules_of(tmp_path, '[[rule]]\nlayer = "head"\natol = 1.0')
    assert (
        limit_words.source(tolerances.tolerance_for(record(), record()).source)
        == "default for float32"
    )


@pytest.mark.parametrize(
    ("key", "glob"),
    [("type", "Lin*"), ("role", "out*"), ("dtype", "bfloat*"), ("layer", "encoder.*")],
)
def test_a_rule_chooses_by_layer_type_role_and_dtype_of_the_candidate(
    tmp_path: Path, key: str, glob: str
) -> None:
    tolerances = rules_of(tmp_path, f'[[rule]]\n{key} = "{glob}"\natol = 0.125')
    chosen = record(dtype="bfloat16")
    other = record("head", "float32", "Conv2d", "input")
    assert tolerances.tolerance_for(other, chosen).atol == 0.125
    assert tolerances.tolerance_for(chosen, other).atol is None


def test_the_source_of_a_limit_is_the_rule_in_the_file(tmp_path: Path) -> None:
    tolerances = rules_of(tmp_path, '[[rule]]\nlayer="x"\natol=1\n[[rule]]\natol=2')
    assert (
        limit_words.source(tolerances.tolerance_for(record(), record()).source)
        == f"{tmp_path / 'limits.toml'}, rule 2"
    )


def test_an_unknown_key_is_named_with_the_known_ones(tmp_path: Path) -> None:
    assert (
        error_of(tmp_path, "[[rule]]\nabs = 1")
        == ", rule 1: unknown key 'abs'; known are layer, type, role, dtype, atol, rtol, rel_l2,"
        " cosine"
    )


def test_a_glob_that_is_no_string_is_named(tmp_path: Path) -> None:
    assert (
        error_of(tmp_path, "[[rule]]\natol = 1\n[[rule]]\nlayer = 3\natol = 1")
        == ", rule 2: layer must be a glob in quotes, but is 3"
    )


@pytest.mark.parametrize("value", ["'1e-3'", "-1", "inf", "nan", "true", "[1]", "1" + "0" * 400])
def test_a_limit_that_is_no_number_is_named(tmp_path: Path, value: str) -> None:
    assert error_of(tmp_path, f"[[rule]]\natol = {value}").startswith(
        ", rule 1: atol must be a finite number that is not negative, but is "
    )


def test_a_rule_without_limit_is_refused(tmp_path: Path) -> None:
    assert (
        error_of(tmp_path, '[[rule]]\nlayer = "*"')
        == ", rule 1: has no limit; give one of atol, rtol, rel_l2, cosine"
    )


@pytest.mark.parametrize(
    "text",
    ["", "atol = 1", "rule = []", "[rule]\natol = 1", "rule = 'x'", "[[rule]]\natol = 1\n[other]"],
)
def test_a_file_without_rules_or_with_more_is_refused(tmp_path: Path, text: str) -> None:
    assert error_of(tmp_path, text).startswith(
        ": must hold [[rule]] tables and nothing else, but has "
    )


def test_a_rule_that_is_no_table_is_named(tmp_path: Path) -> None:
    assert error_of(tmp_path, "rule = [3]") == ", rule 1: must be a [[rule]] table, but is 3"


@pytest.mark.parametrize("text", ["[[rule", "atol 1", 'layer = "x', "a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    assert error_of(tmp_path, text).startswith(": not valid TOML (")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_rules(tmp_path / "limits.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"nowhere\.toml: cannot be read \(No such file or directory\)"
    ):
        read_rules(tmp_path / "nowhere.toml")


def test_what_is_in_force_is_told_in_one_line(tmp_path: Path) -> None:
    rules = read_rules_text(tmp_path)
    assert limit_words.tolerances(LimitsInForce()) == "default relative L2 limit of each dtype"
    assert limit_words.tolerances(LimitsInForce((), Tolerance(atol=1e-3))) == "atol 0.001"
    assert (
        limit_words.tolerances(LimitsInForce(rules, Tolerance(rtol=0.5)))
        == f"1 rule(s) from {tmp_path / 'limits.toml'}, then rtol 0.5"
    )


def read_rules_text(tmp_path: Path) -> Any:
    (tmp_path / "limits.toml").write_text("[[rule]]\natol = 1")
    return read_rules(tmp_path / "limits.toml")

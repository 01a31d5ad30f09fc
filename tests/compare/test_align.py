"""Which record belongs to which, and what is said of those that stay alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accucompare.bundle.format.records import Record
from accucompare.compare.pairing.align import _NEAREST_FOR, Pair, pair_records, tupled
from accucompare.compare.pairing.renames import Renaming, claims, counterparts, rename_parameter
from accucompare.errors import UsageError
from tests.compare.builder import item


def record(name: str, **place: object) -> Record:
    return item(name, **place).record  # type: ignore[arg-type]


def names(pairs: list[Pair]) -> list[tuple[str | None, str | None]]:
    return [
        (pair.golden and pair.golden.name, pair.candidate and pair.candidate.name) for pair in pairs
    ]


def renamed(text: str, name: str) -> str | None:
    return Renaming.parse(text).apply(name)


KEYS = st.builds(
    record,
    st.sampled_from(["", "a", "b", "a.b", "层1"]),
    role=st.sampled_from(["input", "output"]),
    path=st.sampled_from(["", "0", "1.x"]),
    call=st.integers(0, 1),
    step=st.integers(0, 1),
    rank=st.integers(0, 1),
)
SIDE = st.lists(KEYS, max_size=30, unique_by=lambda record: record.key)


@given(SIDE, SIDE, st.sampled_from([(), ("a*=b*",), ("*=x",), ("b=a", "a=b")]))
def test_every_record_is_in_exactly_one_pair(
    golden: list[Record], candidate: list[Record], maps: tuple[str, ...]
) -> None:
    pairs = pair_records(golden, candidate, [Renaming.parse(text) for text in maps])
    assert Counter(pair.golden.key for pair in pairs if pair.golden) == Counter(
        record.key for record in golden
    )
    assert Counter(pair.candidate.key for pair in pairs if pair.candidate) == Counter(
        record.key for record in candidate
    )
    assert all(pair.golden or pair.candidate for pair in pairs)


@given(SIDE, SIDE)
def test_records_are_paired_exactly_if_their_keys_are_equal_or_one_is_in_a_tuple(
    golden: list[Record], candidate: list[Record]
) -> None:
    pairs = pair_records(golden, candidate)
    both = [
        (pair.golden.key, pair.candidate.key) for pair in pairs if pair.golden and pair.candidate
    ]
    same = {ours for ours, theirs in both if ours == theirs}
    assert same == {record.key for record in golden} & {record.key for record in candidate}
    in_a_tuple = [(ours, theirs) for ours, theirs in both if ours != theirs]
    assert all(
        ours._replace(path=tupled(ours.role, ours.path)) == theirs for ours, theirs in in_a_tuple
    )


@given(SIDE, SIDE)
def test_pairs_come_in_the_order_of_golden(golden: list[Record], candidate: list[Record]) -> None:
    assert [pair.golden for pair in pair_records(golden, candidate) if pair.golden] == golden


def test_an_extra_record_follows_the_one_it_came_after_in_the_candidate() -> None:
    golden = [record("a"), record("b"), record("c")]
    candidate = [
        record("first"),
        record("a"),
        record("new"),
        record("newer"),
        record("b"),
        record("c"),
        record("last"),
    ]
    assert names(pair_records(golden, candidate)) == [
        (None, "first"),
        ("a", "a"),
        (None, "new"),
        (None, "newer"),
        ("b", "b"),
        ("c", "c"),
        (None, "last"),
    ]


def test_nothing_is_aligned_with_an_empty_bundle() -> None:
    assert names(pair_records([record("a")], [])) == [("a", None)]
    assert names(pair_records([], [record("a")])) == [(None, "a")]
    assert pair_records([], []) == []


def test_unmatched_records_name_the_nearest_on_the_other_side() -> None:
    golden = [record("head"), record("encoder.layers.0.fc1")]
    candidate = [record("head"), record("encoder.layer.0.fc1")]
    extra, missing = pair_records(golden, candidate)[1:]
    assert (missing.golden, missing.nearest) == (golden[1], "encoder.layer.0.fc1")
    assert (extra.candidate, extra.nearest) == (candidate[1], "encoder.layers.0.fc1")


def test_a_name_like_no_other_gets_no_hint() -> None:
    assert [pair.nearest for pair in pair_records([record("aaaa")], [record("zzzz")])] == ["", ""]


def test_thousands_of_unmatched_names_get_hints_for_the_first_ones_only() -> None:
    golden, candidate = (
        [record(f"{side}.{number:05}") for number in range(_NEAREST_FOR + 100)]
        for side in ("layer", "lager")
    )
    assert (
        0 < sum(bool(pair.nearest) for pair in pair_records(golden, candidate)) <= 2 * _NEAREST_FOR
    )


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("old=new", "old", "new"),
        ("old=new", "old.fc", None),
        ("old=new", "my.old", None),
        ("encoder.layers.*=blocks.*", "encoder.layers.3.fc1", "blocks.3.fc1"),
        ("*.a.*=*.b.*", "x.a.y", "x.b.y"),
        ("h.*.attn=blocks.*", "h.7.attn", "blocks.7"),
        ("h.*=x", "h.7", "x"),
        ("a=", "a", ""),
        (r"w.*=\1*", "w.x", r"\1x"),
        ("a.b=c", "axb", None),
        ("层*=layer*", "层1", "layer1"),
        ("*=x*", "a\nb", "xa\nb"),
        (r"re:h\.(\d+)\.(.*)=layers.\1.\2", "h.3.mlp", "layers.3.mlp"),
        (r"re:h\.(?P<n>\d+)=layers.\g<n>", "h.3", "layers.3"),
        ("re:h=x", "hh", None),
        ("a.*=b.*", "a", "b"),
        ("a.*=b.c.*", "a", "b.c"),
        ("*.a.*=*.b.*", "x.a", "x.b"),
        ("*.a.*=*.b.*", "x.a.y.a", "x.b.y.a"),
        ("a.*=b.*", "ab", None),
        ("a.*=*", "a", None),
        ("a.*=b*", "a", None),
        (r"re:a\.(.*)=b.\1", "a", None),
        ("*=model.*", "x", "model.x"),
        ("*=model.*", "", None),
        ("model.*=*", "model.x", "x"),
        ("re:=model", "", "model"),
    ],
)
def test_a_map_renames_by_glob_or_regex(text: str, name: str, expected: str | None) -> None:
    assert renamed(text, name) == expected


@pytest.mark.parametrize("text", ["", "abc", "=new"])
def test_a_map_that_is_not_old_equals_new_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be OLD=NEW, such as"):
        Renaming.parse(text)


def test_a_map_with_more_stars_on_the_right_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'\*\.\*' has more \* than 'a\.\*'"):
        Renaming.parse("a.*=*.*")


@pytest.mark.parametrize(
    "text",
    ["re:(=x", r"re:a=\1", r"re:a=\g<name>", "re:*=x", "re:a{99999999999}=x", r"re:(a)=\g<2>"],
)
def test_a_map_whose_regex_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid regular expression"):
        Renaming.parse(text)


def test_the_first_map_that_matches_wins() -> None:
    renamings = [Renaming.parse("a=x"), Renaming.parse("a=y")]
    assert names(pair_records([record("a")], [record("y"), record("x")], renamings)) == [
        (None, "y"),
        ("a", "x"),
    ]


def test_two_layers_mapped_to_one_leave_the_second_alone() -> None:
    pairs = pair_records([record("a"), record("b")], [record("x")], [Renaming.parse("*=x")])
    assert names(pairs) == [("a", "x"), ("b", None)]


@pytest.mark.parametrize(
    ("maps", "name", "expected"),
    [
        (["a.*=b.*"], "a.weight", "b.weight"),
        (["a=b"], "a.weight", "b.weight"),
        (["a=b"], "a.fc.weight", None),
        (["*=model.*"], "weight", "model.weight"),
        (["model.*=*"], "model.weight", "weight"),
        (["*.gamma=*.weight"], "norm.gamma", "norm.weight"),
        (["norm.gamma=ln.weight", "norm=ln"], "norm.gamma", "ln.weight"),
        (["norm=ln", "norm.gamma=ln.weight"], "norm.gamma", "ln.gamma"),
        (["a="], "a.weight", "weight"),
    ],
)
def test_a_parameter_is_renamed_with_its_layer_or_by_its_whole_name(
    maps: list[str], name: str, expected: str | None
) -> None:
    assert rename_parameter(name, [Renaming.parse(text) for text in maps]) == expected


def test_a_name_stays_where_the_new_one_is_not_there() -> None:
    assert counterparts(["a.x", "a.y"], {"b.x", "a.y"}, [Renaming.parse("a.*=b.*")]) == {
        "a.x": "b.x",
        "a.y": "a.y",
    }


def test_names_that_become_the_same_are_known() -> None:
    assert claims(
        ["", "a", "b", "c"], {"", "b"}, [Renaming.parse("a=b"), Renaming.parse("c=b")]
    ) == {"b": ["a", "c", "b"], "": [""]}


# arguments by position and by name

SIGNATURE = {"Linear": ["hidden_states", "mask"]}


def inputs(*paths: str, name: str = "fc", **place: object) -> list[Record]:
    return [record(name, role="input", path=path, **place) for path in paths]


def paths(
    golden: list[Record],
    candidate: list[Record],
    signatures: tuple[Any, Any],
    maps: tuple[str, ...] = (),
) -> list[tuple[Any, Any]]:
    pairs = pair_records(golden, candidate, [Renaming.parse(text) for text in maps], signatures)
    return [
        (pair.golden and pair.golden.path, pair.candidate and pair.candidate.path) for pair in pairs
    ]


@pytest.mark.parametrize(
    "signatures",
    [(SIGNATURE, SIGNATURE), (SIGNATURE, {}), ({}, SIGNATURE)],
    ids=["both", "golden", "candidate"],
)
def test_inputs_by_position_and_by_name_are_one_argument(signatures: tuple[Any, Any]) -> None:
    sides = inputs("0", "1.0", "1.1"), inputs("hidden_states", "mask.0", "mask.1")
    expected = list(zip(["0", "1.0", "1.1"], ["hidden_states", "mask.0", "mask.1"], strict=True))
    assert paths(*sides, signatures) == expected
    assert paths(sides[1], sides[0], signatures) == [(theirs, ours) for ours, theirs in expected]


def test_an_argument_that_moved_in_the_signature_is_found() -> None:
    moved = {"Linear": ["new", "hidden_states", "mask"]}
    assert paths(inputs("1"), inputs("2"), (SIGNATURE, moved)) == [("1", "2")]


def test_an_input_that_has_a_partner_of_its_own_path_is_no_other_argument() -> None:
    assert paths(inputs("0"), inputs("0", "hidden_states"), (SIGNATURE, SIGNATURE)) == [
        ("0", "0"),
        (None, "hidden_states"),
    ]


def test_inputs_of_other_calls_outputs_and_unknown_positions_are_no_argument() -> None:
    one = inputs("0")
    for other in (
        inputs("hidden_states", call=1),
        inputs("hidden_states", name="b"),
        [record("fc", path="hidden_states")],
        inputs("mask"),
    ):
        assert (None, other[0].path) in paths(one, other, (SIGNATURE, SIGNATURE))
    assert (None, "mask") in paths(inputs("2"), inputs("mask"), (SIGNATURE, SIGNATURE))


def test_arguments_of_renamed_layers_are_found() -> None:
    assert paths(
        inputs("0"),
        inputs("mask", "hidden_states", name="new"),
        (SIGNATURE, SIGNATURE),
        ("fc=new",),
    ) == [(None, "mask"), ("0", "hidden_states")]

"""Which record belongs to which, and what is said of those that stay alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accucompare.bundle.records import Record
from accucompare.compare.align import HINTS, Pair, Renaming, align, unused
from accucompare.errors import UsageError
from tests.compare.builder import item


def record(name: str, **place: object) -> Record:
    return item(name, **place).record  # type: ignore[arg-type]


def names(pairs: list[Pair]) -> list[tuple[str | None, str | None]]:
    return [(pair.golden and pair.golden.name, pair.candidate and pair.candidate.name) for pair in pairs]


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


@settings(deadline=None)
@given(SIDE, SIDE, st.sampled_from([(), ("a*=b*",), ("*=x",), ("b=a", "a=b")]))
def test_every_record_is_in_exactly_one_pair(golden: list[Record], candidate: list[Record], maps: tuple[str, ...]) -> None:
    pairs = align(golden, candidate, [Renaming.parse(text) for text in maps])
    assert Counter(pair.golden.key for pair in pairs if pair.golden) == Counter(record.key for record in golden)
    assert Counter(pair.candidate.key for pair in pairs if pair.candidate) == Counter(record.key for record in candidate)
    assert all(pair.golden or pair.candidate for pair in pairs)


@settings(deadline=None)
@given(SIDE, SIDE)
def test_records_are_paired_exactly_if_their_keys_are_equal(golden: list[Record], candidate: list[Record]) -> None:
    pairs = align(golden, candidate)
    both = {pair.golden.key for pair in pairs if pair.golden and pair.candidate}
    assert both == {record.key for record in golden} & {record.key for record in candidate}
    assert all(pair.golden.key == pair.candidate.key for pair in pairs if pair.golden and pair.candidate)


@settings(deadline=None)
@given(SIDE, SIDE)
def test_pairs_come_in_the_order_of_golden(golden: list[Record], candidate: list[Record]) -> None:
    assert [pair.golden for pair in align(golden, candidate) if pair.golden] == golden


def test_an_extra_record_follows_the_one_it_came_after_in_the_candidate() -> None:
    golden = [record("a"), record("b"), record("c")]
    candidate = [record("first"), record("a"), record("new"), record("newer"), record("b"), record("c"), record("last")]
    assert names(align(golden, candidate)) == [
        (None, "first"),
        ("a", "a"),
        (None, "new"),
        (None, "newer"),
        ("b", "b"),
        ("c", "c"),
        (None, "last"),
    ]


def test_nothing_is_aligned_with_an_empty_bundle() -> None:
    assert names(align([record("a")], [])) == [("a", None)]
    assert names(align([], [record("a")])) == [(None, "a")]
    assert align([], []) == []


def test_unmatched_records_name_the_nearest_on_the_other_side() -> None:
    golden = [record("head"), record("encoder.layers.0.fc1")]
    candidate = [record("head"), record("encoder.layer.0.fc1")]
    extra, missing = align(golden, candidate)[1:]
    assert (missing.golden, missing.nearest) == (golden[1], "encoder.layer.0.fc1")
    assert (extra.candidate, extra.nearest) == (candidate[1], "encoder.layers.0.fc1")


def test_a_name_like_no_other_gets_no_hint() -> None:
    assert [pair.nearest for pair in align([record("aaaa")], [record("zzzz")])] == ["", ""]


def test_thousands_of_unmatched_names_get_hints_for_the_first_ones_only() -> None:
    golden, candidate = ([record(f"{side}.{number:05}") for number in range(HINTS + 100)] for side in ("layer", "lager"))
    assert 0 < sum(bool(pair.nearest) for pair in align(golden, candidate)) <= 2 * HINTS


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


@pytest.mark.parametrize("text", ["re:(=x", r"re:a=\1", r"re:a=\g<name>", "re:*=x", "re:a{99999999999}=x", r"re:(a)=\g<2>"])
def test_a_map_whose_regex_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid regular expression"):
        Renaming.parse(text)


def test_the_first_map_that_matches_wins() -> None:
    renamings = [Renaming.parse("a=x"), Renaming.parse("a=y")]
    assert names(align([record("a")], [record("y"), record("x")], renamings)) == [(None, "y"), ("a", "x")]


def test_two_layers_mapped_to_one_leave_the_second_alone() -> None:
    pairs = align([record("a"), record("b")], [record("x")], [Renaming.parse("*=x")])
    assert names(pairs) == [("a", "x"), ("b", None)]


def test_maps_that_match_nothing_are_known() -> None:
    renamings = [Renaming.parse("a=x"), Renaming.parse("no*=y*")]
    assert [renaming.text for renaming in unused(renamings, ["a", "b"])] == ["no*=y*"]

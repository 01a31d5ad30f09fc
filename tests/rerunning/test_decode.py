"""``accucompare locate --decode`` on real models, right ones and faulty ones."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.case import steps_of
from accucompare.compare.reruns import (
    Decoded,
    DecodeOutcome,
    DecodeWay,
    NotDecodedWhy,
    TokenDifference,
    keys_seen,
    over_limits,
    token_errors,
)
from accucompare.errors import CaseError, UsageError
from accucompare.rerunning.token_places import TokenPlace, token_place
from accucompare.rerunning.token_sequence import GivenTokens, TokenSequence
from planted.computed_decode import DECODE_FAULTS, FIRST, STEPS
from planted.computed_decode_models import clean
from tests.conftest import Run


def check(case: str, dtype: str | None = None, steps: int = STEPS) -> ac.DecodeCheck:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ac.check_decode(case, steps=steps, dtype=dtype)


def test_a_right_model_differs_by_rounding() -> None:
    found = check("planted.computed_decode_models:gpt2", "bfloat16")
    assert (found.exit_code, found.failing) == (0, [])
    assert all(each.looked > 100 for each in found.outcomes)


@pytest.mark.parametrize(
    "name",
    [
        "llama: positions one late",
        "t5: cross attention of another layer",
        "qwen3: generate() counts padding",
    ],
)
def test_a_fault_of_the_cache_is_named_with_its_first_token(name: str) -> None:
    fault, found = DECODE_FAULTS[name], check(f"planted.computed_decode:{name}")
    first = found.first
    assert found.exit_code == 1
    assert first is not None
    assert first.maker in fault.names
    assert first.argument.startswith(fault.argument)
    assert fault.token in (None, first.token)
    assert fault.way in (None, found.failing[0].way)


def test_a_cache_in_bfloat16_is_no_rounding_of_float32() -> None:
    found = check("planted.computed_decode:neox: rounded to bfloat16")
    assert found.first is not None
    assert found.first.maker == "gpt_neox.layers.1.attention"


def test_several_tokens_behind_a_state() -> None:
    """A bug of transformers 5.24."""
    found = check("planted.computed_decode_models:mamba")
    assert [each.way for each in found.failing] == [DecodeWay.CHUNKED]


class Summing(nn.Module):
    """Each token is the sum of those before it and itself; the cache is that sum."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.last: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        summed = self.inside(tokens).cumsum(1)
        made = summed if before is None else summed + before
        self.last = made[:, -1:]
        return made


class Noisy(Summing):
    def forward(self, tokens: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(tokens, before) + torch.randn(())


class Both(Summing):
    """Later tokens change earlier ones."""

    def forward(self, tokens: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(tokens, before) + tokens.mean(1, keepdim=True)


class Recurrent(nn.Module):
    """Begins with a state of zeros, by a layer of torch and by a cell that is called by token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cell = nn.GRU(4, 4, batch_first=True), nn.GRUCell(4, 4)

    def forward(self, tokens: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        none = tokens.new_zeros(1, len(tokens), 4)
        of_layer, of_cell = (none, none[0]) if state is None else state
        made, of_layer = self.layer(tokens, of_layer)
        given = []
        for each in made.unbind(1):
            of_cell = self.cell(each, of_cell)
            given.append(of_cell)
        return torch.stack(given, 1), (of_layer, of_cell)


class Routed(Summing):
    """Returns choices with their scores; with a cache, it takes the next one for one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()

    def forward(self, tokens: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        self.router.wrong = before is not None
        made = super().forward(tokens, before)
        scores, chosen = self.router(made)
        return made * scores + chosen


class Router(nn.Module):
    wrong = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, chosen = x.max(-1, keepdim=True)
        return scores, torch.cat([chosen[:1], (chosen[1:] + self.wrong) % 4])


def routed() -> ac.Case:
    return _case(Routed())


def _recurrent(lost: int | None = None) -> ac.Case:
    def decode(model: nn.Module, state: Any, tokens: torch.Tensor) -> Any:
        return model(tokens, [each * (lost != at) for at, each in enumerate(state)])

    def prefill(model: nn.Module, tokens: torch.Tensor) -> Any:
        return model(tokens)

    return ac.Case(Recurrent(), torch.randn(2, 7, 4), prefill=prefill, decode=decode)


def recurrent() -> ac.Case:
    return _recurrent()


def without_state_of_layer() -> ac.Case:
    return _recurrent(lost=0)


def without_state_of_cell() -> ac.Case:
    return _recurrent(lost=1)


def _case(model: nn.Module, wrong: float = 0.0) -> ac.Case:
    def prefill(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model(tokens), model.last  # type: ignore[return-value]

    def decode(
        model: nn.Module, cache: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return model(tokens, cache + wrong), model.last  # type: ignore[return-value]

    return ac.Case(model.eval(), torch.randn(2, 7, 4), prefill=prefill, decode=decode)


def right() -> ac.Case:
    return _case(Summing())


def wrong() -> ac.Case:
    return _case(Summing(), 0.01)


def noisy() -> ac.Case:
    return _case(Noisy())


def both() -> ac.Case:
    return _case(Both())


def without() -> ac.Case:
    return ac.Case(Summing().eval(), torch.randn(2, 7, 4))


def half() -> ac.Case:
    return ac.Case(Summing().eval(), torch.randn(2, 7, 4), prefill=lambda *given: (1, 2))


def test_a_cache_of_the_cases_own() -> None:
    found = check(f"{__name__}:right", steps=3)
    assert (found.exit_code, [each.way for each in found.outcomes]) == (0, [DecodeWay.TOKENS])
    assert {*found.not_looked_at.values()} == {NotDecodedWhy.OWN_PROTOCOL}


def test_generating_with_a_quantized_cache_is_not_looked_at() -> None:
    case = clean("llama")
    case.model.generation_config.cache_implementation = "quantized"
    (arguments,) = steps_of(case.inputs)
    ways = TokenSequence("llama", case, arguments, STEPS).ways(case.model)
    assert ways[DecodeWay.GENERATE] is NotDecodedWhy.QUANTIZED
    assert isinstance(ways[DecodeWay.TOKENS], GivenTokens)


def test_a_state_need_not_be_the_one_that_the_whole_begins_with() -> None:
    assert check(f"{__name__}:recurrent", steps=3).exit_code == 0


@pytest.mark.parametrize("lost", ["without_state_of_layer", "without_state_of_cell"])
def test_a_state_that_is_lost(lost: str) -> None:
    first = check(f"{__name__}:{lost}", steps=3).first
    assert first is not None
    assert (first.token, first.maker) == (4, "")


def test_choices_that_differ_at_each_token_are_not_nearly_equal() -> None:
    first = check(f"{__name__}:routed", steps=3).first
    assert first is not None
    assert first.maker == "router"


def test_a_fault_of_the_cases_own_cache() -> None:
    first = check(f"{__name__}:wrong", steps=3).first
    assert first is not None
    assert (first.token, first.name) == (4, "")


def test_a_model_that_looks_ahead_is_not_sure() -> None:
    found = check(f"{__name__}:both", steps=3)
    assert (found.exit_code, found.anticipates) == (2, "")


@pytest.mark.parametrize(
    ("name", "says"),
    [("noisy", "random numbers"), ("without", "takes no cache"), ("half", "give both")],
)
def test_what_cannot_be_run_is_told(name: str, says: str) -> None:
    with pytest.raises(CaseError, match=says):
        check(f"{__name__}:{name}", steps=3)


@pytest.mark.parametrize(("steps", "says"), [(7, "leaves none"), (0, "at least 1")])
def test_tokens_must_be_left_for_the_first_call(steps: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check(f"{__name__}:right", steps=steps)


def test_the_command_says_the_token_and_writes_json(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    done = cli("locate", f"{__name__}:wrong", "--decode", "3", "--json", str(path))
    assert done.returncode == 1
    assert "begins at token 4, in (root) (Summing): output" in done.stdout
    assert json.loads(path.read_text())["first"]["token"] == 4


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--golden", "x"), "--golden: does not go with --decode"),
        (("--", "python", "train.py"), "--decode: is for a case"),
    ],
)
def test_options_that_do_not_go_with_it(cli: Run, more: tuple[str, ...], says: str) -> None:
    done = cli("locate", f"{__name__}:right", "--decode", "3", *more)
    assert (done.returncode, says in done.stderr) == (2, True)


def test_a_device_is_asked_for_without_decode(cli: Run) -> None:
    done = cli("locate", f"{__name__}:right")
    assert (done.returncode, "Missing option '--device'" in done.stderr) == (2, True)


def _outcome(**given: object) -> Decoded:
    made = DecodeOutcome(DecodeWay.TOKENS, "float32", [4, 1], **{"looked": 3, **given})  # type: ignore[arg-type]
    return Decoded("case", "cpu", "float32", 5, 1, 2, "float64", None, [made], {})


@pytest.mark.parametrize(
    ("given", "code"), [({}, 0), ({"unseen": [4]}, 2), ({"raised": "Error"}, 2), ({"looked": 0}, 2)]
)
def test_an_all_clear_is_earned(given: dict[str, object], code: int) -> None:
    assert _outcome(**given).exit_code == code


def test_where_rounding_hides_a_token_float32_shows_it() -> None:
    found = TokenDifference(11, 0, "a", "A", 0, "output", "", None, "", 0.1, None, 9.0)
    later = _outcome(first=found).outcomes[0]
    first = _outcome(first=replace(found, token=10)).outcomes[0]
    assert replace(_outcome(), outcomes=[later, first]).failing == [first, later]


@pytest.mark.parametrize(
    ("whole", "short", "place"),
    [
        ((2, 9, 4), (2, 6, 4), TokenPlace(1)),
        ((2, 4, 9, 9), (2, 4, 6, 6), TokenPlace(2, 3)),
        ((18, 4), (12, 4), TokenPlace(0, flat=True)),
        ((2, 4), (2, 4), TokenPlace(None)),
        ((2, 8), (2, 6), None),
    ],
)
def test_where_tokens_lie(
    whole: tuple[int, ...], short: tuple[int, ...], place: TokenPlace | None
) -> None:
    assert token_place(torch.Size(whole), torch.Size(short), (9, 6), 2) == place


def test_a_mask_of_any_type_tells_the_keys() -> None:
    seen = np.tril(np.ones((3, 3), bool))
    added = np.where(seen, np.float32(0), np.finfo(np.float32).min).astype(np.float32)
    for mask, dtype in ((seen, "bool"), (added, "float32")):
        found = keys_seen(mask, dtype)
        assert found is not None
        assert found.tolist() == [1, 2, 3]
    assert keys_seen(added + 1, "float32") is None


def test_a_token_is_held_against_the_rounding_of_all() -> None:
    generator = np.random.default_rng(0)
    golden = generator.normal(size=(50, 64))
    run, whole = golden.astype(np.float32), golden.astype(np.float32)
    run[7] *= np.float32(1 + 1e-5)
    dtypes = "float64", "float32"
    found, usual = token_errors(golden, run, dtypes), token_errors(golden, whole, dtypes)
    over = over_limits(found, usual, 64, "float32")
    assert np.flatnonzero(over > 1).tolist() == [7]


def test_nan_and_lowest_values_are_no_rounding() -> None:
    golden = np.array([[1.0, np.finfo(np.float64).min], [1.0, 2.0], [0.0, 0.0]])
    run = np.array([[1.0, np.finfo(np.float32).min], [1.0, np.nan], [0.0, 0.5]], np.float32)
    found = token_errors(golden, run, ("float64", "float32"))
    assert found.rel_l2.tolist() == [0.0, np.inf, np.inf]
    assert FIRST == 10

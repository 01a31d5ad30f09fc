"""Refactorings: rows of one side, or in another form, fail nothing if all that both sides compute
of them agrees; and hide no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.decide import Answer
from accucompare.compare.origins.describing import differing_choices
from accucompare.compare.rows.rows import Reason

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
LOW = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """``eager`` returns its weights too, takes a floating mask and calls a dropout; the other form
    does none of it.
    """

    def __init__(self, eager: bool) -> None:
        super().__init__()
        self.eager = eager
        self.q, self.k, self.v, self.out, self.dropout = (
            *(nn.Linear(16, 16) for _ in range(4)),
            nn.Dropout(0.1),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor, **flags: bool) -> object:
        added = mask if mask.is_floating_point() else torch.where(mask, 0.0, LOW)
        weights = (self.q(x) @ self.k(x).mT / 4 + added).softmax(-1)
        if not self.eager:
            return self.out(weights @ self.v(x))
        return self.out(self.dropout(weights) @ self.v(x)), weights


class Layer(nn.Module):
    def __init__(self, eager: bool) -> None:
        super().__init__()
        self.eager, self.attention, self.mlp = eager, Attention(eager), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> object:
        flags = {"output_attentions": False} if self.eager else {}
        made = self.attention(x, mask, **flags)
        x = x + (made[0] if isinstance(made, tuple) else made)
        x = x + self.mlp(x).tanh()
        return (x,) if self.eager else x


class Net(nn.Module):
    """The same numbers in two forms. ``returned`` is what it returns beside them; ``wrong`` changes
    the mask.
    """

    def __init__(
        self, eager: bool, wrong: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.eager, self.wrong, self.layers = (
            eager,
            wrong,
            nn.ModuleList(Layer(eager) for _ in range(2)),
        )

    def forward(self, x: torch.Tensor) -> object:
        attended = torch.ones(5, 5, dtype=torch.bool).tril()
        if self.wrong is not None:
            attended = self.wrong(attended)
        mask = torch.where(attended, 0.0, LOW)[None] if self.eager else attended
        for layer in self.layers:
            made = layer(x, mask)
            x = made[0] if isinstance(made, tuple) else made
        return x


def compared(
    tmp_path: Path,
    golden: nn.Module,
    candidate: nn.Module,
    fed: bool,
    train: bool = False,
    given: Any = None,
) -> ac.Comparison:
    for name, model in (("golden", golden.eval()), ("candidate", candidate.eval())):
        with ac.capture(
            model,
            tmp_path / name,
            record=ac.Recorded(roles=None if train or None else "forward"),
            feed=tmp_path / "golden" if fed and name == "candidate" else None,
        ):
            found = model(X if given is None else given)
            if train:
                (found[0] if isinstance(found, tuple) else found).square().mean().backward()
    return ac.diff(tmp_path / "golden", tmp_path / "candidate")


def scaled(module: nn.Module, factor: float = 1.05) -> None:
    right = module.forward
    module.forward = lambda *args: right(*args) * factor


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_a_refactoring_is_no_fault(tmp_path: Path, eager: bool, fed: bool, train: bool) -> None:
    found = compared(tmp_path, Net(eager), Net(not eager), fed, train)
    assert (found.exit_code, found.culprits) == (0, [])
    alone = [
        row
        for row in found.unmatched()
        if row.record is not None and row.record.role.value in ("input", "output")
    ]
    assert {row.reason for row in alone} == {Reason.ONE_SIDED}
    assert {row.place for row in alone if ".0." in row.place} == {
        "layers.0.attention input.output_attentions",
        "layers.0.attention output.1",
        "layers.0.attention.dropout input.0",
        "layers.0.attention.dropout output",
    }
    assert (
        "rows on one side only, the first layers.0.attention input.output_attentions"
        in found.conclusion
    )


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "layers.0.attention.q",
        "layers.0.attention.out",
        "layers.0.mlp",
        "layers.1.attention.v",
        "layers.1.mlp",
    ],
)
def test_a_refactoring_hides_no_fault(tmp_path: Path, name: str, fed: bool) -> None:
    candidate = Net(False)
    scaled(candidate.get_submodule(name))
    found = compared(tmp_path, Net(True), candidate, fed)
    assert (found.exit_code, found.culprits[0].name) == (1, name)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("row", "column", "value"), [(1, 3, True), (4, 0, False)])
def test_a_mask_of_another_form_with_one_wrong_position_is_named_where_it_is_made(
    tmp_path: Path, row: int, column: int, value: bool, eager: bool, fed: bool
) -> None:
    def wrong(mask: torch.Tensor) -> torch.Tensor:
        mask[row, column] = value
        return mask

    found = compared(tmp_path, Net(eager), Net(not eager, wrong), fed)
    assert found.exit_code == 1
    assert found.culprits[0].place == "(root) (glue, before layers.0)"
    assert differing_choices(found.culprits[0].row) == 1


def test_a_mask_that_lets_through_more_is_listed_if_the_outputs_are_bit_for_bit_goldens(
    tmp_path: Path,
) -> None:
    class Masked(nn.Module):
        def __init__(self, boolean: bool, factor: float = 1.0) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.boolean, self.factor, self.inner = boolean, factor, Ignores()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(5, 5, dtype=torch.bool)
            return self.inner(
                x, mask if self.boolean else torch.where(mask.tril(), 0.0, LOW), self.factor
            )

    class Ignores(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor

    assert compared(tmp_path / "same", Masked(False), Masked(True), False).exit_code == 0
    for number, factor in enumerate((1 + 1e-6, 1.01)):
        assert (
            compared(tmp_path / str(number), Masked(False), Masked(True, factor), False).exit_code
            == 1
        )


class Returning(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.names = nn.Linear(16, 16), nn.Linear(16, 16), names

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {"logits": self.a(x), "aux": self.b(x)}
        return {name: found[name] for name in self.names}


@pytest.mark.parametrize("fed", [False, True])
def test_a_required_output_that_is_dropped_is_no_pass(tmp_path: Path, fed: bool) -> None:
    for number, sides in enumerate(
        [(("logits", "aux"), ("logits",)), (("logits",), ("logits", "aux"))]
    ):
        found = compared(tmp_path / str(number), *(Returning(*names) for names in sides), fed)
        assert (found.answer, found.exit_code) == (Answer.DIFFERENT, 1)


class Trained(nn.Module):
    def __init__(self, form: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.form = nn.Linear(16, 16), nn.Linear(16, 16), form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)  # of three dimensions, so a view
        if self.form == "in place":
            a += x
        else:
            a = a + x
        return self.b(a.detach() if self.form == "cut" else a)


@pytest.mark.parametrize("fed", [False, True])
def test_a_gradient_that_is_missing_where_both_have_the_value_is_no_pass(
    tmp_path: Path, fed: bool
) -> None:
    found = compared(tmp_path, Trained(), Trained("cut"), fed, train=True)
    assert found.exit_code == 1
    assert found.counts()[Reason.MISSING]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("forms", [("", "in place"), ("in place", "")])
def test_an_output_may_be_written_over_in_place(
    tmp_path: Path, forms: tuple[str, str], fed: bool
) -> None:
    assert compared(tmp_path, *map(Trained, forms), fed, train=True).exit_code == 0


class Made:
    """What a module returns, as an object that nothing looks into."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Objects(nn.Module):
    """A part returns an object, and calls something more in one form."""

    class Part(nn.Module):
        def __init__(self, more: bool) -> None:
            super().__init__()
            self.a, self.b, self.more = nn.Linear(16, 16), nn.Linear(16, 16), more

        def forward(self, x: torch.Tensor) -> Made:
            return Made(self.b(self.a(x)) if self.more else self.a(x))

    def __init__(self, more: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part, self.last = Objects.Part(more), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Made]:
        return self.last(x), self.part(x)


@pytest.mark.parametrize("fed", [False, True])
def test_a_call_of_one_side_is_no_pass_where_nothing_is_compared_of_the_call_around_it(
    tmp_path: Path, fed: bool
) -> None:
    for number, more in enumerate((False, True)):
        found = compared(tmp_path / str(number), Objects(more), Objects(not more), fed)
        assert found.exit_code == 1
        assert not found.counts()[Reason.ONE_SIDED]


class Twice(nn.Module):
    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls, self.same = calls, nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls):
            x = self.same(x)
        return x + 1


def test_one_call_more_of_what_both_sides_call_is_no_pass(tmp_path: Path) -> None:
    assert compared(tmp_path, Twice(1), Twice(2), False).exit_code == 1


def test_an_argument_of_another_shape_is_listed_if_all_that_is_computed_of_it_agrees(
    tmp_path: Path,
) -> None:
    class Positions(nn.Module):
        def __init__(self, flat: bool, shift: int = 0) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.flat, self.shift, self.inner = flat, shift, Added()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(5) + self.shift
            return self.inner(x, at if self.flat else at.repeat(2))

    class Added(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return x + at[:5].reshape(1, 5, 1)

    found = compared(tmp_path / "same", Positions(False), Positions(True), False)
    assert found.conclusion.startswith(
        "identical in what was compared; 1 of 5 rows could not be compared, the first inner input.1"
    )
    assert compared(tmp_path / "other", Positions(False), Positions(True, 1), False).exit_code == 1


class Branching(nn.Module):
    """Computes a tree by recursion, its last branch first if ``late``."""

    def __init__(self, late: bool, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.leaf, self.node = nn.Linear(16, 8), nn.Linear(16, 8)
        self.late, self.factor = late, factor

    def forward(self, tree: Any) -> torch.Tensor:
        if isinstance(tree, torch.Tensor):
            leaf: torch.Tensor = self.leaf(tree)
            return leaf.tanh()
        parts = [self(part) for part in (reversed(tree) if self.late else tree)]
        left, right = reversed(parts) if self.late else parts
        node: torch.Tensor = self.node(torch.cat([left, right * self.factor], -1))
        return node.tanh()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fed", [False, True])
def test_calls_of_one_module_are_paired_by_what_they_are_given(
    tmp_path: Path, fed: bool, train: bool
) -> None:
    tree = ((X[0], X[1]), ((X[1] + 1, X[0] - 1), X[0] * 2))

    def found(factor: float) -> ac.Comparison:
        models = Branching(False), Branching(True, factor)
        return compared(tmp_path / str(factor), *models, fed, train, given=tree)

    assert found(1.0).exit_code == 0
    wrong = found(1.05)
    assert wrong.exit_code == 1
    assert not fed or {each.site for each in wrong.culprits} == {"glue"}


class Laid(nn.Module):
    """Computes as it is given tokens, with them in a row, or with the sequence first."""

    def __init__(self, how: str, off: float = 1.0, cut: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.two = nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.how, self.off, self.cut = how, off, cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "row":
            return self._through(x.reshape(-1, 16)).reshape(*x.shape[:2], 3)
        if self.how == "first":
            return self._through(x.transpose(0, 1)).transpose(0, 1)
        if self.how == "first, in a row":
            made = self._through(x.transpose(0, 1).reshape(-1, 16))
            return made.reshape(x.shape[1], x.shape[0], 3).transpose(0, 1)
        return self._through(x)

    def _through(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.norm(self.one(x) * self.off) * self.cut)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fed", [False, True])
def test_tokens_in_a_row_are_compared_one_by_one(tmp_path: Path, fed: bool, train: bool) -> None:
    found = compared(tmp_path, Laid(""), Laid("row"), fed, train)
    assert (found.exit_code, found.uncompared) == (0, [])


@pytest.mark.parametrize("fed", [False, True])
def test_tokens_in_a_row_that_are_off_are_named(tmp_path: Path, fed: bool) -> None:
    # which the norm hides from what comes after
    found = compared(tmp_path, Laid(""), Laid("row", off=1.05), fed)
    assert found.exit_code == 1
    assert not fed or found.culprits[0].place == "(root) (glue, before norm)"


@pytest.mark.parametrize(
    ("how", "fed", "train"),
    [
        ("first", False, False),
        ("first", False, True),
        ("first", True, False),
        ("first", True, True),
        ("first, in a row", False, False),  # whose elements are those of other tokens
    ],
)
def test_values_of_another_shape_are_no_failure_but_may_hide_one(
    tmp_path: Path, how: str, fed: bool, train: bool
) -> None:
    found = compared(tmp_path / "same", Laid(""), Laid(how, cut=1 + 3e-7), fed, train)
    assert found.exit_code == 2
    assert "and an error may hide there: first one output" in found.conclusion
    other = compared(tmp_path / "other", Laid(""), Laid(how, cut=1.05), fed, train)
    assert other.exit_code == 1


class Own(torch.optim.SGD):
    """``newer`` has one option more, that changes nothing."""

    def __init__(self, parameters: Any, lr: float, newer: bool) -> None:
        super().__init__(parameters, lr)
        for group in self.param_groups if newer else ():
            group["clipping"] = 0.5


@pytest.mark.parametrize(
    ("lr", "reason", "passed"), [(0.1, Reason.ONE_SIDED, True), (0.11, Reason.EXTRA, False)]
)
def test_an_option_that_one_version_of_an_optimizer_lacks_is_vouched_for_by_its_updates(
    tmp_path: Path, lr: float, reason: Reason, passed: bool
) -> None:
    for newer in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(16, 4)
        optimizer = Own(model.parameters(), lr if newer else 0.1, newer)
        with ac.capture(model, tmp_path / str(newer)):
            model(X).square().sum().backward()
            optimizer.step()
    comparison = ac.diff(tmp_path / "False", tmp_path / "True")
    (row,) = (
        row
        for row in comparison.rows
        if row.record is not None and row.record.path.endswith(".clipping")
    )
    assert (row.reason, comparison.passed) == (reason, passed)


class Biased(nn.Module):
    """Attention that hands the bias of its scores on to the next layer, for each sample or once."""

    def __init__(self, each: bool, off: float = 0.0) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.table = nn.Parameter(torch.randn(1, 5, 5))
        self.each, self.off = each, off

    def forward(
        self, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if bias is None:
            bias = self.table + self.off
            bias = bias.expand(len(x), -1, -1) * 1.0 if self.each else bias
        return (self.q(x) @ self.k(x).mT + bias).softmax(-1) @ x, bias


class Layers(nn.Module):
    def __init__(
        self, each: bool, *, returns: bool = False, off: float = 0.0, factor: float = 1.0
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Biased(each, off) for _ in range(2))
        self.returns, self.factor = returns, factor

    def forward(self, x: torch.Tensor) -> object:
        x, bias = self.layers[0](x)
        x, bias = self.layers[1](x, bias * self.factor)
        return (x, bias) if self.returns else x


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_a_value_that_is_broadcast_later_is_the_same(
    tmp_path: Path, each: bool, fed: bool, train: bool
) -> None:
    found = compared(tmp_path, Layers(each), Layers(not each), fed, train)
    assert (found.exit_code, found.culprits) == (0, [])
    assert "of two shapes, the first layers.0 output.1, the same when" in found.conclusion


@pytest.mark.parametrize("fed", [False, True])
def test_what_the_model_returns_has_goldens_shape(tmp_path: Path, fed: bool) -> None:
    found = compared(tmp_path, Layers(True, returns=True), Layers(False, returns=True), fed)
    assert found.exit_code == 1
    assert [row.place for row in found.rows if row.reason is Reason.SHAPE] == ["(root) output.1"]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ({"off": 0.1}, "layers.0 (glue, at its end)"),
        ({"factor": 1.1}, "(root) (glue, before layers.1)"),
    ],
)
def test_a_value_that_is_broadcast_later_and_wrong_is_named(
    tmp_path: Path, fault: dict[str, float], place: str, fed: bool
) -> None:
    found = compared(tmp_path, Layers(True), Layers(False, **fault), fed)
    assert found.exit_code == 1
    assert not fed or found.culprits[0].place == place

"""Which models the optimizers of a script train."""

from __future__ import annotations

import torch
from torch import nn

from accucompare.scripts.models import Optimizers, whole_of


def test_an_optimizer_may_step_copies_of_parameters_as_megatrons_does() -> None:
    model, other = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.main_param = nn.Parameter(parameter.detach().float())  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD([each.main_param for each in model.parameters()], 0.1)  # type: ignore[misc]
    known = Optimizers()
    known.note(optimizer)
    assert known.of(model) == [optimizer]
    assert known.of(other) == []
    assert whole_of(model, [optimizer]) is model


def test_an_optimizer_may_step_a_part_of_a_parameter() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([model.weight.detach().view(-1)[2:]], 0.1)
    known = Optimizers()
    known.note(optimizer)
    assert known.of(model) == [optimizer]
    assert known.of(nn.Linear(2, 2)) == []

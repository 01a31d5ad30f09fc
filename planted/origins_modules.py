"""What is put into a model to make a NaN or an Inf in one place, or to make one that is legal."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class LogOfZero(nn.Module):
    """-Inf wherever what came in was not positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.relu(x))


class LogOfNegative(nn.Module):
    """NaN wherever what came in was negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class LogInPlace(nn.Module):
    """NaN, written over what came in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log_()


class CheckedLog(nn.Module):
    """Its -Inf goes nowhere, but a point of the user's own sees it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import accucompare as ac

        ac.check_finite(torch.log(torch.zeros_like(x)), "after log")
        return x


class Add(nn.Module):
    """Takes keyword arguments only."""

    def forward(self, *, hidden: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return hidden + bias


class ByKeyword(nn.Module):
    """Its own code makes 0/0, and hands it to its child by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.add = Add()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros_like(x)
        result: torch.Tensor = self.add(hidden=x, bias=zero / zero)
        return result


class Packed(nn.Module):
    """Makes 0/0 and packs it up."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> Any:
        zero = torch.zeros_like(x)
        bad = x + zero / zero
        if self.how == "dict":
            return {"hidden": bad}
        if self.how == "ModelOutput":
            from transformers.modeling_outputs import BaseModelOutput

            return BaseModelOutput(last_hidden_state=bad)
        return x, (zero, [{"hidden": bad}])


class Unpack(nn.Module):
    """Gives on what its child has packed up."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = Packed(how)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.inner(x)
        result = (
            output[1][1][0]["hidden"] if isinstance(output, tuple) else next(iter(output.values()))
        )
        assert isinstance(result, torch.Tensor)
        return result


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Twice(nn.Module):
    """Calls its child twice; only the second call overflows."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.scale = Scale(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.scale(self.scale(torch.tanh(x)))
        return result


# origins of the backward


class SqrtGradient(nn.Module):
    """The root of a 0: its gradient is Inf, and 0 times that NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.ones_like(x)
        gate[..., 0] = 0
        # a root's own result must not be written over by the next module
        return torch.sqrt(x.abs() * gate) * 1


class WhereGradient(nn.Module):
    """Roots of negative numbers are not taken over; their gradients are, as 0 times NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, torch.sqrt(x), 0.0)


class NormGradient(nn.Module):
    """Rows over their norm, written by hand; one row is masked, so that it is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(x[..., :1])
        mask[0, 0] = 0
        rows = x * mask
        return rows / (rows.square().sum(-1, keepdim=True).sqrt() + 1e-3)


class CastGradient(nn.Module):
    """A gradient that float32 can hold, and float16 cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return x + ((wide - wide.detach()) * 1e30).to(x.dtype)


class Inflated(torch.autograd.Function):
    """Passes a parameter on, and changes one element of its gradient."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, value: float) -> torch.Tensor:
        ctx.value = value
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.clone()
        gradient.view(-1)[0] = ctx.value
        return gradient, None


class Weighted(nn.Module):
    """Has one parameter, a number, with a gradient of a chosen size."""

    def __init__(self, gradient: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.gradient = gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * inflated(self.weight, self.gradient)


class WeightedTwice(nn.Module):
    """The gradients of both calls are finite, their sum is not."""

    def __init__(self, gradient: float) -> None:
        super().__init__()
        self.scale = Weighted(gradient)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.scale(torch.tanh(self.scale(x)))
        return result


def inflated(weight: torch.Tensor, gradient: float) -> torch.Tensor:
    """A parameter; the first element of its gradient will be ``gradient``."""
    result: torch.Tensor = Inflated.apply(weight, gradient)  # type: ignore[no-untyped-call]
    return result


# what is legal


class Scores(nn.Module):
    """Scores in which some places are masked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[-1]) > x.shape[-1] // 2
        return x.masked_fill(mask, -torch.inf)


class Attend(nn.Module):
    """A softmax of scores that a child has masked."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = Scores()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.scores(x), -1)


class MaskedInside(nn.Module):
    """The same in one module: nothing of it is seen from outside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[-1]) > x.shape[-1] // 2
        return torch.softmax(x.masked_fill(mask, -torch.inf), -1)


class Less(nn.Module):
    def forward(self, x: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        return torch.minimum(x, best)


class RunningMinimum(nn.Module):
    """Its own code begins with +Inf, and hands that to its child."""

    def __init__(self) -> None:
        super().__init__()
        self.less = Less()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = torch.full_like(x, torch.inf)
        for value in (x, x * 0.5):
            best = self.less(value, best)
        return best


class QuietGradient(nn.Module):
    """A NaN in the gradient of its own root, that ReLU's gradient takes away again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(
            x
            # in float16 the square of a small number would be 0, too, and its gradient would come
            # out
        ).float()
        return torch.sqrt(wide.square()).to(x.dtype)

"""A model's calls, by token: golden's values kept, or given to a run and held against its own."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from accucompare.bundle.format import Role
from accucompare.compare.constants import MANY
from accucompare.compare.limits import DEFAULT_REL_L2
from accucompare.compare.reruns import (
    LayerDecoded,
    TokenDifference,
    TokenErrors,
    keys_seen,
    over_limits,
    token_errors,
)
from accucompare.live.modules import Call, Listener, class_of, name_modules
from accucompare.live.values import leaves, replaced
from accucompare.numbers import DTYPES
from accucompare.rerunning.token_places import (
    TOKENS_NAMES,
    Columns,
    TokenPlace,
    as_type,
    bits_of,
    by_token,
    token_place,
)

#: Modules of torch that make a token of several, and keep none from one call to the next.
_MIX = (
    *(nn.Conv1d, nn.Conv2d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d),
    *(nn.AvgPool1d, nn.MaxPool1d, nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention),
)
#: Module, call, role, path.
_ValueKey = tuple[str, int, Role, str]


class _Listening(Listener[Call]):
    """Sees all tensors that calls of modules take and give."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(name_modules(model), Call)
        self.model = model
        self.error: Exception | None = None
        self.raised_in = ""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Listen within the context. What a hook raised is raised at its end."""
        root = self.model.register_forward_pre_hook(lambda *_: self.begins(), prepend=True)
        self.install()
        try:
            with torch.no_grad():
                yield
        except Exception:
            self.raised_in = self.failing_call() or ""
            raise
        finally:
            root.remove()
            self.remove()
        if self.error is not None:
            raise self.error

    def begins(self) -> None:
        """The model is called."""
        self.next_step()

    def failed(self, error: Exception, name: str) -> None:
        self.error = self.error or error

    def call_began(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        seen = [self._seen(call, Role.INPUT, given) for given in (args, kwargs)]
        if not any(seen) or not call.name:
            return None
        return replaced(args, seen[0]), replaced(kwargs, seen[1])

    def call_ended(self, call: Call, output: Any) -> Any:
        seen = self._seen(call, Role.OUTPUT, output)
        return replaced(output, seen) if seen and call.name else None

    def _seen(self, call: Call, role: Role, value: Any) -> dict[str, torch.Tensor]:
        """Look at the tensors of a value; returns what replaces them, by path."""
        memory: dict[int, torch.Tensor | None] = {}
        found = {}
        for path, part in leaves(value):
            if isinstance(part, torch.Tensor):
                if id(part) not in memory or role is Role.INPUT:
                    given = self.tensor(call, role, path, part)
                    memory.setdefault(id(part), given)
                if (new := memory[id(part)]) is not None:
                    found[path] = new
        return found

    def tensor(self, call: Call, role: Role, path: str, value: torch.Tensor) -> torch.Tensor | None:
        """One tensor; returns what replaces it, or ``None``."""
        raise NotImplementedError


@dataclass(eq=False)
class GoldenTokens:
    """What a whole sequence gave, by module call."""

    tokens: int
    samples: int
    values: dict[_ValueKey, torch.Tensor] = field(default_factory=dict)  # on the CPU
    # of their tokens, as far as a shorter run proves them
    places: dict[_ValueKey, TokenPlace] = field(default_factory=dict)
    # what rounding made of each, in a run in the candidate's type
    errors: dict[_ValueKey, TokenErrors] = field(default_factory=dict)
    # the first module whose values change with later tokens, if the model's outputs do
    anticipates: str | None = None

    @property
    def whole(self) -> Columns:
        every = np.broadcast_to(np.arange(self.tokens), (self.samples, self.tokens))
        return Columns(every, first=True)

    def learn(self, short: GoldenTokens) -> None:
        """Find where tokens lie, by the same sequence without its last ones: a place is proved by
        equal values."""
        sizes = self.tokens, short.tokens
        outputs = False
        first: str | None = None
        calls, fewer = ({key[:2] for key in run.values} for run in (self, short))
        # called once for each token: a later run's first call is of another one
        repeated = {name for name, _ in calls ^ fewer}
        for key, value in self.values.items():
            other, place = short.values.get(key), None
            if other is not None and key[0] not in repeated:
                place = token_place(value.shape, other.shape, sizes, self.samples)
            if place is None or other is None:
                continue
            if place.keys is not None or self._is_proved(value, other, place, short.tokens):
                self.places[key] = place
                outputs |= not key[0] and key[2] is Role.OUTPUT and place.axis is not None
            elif place.axis is not None and first is None:
                first = key[0]
        if not outputs:
            self.anticipates = first or ""

    def _is_proved(
        self, value: torch.Tensor, other: torch.Tensor, place: TokenPlace, short: int
    ) -> bool:
        if place.axis is None:
            ours, theirs = value.reshape(1, -1), other.reshape(1, -1)
        else:
            one = by_token(value, place, self.samples, self.tokens)
            two = by_token(other, place, self.samples, short)
            if one is None or two is None:
                return False
            ours, theirs = one[:, :short].flatten(0, 1), two.flatten(0, 1)
        known, also = bits_of(ours), bits_of(theirs)
        if known is None or also is None:
            return False
        found = token_errors(known[0], also[0], (known[1], also[1]))
        return bool((found.rel_l2 <= DEFAULT_REL_L2["float32"]).all())

    def rows(self, key: _ValueKey, columns: Columns) -> torch.Tensor | None:
        """Golden's values as a call's samples and columns have them; any for padding."""
        place = self.places[key]
        view = by_token(self.values[key], place, self.samples, self.tokens)
        if view is None:
            return None
        tokens = torch.from_numpy(np.maximum(columns.tokens, 0))
        if len(view) == 1:
            return view[0][tokens] if self.samples > 1 else view[0][tokens[:1]]
        return view[torch.arange(self.samples)[:, None], tokens]


class WholeRun(_Listening):
    """Keeps what a whole sequence gives."""

    def __init__(self, model: nn.Module, tokens: int, samples: int) -> None:
        super().__init__(model)
        self.golden = GoldenTokens(tokens, samples)

    def tensor(self, call: Call, role: Role, path: str, value: torch.Tensor) -> torch.Tensor | None:
        key = call.name, call.index, role, path
        self.golden.values[key] = value.detach().clone().cpu()
        return None


class FedTokens(_Listening):
    """Gives each call golden's values of its tokens, and holds what it computes against them.

    Attributes:
        calls: the tokens of each call of the model, in order.
        keeps: whether errors are kept, as what rounding makes; nothing is judged then.
    """

    def __init__(
        self,
        model: nn.Module,
        golden: GoldenTokens,
        calls: list[Columns],
        real: NDArray[np.bool_],
        keeps: bool = False,
    ) -> None:
        """``real``: by sample and token, whether golden's is no padding."""
        super().__init__(model)
        self.golden = golden
        self.calls = calls
        self.looked = self.left = self.choices = 0
        self.nearest = 0.0
        self.layers: dict[str, LayerDecoded] = {}
        self.first: TokenDifference | None = None
        self.kept: dict[_ValueKey, TokenErrors] = {}
        self.seen_outputs: set[int] = set()
        self._keeps = keeps
        self._real = real
        self._number = -1
        self._tokens: dict[str, set[int]] = {}
        self._whole_numbers: list[tuple[list[TokenDifference], int]] = []
        self._is_off = False
        self._chosen: dict[str, Counter[str]] = {}
        self._rounds_much = any(each.dtype.itemsize < 4 for each in model.parameters())
        # by module: inputs that are not golden's, which may do no harm
        self._suspects: dict[str, list[TokenDifference]] = {}
        self._has_others = False  # the call has other tokens than it was to have

    def begins(self) -> None:
        super().begins()
        self._number += 1
        self._has_others = False
        self._suspects.clear()

    @property
    def columns(self) -> Columns | None:
        """Of the call of the model that runs, or is about to begin."""
        number = max(self._number, 0)
        return self.calls[number] if number < len(self.calls) and not self._has_others else None

    def call_ended(self, call: Call, output: Any) -> Any:
        self._whole_numbers, self._is_off = [], False
        made = super().call_ended(call, output)
        for found, tokens in self._whole_numbers:
            # a router's choices among nearly equal scores: few, of all that it made
            so_far = self._chosen.setdefault(call.name, Counter())
            so_far.update(apart=len(found), of=tokens)
            most = max(1, MANY * so_far["of"]) if self._rounds_much else 1
            if not self._is_off and so_far["apart"] <= most and self._is_float(output):
                self.choices += len(found)
            elif found:
                self._note(found)
        return made

    def tensor(self, call: Call, role: Role, path: str, value: torch.Tensor) -> torch.Tensor | None:
        key, columns = (call.name, call.index, role, path), self.columns
        place = self.golden.places.get(key)
        if not call.name and role is Role.INPUT:
            if path in TOKENS_NAMES and columns is not None and place is not None:
                axis = place.axis
                self._has_others = axis is not None and value.shape[axis] != columns.count
            return None
        if columns is None or place is None:
            self.left += 1
            return None
        if place.keys is not None:
            self._mask(call, key, place, columns, value)
            return None
        if place.axis is None:
            return self._same(call, key, value)
        return self._tokens_of(call, key, place, columns, value)

    def _same(self, call: Call, key: _ValueKey, value: torch.Tensor) -> torch.Tensor | None:
        """A value that is the same for all tokens."""
        golden = self.golden.values[key]
        if not value.is_floating_point():  # it may count what the cache holds
            return None
        if golden.shape != value.shape:
            self.left += 1
            return None
        columns = self.columns
        assert columns is not None
        real = columns.tokens[columns.tokens >= 0]
        at = np.asarray([[0, int(real.min()) if len(real) else 0]])
        state = key[2] is Role.INPUT and not columns.first
        found = self._judge(
            call, key, golden.reshape(1, -1), value.detach().reshape(1, -1), at, notes=not state
        )
        if state and found:
            # it may be a state, which the whole begins with: what the call makes of it will tell
            self.left += 1
            self._suspects.setdefault(call.name, []).extend(found)
            return None
        return as_type(golden, value.dtype).to(value.device)

    def _tokens_of(
        self, call: Call, key: _ValueKey, place: TokenPlace, columns: Columns, value: torch.Tensor
    ) -> torch.Tensor | None:
        golden = self.golden.rows(key, columns)
        copy = value.detach().clone()
        view = by_token(copy, place, self.golden.samples, columns.count)
        if golden is None or view is None or view.shape[2:] != golden.shape[2:]:
            self.left += 1
            if self._has_lost_tokens(key, place, columns, value):
                newest = 0, int(columns.tokens.max())
                self._note([self._difference(call, key, newest, (np.inf, None, np.inf))])
            return None
        given: NDArray[np.int64] = columns.tokens
        shared = len(view) == 1 and len(given) > 1  # one for all samples
        if (shared and columns.padded) or (not shared and len(golden) != len(view)):
            self.left += 1
            return None
        at = np.argwhere(self._kept(given, shared))
        if not len(at):
            return None
        samples, places = torch.from_numpy(at[:, 0]), torch.from_numpy(at[:, 1])
        ours = golden[samples, places]
        where = np.stack([at[:, 0], given[at[:, 0], at[:, 1]]], 1)
        if type(call.module) in _MIX and not columns.first:
            self.left += 1  # the code around it has to give it the tokens before
            return None
        self._judge(call, key, ours, view[samples, places], where)
        if not call.name:
            self.seen_outputs.update(where[:, 1].tolist())
        view[samples, places] = as_type(ours, value.dtype).to(value.device)
        return copy

    def _kept(self, tokens: NDArray[np.int64], shared: bool) -> NDArray[np.bool_]:
        """By sample and column, whether it is a token, and no padding in golden, either.
        ``shared``: of values that all samples have in common."""
        rows = np.arange(len(tokens))[:, None]
        kept: NDArray[np.bool_] = (tokens >= 0) & self._real[rows, np.maximum(tokens, 0)]
        return np.asarray(kept.all(axis=0))[None] if shared else kept

    def _has_lost_tokens(
        self, key: _ValueKey, place: TokenPlace, columns: Columns, value: torch.Tensor
    ) -> bool:
        """Whether an output of one token has another number of them: not all that the cache holds,
        either."""
        golden, axis = self.golden.values[key], place.axis
        if (
            key[2] is not Role.OUTPUT
            or columns.count > 1
            or value.dim() != golden.dim()
            or not axis
        ):
            return False
        size = value.shape[axis]
        return size != 1 and (not key[0] or size <= int(columns.tokens.max()))

    def _mask(
        self, call: Call, key: _ValueKey, place: TokenPlace, columns: Columns, value: torch.Tensor
    ) -> None:
        """How many keys a token may see must be golden's; where they lie is the cache's own."""
        golden, axis = self.golden.values[key], place.axis
        assert axis is not None
        keys_last = place.keys == golden.dim() - 1 == value.dim() - 1 and axis == golden.dim() - 2
        if not keys_last or value.shape[axis] != columns.count or self._keeps:
            self.left += not self._keeps
            return
        counts = []
        for tensor in (golden, value):
            host = bits_of(tensor.detach().flatten(0, -2).contiguous())
            seen = None if host is None else keys_seen(*host)
            if seen is None:
                self.left += 1
                return
            counts.append(seen.reshape(tensor.shape[0], -1, tensor.shape[axis])[:, 0])
        ours, theirs = counts
        if (
            ours[:, 0].sum() > ours[:, -1].sum()
        ):  # it tells what is hidden: the first token sees one
            ours, theirs = golden.shape[-1] - ours, value.shape[-1] - theirs
        samples, tokens = len(columns.tokens), columns.tokens
        if len(theirs) not in (1, samples) or (len(theirs) < samples and columns.padded):
            self.left += 1
            return
        self.looked += 1
        found = []
        for sample, column in np.argwhere(self._kept(tokens, len(theirs) < samples)):
            token = int(tokens[sample, column])
            keys = int(theirs[sample, column]), int(ours[min(sample, len(ours) - 1), token])
            if keys[0] != keys[1]:
                at = int(sample), token
                found.append(self._difference(call, key, at, (np.inf, None, np.inf), keys))
        self._suspects.setdefault(call.name, []).extend(found)

    def _judge(
        self,
        call: Call,
        key: _ValueKey,
        golden: torch.Tensor,
        value: torch.Tensor,
        at: NDArray[np.int64],
        notes: bool = True,
    ) -> list[TokenDifference]:
        """Hold tokens against golden's; returns what is off. ``at``: sample and token of each."""
        ours, theirs = bits_of(golden), bits_of(value)
        if ours is None or theirs is None or ours[0].shape != theirs[0].shape:
            self.left += 1
            return []
        errors = token_errors(ours[0], theirs[0], (ours[1], theirs[1]))
        if self._keeps:
            size = self.golden.samples, self.golden.tokens
            alone = self.golden.places[key].axis is None
            self.kept[key] = errors if alone else errors.spread((at[:, 0], at[:, 1]), size)
            return []
        self.looked += 1
        rounding = self._rounding(key, at)
        over = over_limits(errors, rounding, ours[0].shape[1], theirs[1])
        passed = over[over <= 1.0]
        self.nearest = max(self.nearest, float(passed.max(initial=0.0)))
        found = []
        for place in np.flatnonzero(~(over <= 1.0)):
            usual = None if rounding is None else float(rounding.rel_l2[place])
            sizes = float(errors.rel_l2[place]), usual, float(over[place])
            found.append(self._difference(call, key, (int(at[place][0]), int(at[place][1])), sizes))
        exact = not DTYPES[theirs[1]].digits
        if exact and key[2] is Role.OUTPUT:
            self._whole_numbers.append((found, len(at)))
        elif found and notes:
            self._is_off = True
            self._note(found)
        return found

    def _rounding(self, key: _ValueKey, at: NDArray[np.int64]) -> TokenErrors | None:
        """What rounding made of these tokens."""
        kept = self.golden.errors.get(key)
        if kept is None or kept.rel_l2.ndim == 1:
            return kept
        return kept.at((at[:, 0], at[:, 1]))

    def _difference(
        self,
        call: Call,
        key: _ValueKey,
        at: tuple[int, int],
        sizes: tuple[float, float | None, float],
        keys: tuple[int, int] | None = None,
    ) -> TokenDifference:
        name, index, role, path = key
        parent = None
        if role is Role.INPUT:
            parent = "" if call.parent is None else call.parent[0]
        return TokenDifference(
            token=at[1],
            sample=at[0],
            name=name,
            type=class_of(call.module).__name__,
            call=index,
            role=role.value,
            path=path,
            parent=parent,
            argument=_argument(call.module, path) if role is Role.INPUT else "",
            rel_l2=sizes[0],
            rounding=sizes[1],
            over_limit=sizes[2],
            keys=keys,
        )

    def _note(self, found: list[TokenDifference]) -> None:
        for each in [made for value in found for made in (*self._causes(value), value)]:
            if self.first is None or each.token < self.first.token:
                self.first = each
            place = each.maker
            tokens = self._tokens.setdefault(place, set())
            tokens.add(each.token)
            known = self.layers.get(place)
            if known is None:
                self.layers[place] = LayerDecoded(each, each, 1)
                continue
            first = each if each.token < known.first.token else known.first
            worst = each if each.over_limit > known.worst.over_limit else known.worst
            self.layers[place] = LayerDecoded(first, worst, len(tokens))

    def _causes(self, found: TokenDifference) -> list[TokenDifference]:
        """The inputs by which a module's own code made a token wrong."""
        at = found.token, found.sample
        suspects = self._suspects.get(found.maker, ())
        return [
            each
            for each in suspects
            if each.token == at[0] and (each.sample == at[1] or each.keys is None)
        ]

    @staticmethod
    def _is_float(output: Any) -> bool:
        return any(
            isinstance(part, torch.Tensor) and part.is_floating_point()
            for _, part in leaves(output)
        )


def _argument(module: nn.Module, path: str) -> str:
    """The argument that a path is of, unless it is the module's first."""
    part, _, rest = path.partition(".")
    names = [
        each.name
        for each in inspect.signature(module.forward).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if part.isdigit():
        part = names[int(part)] if int(part) < len(names) else part
    if names and part == names[0]:
        return ""
    return f"{part}.{rest}" if rest else part

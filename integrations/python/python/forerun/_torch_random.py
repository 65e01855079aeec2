"""Torch code as it is, enumerated: its random calls are answered with every outcome.

A uniform number is not drawn. It stays open until the code compares it with something; then the
comparison is the choice, with its exact probability. A draw from weights is a choice at once.
Code that does something else with a random number is refused by name, never guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ._chance import Chance


class NotEnumerable(NotImplementedError):
    """The code uses randomness in a way that cannot be enumerated; `check.sampled` can test it."""


@dataclass
class _Open:
    """A tensor of numbers that are not drawn yet: which ones, and what they are multiplied with."""

    kind: str  # "uniform", "exponential", or "race": weights over exponential numbers
    ids: Any
    factor: Any
    tensor: Any  # Kept, so that its identity is not given to another.


_SHAPE = {
    "__getitem__", "squeeze", "unsqueeze", "view", "reshape", "flatten", "expand", "expand_as",
    "transpose", "permute", "t", "contiguous", "clone", "detach", "select", "narrow", "index_select",
    "gather", "repeat", "movedim", "view_as", "reshape_as", "broadcast_to", "chunk", "split", "unbind",
}  # fmt: skip
_CAST = {"to", "float", "double", "type", "type_as", "cpu"}
_QUESTIONS = {
    "__get__", "size", "dim", "numel", "stride", "is_floating_point", "__len__", "is_contiguous",
    "element_size", "get_device", "ndimension", "__format__", "__repr__",
}  # fmt: skip
_BELOW = {"lt", "le", "__lt__", "__le__", "less", "less_equal"}
_ABOVE = {"gt", "ge", "__gt__", "__ge__", "greater", "greater_equal"}
_TIMES = {"mul", "__mul__", "__rmul__", "multiply"}
_OVER = {"div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"}
_DRAWS = {
    "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_", "poisson",
    "dropout", "log_normal_", "cauchy_", "geometric_", "random_",
}  # fmt: skip


class Enumerated(TorchFunctionMode):  # type: ignore[misc]
    """While it is entered, torch's randomness is that of a chance."""

    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance
        self._open: dict[int, _Open] = {}
        self._bounds: list[tuple[float, float]] = []
        self._raced: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        draw = getattr(self, f"_draw_{name.rstrip('_')}", None)
        if draw is not None:
            return draw(func, args, kwargs)
        if name in _DRAWS and (name != "dropout" or kwargs.get("training", True)):
            raise NotEnumerable(f"{name} is not enumerable; use check.sampled")
        mine = [self._open[id(arg)] for arg in (*args, *kwargs.values()) if id(arg) in self._open]
        if not mine:
            return func(*args, **kwargs)
        return self._on_open(func, name, args, kwargs, mine)

    def _on_open(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: Any, mine: list[_Open]
    ) -> Any:
        if name in _QUESTIONS:
            return func(*args, **kwargs)
        if len(mine) == 1:
            is_first = id(args[0]) in self._open if args else False
            number = mine[0]
            if name in _SHAPE and is_first:
                return self._reshaped(func, number, args, kwargs)
            if name in _CAST and is_first:
                return self._keep(number.kind, number.ids, number.factor, func(*args, **kwargs))
            if number.kind == "uniform" and name in _BELOW | _ABOVE:
                other = args[1] if is_first else args[0]
                return self._compared(number, other, (name in _BELOW) == is_first)
            if number.kind == "uniform" and name in _TIMES:
                return self._scaled(number, args[1] if is_first else args[0])
            if number.kind == "exponential" and name in _OVER and not is_first:
                weights = torch.as_tensor(args[0]).clone().expand(number.ids.shape)
                in_place = name in {"div_", "__itruediv__"}
                stand_in = args[0].fill_(torch.nan) if in_place else torch.full_like(weights, torch.nan)
                return self._keep("race", number.ids, weights, stand_in)
            if number.kind == "race" and name in {"argmax", "max"}:
                return self._won(number, name, args, kwargs)
        raise NotEnumerable(
            f"{name} of a random number is not enumerable: only comparisons, products and draws "
            "are; use check.sampled"
        )

    def _keep(self, kind: str, ids: Any, factor: Any, tensor: Any) -> Any:
        tensor = tensor if tensor is not None else torch.full(ids.shape, torch.nan)
        self._open[id(tensor)] = _Open(kind, ids, factor, tensor)
        return tensor

    def _fresh(self, kind: str, tensor: Any) -> Any:
        """Numbers that nobody has seen. Their stand-in is NaN, which no one can use by accident."""
        start = len(self._bounds)
        self._bounds += [(0.0, 1.0)] * tensor.numel()
        ids = torch.arange(start, start + tensor.numel()).reshape(tensor.shape)
        return self._keep(kind, ids, torch.ones(tensor.shape, dtype=torch.float64), tensor)

    def _draw_rand(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._fresh("uniform", func(*args, **kwargs).fill_(torch.nan))

    def _draw_rand_like(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._fresh("uniform", torch.full_like(args[0], torch.nan, **kwargs))

    def _draw_uniform(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        low = args[1] if len(args) > 1 else kwargs.get("from", 0)
        high = args[2] if len(args) > 2 else kwargs.get("to", 1)
        if (low, high) != (0, 1):
            raise NotEnumerable(f"uniform_ from {low} to {high}; only from 0 to 1 is enumerable")
        return self._fresh("uniform", args[0].fill_(torch.nan))

    def _draw_exponential(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._fresh("exponential", args[0].fill_(torch.nan))

    def _draw_bernoulli(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if len(args) > 1 or "p" in kwargs:
            raise NotEnumerable("bernoulli with one probability for all; give a tensor of them")
        tossed = [float(self._chance.coin(p)) for p in args[0].flatten().tolist()]
        return torch.tensor(tossed, dtype=args[0].dtype).reshape(args[0].shape)

    def _draw_multinomial(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        weights = args[0]
        count = args[1] if len(args) > 1 else kwargs["num_samples"]
        replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)
        rows = weights.reshape(-1, weights.shape[-1]).tolist()
        drawn = []
        for row in rows:
            picked = []
            for _ in range(count):
                picked.append(self._chance.pick(row))
                if not replacement:
                    row[picked[-1]] = 0.0
            drawn.append(picked)
        return torch.tensor(drawn).reshape(*weights.shape[:-1], count)

    def _draw_categorical(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._draw_multinomial(func, args, kwargs)

    def _reshaped(self, func: Callable[..., Any], number: _Open, args: Any, kwargs: Any) -> Any:
        """The same numbers in another shape: what happens to them happens to their ids."""
        out = func(*args, **kwargs)
        ids, factor = func(number.ids, *args[1:], **kwargs), func(number.factor, *args[1:], **kwargs)
        if isinstance(out, (tuple, list)):
            return type(out)(self._keep(number.kind, *each) for each in zip(ids, factor, out))
        return self._keep(number.kind, ids, factor, out)

    def _scaled(self, number: _Open, other: Any) -> Any:
        factor = number.factor * torch.as_tensor(other).to(torch.float64)
        if not bool((factor >= 0).all()):
            raise NotEnumerable("a random number times a negative one is not enumerable")
        ids = number.ids.expand(factor.shape)
        return self._keep("uniform", ids, factor, torch.full(factor.shape, torch.nan))

    def _compared(self, number: _Open, other: Any, below: bool) -> Any:
        """Whether each number times its factor is below the other, one choice for each."""
        other = torch.as_tensor(other).to(torch.float64)
        ids, factor, bar = torch.broadcast_tensors(number.ids, number.factor, other)
        answers = []
        for place, scale, level in zip(
            ids.flatten().tolist(), factor.flatten().tolist(), bar.flatten().tolist()
        ):
            if level != level:
                raise ValueError("a random number was compared with NaN")
            point = level / scale if scale > 0 else (1.0 if level > 0 else 0.0)
            low, high = self._bounds[place]
            point = min(max(point, low), high)
            is_below = self._chance.coin((point - low) / (high - low)) if high > low else False
            self._bounds[place] = (low, point) if is_below else (point, high)
            answers.append(is_below == below)
        return torch.tensor(answers, dtype=torch.bool).reshape(ids.shape)

    def _won(self, number: _Open, name: str, args: Any, kwargs: Any) -> Any:
        """The largest weight over an exponential number: each wins in proportion to its weight."""
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if name != "argmax" or dim not in (-1, number.ids.dim() - 1):
            raise NotEnumerable("a race over exponential numbers ends in argmax over the last axis")
        places = set(number.ids.flatten().tolist())
        if places & self._raced:
            raise NotEnumerable("exponential numbers that race twice are not enumerable")
        self._raced |= places
        weights = number.factor.reshape(-1, number.factor.shape[-1]).tolist()
        winners = torch.tensor([self._chance.pick(row) for row in weights])
        winners = winners.reshape(number.ids.shape[:-1])
        keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        return winners.unsqueeze(-1) if keep else winners

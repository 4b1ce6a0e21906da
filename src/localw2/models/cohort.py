"""A cohort: subjects with their own times, doses, inputs and covariates, solved together."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.models.subjects import Clock, Doses, Inputs

if TYPE_CHECKING:
    from localw2.models.fields import FunctionField
    from localw2.models.paths import Observe
    from localw2.models.solver import Solver


@final
@dataclass(frozen=True)
class Cohort:
    """n subjects: from what state each starts (n, d), when it is observed, and what is done to it.

    ``covariates`` are numbers (n,) by name.
    """

    initial: Tensor
    t0: float
    clock: Clock
    covariates: dict[str, Tensor]
    knots: dict[str, Tensor]
    courses: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        times: Array,
        seen: Array,
        initial: Array,
        t0: float,
        doses: Doses | None = None,
        covariates: Mapping[str, Array] | None = None,
        inputs: Inputs | None = None,
    ) -> Cohort:
        """Times (n, T) are since t0; those that are not seen may be anything."""
        doses, inputs = doses or Doses.none(), inputs or Inputs()
        times = np.where(seen, times, 0.0)
        clock = Clock.of(times, seen, doses, t0, initial.shape[1])

        def tensors(given: Mapping[str, Array]) -> dict[str, Tensor]:
            return {name: torch.tensor(values, dtype=torch.float64) for name, values in given.items()}

        return cls(
            torch.tensor(initial, dtype=torch.float64),
            t0,
            clock,
            tensors(covariates or {}),
            tensors(inputs.knots),
            tensors(inputs.values),
        )

    def __len__(self) -> int:
        return len(self.initial)

    def solve(
        self,
        field: FunctionField,
        solver: Solver,
        values: Mapping[str, Tensor],
        rows: Tensor,
        observe: Observe | None = None,
    ) -> Tensor:
        """What is observed (m, T, p) without error of subjects ``rows`` (m,), with these parameters (m,)."""
        named = {**values, **{name: course[rows] for name, course in self.covariates.items()}}
        courses = {name: course[rows] for name, course in self.courses.items()}

        def slopes(t: Tensor, y: Tensor) -> Tensor:
            inputs = {name: interpolate(self.knots[name], course, t) for name, course in courses.items()}
            return field.slopes(t, y, named | inputs)

        states = solver.solve_clock(slopes, self.start(field, values, rows), self.clock, rows, self.t0)
        own = states.gather(1, self.clock.places[rows][..., None].expand(-1, -1, states.shape[2]))
        return own if observe is None else see(observe, own, named)

    def start(self, field: FunctionField, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """The initial states (m, d) of subjects, of which some may be parameters."""
        initial = self.initial[rows]
        if not field.initial_names:
            return initial
        columns = list(initial.unbind(1))
        for name in field.initial_names:
            columns[state_of(name)] = values[name]
        return torch.stack(columns, 1)


def observed_names(observe: Observe | None) -> list[str]:
    """The parameters and covariates that ``observe(y, V)`` takes beside the states.

    >>> observed_names(lambda y: y[..., :1]), observed_names(lambda y, V: y / V)
    ([], ['V'])
    """
    try:
        arguments = [] if observe is None else list(inspect.signature(observe).parameters.values())
    except (TypeError, ValueError):  # of a builtin: it takes the states
        return []
    return [
        p.name
        for p in arguments[1:]
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def see(observe: Observe, states: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """What is observed of states (m, T, d); a function that takes named numbers sees one subject at a time.

    >>> see(lambda y, V: y / V, torch.ones(2, 3, 1), {"V": torch.tensor([1.0, 4.0])})[:, 0, 0]
    tensor([1.0000, 0.2500])
    """
    names = observed_names(observe)
    if not names:
        return observe(states)
    mapped: Tensor = torch.vmap(lambda y, own: observe(y, **own))(states, {n: values[n] for n in names})
    return mapped


def state_of(name: str) -> int:
    """The state of which a parameter is the initial value.

    >>> state_of("y0"), state_of("y0_2")
    (0, 1)
    """
    return int(name.partition("_")[2] or 1) - 1


def interpolate(knots: Tensor, values: Tensor, t: Tensor) -> Tensor:
    """Courses (n, m) between knots (m,) at times (n,), constant beyond the ends.

    >>> knots, courses = torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 4.0], [1.0, 1.0]])
    >>> interpolate(knots, courses, torch.tensor([0.5, 9.0]))
    tensor([1., 1.])
    """
    if len(knots) == 1:
        return values[:, 0]
    right = torch.searchsorted(knots, t.contiguous()).clamp(1, len(knots) - 1)
    left = right - 1
    share = ((t - knots[left]) / (knots[right] - knots[left])).clamp(0, 1)
    pick: Any = torch.arange(len(t), device=t.device)
    found: Tensor = values[pick, left] * (1 - share) + values[pick, right] * share
    return found

"""One step of training: simulate, compare and differentiate, alone or together with other processes."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from localw2.training.distributed import Crew, KeyedNoise

if TYPE_CHECKING:
    from localw2.losses.objective import Objective
    from localw2.models.base import RandomMap
    from localw2.training.batches import Batch
    from localw2.training.config import FitConfig

_PROBED_ROWS = 100  # rows that show whether a model's noise can be keyed by row


def epoch_seed(seed: int, epoch: int, purpose: int) -> int:
    """The seed of a generator for one purpose in one epoch of a fit with this seed."""
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))


@final
class Descent:
    """Minimises a loss over a model's parameters with AdamW, one batch of balls at a time.

    Draws come from a generator per epoch or, if ``keyed``, depend only on (seed, epoch, step, row, draw).
    """

    def __init__(
        self, model: RandomMap, objective: Objective, x: Tensor, config: FitConfig, crew: Crew
    ) -> None:
        self.model, self.x, self.config, self.crew = model, x, config, crew
        # The fused optimiser takes a quarter of the time of the others for small networks.
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._squeeze = objective.y.ndim == 1
        self._n_draws = max(config.n_draws, objective.discrepancy.min_draws)
        self._all_rows = torch.arange(len(x))
        self.keyed = crew.together or config.noise == "keyed"
        if self.keyed and not self._takes_keys():
            self.keyed = False
            if config.noise == "keyed" or crew.size > 1:
                warnings.warn(
                    f"{type(model).__name__} does not accept noise keyed by row, so every rank simulates all "
                    "rows, which is correct but no faster. To share the work, draw noise with "
                    "localw2.models.base.normal(shape, like, generator), rows first.",
                    stacklevel=4,
                )
        # The processes that share each batch.
        self.shards = crew if self.keyed else Crew()
        crew.share_state(model)
        self.begin(0, 0.0)

    def begin(self, epoch: int, rate: float) -> None:
        """Prepare an epoch (counted from 0) with this learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._epoch, self._steps = epoch, 0
        self._generator = self.generator(epoch, 0)

    def generator(self, epoch: int, purpose: int) -> torch.Generator:
        """Random numbers that depend only on (seed, epoch, purpose), so that no state needs to be stored."""
        return torch.Generator(device=self.x.device).manual_seed(epoch_seed(self.config.seed, epoch, purpose))

    def step(self, batch: Batch) -> float:
        """Take one step and return the loss before it; a FloatingPointError leaves the weights unchanged."""
        value = self.gradient(batch)
        if self.config.max_gradient is not None or self.config.max_skipped:
            limit = math.inf if self.config.max_gradient is None else self.config.max_gradient
            norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
            if not math.isfinite(norm):
                raise FloatingPointError(f"the norm of the gradient is {norm}")
        self.optimizer.step()
        return value

    def gradient(self, batch: Batch) -> float:
        """Store the gradient of the batch, summed over processes, in the parameters; return the loss."""
        if self.crew.size == 1:
            return self._own_gradient(batch)
        value, failure = 0.0, ""
        try:
            if batch.objective is None:
                self._steps += 1
                self.optimizer.zero_grad(set_to_none=True)
            else:
                value = self._own_gradient(batch)
        except FloatingPointError as error:
            failure = str(error)
        share = batch.share if self.keyed else 1 / self.crew.size
        value, failed = self.crew.add_up(self._parameters, value, share, bool(failure))
        if failed:
            raise FloatingPointError(failure or "the step failed on another rank")
        return value

    def loss_of_all(self, objective: Objective, generator: torch.Generator) -> Tensor:
        """The loss of all rows with draws from this generator, for a recorded step."""
        self._generator = generator
        return objective(self._simulate(None))

    def _own_gradient(self, batch: Batch) -> float:
        assert batch.objective is not None
        loss = batch.objective(self._simulate(batch.rows))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return value

    def _simulate(self, rows: Tensor | None) -> Tensor:
        x = self.x if rows is None else self.x[rows.to(self.x.device)]
        noise: Any = self._generator
        self._steps += 1
        if self.keyed:
            seed = (self.config.seed, self._epoch, 0, self._steps)
            noise = KeyedNoise(seed, self._all_rows if rows is None else rows, self._n_draws)
        yhat = self.model.simulate(x, self._n_draws, noise)
        if self._squeeze and yhat.ndim == 3 and yhat.shape[-1] == 1:
            yhat = yhat.squeeze(-1)
        # On a GPU this check would stall the stream; there the loss shows it.
        if yhat.device.type == "cpu" and not math.isfinite(float(yhat.detach().sum())):
            raise FloatingPointError("the model returned values that are not finite")
        return yhat

    def _takes_keys(self) -> bool:
        """Whether the model accepts noise keyed by row, which one that draws its own noise does not."""
        few, training = self._all_rows[:_PROBED_ROWS], self.model.training
        noise: Any = KeyedNoise((0,), few, self._n_draws)
        try:
            with torch.no_grad():
                self.model.eval().simulate(self.x[: len(few)], self._n_draws, noise)
        except TypeError:
            return False
        except FloatingPointError:  # the first step will report it
            return True
        finally:
            self.model.train(training)
        return True

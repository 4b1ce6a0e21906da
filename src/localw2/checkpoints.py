"""The state of a fit between two epochs, to and from a file, and what says whose fit it was."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, is_dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from localw2.losses import Objective
from localw2.neighborhoods import Neighborhoods
from localw2.persistence import Stored, read, write

State = dict[str, Tensor]

_WEIGHTS = ("model", "best", "average")
_NUMBERS = ("epoch", "n_averaged", "n_failed", "best_score", "best_epoch")


@final
@dataclass(frozen=True)
class Checkpoint:
    """All that the next epoch depends on, as it was between two epochs; never changed in place."""

    epoch: int
    model: State
    optimizer: dict[int, State]
    best: State
    average: State
    n_averaged: int
    n_failed: int
    best_score: float | None
    best_epoch: int | None

    def put_into(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Give both the state that they had."""
        model.load_state_dict(self.model)
        # The optimiser's own loading keeps the tensors that it is given and would then change them.
        state = {index: copied(values) for index, values in self.optimizer.items()}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def copied(state: State) -> State:
    """The same tensors in memory of their own."""
    return {name: value.detach().clone() for name, value in state.items()}


def all_finite(state: State) -> bool:
    """Whether no tensor has a NaN or an infinity."""
    return all(bool(torch.isfinite(value).all()) for value in state.values())


def write_checkpoint(
    path: str,
    checkpoint: Checkpoint,
    identity: dict[str, Any],
    history: list[dict[str, Any]],
    seconds: float,
) -> None:
    """Write one file, all or nothing.

    >>> import tempfile
    >>> state = {"slope": torch.tensor([2.0])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_checkpoint(folder + "/c", Checkpoint(3, state, {}, {}, {}, 0, 0, None, None), {}, [], 1.5)
    ...     read_checkpoint(folder + "/c", {}, state)[0].epoch
    3
    """
    tensors = {
        f"{group}.{name}": value for group in _WEIGHTS for name, value in getattr(checkpoint, group).items()
    }
    for index, state in checkpoint.optimizer.items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    settings = {name: getattr(checkpoint, name) for name in _NUMBERS}
    settings |= {"seconds": seconds, "history": history, "identity": identity}
    write(path, Stored("checkpoint", settings, tensors))


def read_checkpoint(
    path: str, identity: dict[str, Any], state: State
) -> tuple[Checkpoint, list[dict[str, Any]], float]:
    """The checkpoint, its history and its seconds; ValueError unless it is of the same fit.

    ``identity`` is that of the fit to continue and ``state`` its model's, for shapes and devices.
    """
    stored = read(path)
    if stored.kind != "checkpoint":
        raise ValueError(f"{path} holds a {stored.kind}, not a checkpoint; name another file to resume from.")
    groups: dict[str, State] = {group: {} for group in (*_WEIGHTS, "optimizer")}
    for name, value in stored.tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = value
    past = stored.settings
    _check_same(path, identity, past.get("identity"), _kinds(state) == _kinds(groups["model"]))
    optimizer: dict[int, State] = {}
    for name, value in groups["optimizer"].items():
        index, _, key = name.partition(".")
        optimizer.setdefault(int(index), {})[key] = value
    weights: dict[str, Any] = {
        group: {name: value.to(state[name].device) for name, value in groups[group].items()}
        for group in _WEIGHTS
    }
    numbers: dict[str, Any] = {name: past[name] for name in _NUMBERS}
    return Checkpoint(optimizer=optimizer, **weights, **numbers), list(past["history"]), past["seconds"]


def identify(model: nn.Module, objective: Objective, x: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint must share with a fit to be of use to it, as JSON gives it back."""
    # A printed address (of an activation function, say) differs between processes.
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(model))
    found = {**settings, "data": _digest(x, objective), "model": printed}
    identity: dict[str, Any] = json.loads(json.dumps(found))
    return identity


def _check_same(path: str, ours: dict[str, Any], theirs: Any, same_shapes: bool) -> None:
    theirs = theirs if isinstance(theirs, dict) else {}
    changed = sorted(name for name in ours if ours[name] != theirs.get(name))
    if not changed and not same_shapes:
        changed = ["model"]
    if not changed:
        return
    named = [name for name in changed if name not in ("data", "model")]
    named += ["the model"] * ("model" in changed) + ["the data or the loss"] * ("data" in changed)
    raise ValueError(
        f"{path} is the checkpoint of another fit: {', '.join(named)} differ. "
        "Resume with the same ones, or name another checkpoint file."
    )


def _kinds(state: State) -> dict[str, tuple[Any, ...]]:
    return {name: (value.dtype, *value.shape) for name, value in state.items()}


def _digest(x: Tensor, objective: Objective) -> str:
    """A hash of the rows, the balls and the loss."""
    digest = hashlib.sha256()
    hoods, discrepancy = objective.hoods, objective.discrepancy
    tensors = [x, objective.y, objective.center, objective.scale]
    if isinstance(hoods, Neighborhoods):
        tensors += [hoods.indptr, hoods.rows, hoods.weights]
    for tensor in tensors:
        if tensor is not None:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().numpy().tobytes())
        digest.update(b";")
    # Another's discrepancy may print its address, so only its name is used.
    loss = repr(discrepancy) if is_dataclass(discrepancy) else type(discrepancy).__qualname__
    digest.update(f"{loss};{hoods!r}".encode())
    return digest.hexdigest()

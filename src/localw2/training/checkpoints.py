"""The state of a fit between two epochs, to and from a file that identifies the fit."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from localw2._validation import check_count
from localw2.balls.neighborhoods import Neighborhoods
from localw2.storage.lock import hold_file
from localw2.storage.model_file import Stored, read, write

if TYPE_CHECKING:
    from localw2.losses.objective import Objective
    from localw2.training.distributed import Crew

State = dict[str, Tensor]

_WEIGHTS = ("model", "best", "average")
_RECORD = ("epoch", "loss", "rate", "score", "skipped", "seconds")
_NUMBERS = ("epoch", "n_failed", "best_score", "best_epoch")


@final
@dataclass(frozen=True)
class Checkpoint:
    """Everything the next epoch depends on, saved between two epochs; never changed in place."""

    epoch: int
    model: State
    optimizer: dict[int, State]
    best: State
    average: State
    n_failed: int
    best_score: float | None
    best_epoch: int | None

    def put_into(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Restore the state of the model and the optimiser."""
        model.load_state_dict(self.model)
        # load_state_dict would keep these very tensors, and the optimiser would then change them.
        state = {index: copy_state(values) for index, values in self.optimizer.items()}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@contextmanager
def hold_checkpoint(path: Any, crew: Crew, inside: bool = False) -> Iterator[None]:
    """Hold a checkpoint, if there is one, so that no other fit writes it; the first rank does so for all."""
    with ExitStack() as stack:
        failure = ""
        if path is not None and crew.rank == 0:
            try:
                stack.enter_context(hold_file(path, inside))
            except ValueError as error:
                failure = str(error)
        if path is not None and (failure := str(crew.broadcast(failure))):
            raise ValueError(failure)
        yield


def copy_state(state: State) -> State:
    """Copy the tensors of a state."""
    return {name: value.detach().clone() for name, value in state.items()}


def all_finite(state: State) -> bool:
    """Whether all values are finite."""
    return all(bool(torch.isfinite(value).all()) for value in state.values())


def write_checkpoint(
    path: str, checkpoint: Checkpoint, identity: dict[str, Any], history: list[dict[str, Any]], seconds: float
) -> None:
    """Write the checkpoint to one file, atomically.

    >>> import tempfile
    >>> state = {"slope": torch.tensor([2.0])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(1, state, {}, {}, {}, 0, None, None)
    ...     write_checkpoint(folder + "/c", checkpoint, {}, [{"epoch": 1, "loss": 0.5}], 1.5)
    ...     read_checkpoint(folder + "/c", {}, state)[1]
    [{'epoch': 1, 'loss': 0.5}]
    """
    tensors = {
        f"{group}.{name}": value for group in _WEIGHTS for name, value in getattr(checkpoint, group).items()
    }
    for index, state in checkpoint.optimizer.items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    settings = {name: getattr(checkpoint, name) for name in _NUMBERS}
    settings |= {"seconds": seconds, "identity": identity}
    write(path, Stored("checkpoint", settings, tensors | history_tensors(history)))


def read_checkpoint(
    path: str, identity: dict[str, Any], state: State
) -> tuple[Checkpoint, list[dict[str, Any]], float]:
    """Read a checkpoint, its history and its seconds; ValueError unless it belongs to the same fit.

    ``identity`` identifies the fit to continue; ``state`` is its model's, for shapes and devices.
    """
    try:
        stored = read(path)
    except ValueError as error:
        raise ValueError(f"{error} If it is a checkpoint, delete it to start again.") from error
    if stored.kind != "checkpoint":
        raise ValueError(f"{path} holds a {stored.kind}, not a checkpoint; resume from another file.")
    groups: dict[str, State] = {group: {} for group in (*_WEIGHTS, "optimizer")}
    for name, value in stored.tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = value
    past = stored.settings
    _check_same(path, identity, past.get("identity"), _kinds(state) == _kinds(groups["model"]))
    try:
        optimizer: dict[int, State] = {}
        for name, value in groups["optimizer"].items():
            index, _, key = name.partition(".")
            optimizer.setdefault(int(index), {})[key] = value
        fields: dict[str, Any] = {name: past[name] for name in _NUMBERS}
        for name in ("epoch", "n_failed"):
            check_count(fields[name], name, 0)
        for group in _WEIGHTS:
            fields[group] = {name: value.to(state[name].device) for name, value in groups[group].items()}
        checkpoint, history = Checkpoint(optimizer=optimizer, **fields), tensors_history(stored.tensors)
        if checkpoint.epoch != len(history):
            raise ValueError(f"epoch {checkpoint.epoch} with {len(history)} records")
        return checkpoint, history, float(past["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); delete it to start again.") from error


def history_tensors(history: list[dict[str, Any]]) -> State:
    """The records of all epochs as one tensor per field; fields added by others are left out.

    >>> list(history_tensors([{"epoch": 1, "loss": 0.5, "rate": 0.1, "seconds": 0.01}]))
    ['history.epoch', 'history.loss', 'history.rate', 'history.seconds']
    """
    return {
        f"history.{name}": torch.tensor([e.get(name, math.nan) for e in history], dtype=torch.float64)
        for name in _RECORD
        if any(name in entry for entry in history)
    }


def tensors_history(tensors: State) -> list[dict[str, Any]]:
    """The records that ``history_tensors`` stored; ValueError if they are not valid."""
    found = {name: tensors[f"history.{name}"] for name in _RECORD if f"history.{name}" in tensors}
    epochs = found.get("epoch", torch.empty(0, dtype=torch.float64))
    for name, column in found.items():
        if column.dtype != torch.float64 or column.shape != (len(epochs),) or bool(column.isinf().any()):
            raise ValueError(
                f"history.{name} is {column.dtype} {tuple(column.shape)}, not one number per epoch."
            )
    if epochs.tolist() != list(range(1, len(epochs) + 1)) or (
        len(epochs) and bool(found["loss"].isnan().any())
    ):
        raise ValueError("the history does not have a loss for every epoch.")
    columns = {name: column.tolist() for name, column in found.items()}
    return [
        {
            name: int(values[i]) if name in ("epoch", "skipped") else values[i]
            for name, values in columns.items()
            if not math.isnan(values[i])
        }
        for i in range(len(epochs))
    ]


def identify(model: nn.Module, objective: Objective, x: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint must have in common with a fit to resume it, as JSON returns it."""
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
    named = [name for name in changed if name not in ("data", "model", "fingerprint")]
    named += ["settings, data or functions of the estimator"] * ("fingerprint" in changed)
    named += ["the model"] * ("model" in changed) + ["the data or the loss"] * ("data" in changed)
    raise ValueError(
        f"{path} is the checkpoint of another fit: {', '.join(named)} differ. "
        "Resume with the same ones, or use another checkpoint file."
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
    if hoods.sample_weight is not None:
        tensors.append(hoods.sample_weight)
    for tensor in tensors:
        if tensor is not None:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().numpy().tobytes())
        digest.update(b";")
    # A user's discrepancy may print its address, so only its name is used.
    loss = repr(discrepancy) if is_dataclass(discrepancy) else type(discrepancy).__qualname__
    digest.update(f"{loss};{hoods!r}".encode())
    return digest.hexdigest()

"""A conditional law as plain settings, tensors and scikit-learn regressors, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from localw2._validation import LARGEST, Array
from localw2.estimators.regression.ball_law import BallLaw, BallMember, FilledForest
from localw2.estimators.regression.boosting import BoostedTrees
from localw2.estimators.regression.category_codes import CategoryCodes
from localw2.estimators.regression.forest import Forest
from localw2.estimators.regression.law import ConditionalLaw
from localw2.estimators.regression.mean import FittedModel, FoldedMean, Part
from localw2.estimators.regression.network import Network, NetworkMember, Units
from localw2.estimators.regression.outcomes import Outcomes, Rounding
from localw2.estimators.regression.scale import Scale
from localw2.estimators.stored_values import (
    MOST_COLUMNS,
    drop_excess,
    restore_network,
    restore_object,
    sized_array,
    store_value,
    text,
    whole_number,
)
from localw2.estimators.tables import Columns, from_stored_encoder
from localw2.judging.conformal import Calibration
from localw2.models.network import RandomMLP
from localw2.models.noise_network import NoiseMLP

if TYPE_CHECKING:
    from localw2.estimators.regression.member import Member

_SCORES, _PARTS, _SCORE_WEIGHTS = "calibration_scores", "calibration_parts", "calibration_weights"
_ROW_WEIGHTS = "weights"  # of the rows of a forest, if they have any
_FOREST = {
    "roots": torch.int32,
    "feature": torch.int32,
    "threshold": torch.float64,
    "left": torch.int32,
    "right": torch.int32,
    "missing_left": torch.bool,
}
_PLACE = ("center", "unit")  # of the columns of a forest, which older files do not have
_MOST_TREES = 10_000  # of one boosting
_TREES = {
    "start": torch.float64,
    "feature": torch.int32,
    "threshold": torch.float64,
    "missing_left": torch.bool,
    "values": torch.float64,
}
_HELD = {"kept": torch.int32, "in_leaves": torch.int32, "shown": torch.float64, "folds": torch.int16}
Tensors = dict[str, Tensor]


def store_law(law: ConditionalLaw) -> tuple[dict[str, Any], Tensors, dict[str, Any]]:
    """Plain settings, tensors and scikit-learn regressors that ``restore_law`` takes."""
    columns, mean = law.columns, law.mean
    tensors: Tensors = {"base_slope": _tensor(mean.slope), "base_intercept": _tensor(mean.intercept)}
    regressors = {}
    for i, part in enumerate(mean.parts):
        for fold, model in enumerate(part.models):
            name = f"part{i}fold{fold:04d}"
            if isinstance(model.regressor, BoostedTrees):
                tensors |= {f"{name}.{n}": _tensor(getattr(model.regressor, n), t) for n, t in _TREES.items()}
            else:
                regressors[name] = model.regressor
            for j, values in ({} if model.codes is None else model.codes.maps).items():
                tensors[f"{name}.codes.{j}"] = _tensor(values)
    members = []
    forests = list({id(m.balls): m.balls for m in law.members if isinstance(m, BallMember)}.values())
    for number, forest in enumerate(forests):
        tensors |= _store_forest(forest, f"forest{number}")
    for number, member in enumerate(law.members):
        if isinstance(member, BallMember):
            members.append(_store_balls(member, forests.index(member.balls)))
        else:
            assert isinstance(member, NetworkMember)
            plain, own = _store_network(member, f"member{number}")
            members.append(plain)
            tensors |= own
    if law.calibration is not None:
        tensors[_SCORES] = _tensor(law.calibration.scores)
        if law.calibration.parts is not None:
            tensors[_PARTS] = _tensor(law.calibration.parts, torch.int32)
        if law.calibration.weights is not None:
            tensors[_SCORE_WEIGHTS] = _tensor(law.calibration.weights)
    without = []
    for number, other in enumerate(law.without):
        plain, own, models = store_law(other)
        without.append(plain)
        prefix = _name_without(number)
        tensors |= {prefix + name: tensor for name, tensor in own.items()}
        regressors |= {prefix + name: model for name, model in models.items()}
    settings = {
        "feature_names": None if columns.names is None else list(columns.names),
        "n_features": columns.n_features,
        "n_outputs": len(law.outcomes.lower),
        "table": columns.to_stored(),
        "outcomes": law.outcomes.plain(),
        "calibration": None if law.calibration is None else law.calibration.kind,
        "scale": mean.scale.shift,
        "mean": [
            {
                "name": part.name,
                "weight": part.weight,
                "folds": len(part.models),
                "native": part.models[0].codes is not None,
                "trees": isinstance(part.models[0].regressor, BoostedTrees),
            }
            for part in mean.parts
        ],
        "members": members,
        "weights": law.weights.tolist(),
        "without": without,
    }
    return settings, tensors, regressors


def restore_law(settings: dict[str, Any], tensors: Tensors, regressors: dict[str, Any]) -> ConditionalLaw:
    """The law that ``store_law`` described; an error if the parts do not fit together."""
    if "members" not in settings:
        return _restore_older(settings, tensors, regressors)
    d = whole_number(settings["n_outputs"], 1, MOST_COLUMNS)
    names = settings["feature_names"]
    p = whole_number(settings["n_features"], 1, MOST_COLUMNS)
    columns = Columns.from_stored(settings["table"], p, names)
    without = _restore_without(settings, tensors, regressors)
    outcomes = Outcomes.from_plain(settings["outcomes"], d)
    parts = tuple(
        _restore_part(plain, i, columns, d, tensors, regressors) for i, plain in enumerate(settings["mean"])
    )
    if len({len(part.models) for part in parts}) > 1 or regressors:
        raise ValueError("the regressors of its mean do not fit together.")
    shift = settings["scale"]
    if shift is not None and not (type(shift) in (int, float) and 0 <= shift < np.inf and d == 1):
        raise ValueError(f"scale={shift!r} must be null or a shift of a logarithm.")
    mean = FoldedMean(
        columns,
        parts,
        sized_array("base_intercept", tensors["base_intercept"], d),
        sized_array("base_slope", tensors["base_slope"], d),
        Scale(shift),
    )
    members = _restore_members(settings["members"], tensors, mean, outcomes)
    weights = np.array(settings["weights"], dtype=np.float64)
    if weights.shape != (len(members),) or not (weights > 0).all() or not np.isclose(weights.sum(), 1):
        raise ValueError(f"weights={settings['weights']!r} do not belong to {len(members)} member(s).")
    calibration = _restore_calibration(settings.get("calibration"), tensors, d, len(without))
    return ConditionalLaw(columns, mean, members, weights, outcomes, calibration, without)


def _restore_without(
    settings: dict[str, Any], tensors: Tensors, regressors: dict[str, Any]
) -> tuple[ConditionalLaw, ...]:
    """The laws of all rows but a part each; what belongs to them is taken out of ``regressors``."""
    found = []
    for number, plain in enumerate(settings.get("without", [])):
        if plain.get("without") or plain.get("calibration") is not None:
            raise ValueError("the law of a part is calibrated itself.")
        if any(plain[name] != settings[name] for name in ("feature_names", "n_features", "n_outputs")):
            raise ValueError("the law of a part is one of another table.")
        prefix = _name_without(number)
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        names = [name for name in regressors if name.startswith(prefix)]
        models = {name.removeprefix(prefix): regressors.pop(name) for name in names}
        found.append(restore_law(plain, own, models))
    return tuple(found)


def _name_without(number: int) -> str:
    return f"without{number}."


def store_strategy(law: Any) -> Any:
    """The ``law`` of a constructor as JSON."""
    if isinstance(law, list | tuple):
        return [store_strategy(one) for one in law]
    if not isinstance(law, Network | BallLaw):
        return law
    plain = {field.name: store_value(field.name, getattr(law, field.name)) for field in fields(law)}
    return {"strategy": type(law).__name__, "fields": plain}


def restore_strategy(plain: Any) -> Any:
    """What ``store_strategy`` made plain."""
    if isinstance(plain, list):
        return [restore_strategy(one) for one in plain]
    if isinstance(plain, str):
        return plain
    kind = {"Network": Network, "BallLaw": BallLaw}[plain["strategy"]]
    return kind(**{name: restore_object(value) for name, value in drop_excess(plain["fields"]).items()})


def _restore_part(
    plain: dict[str, Any], i: int, columns: Columns, d: int, tensors: Tensors, regressors: dict[str, Any]
) -> Part:
    models = []
    for fold in range(whole_number(plain["folds"], 1, 1000)):
        name = f"part{i}fold{fold:04d}"
        trees = bool(plain.get("trees") and plain["native"])
        regressor = _restore_trees(name, tensors, columns.width, d) if trees else regressors.pop(name)
        codes, width = None, columns.expanded_width
        if plain["native"]:
            maps = {j: _codes(f"{name}.codes.{j}", tensors) for j in columns.categorical}
            codes, width = CategoryCodes(maps), columns.width
        n_features = getattr(regressor, "n_features_in_", width)
        if n_features != width:
            raise ValueError(f"a base model has {n_features} feature(s), the table {width}.")
        models.append(FittedModel(regressor, codes))
    weight = plain["weight"]
    if type(weight) not in (int, float) or not 0 <= weight <= 1 + 1e-9:
        raise ValueError(f"weight={weight!r} of a base model must lie between 0 and 1.")
    return Part(text(plain["name"]), tuple(models), float(weight))


def _restore_trees(name: str, tensors: Tensors, width: int, d: int) -> BoostedTrees:
    """Boosted trees of d outputs for tables with so many columns; ValueError if they are damaged."""
    found = {n: tensors[f"{name}.{n}"] for n in _TREES}
    if any(found[n].dtype != dtype for n, dtype in _TREES.items()):
        raise ValueError("the trees of its mean are damaged.")
    trees = BoostedTrees(**{n: tensor.numpy().copy() for n, tensor in found.items()})
    shape = trees.feature.shape
    sound = len(shape) == 3 and shape[1] <= _MOST_TREES
    sound = sound and shape[0] == d and min(shape) > 0 and (shape[2] & (shape[2] + 1)) == 0  # complete trees
    sound = sound and trees.threshold.shape == trees.missing_left.shape == shape
    sound = sound and trees.start.shape == shape[:1] and trees.values.shape == (*shape[:2], shape[2] + 1)
    sound = sound and bool((trees.feature >= 0).all() and (trees.feature < width).all())
    sizes = np.abs(np.append(trees.values.ravel(), trees.start))
    if not (sound and (sizes <= LARGEST).all() and not np.isnan(trees.threshold).any()):
        raise ValueError("the trees of its mean are damaged.")
    return trees


def _store_network(member: NetworkMember, prefix: str) -> tuple[dict[str, Any], Tensors]:
    net, units = member.net, member.units
    plain = {
        "kind": "network",
        "seed": member.seed,
        "rounding": member.rounding.plain(),
        "width": len(net.state_dict()["layers.0.bias"]),
        "depth": len(net.layers) - 1,
        "residual": bool(net.residual),
        "activation": net.activation,
        "n_noise": net.n_noise if isinstance(net, NoiseMLP) else None,
    }
    tensors = {f"{prefix}.model.{name}": value for name, value in net.state_dict().items()}
    for name in ("x_mean", "x_scale", "y_factor"):
        tensors[f"{prefix}.{name}"] = _tensor(getattr(units, name))
    return plain, tensors


def _restore_network(
    plain: dict[str, Any], prefix: str, tensors: Tensors, mean: FoldedMean, outcomes: Outcomes
) -> NetworkMember:
    own = {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}
    p, d = mean.columns.expanded_width, len(mean.intercept)
    rounding = Rounding.from_plain(outcomes, plain["rounding"], d)
    return _build_network(plain, own, p, d, mean, rounding, whole_number(plain["seed"], 0))


def _build_network(
    plain: dict[str, Any], tensors: Tensors, p: int, d: int, mean: FoldedMean, rounding: Rounding, seed: int
) -> NetworkMember:
    shapes = {"x_mean": (p,), "x_scale": (p,), "y_factor": (d, d)}
    units = Units(**{name: sized_array(name, tensors[name], *shape) for name, shape in shapes.items()})
    net = restore_network(plain, p, d, tensors)
    title = Network().name if isinstance(net, RandomMLP) else Network.with_noise().name
    return NetworkMember(net, units, mean, rounding, seed, title)


def _store_balls(member: BallMember, forest: int) -> dict[str, Any]:
    return {
        "kind": "balls",
        "forest": forest,
        "title": member.title,
        "min_rows": member.min_rows,
        "stretch": member.stretch,
        "narrowing": member.narrowing,
        "centred": member.mean is not None,
        "rounding": member.rounding.plain(),
    }


def _store_forest(balls: FilledForest, prefix: str) -> Tensors:
    in_leaves = np.where(balls.forest.feature < 0, balls.counts, 0)
    held = {"kept": balls.kept, "in_leaves": in_leaves, "shown": balls.shown, "folds": balls.folds}
    tensors = {f"{prefix}.{n}": _tensor(getattr(balls.forest, n), t) for n, t in _FOREST.items()}
    tensors |= {f"{prefix}.{name}": _tensor(getattr(balls.forest, name)) for name in _PLACE}
    tensors |= {f"{prefix}.{n}": _tensor(held[n], t) for n, t in _HELD.items()}
    if balls.weights is not None:
        tensors[f"{prefix}.{_ROW_WEIGHTS}"] = _tensor(balls.weights)
    for j, values in balls.forest.codes.maps.items():
        tensors[f"{prefix}.codes.{j}"] = _tensor(values)
    return tensors


def _restore_members(
    stored: list[dict[str, Any]], tensors: Tensors, mean: FoldedMean, outcomes: Outcomes
) -> tuple[Member, ...]:
    members: list[Member] = []
    forests: dict[tuple[int, bool], FilledForest] = {}
    for number, plain in enumerate(stored):
        if plain["kind"] == "network":
            members.append(_restore_network(plain, f"member{number}", tensors, mean, outcomes))
            continue
        if plain["kind"] != "balls" or type(plain["centred"]) is not bool:
            raise ValueError(f"kind={plain['kind']!r}, centred={plain['centred']!r} of a law are unknown.")
        key = whole_number(plain["forest"], 0), plain["centred"]
        if key not in forests:
            forests[key] = _restore_forest(f"forest{key[0]}", plain["centred"], tensors, mean)
        members.append(_restore_balls(plain, forests[key], mean, outcomes))
    return tuple(members)


def _restore_balls(
    plain: dict[str, Any], balls: FilledForest, mean: FoldedMean, outcomes: Outcomes
) -> BallMember:
    factors = plain["stretch"], plain["narrowing"]
    if not all(type(factor) in (int, float) and 0.1 < factor < 10 for factor in factors):
        raise ValueError(f"the factors {factors!r} on the spread of balls are damaged.")
    return BallMember(
        balls,
        whole_number(plain["min_rows"], 2),
        mean if plain["centred"] else None,
        Rounding.from_plain(outcomes, plain["rounding"], len(mean.intercept)),
        text(plain["title"]),
        *map(float, factors),
    )


def _restore_forest(prefix: str, centred: bool, tensors: Tensors, mean: FoldedMean) -> FilledForest:
    d = len(mean.intercept)
    found = {name: _vector(f"{prefix}.{name}", tensors, dtype) for name, dtype in _FOREST.items()}
    maps = {j: _codes(f"{prefix}.codes.{j}", tensors) for j in mean.columns.categorical}
    width = mean.columns.width + (d if centred and mean.parts else 0)
    place = np.zeros(width), np.ones(width)
    if f"{prefix}.unit" in tensors:
        center, unit = (sized_array(name, tensors[f"{prefix}.{name}"], width) for name in _PLACE)
        if not (unit > 0).all():
            raise ValueError("the units of its columns are damaged.")
        place = center, unit
    forest = Forest(CategoryCodes(maps), **found, center=place[0], unit=place[1])
    shown = sized_array("shown", tensors[f"{prefix}.shown"], len(tensors[f"{prefix}.shown"]), d)
    names = ("kept", "in_leaves", "folds")
    kept, in_leaves, folds = (_vector(f"{prefix}.{n}", tensors, _HELD[n]) for n in names)
    n_folds = mean.n_folds if centred else 1
    _check_forest(forest, width)
    leaf = forest.feature < 0
    sound = [
        len(in_leaves) == len(leaf) and (in_leaves >= 0).all(),
        len(in_leaves) == len(leaf) and not in_leaves[~leaf].any() and int(in_leaves.sum()) == len(kept) > 0,
        len(folds) == len(shown) > 0 and folds.min() >= 0 and folds.max() < n_folds,
        len(kept) > 0 and kept.min() >= 0 and kept.max() < len(shown),
        len(shown) > 0 and np.abs(shown).max() <= LARGEST,
    ]
    if not all(sound):
        raise ValueError("the leaves of its balls are damaged.")
    weights = _restore_weights(f"{prefix}.{_ROW_WEIGHTS}", tensors, len(shown))
    filled = FilledForest.of(forest, kept, in_leaves, shown, folds, weights)
    if not (filled.counts[forest.roots] > 0).all():
        raise ValueError("the rows of its balls are damaged.")
    return filled


def _restore_weights(name: str, tensors: Tensors, n: int) -> Array | None:
    """The weights (n,) of rows, all > 0, if a file has them."""
    if name not in tensors:
        return None
    weights = _vector(name, tensors)
    if len(weights) != n or not ((weights > 0) & (weights <= LARGEST)).all():
        raise ValueError(f"{name} are not {n} positive numbers.")
    return weights


def _check_forest(forest: Forest, width: int) -> None:
    """Raise unless every row ends in a leaf and the nodes below a node follow it, those on its left first."""
    n = len(forest.feature)
    sizes = {len(getattr(forest, name)) for name in _FOREST if name != "roots"}
    roots = forest.roots
    if sizes != {n} or not len(roots) or roots[0] != 0 or not (np.diff(roots) > 0).all() or roots[-1] >= n:
        raise ValueError("the trees of its balls are damaged.")
    node = np.arange(n)
    ends = np.repeat(np.append(roots[1:], n), np.diff(np.append(roots, n)))
    inner = forest.feature >= 0
    left, right = forest.left[inner], forest.right[inner]
    sound = ((forest.feature >= -1) & (forest.feature < width)).all()
    sound = sound and np.isfinite(forest.threshold[inner]).all()
    sound = sound and (left == node[inner] + 1).all() and ((right > left) & (right < ends[inner])).all()
    if sound:
        last = np.where(
            inner, forest.right, node
        )  # of the nodes below each, when all steps to the right are made
        while (last[last] != last).any():
            last = last[last]
        sound = (right == last[left] + 1).all() and (last[roots] + 1 == ends[roots]).all()
    if not sound:
        raise ValueError("the trees of its balls are damaged.")


def _restore_older(settings: dict[str, Any], tensors: Tensors, regressors: dict[str, Any]) -> ConditionalLaw:
    """A law of version 0.1: one network around one kind of regressor."""
    models = dict(regressors)
    d = whole_number(settings["n_outputs"], 1, MOST_COLUMNS)
    features = whole_number(settings["n_features"], 1, MOST_COLUMNS), settings["feature_names"]
    columns = from_stored_encoder(models.pop("columns", None), *features, settings.get("encoded_columns"))
    p = columns.expanded_width
    plain = settings.get("outcomes")  # files of the first release have none
    outcomes = Outcomes.anything(d) if plain is None else Outcomes.from_plain(plain, d)
    rounding = Rounding.halfway(outcomes) if plain is None else Rounding.from_plain(outcomes, plain, d)
    if (settings["base_name"] == "none") != (len(models) == 0):
        raise ValueError(f"there are {len(models)} base models for the base {settings['base_name']!r}.")
    for model in models.values():
        if getattr(model, "n_features_in_", p) != p:
            raise ValueError(f"a base model has {model.n_features_in_} feature(s), the network {p}.")
    fitted = tuple(FittedModel(models[name], None) for name in sorted(models))
    mean = FoldedMean(
        columns,
        (Part(text(settings["base_name"]), fitted, 1.0),) if fitted else (),
        sized_array("base_intercept", tensors["base_intercept"], d),
        sized_array("base_slope", tensors["base_slope"], d),
    )
    seed = whole_number(settings["seed"], 0)
    member = _build_network(settings["parameters"], tensors, p, d, mean, rounding, seed)
    calibration = _restore_calibration(settings.get("calibration"), tensors, d, 0)
    return ConditionalLaw(columns, mean, (member,), np.ones(1), outcomes, calibration)


def _restore_calibration(kind: Any, tensors: Tensors, d: int, n_parts: int) -> Calibration | None:
    """What calibrates the intervals, if anything does; ``n_parts`` laws of parts come with it."""
    scores, parts = tensors.get(_SCORES), None
    if (kind is None) != (scores is None):
        raise ValueError(f"calibration={kind!r} comes {'without' if scores is None else 'with'} its scores.")
    if _PARTS in tensors:
        parts = _vector(_PARTS, tensors, torch.int32)
    if (parts is None) != (n_parts == 0) or (parts is not None and set(parts) != set(range(n_parts))):
        raise ValueError(f"its calibration does not belong to the laws of {n_parts} parts.")
    if scores is None:
        return None
    kind = {"folds": "cv"}.get(text(kind), kind)  # what version 0.1 called it
    weights = _restore_weights(_SCORE_WEIGHTS, tensors, len(scores))
    return Calibration(sized_array(_SCORES, scores, len(scores), d), kind, parts, weights)


def _tensor(array: Array, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(array, dtype=dtype)


def _vector(name: str, tensors: Tensors, dtype: torch.dtype = torch.float64) -> Array:
    """A vector of this type."""
    tensor = tensors[name]
    if tensor.ndim != 1 or tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected one row of {dtype}.")
    array: Array = tensor.numpy().copy()
    return array


def _codes(name: str, tensors: Tensors) -> Array:
    """What the codes of a column become, and last what a missing one becomes; they may be NaN."""
    values = _vector(name, tensors)
    if len(values) == 0:
        raise ValueError(f"{name} is empty; expected a number for missing values at least.")
    return values

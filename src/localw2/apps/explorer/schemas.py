"""The requests and answers of the explorer: what is accepted, and what comes back, as OpenAPI shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from pydantic import BaseModel, ConfigDict, Field, create_model

MOST_ROWS, MOST_SAMPLES, MOST_DRAWS, MOST_LEVELS = 500, 10_000, 100_000, 50
LARGEST_SEED = 2**32 - 1


class Strict(BaseModel):
    """A request: nothing is converted, nothing unknown is overlooked."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Refused(BaseModel):
    """Why there is no answer."""

    detail: str


class OneOutput(BaseModel):
    """The law of one output at an input; no density where it has no spread."""

    mean: float
    std: float
    quantiles: list[float]
    y: list[float]
    density: list[float]


class Neighbours(BaseModel):
    """The outputs of the nearest observed rows, output by output, and how far away they are."""

    y: list[list[float]]
    nearest: float
    farthest: float
    usual: float | None


class Distribution(BaseModel):
    """The law of y at an input, with the observed rows around it."""

    levels: list[float]
    outputs: list[OneOutput]
    interval: list[list[float]] | None
    neighbours: Neighbours | None
    outside: list[str]


class SweptRows(BaseModel):
    """Observed rows near the other inputs of a sweep."""

    x: list[float]
    y: list[list[float]]


class Sweep(BaseModel):
    """Mean and quantiles along one input: ``mean`` (d, points), ``quantiles`` (d, levels, points)."""

    x: list[float]
    levels: list[float]
    mean: list[list[float]]
    quantiles: list[list[list[float]]]
    rows: SweptRows | None


class Tested(BaseModel):
    """The conditional test: its p-value, and z of every ball at its centre (``centers``, by input)."""

    pvalue: float
    verdict: str
    trained_on: float | None
    n_rows: int
    ball: int
    centers: list[list[float]]
    z: list[float]
    rejected: list[bool]
    limit: float | None
    strongest: int


class Curve(BaseModel):
    """Loss and held-out score by epoch, and whose they are.

    ``live``: those of a fit under way, not of the one that is shown; ``running``: it has just written.
    ``followed``: there may be more later. ``version`` counts the models shown, 0 while there is none yet;
    ``problem`` says why a newer one is not shown.
    """

    epoch: list[int]
    loss: list[float]
    score_epoch: list[int]
    score: list[float]
    followed: bool
    live: bool
    running: bool
    version: int
    problem: str


class Input(BaseModel):
    """An input and the range of its slider."""

    name: str
    low: float
    high: float
    start: float
    step: float


class Output(BaseModel):
    """An output and its observed range."""

    name: str
    low: float | None
    high: float | None


class About(BaseModel):
    """What is being explored."""

    model: str
    inputs: list[Input]
    outputs: list[Output]
    n_rows: int
    k: int
    most_k: int
    can_test: bool
    trained_on: float | None


@final
@dataclass(frozen=True)
class Schemas:
    """The types whose shape depends on the model: rows of p inputs, answers of one output or of several."""

    sample: Any
    quantiles: Any
    distribution: Any
    sweep: Any
    test: Any
    drawn: Any
    levels: Any


def schemas_for(n_features: int, example: list[float], largest: float, is_vector: bool) -> Schemas:
    """The requests for a model with so many inputs, each at most ``largest`` in size.

    >>> types = schemas_for(2, [0.0, 1.0], 1e30, is_vector=True)
    >>> types.sample(x=[[1.0, 2.0]]).n_samples
    1
    >>> types.sample(x=[[1.0]])
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for SampleRequest
    ...
    """
    number = Annotated[float, Field(ge=-largest, le=largest, allow_inf_nan=False)]
    row = Annotated[list[number], Field(min_length=n_features, max_length=n_features)]
    rows = Annotated[list[row], Field(min_length=1, max_length=MOST_ROWS, examples=[[example]])]
    one = Annotated[row, Field(examples=[example])]
    count = Annotated[int, Field(ge=1, le=MOST_SAMPLES, description=f"n_samples x rows <= {MOST_DRAWS}")]
    seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)] | None
    level = Annotated[float, Field(gt=0, lt=1)]
    levels = Annotated[list[level], Field(min_length=1, max_length=MOST_LEVELS)]
    neighbours = Annotated[int, Field(ge=1, le=500)] | None
    column = Annotated[int, Field(ge=0, le=n_features - 1)]
    values: Any = list[list[float]] if is_vector else list[list[list[float]]]
    make: Any = create_model
    return Schemas(
        sample=make(
            "SampleRequest", __base__=Strict, x=(rows, ...), n_samples=(count, 1), random_state=(seed, None)
        ),
        quantiles=make("QuantilesRequest", __base__=Strict, x=(rows, ...), q=(levels, [0.05, 0.5, 0.95])),
        distribution=make(
            "DistributionRequest", __base__=Strict, x=(one, ...), k=(neighbours, None), carried=(bool, False)
        ),
        sweep=make("SweepRequest", __base__=Strict, x=(one, ...), input=(column, ...)),
        test=make("TestRequest", __base__=Strict),
        drawn=make("Samples", __base__=BaseModel, y=(values, ...)),
        levels=make("Quantiles", __base__=BaseModel, quantiles=(values, ...)),
    )

"""Requests and answers of the explorer: what is accepted and what comes back, as OpenAPI shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from pydantic import BaseModel, ConfigDict, Field, create_model

MOST_ROWS, MOST_SAMPLES, MOST_DRAWS, MOST_LEVELS = 500, 10_000, 100_000, 50
LARGEST_SEED = 2**32 - 1


class Strict(BaseModel):
    """A request: nothing is converted, and unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Refused(BaseModel):
    """Why a request was refused."""

    detail: str


class OneOutput(BaseModel):
    """The distribution of one output at an input; ``y`` and ``density`` are empty if it has no spread."""

    mean: float
    std: float
    quantiles: list[float]
    y: list[float]
    density: list[float]


class Neighbours(BaseModel):
    """The nearest observed rows: their outputs (by output) and the range of their distances.

    99 % of the observed rows have as many neighbours within the distance ``usual``.
    """

    y: list[list[float]]
    nearest: float
    farthest: float
    usual: float | None


class Distribution(BaseModel):
    """The distribution of y at an input, and the observed rows near it.

    ``interval`` holds the calibrated 90 % interval of each output, if the fit has one; ``outside`` says in
    words why the answer is an extrapolation, and is empty if it is not.
    """

    levels: list[float]
    outputs: list[OneOutput]
    interval: list[list[float]] | None
    neighbours: Neighbours | None
    outside: list[str]


class SweptRows(BaseModel):
    """Observed rows that are close to a sweep in its other inputs."""

    x: list[float]
    y: list[list[float]]


class Sweep(BaseModel):
    """``mean`` (outputs, points) and ``quantiles`` (outputs, levels, points) along one input."""

    x: list[float]
    levels: list[float]
    mean: list[list[float]]
    quantiles: list[list[list[float]]]
    rows: SweptRows | None


class Tested(BaseModel):
    """The conditional test: its p-value, and the statistic z of every ball with its centre (by input).

    ``trained_on`` is the share of the rows that the model was trained on, if that makes the test invalid.
    """

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
    """Training loss and held-out score by epoch, and which fit they belong to.

    ``live``: to a fit that is writing its history, not to the model on display; ``running``: it has written
    in the last seconds; ``followed``: more may come. ``version`` counts the models that were shown, 0 while
    there is none; ``problem`` says why a newer model cannot be shown.
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
    """An input and its slider."""

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
    """What is being explored.

    ``k`` neighbours are shown unless told otherwise, at most ``most_k``; ``trained_on`` is the share of the
    observed rows that the model was trained on, if it is more than chance.
    """

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
    """The types that depend on the model: rows of p inputs, answers with one output or several."""

    sample: Any
    quantiles: Any
    distribution: Any
    sweep: Any
    test: Any
    drawn: Any
    levels: Any


def make_schemas(n_features: int, example: list[float], largest: float, is_vector: bool) -> Schemas:
    """The types for a model with ``n_features`` inputs, each at most ``largest`` in absolute value.

    >>> types = make_schemas(2, [0.0, 1.0], 1e30, is_vector=True)
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
    rows = Annotated[
        list[row],
        Field(min_length=1, max_length=MOST_ROWS, examples=[[example]], description="rows of inputs"),
    ]
    one = Annotated[row, Field(examples=[example], description="one value per input")]
    count = Annotated[
        int,
        Field(
            ge=1,
            le=MOST_SAMPLES,
            examples=[3],
            description=f"draws per row; n_samples x rows <= {MOST_DRAWS}",
        ),
    ]
    seed = Annotated[
        Annotated[int, Field(ge=0, le=LARGEST_SEED)] | None,
        Field(examples=[0], description="the seed; without one, every call gives new draws"),
    ]
    level = Annotated[float, Field(gt=0, lt=1)]
    levels = Annotated[
        list[level], Field(min_length=1, max_length=MOST_LEVELS, description="levels of the quantiles")
    ]
    neighbours = Annotated[
        Annotated[int, Field(ge=1, le=500)] | None, Field(description="how many observed rows to show")
    ]
    shifted = Annotated[
        bool, Field(description="shift their y by the difference between the model's means here and there")
    ]
    column = Annotated[
        int,
        Field(ge=0, le=n_features - 1, examples=[0], description="the number of the input, counted from 0"),
    ]
    values: Any = list[list[float]] if is_vector else list[list[list[float]]]
    make: Any = create_model
    return Schemas(
        sample=make(
            "SampleRequest", __base__=Strict, x=(rows, ...), n_samples=(count, 1), random_state=(seed, None)
        ),
        quantiles=make("QuantilesRequest", __base__=Strict, x=(rows, ...), q=(levels, [0.05, 0.5, 0.95])),
        distribution=make(
            "DistributionRequest",
            __base__=Strict,
            x=(one, ...),
            k=(neighbours, None),
            shifted=(shifted, False),
        ),
        sweep=make("SweepRequest", __base__=Strict, x=(one, ...), input=(column, ...)),
        test=make("TestRequest", __base__=Strict),
        drawn=make("Samples", __base__=BaseModel, y=(values, ...)),
        levels=make("Quantiles", __base__=BaseModel, quantiles=(values, ...)),
    )

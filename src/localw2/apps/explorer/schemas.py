"""Requests and answers of the explorer: what is accepted and what comes back, as OpenAPI shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from localw2.judging.inputs import Input

MOST_ROWS, MOST_SAMPLES, MOST_DRAWS, MOST_LEVELS = 500, 10_000, 100_000, 50
LARGEST_SEED = 2**32 - 1
LISTED = 8  # categories that a message lists
FIRST_YEAR, LAST_YEAR = 1700, 2261  # what pandas can hold in nanoseconds
_DATE = r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?)?$"
Cell = float | str | None  # a value of a table: a number, a category or an ISO date, or null where missing


class Strict(BaseModel):
    """A request: nothing is converted, and unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Refused(BaseModel):
    """Why a request was refused."""

    detail: str


class OneOutput(BaseModel):
    """The distribution of one output at an input; ``y`` and ``density`` are empty if it has no spread.

    A category has the ``probabilities`` of its classes, and none of the others.
    """

    mean: float | None
    std: float | None
    quantiles: list[float]
    y: list[float]
    density: list[float]
    probabilities: list[float] | None


class Neighbours(BaseModel):
    """The nearest observed rows: their outputs (by output) and the range of their distances.

    99 % of the observed rows have as many neighbours within the distance ``usual``. A class is its number,
    counted from 0, here and wherever rows are shown.
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


class JointRows(BaseModel):
    """Two outputs of the observed rows near an input, and their correlation with its standard error."""

    y: list[list[float]]
    correlation: float | None
    error: float | None


class Joint(BaseModel):
    """Draws of two outputs at an input (by output), and the observed rows near it.

    Correlation and distance correlation are null where an output has no spread.
    """

    draws: list[list[float]]
    correlation: float | None
    distance: float | None
    rows: JointRows | None


class SweptRows(BaseModel):
    """Observed rows that are close to a sweep in its other inputs."""

    x: list[Cell]
    y: list[list[float]]


class Sweep(BaseModel):
    """``mean`` (outputs, points) and ``quantiles`` (outputs, levels, points) along one input.

    Along a categorical input, the points are its categories, at most the most frequent ones. A categorical
    output has ``probabilities`` (classes, points), a number null; its mean is the most probable class.
    """

    x: list[Cell]
    levels: list[float]
    mean: list[list[float]]
    quantiles: list[list[list[float]]]
    probabilities: list[list[list[float]] | None]
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
    centers: list[list[Cell]]
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


class Column(BaseModel):
    """An input of the model, a column of its table.

    A number and a date have a slider from ``low`` to ``high`` in steps (of days), a category a chooser among
    ``values``; ``missing`` says whether it may be missing (null), as it was in rows of the fit.
    """

    name: str
    kind: Literal["number", "category", "date"]
    start: Cell
    missing: bool
    low: float | str | None = None
    high: float | str | None = None
    step: float | None = None
    values: list[str] | None = None


class LeftOut(BaseModel):
    """A column of the table that the model does not use, and why."""

    name: str
    reason: str


class Output(BaseModel):
    """An output and its observed range; that of a category, with ``classes``, counts them from 0."""

    name: str
    low: float | None
    high: float | None
    classes: list[str] | None


class About(BaseModel):
    """What is being explored.

    ``k`` neighbours are shown unless told otherwise, at most ``most_k``; ``distance`` says in words how near
    they are measured to be. ``trained_on`` is the share of the observed rows that the model was trained on,
    if it is more than chance.
    """

    model: str
    inputs: list[Column]
    left_out: list[LeftOut]
    outputs: list[Output]
    n_rows: int
    k: int
    most_k: int
    distance: str
    can_test: bool
    trained_on: float | None


class Probabilities(BaseModel):
    """The probabilities of the classes of every output, rows first; null of a number."""

    probabilities: list[list[list[float]] | None]


@final
@dataclass(frozen=True)
class Schemas:
    """The types that depend on the model: rows of p inputs, answers with one output or several."""

    sample: Any
    quantiles: Any
    distribution: Any
    joint: Any
    sweep: Any
    test: Any
    probabilities: Any
    drawn: Any
    levels: Any


def make_schemas(
    inputs: Sequence[Input],
    example: list[Cell],
    largest: float,
    is_vector: bool,
    n_outputs: int = 1,
    mixed: bool = False,
) -> Schemas:
    """The types for a model with these inputs, whose numbers are at most ``largest`` in absolute value.

    With ``mixed``, outputs may be words.

    >>> from localw2.judging.inputs import Input
    >>> types = make_schemas([Input("site", "category", ("east", "west"))], ["east"], 1e30, is_vector=True)
    >>> types.sample(x=[["west"]]).n_samples
    1
    >>> types.sample(x=[["north"]])
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for SampleRequest
    x.0.0
      site has no such category; choose one of 'east', 'west' ...
    """
    row = _make_row(inputs, largest)
    rows: Any = Annotated[
        list[row],  # type: ignore[valid-type]  # made at run time
        Field(min_length=1, max_length=MOST_ROWS, examples=[[example]], description="rows of inputs"),
    ]
    described = Field(examples=[example], description="one value per input")
    one: Any = Annotated[row, described]
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
        Field(ge=0, le=len(inputs) - 1, examples=[0], description="the number of the input, counted from 0"),
    ]
    output = Annotated[int, Field(ge=0, le=n_outputs - 1)]
    two = Annotated[
        list[output],
        Field(
            min_length=2,
            max_length=2,
            examples=[[0, 1]],
            description="the numbers of two different outputs, counted from 0",
            json_schema_extra={"uniqueItems": True},
        ),
        AfterValidator(_check_different),
    ]
    number: Any = float | str | None if mixed else float
    values: Any = list[list[number]] if is_vector else list[list[list[number]]]
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
        joint=make(
            "JointRequest",
            __base__=Strict,
            x=(one, ...),
            outputs=(two, [0, 1]),
            k=(neighbours, None),
            shifted=(shifted, False),
        ),
        sweep=make("SweepRequest", __base__=Strict, x=(one, ...), input=(column, ...)),
        test=make("TestRequest", __base__=Strict),
        probabilities=make("ProbabilitiesRequest", __base__=Strict, x=(rows, ...)),
        drawn=make("Samples", __base__=BaseModel, y=(values, ...)),
        levels=make("Quantiles", __base__=BaseModel, quantiles=(values, ...)),
    )


def _make_row(inputs: Sequence[Input], largest: float) -> Any:
    """The type of one row: numbers alone, or a value of its own kind for every input."""
    if all(each.kind == "number" and not each.gaps for each in inputs):
        number = Annotated[float, Field(ge=-largest, le=largest, allow_inf_nan=False)]
        return Annotated[list[number], Field(min_length=len(inputs), max_length=len(inputs))]
    cells = tuple(_make_cell(each, largest) for each in inputs)
    # JSON has no tuples: a list is accepted in place of one, but every value stays strict.
    return Annotated[tuple[cells], Field(strict=False)]  # type: ignore[valid-type]  # made at run time


def _make_cell(each: Input, largest: float) -> Any:
    """The type of a value of an input; null only if values were missing during fitting."""
    cell: Any
    if each.kind == "category":
        check = AfterValidator(lambda value: _check_category(each, value))
        cell = Annotated[str, check, Field(json_schema_extra={"enum": list(each.categories)})]
    elif each.kind == "date":
        check = AfterValidator(lambda value: _check_date(each, value))
        cell = Annotated[str, Field(pattern=_DATE), check]
    else:
        cell = Annotated[float, Field(ge=-largest, le=largest, allow_inf_nan=False)]
    return cell | None if each.gaps else cell


def _check_different(outputs: list[int]) -> list[int]:
    if len(set(outputs)) == len(outputs):
        return outputs
    raise PydanticCustomError("outputs", "a joint distribution is that of two different outputs")


def _check_category(each: Input, value: str) -> str:
    if value in each.categories:
        return value
    known = ", ".join(map(repr, each.categories[:LISTED]))
    more = len(each.categories) - LISTED
    raise PydanticCustomError(
        "category",
        "{name} has no such category; choose one of {known}",
        {"name": each.name, "known": f"{known} and {more} more" if more > 0 else known},
    )


def _check_date(each: Input, value: str) -> str:
    try:
        known = FIRST_YEAR <= int(value[:4]) <= LAST_YEAR and each.from_plain(value) is not None
    except ValueError:  # such as the 30th of February
        known = False
    if known:
        return value
    raise PydanticCustomError(
        "date",
        "{name} is no date between the years {first} and {last}; write it as 2020-01-31 or 2020-01-31T12:00",
        {"name": each.name, "first": FIRST_YEAR, "last": LAST_YEAR},
    )

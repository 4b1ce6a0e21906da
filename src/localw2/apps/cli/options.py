"""The flags that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Decimal(StrEnum):
    """How numbers of a CSV file are written."""

    auto = "auto"
    point = "point"
    comma = "comma"


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model that `localw2 fit` or `save` wrote.")]
Data = Annotated[str, typer.Argument(metavar="DATA", help="CSV, TSV or Parquet; - is standard input.")]
Features = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="The columns of DATA that the model's inputs are, in its order."),
]
Target = Annotated[
    str | None, typer.Option(metavar="COL[,COL2]", help="The columns of DATA that the model's outputs are.")
]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with missing values in the columns used.")
]
DecimalMark = Annotated[Decimal, typer.Option(help="The decimal mark of numbers in a CSV file.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(min=0, help="Equal seeds give equal random numbers.")]
TableOut = Annotated[
    str,
    typer.Option("--out", metavar="FILE", help="A .csv, .tsv, .parquet or .json file; - is the terminal."),
]
ModelOut = Annotated[str, typer.Option("--out", metavar="MODEL", help="Where to write the model.")]
# None leaves the choice to the estimator.
MaxEpochs = Annotated[int | None, typer.Option(min=1, help="Epochs of training.")]
LearningRate = Annotated[float | None, typer.Option(help="Step size of the training.")]
Width = Annotated[int | None, typer.Option(min=1, help="Units of each hidden layer.")]
Depth = Annotated[int | None, typer.Option(min=1, help="Hidden layers.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Forget an interrupted fit instead of going on with it.")
]

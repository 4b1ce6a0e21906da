"""The flags that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Decimal = StrEnum("Decimal", ["auto", "point", "comma"])

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model written by `localw2 fit` or by `save` in Python.")
]
Data = Annotated[str, typer.Argument(metavar="DATA", help="A CSV, TSV or Parquet file; - is standard input.")]
Features = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Columns of DATA used as inputs, in the order of the model's features."),
]
Target = Annotated[
    str | None, typer.Option(metavar="COL[,COL2]", help="Columns of DATA that hold the observed outputs.")
]
Keep = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Columns of DATA to copy into the result, such as an identifier."),
]
DropMissing = Annotated[
    bool,
    typer.Option("--drop-missing", help="Leave out rows without a target; missing inputs are fine."),
]
DropMissingInputs = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with a missing value in an input used.")
]
DecimalMark = Annotated[Decimal, typer.Option(help="Decimal mark of the numbers in a CSV file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; equal seeds give equal results.")]
TableOut = Annotated[
    str,
    typer.Option("--out", metavar="FILE", help="A .csv, .tsv, .parquet or .json file; - is standard output."),
]
ModelOut = Annotated[str, typer.Option("--out", metavar="MODEL", help="File to write the model to.")]
# None leaves the choice to the estimator.
MaxEpochs = Annotated[int | None, typer.Option(min=1, help="Number of training epochs.")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate of the optimizer.")]
Width = Annotated[int | None, typer.Option(min=1, help="Units per hidden layer.")]
Depth = Annotated[int | None, typer.Option(min=1, help="Number of hidden layers.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Start over instead of resuming an interrupted fit.")
]

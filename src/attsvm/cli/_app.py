"""The commands and their options."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from attsvm._version import __version__
from attsvm.cli._audit import audit_command
from attsvm.cli._data import app as data_app
from attsvm.cli._report import figures_command, report_command
from attsvm.cli._reproduce import new_experiment_command, reproduce_command
from attsvm.cli._solve import solve_command
from attsvm.cli._text import app as text_app
from attsvm.cli._train import train_command
from attsvm.cli._transformer import app as transformer_app
from attsvm.cli._verdict import verdict_command

app = typer.Typer(
    name="attsvm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Training softmax attention is a margin problem: make token data, train on them, solve the max-margin problem "
    "that training should converge to, and see whether it did.",
    epilog="Exit status: 0 all well; 1 wrong input; 2 wrong usage; 3 results are written, but not all is well "
    "(instances that are infeasible or did not converge, weights that are not finite, checks that failed, batches "
    "that wait); 130 Ctrl-C, 143 SIGTERM: training keeps what it has, and the same command resumes it.",
)
app.add_typer(data_app, name="data")
app.add_typer(transformer_app, name="transformer")
app.add_typer(text_app, name="text")
app.command("audit")(audit_command)
app.command("solve")(solve_command)
app.command("train")(train_command)
app.command("verdict")(verdict_command)
app.command("reproduce")(reproduce_command)
app.command("report")(report_command)
app.command("figures")(figures_command)
app.command("new-experiment")(new_experiment_command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"attsvm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    # On the small tensors of these problems, more threads cost more than they gain. Torch reads it when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

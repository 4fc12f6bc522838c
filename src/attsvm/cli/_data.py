"""`attsvm data`: the papers' data sets as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Make token data of the papers: random or printed.")

N = Annotated[int, typer.Option("--n", min=1, help="Sequences in a trial.")]
T = Annotated[int, typer.Option("--tokens", min=1, help="Tokens in a sequence.")]
D = Annotated[int, typer.Option("--dim", min=1, help="Dimension of a token.")]
Trials = Annotated[int, typer.Option(min=0, help="Independent trials.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed; trial k is the same whatever the number of trials.")]
Queries = Annotated[int, typer.Option(min=1, help="Queries per sequence (K).")]
Out = Annotated[Path, typer.Option("--out", help="File to write, .npz or .safetensors.")]


def _make(kind: str, out: Path, *sizes: int, **options: Any) -> None:
    from attsvm import data

    made = getattr(data, kind)(*sizes, **options)
    data.save(made, out)
    typer.echo(f"{out}: {made!r}")


@app.command()
def sphere(
    out: Out,
    n: N = 6,
    tokens: T = 8,
    dim: D = 10,
    trials: Trials = 1,
    seed: Seed = 0,
    queries: Queries = 1,
    self_attention: Annotated[bool, typer.Option("--self-attention", help="Queries are the first tokens.")] = False,
    causal: Annotated[
        bool, typer.Option("--causal", help="One query per token, which sees the tokens up to its own.")
    ] = False,
    min_score_gap: Annotated[
        float, typer.Option(min=0, help="Smallest gap between the best and the second best score.")
    ] = 0.0,
) -> None:
    """Tokens, queries and head uniform on the unit sphere, random labels."""
    _make(
        "sphere",
        out,
        n,
        tokens,
        dim,
        trials=trials,
        seed=seed,
        queries=queries,
        self_attention=self_attention,
        causal=causal,
        min_score_gap=min_score_gap,
    )


@app.command()
def orthonormal(
    out: Out, n: N = 1, tokens: T = 10, dim: D = 10, trials: Trials = 1, seed: Seed = 0, queries: Queries = 1
) -> None:
    """Random orthonormal tokens in every sequence."""
    _make("orthonormal", out, n, tokens, dim, trials=trials, seed=seed, queries=queries)


@app.command()
def figure1(out: Out, trials: Trials = 1, seed: Seed = 0) -> None:
    """The setting of Figure 1 of TF-as-SVM: two sequences of three tokens in the plane."""
    _make("figure1", out, trials=trials, seed=seed)


@app.command()
def example1(out: Out) -> None:
    """Example 1 of the mirror-descent paper."""
    _make("example1", out)


@app.command()
def example2(out: Out) -> None:
    """Example 2 of the mirror-descent paper."""
    _make("example2", out)

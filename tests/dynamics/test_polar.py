"""The kernel of compiled steps: polar factors against LAPACK, in any company."""

import pytest
import torch
from torch import Tensor

from attsvm import sphere, train
from attsvm.dynamics import Growing
from attsvm.dynamics._polar import NEWTON_SCHULZ, _compiled, _eager, _kernel
from attsvm.native import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no compiler")


def matrices(d: int, e: int, values: Tensor, trials: int = 21) -> Tensor:
    """Random matrices (d, e, trials) with these singular values."""
    stream = torch.Generator().manual_seed(d * e)
    U, V = (torch.linalg.qr(torch.randn(trials, n, n, generator=stream, dtype=torch.float64))[0] for n in (d, e))
    k = len(values)
    return (U[..., :k] * values @ V[..., :k].mT).movedim(0, -1).contiguous()


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
@pytest.mark.parametrize(("d", "e", "rank"), [(10, 10, 10), (10, 10, 6), (7, 3, 3), (3, 7, 2), (1, 4, 1), (5, 5, 1)])
def test_factors_are_those_of_the_decomposition(d: int, e: int, rank: int, scale: float) -> None:
    assert _kernel() is not None
    M = scale * matrices(d, e, torch.logspace(0, -2, rank, dtype=torch.float64))
    torch.testing.assert_close(_compiled(M, 0, False), _eager(M, 0, False), rtol=0, atol=1e-12)
    torch.testing.assert_close(_compiled(M, 0, True), _eager(M, 0, True), rtol=0, atol=1e-12)
    torch.testing.assert_close(_compiled(M, 5, False), _eager(M, 5, False), rtol=0, atol=1e-12)


def test_ill_conditioned_factors_are_isometries_and_as_exact_as_they_can_be() -> None:
    """Singular values down to 1e-12: U Vᵀ is orthonormal to rounding, and M = (U Vᵀ)·H with H symmetric and ≥ 0."""
    M = matrices(8, 6, torch.logspace(0, -12, 6, dtype=torch.float64))
    P, G = (x.movedim(-1, 0) for x in (_compiled(M, 0, False), M))
    torch.testing.assert_close(P.mT @ P, torch.eye(6, dtype=torch.float64).expand(21, 6, 6), rtol=0, atol=1e-14)
    H = P.mT @ G
    assert (H - H.mT).abs().max() < 1e-14
    assert torch.linalg.eigvalsh((H + H.mT) / 2).min() > -1e-14
    # A polar factor is as uncertain as its smallest singular value makes it.
    values = torch.logspace(0, -6, 6, dtype=torch.float64)
    M = matrices(8, 6, values)
    assert (_compiled(M, 0, False) - _eager(M, 0, False)).abs().max() < 1e-14 / values[-1]


def test_a_trial_has_the_same_bits_alone_and_a_bad_one_harms_no_other() -> None:
    M = matrices(10, 10, torch.logspace(0, -9, 8, dtype=torch.float64))
    M[..., 3] = 0
    M[2, 5, 4] = torch.nan
    M[0, 1, 5] = torch.inf
    for steps in (0, 5):
        together = _compiled(M, steps, False)
        assert not together[..., 3].any()
        assert together[..., 4:6].isnan().all()
        for b in (0, 6, 17, 20):
            assert torch.equal(_compiled(M[..., b : b + 1].contiguous(), steps, False)[..., 0], together[..., b])
            assert together[..., b].isfinite().all()


def test_singular_values_that_are_rounding_are_left_out() -> None:
    M = matrices(9, 9, torch.tensor([1.0, 0.5, 1e-17, 1e-18], dtype=torch.float64))
    sigma = torch.linalg.svdvals(_compiled(M, 0, False).movedim(-1, 0))
    torch.testing.assert_close(sigma[:, :2], torch.ones_like(sigma[:, :2]), rtol=0, atol=1e-14)
    assert sigma[:, 2:].max() < 1e-14


def test_of_equal_singular_values_one_is_taken() -> None:
    M = torch.eye(4, dtype=torch.float64)[..., None].expand(-1, -1, 3).contiguous()
    sigma = torch.linalg.svdvals(_compiled(M, 0, True).movedim(-1, 0))
    torch.testing.assert_close(sigma, torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64).expand(3, 4))
    assert not _compiled(0 * M, 0, True).any()


def test_the_quintic_takes_singular_values_near_one() -> None:
    """Each singular value follows the scalar polynomial."""
    values = torch.logspace(0, -1, 5, dtype=torch.float64)
    M = matrices(5, 5, values)
    x = values / values.norm()
    for _ in range(4):
        x = NEWTON_SCHULZ[0] * x + NEWTON_SCHULZ[1] * x**3 + NEWTON_SCHULZ[2] * x**5
    sigma = torch.linalg.svdvals(_compiled(M, 4, False).movedim(-1, 0))
    torch.testing.assert_close(sigma, x.sort(descending=True).values.expand(21, 5), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["spectral", "muon"])
def test_compiled_runs_follow_eager_ones_and_trials_do_not_meet(rule: str) -> None:
    data = sphere(3, 4, 5, trials=70, seed=1)
    eager, together, alone = (
        train(some, rule=rule, steps=30, lr=0.1, compile=compiled).W
        for some, compiled in ((data, False), (data, True), (data[17:18], True))
    )
    torch.testing.assert_close(together, eager, rtol=0, atol=1e-9)
    assert torch.equal(alone[0], together[17])


@pytest.mark.slow
def test_compiled_steps_grow_with_the_spectral_norm() -> None:
    data = sphere(3, 4, 5, trials=40, seed=1)
    eager, compiled = (
        train(data, rule="spectral", steps=30, lr=Growing(0.1, 1.0), compile=choice).W for choice in (False, True)
    )
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-9)

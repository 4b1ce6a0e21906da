"""Bootstrap, calibration, selection and sweeps go through joblib: a context moves them to a dask cluster."""

import os
import warnings

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from localw2 import BallLaw, LocalW2Regressor, Nearest, Network, RandomCoefficientRegressor, select_delta

distributed = pytest.importorskip("distributed")

QUICK = {"law": Network(width=4, epochs=3), "base": Ridge(), "delta": Nearest(8), "random_state": 0}

# What dask leaves open when it ends is not ours to close.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)])
def client(request):
    """A scheduler and a worker with two threads, here or in a process; with one joblib would not ask it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=request.param, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def rows(n=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, x[:, 0] + (0.5 + 0.2 * x[:, 1]) * rng.normal(size=n)


def bootstrap():
    return RandomCoefficientRegressor(method="ml", n_bootstrap=4, random_state=0).fit(*rows()).coef_mean_se_


def calibration():
    return LocalW2Regressor(**QUICK, calibrate=True).fit(*rows()).calibration_.scores


def balls():
    """Of so many rows that trees are worth being handed on."""
    return LocalW2Regressor(BallLaw(n_trees=5), Ridge(), random_state=0).fit(*rows(7000)).predict(rows()[0])


def selection():
    return np.array([c.score for c in select_delta(*rows(), adaptive=True).candidates])


def sweep():
    laws = [Network(width=4, epochs=3, learning_rate=0.01), BallLaw(n_trees=5)]
    grid = GridSearchCV(LocalW2Regressor(**QUICK), {"law": laws}, cv=2)
    return grid.fit(*rows()).cv_results_["mean_test_score"]


@pytest.mark.parametrize("work", [bootstrap, calibration, balls, selection, sweep])
def test_a_cluster_does_the_work_with_the_same_result(work, client):
    here = work()
    with (
        parallel_config(backend="dask", wait_for_workers_timeout=60),
        distributed.get_task_stream(client) as done,
    ):
        there = work()
    assert len(done.data) > 0  # it was there, and not here
    np.testing.assert_allclose(there, here, rtol=1e-9)

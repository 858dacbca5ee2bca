"""Figures say what the numbers say: what is drawn is read back and compared."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from nestgp import diagnostics, plotting


class Plane:
    """Two classes whose probability is a known function of the first coordinate."""

    classes_ = np.array(["left", "right"])

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        right = 1 / (1 + np.exp(-8 * X[:, 0]))
        return np.column_stack([1 - right, right])


class Record(NamedTuple):
    iteration: int
    log_evidence: float
    residual: float
    damping: float


@pytest.fixture
def ax() -> Iterator[Axes]:
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


@pytest.fixture
def points() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).uniform(-1, 1, size=(40, 2))
    return X, np.where(X[:, 0] > 0, "right", "left")


def test_map_shades_by_probability(ax: Axes, points: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = points
    plotting.plot_probability_map(Plane(), X, y, ax, grid=61)
    image = np.asarray(ax.images[0].get_array())
    assert image.shape == (61, 61, 3)
    assert image.min() >= 0
    assert image.max() <= 1
    # Doubt is white: the palest column is the one nearest to the boundary at x = 0.
    x_low, x_high, *_ = ax.images[0].get_extent()
    palest = np.linspace(x_low, x_high, 61)[image.min(axis=2)[30].argmax()]
    assert abs(palest) <= (x_high - x_low) / 60
    # Certainty is the class colour: the left edge is nearer to the first class's colour than to the second's.
    first, second = plotting.class_colours(2)
    assert np.linalg.norm(image[30, 0] - first) < np.linalg.norm(image[30, 0] - second)


def test_map_draws_the_boundary_where_the_decision_changes(
    ax: Axes, points: tuple[np.ndarray, np.ndarray]
) -> None:
    plotting.plot_probability_map(Plane(), *points, ax, grid=61, certainty=())
    vertices = np.vstack([path.vertices for lines in ax.collections[:2] for path in lines.get_paths()])
    # Linear interpolation on a grid of width 0.04 of a function odd about zero.
    np.testing.assert_allclose(vertices[:, 0], 0.0, atol=1e-3)


def test_map_draws_every_point_in_its_class(ax: Axes, points: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = points
    plotting.plot_probability_map(Plane(), X, y, ax, grid=11, labels=["L", "R"])
    handles, labels = ax.get_legend_handles_labels()
    assert labels == ["L", "R"]
    for handle, value in zip(handles, ["left", "right"], strict=True):
        np.testing.assert_array_equal(handle.get_offsets(), X[y == value])


def test_map_refuses_three_columns() -> None:
    with pytest.raises(ValueError, match=r"exactly two columns, X has shape \(4, 3\)"):
        plotting.plot_probability_map(Plane(), np.zeros((4, 3)), np.zeros(4))


def test_reliability_draws_the_curve(ax: Axes) -> None:
    rng = np.random.default_rng(1)
    proba = rng.dirichlet(np.ones(3), size=300)
    y = rng.integers(3, size=300)
    plotting.plot_reliability(proba, y, ax, n_bins=5, label="guess")
    curve = diagnostics.reliability_curve(proba, y, 5)
    drawn = ax.containers[0].lines[0]
    np.testing.assert_array_equal(drawn.get_xdata(), curve.confidence)
    np.testing.assert_array_equal(drawn.get_ydata(), curve.accuracy)
    assert ax.get_legend().get_texts()[0].get_text() == "guess"


def test_history_draws_each_iteration_and_leaves_a_gap_at_zero() -> None:
    history = [Record(1, -20.0, 1.0, 0.8), Record(2, -15.0, 1e-3, 0.5), Record(3, -14.9, 0.0, 0.5)]
    top, bottom = plotting.plot_history(history)
    np.testing.assert_array_equal(top.lines[0].get_ydata(), [-20.0, -15.0, -14.9])
    np.testing.assert_array_equal(bottom.lines[0].get_ydata(), [1.0, 1e-3, np.nan])
    np.testing.assert_array_equal(bottom.lines[1].get_ydata(), [0.8, 0.5, 0.5])
    assert bottom.get_yscale() == "log"
    plt.close(top.figure)


def test_history_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="history is empty"):
        plotting.plot_history([])


def test_paired_probabilities_put_the_first_classifier_up(ax: Axes) -> None:
    a = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0]])
    b = np.array([[0.6, 0.4], [0.5, 0.5], [0.7, 0.3]])
    plotting.plot_paired_probability(a, b, np.array([0, 1, 0]), ax, names=("new", "old"))
    handles, _ = ax.get_legend_handles_labels()
    edge = ax.get_xlim()[1]
    np.testing.assert_array_equal(
        handles[0].get_offsets(), [[0.6, 0.9], [0.7, edge]]
    )  # certainty is at the frame
    np.testing.assert_array_equal(handles[1].get_offsets(), [[0.5, 0.8]])
    assert ax.get_ylabel().startswith("new")
    assert ax.texts[0].get_text() == "above the line new gave more:\n3 of 3"
    ax.figure.canvas.draw()


def test_classes_differ_in_colour_at_any_number() -> None:
    for n_classes in (2, 8, 9, 26):
        colours = plotting.class_colours(n_classes)
        assert len(np.unique(colours.round(6), axis=0)) == n_classes
    np.testing.assert_array_equal(plotting.class_colours(1)[0], to_rgb("#0072B2"))

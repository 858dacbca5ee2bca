"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Directory of reference values and data sets that are not part of the repository.

    Taken from NESTGP_SHARED or, if that is unset, `shared` beside the repository root.
    """
    path = Path(os.environ.get("NESTGP_SHARED") or REPOSITORY.parent / "shared")
    if not path.is_dir():
        pytest.skip(f"no reference data: {path} is not a directory (set NESTGP_SHARED)")
    return path


@pytest.fixture(scope="session")
def reference_dir(shared_dir: Path) -> Path:
    """JSON files with reference values of the authors' implementation."""
    path = shared_dir / "reference"
    if not path.is_dir():
        pytest.skip(f"no reference values: {path} is not a directory (set NESTGP_SHARED)")
    return path


@pytest.fixture(scope="session")
def datasets_dir(shared_dir: Path) -> Path:
    """Real data sets as compressed CSV and NPZ files."""
    path = shared_dir / "datasets"
    if not path.is_dir():
        pytest.skip(f"no data sets: {path} is not a directory (set NESTGP_SHARED)")
    return path

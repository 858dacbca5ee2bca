"""Calibrated multiclass classification with Gaussian processes.

>>> from nestgp import GPClassifier
>>> GPClassifier.__name__
'GPClassifier'
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestgp.classifier import GPClassifier

__version__ = "0.1.0"
__all__ = ["GPClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    # Resolved on first use (PEP 562): `import nestgp` costs nothing, compiled code loads when it is needed.
    if name == "GPClassifier":
        from nestgp.classifier import GPClassifier

        return GPClassifier
    raise AttributeError(f"module 'nestgp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

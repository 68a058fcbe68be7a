"""Estimators of scikit-learn, for its pipelines, searches and cross-validation. `pip install 'gradloom[sklearn]'`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.extras import missing
from ..base.habits import missing_name

try:
    import sklearn  # noqa: F401 - the package of that name, not this one
except ImportError:
    raise missing("gl.sklearn", "sklearn") from None

from ..tables.estimators import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)

"""Estimators of scikit-learn, for its pipelines, searches and cross-validation. `pip install 'gradloom[sklearn]'`."""

from ..base.errors import BackendError

try:
    import sklearn  # noqa: F401 - the package of that name, not this one
except ImportError:
    raise BackendError("gl.sklearn: scikit-learn is missing; pip install 'gradloom[sklearn]'") from None

from .estimators import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]

"""gradloom: training and fine-tuning as planned, proved static computation graphs on a small native core."""

from . import data, nn, ops, optim, train
from .base.errors import (
    BackendError,
    DataError,
    DTypeError,
    FileError,
    GradientError,
    GradloomError,
    GraphError,
    NonFiniteError,
    PlanError,
    SettingError,
    ShapeError,
    TrainError,
)
from .graph.opspec import Parameter, constant, input, named, parameter, setting
from .graph.value import Node, Value, scope
from .run.executable import check_gradients, compare, compile
from .train import EpochResult, Result, Trainer, epoch, evaluate, fit, predict
from .train.saving import load, save
from .train.session import Graph, set_loss
from .transform.grad import gradients

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "DTypeError",
    "DataError",
    "EpochResult",
    "FileError",
    "GradientError",
    "GradloomError",
    "Graph",
    "GraphError",
    "Node",
    "NonFiniteError",
    "Parameter",
    "PlanError",
    "Result",
    "SettingError",
    "ShapeError",
    "TrainError",
    "Trainer",
    "Value",
    "check_gradients",
    "compare",
    "compile",
    "constant",
    "data",
    "epoch",
    "evaluate",
    "fit",
    "gradients",
    "input",
    "load",
    "named",
    "nn",
    "ops",
    "optim",
    "parameter",
    "predict",
    "save",
    "scope",
    "set_loss",
    "setting",
    "train",
]

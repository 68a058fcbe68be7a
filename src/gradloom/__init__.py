"""gradloom: training and fine-tuning as planned, proved static computation graphs on a small native core."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.habits import missing_name
from .base.hooks import (
    dequantizer,
    device_backends,
    eager_recorder,
    need_device,
    plan_of_run,
    predicted_by_run,
    print_value,
    profile_of_run,
    profiler,
    run_page,
    save_plan,
    save_profiles,
    show_plan,
    shower,
    watcher,
    write_file,
)
from .base.locks import building

if TYPE_CHECKING:
    from . import data, llm, losses, metrics, nn, ops, optim, parallel, sklearn, train
    from .base.errors import (
        BackendError,
        DataError,
        DeviceLost,
        DeviceMemoryError,
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
        UserOpError,
    )
    from .eager import Gradients, Tensor, from_dlpack, grad_tape, no_grad, seed, stats, tensor
    from .gpu.devices import Device, devices
    from .graph.grad import gradients
    from .graph.leaves import Parameter, constant, input, named, parameter, setting
    from .graph.scope import device, scope
    from .graph.value import Node, Value
    from .interchange import export_onnx, import_onnx
    from .ops.user_op import op
    from .reports.run_report import report
    from .run.compare import check_gradients, compare
    from .run.compile import compile
    from .runs.capsules import capsule, replay
    from .tables.gguf_file import load_gguf, save_gguf
    from .tables.saving import load, save
    from .train.dp_train import DPResult, dp_train
    from .train.epoch import epoch
    from .train.fit import evaluate, fit, predict
    from .train.result import EpochResult, Result
    from .train.session import Graph, set_loss
    from .train.trainer import Trainer

try:
    from ._version import version as _version  # written by the build, from the git tag
except ImportError:
    _version = "0+source"  # a source tree that is run where it lies
__version__: str = _version

__all__ = [
    "BackendError",
    "DPResult",
    "DTypeError",
    "DataError",
    "Device",
    "DeviceLost",
    "DeviceMemoryError",
    "EpochResult",
    "FileError",
    "GradientError",
    "Gradients",
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
    "Tensor",
    "TrainError",
    "Trainer",
    "UserOpError",
    "Value",
    "capsule",
    "check_gradients",
    "compare",
    "compile",
    "constant",
    "data",
    "device",
    "devices",
    "dp_train",
    "epoch",
    "evaluate",
    "export_onnx",
    "fit",
    "from_dlpack",
    "grad_tape",
    "gradients",
    "import_onnx",
    "input",
    "llm",
    "load",
    "load_gguf",
    "losses",
    "metrics",
    "named",
    "nn",
    "no_grad",
    "op",
    "ops",
    "optim",
    "parallel",
    "parameter",
    "predict",
    "replay",
    "report",
    "save",
    "save_gguf",
    "scope",
    "seed",
    "set_loss",
    "setting",
    "sklearn",
    "stats",
    "tensor",
    "train",
]

# Where each name lives. A name is loaded when it is first used, so that the command line starts quickly.
_HOMES = {
    ".base.errors": "BackendError DataError DeviceLost DeviceMemoryError DTypeError FileError GradientError "
    "GradloomError GraphError NonFiniteError PlanError SettingError ShapeError TrainError UserOpError",
    ".gpu.devices": "Device devices",
    ".eager": "Gradients Tensor from_dlpack grad_tape no_grad seed stats tensor",
    ".graph.grad": "gradients",
    ".graph.leaves": "Parameter constant input named parameter setting",
    ".graph.scope": "device scope",
    ".graph.value": "Node Value",
    ".ops.user_op": "op",
    ".interchange": "export_onnx import_onnx",
    ".reports.run_report": "report",
    ".run.compare": "check_gradients compare",
    ".run.compile": "compile",
    ".train.dp_train": "DPResult dp_train",
    ".train.epoch": "epoch",
    ".train.fit": "evaluate fit predict",
    ".train.result": "EpochResult Result",
    ".runs.capsules": "capsule replay",
    ".tables.gguf_file": "load_gguf save_gguf",
    ".tables.saving": "load save",
    ".train.session": "Graph set_loss",
    ".train.trainer": "Trainer",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = ("data", "llm", "losses", "metrics", "nn", "ops", "optim", "parallel", "sklearn", "train")


need_device.connect(lambda: import_module(".run.backend", __name__).need_there)
eager_recorder.connect(lambda: import_module(".eager.trace", __name__).current)
run_page.connect(lambda: import_module(".reports.run_report", __name__).run_page)
plan_of_run.connect(lambda: import_module(".cli.plan", __name__).plan_of_run)
predicted_by_run.connect(lambda: import_module(".cli.validated", __name__).predicted_by_run)
profile_of_run.connect(lambda: import_module(".cli.profile", __name__).profile_of_run)
save_profiles.connect(lambda: import_module(".reports.time_section", __name__).save_profiles)
save_plan.connect(lambda: import_module(".reports.plan_page", __name__).save_plan)
show_plan.connect(lambda: import_module(".reports.plan_page", __name__).show_plan)
print_value.connect(lambda: import_module(".run.show", __name__).print_value)
profiler.connect(lambda: import_module(".run.profile", __name__).profile)
shower.connect(lambda: import_module(".run.watch", __name__).print_shown)
watcher.connect(lambda: import_module(".run.watch", __name__).watch)
write_file.connect(lambda: import_module(".files.atomic", __name__).write_whole)
dequantizer.connect(lambda: import_module(".run.dequantise", __name__).dequantize)
device_backends["gpu"] = lambda: import_module(".gpu.walk", __name__)  # and with it the backend


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        if not name.startswith("_"):
            for module in ("nn", "optim", "train"):  # the error looks for the name there
                import_module(f".{module}", __name__)
        raise missing_name(__name__, name)
    with building:  # a fork waits: a child would wait for ever for an import that another thread had begun
        if name in _MODULES:
            value = import_module(f".{name}", __name__)
        else:
            if _HOME[name].startswith(".graph"):
                import_module(".ops", __name__)  # gives values their arithmetic
            value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

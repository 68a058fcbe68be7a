"""gl.export_onnx: a network, or a model with its preprocessing, as an ONNX file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.arguments import need_path, what_is
from ..base.dlpack import array_of
from ..base.errors import DataError, SettingError
from ..base.habits import hinted
from ..base.structures import Key, by_key, mapped_by_key
from ..files.atomic import write_whole
from ..nn.module import Module
from ..tables.model import Model
from .export_tables import notes_of, write_table_model
from .graph_writer import Batch, Extent, GraphWriter
from .trace import Forward, forward_of, write

# Keys of the metadata of a file: names of parameters and of those that are not trained, as JSON
TRAINED, BUFFERS = "gradloom.trained", "gradloom.buffers"


@dataclass(frozen=True)
class Exported:
    """The file that was written.

    path     of the file
    inputs, outputs  name -> (dtype, shape), with "rows" for a number of rows that is free
    notes    on columns of texts whose cells are not compared as by `gradloom predict`
    fixed    "" where the number of rows is free, else the reason why it is that of the example
    """

    path: str
    inputs: dict[str, tuple[str, tuple[int | str, ...]]]
    outputs: dict[str, tuple[str, tuple[int | str, ...]]]
    fixed: str = ""
    notes: tuple[str, ...] = ()


@hinted
def export_onnx(model: Module | Model, path: str | os.PathLike[str], example: Any = None) -> Exported:
    """Write a network, or a model of `gradloom fit` with its preprocessing, as an ONNX file (opset 18, IR version 8;
    whole or not at all).

    model     a gl.nn.Module, in eval mode whatever its mode is; or a Model of gl.load, for which no example is given
    path      of the file
    example   an input of the network: an array [rows, ...], or a dict or tuple of arrays, as data of gl.fit are. Only
              dtypes and shapes count. The number of rows is free where the graph permits it (see Exported.fixed)

    Parameters are initialisers with their names. The inputs of a Model are its columns: f64 [rows, 1] for numbers (NaN
    is missing), texts [rows, 1] for categories ("" is missing), f64 seconds since 1970 for dates; its outputs are the
    predictions of each target by its name and, of classes, NAME_probabilities (docs/interchange.md).

    Returns inputs and outputs of the file. Raises GraphError that names an op without a form in ONNX, BackendError
    without the package onnx (pip install 'gradloom[onnx]'), FileError for arrays of 2 GiB and more, and where the
    file cannot be written, SettingError or DataError for other arguments.
    """
    need_path(path, "export_onnx", "path")
    if isinstance(model, Model):
        if example is not None:
            raise SettingError("export_onnx: a Model knows its inputs; use export_onnx(model, path)")
        writer = GraphWriter()
        names = parameter_names(writer, model.net)
        write_table_model(writer, model, names)
        return replace(_saved(writer, model.net, path, names, ""), notes=tuple(notes_of(model.preprocess)))
    if not isinstance(model, Module):
        raise SettingError(f"export_onnx: got {what_is(model)}; need a gl.nn.Module, or a Model of gl.load")
    if example is None:
        raise SettingError("export_onnx: example is missing; need an input of the network, such as x[:2]")
    model.ensure_init()
    arrays = {_input_name(key): _example(key, one) for key, one in by_key(example).items()}

    def structure(leaves: Mapping[str, Any]) -> Any:
        return mapped_by_key(lambda key, _: leaves[_input_name(key)], example)

    writer = GraphWriter()
    forward = forward_of(model, arrays, structure)
    names = write_network(writer, model, forward, arrays)
    return _saved(writer, model, path, names, forward.why)


def _input_name(key: Key) -> str:
    return "input" if key is None else f"input_{key + 1}" if isinstance(key, int) else key


def _example(key: Key, one: Any) -> np.ndarray:
    array = array_of(f"export_onnx: example {_input_name(key)}", one)
    if array.dtype.kind not in "fiub":
        raise DataError(f"export_onnx: example {_input_name(key)} is {array.dtype!s:.60}; need numbers")
    return array


def parameter_names(w: GraphWriter, net: Module) -> dict[Any, str]:
    """The names that the parameters of a network have in the file."""
    names = {p.stored: name for name, p, _ in net.named_stored()}
    w.taken.update(names.values())
    return names


def write_network(w: GraphWriter, net: Module, forward: Forward, arrays: Mapping[str, np.ndarray]) -> dict[Any, str]:
    """Inputs, nodes and outputs of a network; the names of its parameters."""
    names = parameter_names(w, net)
    inputs = {}
    for name, array in arrays.items():
        kind = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype
        free: list[Any] = ["rows"] if forward.is_free else [array.shape[0]] if array.ndim else []
        made = w.add_input(name, kind, [*free, *array.shape[1:]])
        w.rows_of = w.rows_of or made
        want = forward.traces[0].inputs[name].dtype.numpy
        inputs[name] = made if want == kind else w.cast(made, want)
    for name, (value, node, shape) in write(forward, w, inputs, names).items():
        w.add_output(value, name, node.dtype.numpy, shape_of(shape))
    return names


def shape_of(shape: tuple[Extent, ...]) -> list[Any]:
    """A shape as a file states it: "rows", or no number, for an extent that depends on the rows."""
    return ["rows" if one == Batch(1) else None if isinstance(one, Batch) else one for one in shape]


def _saved(w: GraphWriter, net: Module, path: Any, names: Mapping[Any, str], why: str) -> Exported:
    used = {name: stored.role == "trained" for stored, name in names.items() if name in w.arrays}
    lists = [[name for name, is_trained in used.items() if is_trained == which] for which in (True, False)]
    metadata = dict(zip((TRAINED, BUFFERS), map(json.dumps, lists), strict=True))
    data = w.model(type(net).__name__, os.fspath(path), metadata)
    write_whole(path, data)
    return Exported(os.fspath(path), _facts(w, w.inputs), _facts(w, w.outputs), why)


def _facts(w: GraphWriter, infos: list[Any]) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    facts = {}
    for info in infos:
        tensor = info.type.tensor_type
        kind = w.onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in tensor.shape.dim)
        facts[info.name] = ("text" if kind.kind == "O" else str(kind), shape)
    return facts

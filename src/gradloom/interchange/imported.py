"""gl.import_onnx: the graph of an ONNX file as a module that can be trained."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.arguments import listed, need_path
from ..base.errors import DTypeError, FileError, GraphError, ShapeError
from ..base.extras import optional
from ..base.habits import hinted
from ..base.reasons import unreadable
from ..base.terminal import in_one_line
from ..files.regular import open_regular
from ..graph.leaves import Parameter, parameter
from ..graph.value import Value, describe
from ..nn.layers import Held
from .export import BUFFERS, TRAINED
from .graph_writer import LARGEST
from .import_nodes import MOST_IN_ALL, ErrorFunction, OnnxNode, as_output, scaling
from .import_ops import IMPORTS, STATISTICS, WEIGHTS

OPSETS = range(9, 27)  # versions of ai.onnx whose ops are known
MOST_NODES = 1 << 17
_REAL = ("float32", "float16", "bfloat16")


class OnnxModule(Held):
    """The graph of an ONNX file. Its parameters have the names of the file's initialisers.

    forward(*inputs) takes values in the order of the file's inputs, forward(**inputs) by their names; it returns the
    output, or a dict of several by name. Batch norms use their running statistics, in training, too.
    """

    layers: dict[str, Parameter]

    def __init__(self, graph: OnnxGraph) -> None:
        super().__init__()
        self.graph = graph
        self.layers = {
            name: parameter(graph.arrays.pop(name), name, trainable=trained) for name, trained in graph.weights.items()
        }

    def forward(self, *inputs: Value, **named: Value) -> Any:
        names = [name for name in self.graph.inputs if name not in named]
        if len(inputs) != len(names) or len(named) != len(self.graph.inputs) - len(names):
            seen = f"{len(inputs)} inputs{' and ' * bool(named)}{', '.join(named)}"
            raise GraphError(f"{type(self).__name__}: got {seen}; need {listed(list(self.graph.inputs))}")
        given = named | dict(zip(names, inputs, strict=True))
        for name, shape in self.graph.inputs.items():
            found = given[name].shape
            if len(found) != len(shape) or any(n is not None and n != m for n, m in zip(shape, found, strict=True)):
                need = ["any" if n is None else n for n in shape]
                raise ShapeError(f"{type(self).__name__}: input {name} is {describe(given[name])}; need {need}")
        known = {**self.graph.constants, **self.layers, **given}
        computed = 0
        with scaling():
            for node in self.graph.nodes:
                made = _result(node, [known[name] if name else None for name in node.inputs])
                known |= zip(node.outputs, made, strict=False)
                computed += sum(one.size for one in made if isinstance(one, np.ndarray))
                if computed > MOST_IN_ALL:
                    raise node.fault(f"constants of more than {MOST_IN_ALL:,} elements are computed; need fewer")
        outputs = {name: as_output(known[name]) for name in self.graph.outputs}
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))


def _result(node: OnnxNode, inputs: list[Any]) -> list[Any]:
    """The outputs of a node; GraphError for inputs that its op does not take."""
    try:
        with np.errstate(all="ignore"):
            if node.op not in ("Add", "Mul"):  # which find GELU
                inputs = [one.value() if isinstance(one, ErrorFunction) else one for one in inputs]
            made = IMPORTS[node.op](node, *inputs)
    except GraphError as error:
        raise error if str(error).startswith("import_onnx: ") else node.fault(str(error)) from None
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise node.fault(f"inputs or attributes do not fit the op: {' '.join(str(error).split())[:100]}") from None
    return made if isinstance(made, list) else [made]


class OnnxGraph:
    """A checked graph: nodes in order, arrays by name.

    inputs   name -> shape, None for a free extent
    weights  name of an initialiser -> whether it is trained
    """

    def __init__(self, onnx: Any, model: Any, place: str) -> None:
        self.place = place
        version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
        if version not in OPSETS:
            raise FileError(f"{place}: opset {version}; need {OPSETS.start} to {OPSETS.stop - 1}")
        graph = model.graph
        self._check_texts(model)
        self._check_ops(model, graph)
        self.arrays = {one.name: self._array(onnx, one) for one in graph.initializer}
        if graph.sparse_initializer:
            raise FileError(f"{place}: has sparse arrays, which are not supported; need dense ones")
        self.inputs = {one.name: self._shape(onnx, one) for one in graph.input if one.name not in self.arrays}
        self.outputs = [one.name for one in graph.output]
        self.nodes = [self._node(onnx, node, version) for node in graph.node]
        self._check_names()
        metadata = {one.key: one.value for one in model.metadata_props}
        self.weights = self._weights(_names(metadata.get(TRAINED)), _names(metadata.get(BUFFERS)))
        self.constants = {name: one for name, one in self.arrays.items() if name not in self.weights}

    def _check_texts(self, model: Any) -> None:
        """FileError for a name that is no text: protobuf returns bytes that are not UTF-8 as they are."""
        graph = model.graph
        texts = [one.domain for one in model.opset_import] + [one.name for one in model.functions]
        texts += [text for one in model.metadata_props for text in (one.key, one.value)]
        for one in (*graph.initializer, *graph.input, *graph.output):
            texts.append(one.name)
        for node in graph.node:
            texts += [node.op_type, node.domain, node.name, *node.input, *node.output]
            texts += [one.name for one in node.attribute]
        if not all(isinstance(text, str) for text in texts):
            raise FileError(f"{self.place}: holds a name that is not UTF-8; the file is damaged")

    def _check_ops(self, model: Any, graph: Any) -> None:
        if len(graph.node) > MOST_NODES:
            raise FileError(f"{self.place}: {len(graph.node):,} nodes; need at most {MOST_NODES:,}")
        odd = {f"{node.domain}.{node.op_type}".lstrip(".")[:60] for node in graph.node
               if node.domain not in ("", "ai.onnx") or node.op_type not in IMPORTS}  # fmt: skip
        if odd or model.functions:
            names = in_one_line(listed(sorted(odd | {one.name[:60] for one in model.functions})))
            raise GraphError(f"import_onnx: {self.place}: has no form here: {names}; need ops of docs/interchange.md")

    def _array(self, onnx: Any, tensor: Any) -> np.ndarray:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise FileError(f"{self.place}: array {tensor.name!r:.60} is in another file; need all in one file")
        try:
            array = np.asarray(onnx.numpy_helper.to_array(tensor))
        except Exception as error:  # of any kind, for a damaged file
            reason = " ".join(str(error).split())[:100]
            raise FileError(f"{self.place}: array {tensor.name!r:.60} is damaged: {reason}") from None
        if array.dtype.name in ("float64", "complex64", "complex128") and array.size > 1:
            raise DTypeError(f"{self.place}: array {tensor.name!r:.60} is {array.dtype}; need float32")
        return array.astype(np.float32) if array.dtype.name in (*_REAL, "float64") else array

    def _shape(self, onnx: Any, info: Any) -> list[int | None]:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type"):
            raise FileError(f"{self.place}: input {info.name!r:.60} is no tensor; need one")
        return [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim]

    def _node(self, onnx: Any, node: Any, version: int) -> OnnxNode:
        made = OnnxNode(node.op_type, node.name, list(node.input), list(node.output), {}, version)
        for one in node.attribute:
            try:
                value = onnx.helper.get_attribute_value(one)
                if one.type == onnx.AttributeProto.TENSOR:
                    value = self._array(onnx, value)
                if one.name == "to" and node.op_type == "Cast":
                    value = onnx.helper.tensor_dtype_to_np_dtype(value)
            except (ValueError, KeyError, TypeError) as error:
                raise FileError(f"{self.place}: attribute {one.name!r:.60} is damaged: {str(error)[:100]}") from None
            made.attributes[one.name] = list(value) if isinstance(value, (list, tuple)) else value
        if node.op_type == "Constant" and "value" not in made.attributes:
            numbers = next((made.attributes[n] for n in ("value_float", "value_floats", "value_int", "value_ints")
                            if n in made.attributes), None)  # fmt: skip
            if numbers is None:
                raise FileError(f"{self.place}: Constant {node.name!r:.60} has no numbers; need a tensor")
            is_whole = isinstance(numbers, int) or (
                isinstance(numbers, list) and all(isinstance(n, int) for n in numbers)
            )
            made.attributes["value"] = np.array(numbers, np.int64 if is_whole else np.float32)
        return made

    def _check_names(self) -> None:
        """FileError for a value that is read before it is made, or made twice."""
        known = {*self.arrays, *self.inputs}
        for node in self.nodes:
            missing = next((name for name in node.inputs if name and name not in known), None)
            if missing is not None:
                raise FileError(
                    f"{self.place}: {node.op} {node.name!r:.60} reads {missing!r:.60}, which is not made before"
                )
            if not node.outputs or any(name in known for name in node.outputs if name):
                raise FileError(f"{self.place}: {node.op} {node.name!r:.60} makes a value that is there already")
            known.update(node.outputs)
        if not self.inputs or not self.outputs or any(name not in known for name in self.outputs):
            raise FileError(
                f"{self.place}: outputs {listed(self.outputs)!r:.60} of inputs {len(self.inputs)}; need both"
            )

    def _weights(self, names: set[str] | None, frozen: set[str] | None) -> dict[str, bool]:
        """The initialisers that are parameters: those that the file names, else the real ones that products, norms and
        sums read. Those of `frozen`, else the statistics of batch norms, are not trained."""
        if names is None:
            names = {name for name in self._read_at(WEIGHTS) if self.arrays[name].size > 1}
        frozen = self._read_at(STATISTICS) if frozen is None else frozen
        real = [name for name, array in self.arrays.items() if array.dtype.kind == "f" and name]
        return {name: name in names for name in real if name in names or name in frozen}

    def _read_at(self, places: Mapping[str, tuple[int, ...]]) -> set[str]:
        """The initialisers that nodes read at these places."""
        return {
            node.inputs[i]
            for node in self.nodes
            for i in places.get(node.op, ())
            if i < len(node.inputs) and node.inputs[i] in self.arrays
        }


def _names(text: str | None) -> set[str] | None:
    """The names that a file declares as trained; None without such a list."""
    try:
        names = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else None


@hinted
def import_onnx(path: str | os.PathLike[str]) -> OnnxModule:
    """The network of an ONNX file, as a module that predicts the same, can be trained, and exported again.

    path: of a file with all arrays in it, opset 9 to 26. Initialisers of real numbers that products, norms, sums and
    lookups read are parameters, with their names; running statistics of batch norms are not trained, others are
    constants. A file of gl.export_onnx has the parameters of the network that was exported. Weights are f32.

    Raises GraphError that names ops without a form here, FileError for a file that is damaged or of another kind,
    BackendError without the package onnx (pip install 'gradloom[onnx]'). Inputs that do not fit are errors of the call.
    """
    need_path(path, "import_onnx", "path")
    onnx = optional("onnx", "ONNX", "onnx")
    place = os.fspath(path)
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise FileError(f"{place}: {unreadable(error)}") from None
    if len(data) > LARGEST:
        raise FileError(f"{place}: is larger than 2 GiB; need a smaller file")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # DecodeError of protobuf, whose module has several names
        raise FileError(f"{place}: is no ONNX file, or is damaged") from None
    if not model.HasField("graph") or not model.graph.node:
        raise FileError(f"{place}: has no graph with nodes; need an ONNX model")
    return OnnxModule(OnnxGraph(onnx, model, place))

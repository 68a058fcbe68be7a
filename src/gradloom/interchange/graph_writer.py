"""GraphWriter: collects the nodes, initialisers, inputs and outputs of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import FileError
from ..base.extras import optional
from ..base.memory import show_bytes

OPSET, TABLE_OPSET, IR = 18, 3, 8  # of ai.onnx, of ai.onnx.ml; the version of the file format that has both
TABLES = "ai.onnx.ml"
LARGEST = (1 << 31) - (1 << 20)  # bytes of arrays in a file: a message of protobuf has fewer than 2 GiB


class Batch(NamedTuple):
    """An extent or a position that depends on the number of rows n: times * n + plus."""

    times: int
    plus: int = 0


Extent = int | Batch


class GraphWriter:
    """The parts of an ONNX graph.

    rows_of: the input whose first extent is the number of rows n; set it before a Batch is written.
    """

    def __init__(self) -> None:
        self.onnx = optional("onnx", "ONNX", "onnx")
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.taken: set[str] = set()
        self.scope = ""
        self.rows_of = ""
        self._constants: dict[tuple[Any, ...], str] = {}
        self._extents: dict[Extent, str] = {}

    def fresh(self, name: str) -> str:
        """A name that nothing has yet."""
        made, number = name, 1
        while made in self.taken:
            number += 1
            made = f"{name}_{number}"
        self.taken.add(made)
        return made

    @contextmanager
    def within(self, scope: str) -> Iterator[None]:
        """Nodes written inside are called after the scope, the path of a layer."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    def many(self, op: str, inputs: Sequence[str], outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        """The outputs of a new node."""
        name = self.fresh(f"{self.scope}/{op}" if self.scope else op)
        made = [self.fresh(f"{name}_out" if i == 0 else f"{name}_out{i}") for i in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), made, name=name, domain=domain, **attributes))
        return made

    def __call__(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """The only output of a new node."""
        return self.many(op, inputs, 1, domain, **attributes)[0]

    def array(self, array: np.ndarray, name: str = "constant") -> str:
        """An initialiser with these contents; equal small ones without a name of their own are one."""
        array = np.asarray(array)
        is_small = array.nbytes <= 4096 and array.dtype != object
        key = (array.dtype.str, array.shape, array.tobytes()) if is_small and name == "constant" else None
        if key is None or key not in self._constants:
            made = self.fresh(name)
            self.arrays[made] = array
            if key is None:
                return made
            self._constants[key] = made
        return self._constants[key]

    def number(self, value: float, kind: Any = np.float32) -> str:
        """A constant of shape ()."""
        return self.array(np.array(value, kind))

    def wholes(self, values: Sequence[int]) -> str:
        """A constant i64 [count]."""
        return self.array(np.array(values, np.int64))

    def extents(self, values: Sequence[Extent]) -> str:
        """i64 [count], computed from the number of rows where an entry depends on it."""
        if not any(isinstance(value, Batch) for value in values):
            return self.wholes([int(value) for value in values])  # type: ignore[arg-type]
        return self("Concat", *(self._extent(value) for value in values), axis=0)

    def _extent(self, value: Extent) -> str:
        if not isinstance(value, Batch):
            return self.wholes([value])
        if value not in self._extents:
            if value == Batch(1):
                with self.within(""):
                    self._extents[value] = self("Shape", self.rows_of, start=0, end=1)
            else:
                rows = self._extent(Batch(1))
                made = rows if value.times == 1 else self("Mul", rows, self.wholes([value.times]))
                self._extents[value] = self("Add", made, self.wholes([value.plus])) if value.plus else made
        return self._extents[value]

    def cast(self, x: str, kind: Any) -> str:
        """x as another NumPy dtype."""
        return self("Cast", x, to=self.type_of(kind))

    def type_of(self, kind: Any) -> int:
        """The number of a NumPy dtype in ONNX; texts are of dtype object."""
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def add_input(self, name: str, kind: Any, shape: Sequence[Any]) -> str:
        """A new input. shape: extents, and texts for those that are free."""
        made = self.fresh(name)
        self.inputs.append(self.onnx.helper.make_tensor_value_info(made, self.type_of(kind), list(shape)))
        return made

    def add_output(self, value: str, name: str, kind: Any, shape: Sequence[Any]) -> str:
        """A new output with this name, which has the contents of `value`."""
        made = self.fresh(name)
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [made], name=self.fresh(f"output {made}")))
        self.outputs.append(self.onnx.helper.make_tensor_value_info(made, self.type_of(kind), list(shape)))
        return made

    def model(self, name: str, path: str, metadata: Mapping[str, str]) -> bytes:
        """The file. FileError where its arrays are larger than a file can be."""
        from .. import __version__

        helper = self.onnx.helper
        total = sum(array.nbytes for array in self.arrays.values())
        if total > LARGEST:
            raise FileError(
                f"{path}: {show_bytes(total)} of arrays; an ONNX file holds less than 2 GiB: export a smaller model"
            )
        tensors = [self.onnx.numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, tensors)
        versions = [helper.make_opsetid("", OPSET)]
        if any(node.domain == TABLES for node in self.nodes):
            versions.append(helper.make_opsetid(TABLES, TABLE_OPSET))
        model = helper.make_model(
            graph, opset_imports=versions, ir_version=IR, producer_name="gradloom", producer_version=__version__
        )
        helper.set_model_props(model, dict(metadata))
        self.onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())

"""The cost of a node: arithmetic, bytes, seconds on the CPU; and the table of measured times of a run.

Seconds follow from the speeds of a machine (Rates, see run/rates.py):

    an instruction = max(arithmetic / rate of its unit, bytes / rate of the memory) + its start + one hand-over to the
                     other threads for each phase of several parts

Each op reaches a share of the rate of a large matrix product: SHARES, measured with operands in cache. Matrix products
and convolutions of few rows, columns or terms reach less: `_filled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..graph.declaration import Spec
from ..graph.value import Node
from ..plan.plan import Plan


@dataclass(frozen=True)
class Rates:
    """Speeds of a machine, by all `threads` together.

    product, product_bf16  FLOP/s of a large matrix product with f32 operands and with bf16 operands
    cached                 bytes/s read and written where an instruction's operands fit into `cache_bytes`, all cores'
                           second-level caches; memory: bytes/s of those that do not fit
    """

    threads: int
    product: float
    product_bf16: float
    cached: float
    memory: float
    cache_bytes: float


# Of a desktop processor, for choices that must not depend on the machine.
TYPICAL = Rates(threads=4, product=2.5e11, product_bf16=5e11, cached=1e11, memory=2e10, cache_bytes=4 << 20)
INSTRUCTION_SECONDS = 2e-7  # of an instruction without work
HANDOVER_SECONDS = 3e-6  # of a phase that is computed by several threads
PART_SECONDS = 2e-5  # of work, above which kernels divide it among threads

# Share of the rate of a large product that an op's counted arithmetic reaches. For ops that are absent bytes decide.
SHARES = {
    "matmul": 1.0, "matmul_act": 1.0, "matmul_relu_back": 1.0, "linear_cross_entropy": 0.5,
    "linear_cross_entropy_rows": 0.6, "attention": 0.85, "attention_back": 0.9,
    "conv2d": 0.85, "conv2d_back_input": 0.8, "conv2d_back_weight": 0.8, "conv2d_max_pool": 0.85,
    "conv2d_pool_back_input": 0.8, "conv2d_pool_back_weight": 0.8,
    "exp": 0.034, "exp2": 0.034, "expm1": 0.023, "log": 0.016, "sin": 0.023, "cos": 0.024, "sqrt": 0.057, "pow": 0.002,
    "sigmoid": 0.022, "tanh": 0.013, "gelu": 0.009, "gelu_tanh": 0.016, "silu": 0.02, "elu": 0.02, "softplus": 0.007,
    "gelu_back": 0.0066, "gelu_tanh_back": 0.012, "silu_back": 0.016, "elu_back": 0.026,
    "swiglu": 0.019, "swiglu_back": 0.0125, "geglu": 0.016, "geglu_back": 0.018, "rope": 0.02,
    "lstm_cell": 0.01, "lstm_cell_back": 0.02,
    "layer_norm": 0.04, "layer_norm_back": 0.023, "rms_norm": 0.06, "rms_norm_back": 0.035,
    "batch_norm": 0.017, "batch_norm_back": 0.016, "softmax": 0.018, "softmax_back": 0.038,
    "log_softmax": 0.019, "log_softmax_back": 0.025, "cross_entropy_sum": 0.05, "dropout": 0.013,
    "where": 0.03, "equal": 0.016, "argmax": 0.015,
}  # fmt: skip
MATRIX = {"matmul", "matmul_act", "matmul_relu_back"}
ATTENTION = {"attention", "attention_back"}  # with bf16 operands nearly as fast as with f32
DECODE_FLOPS = 28  # of a number of a quantised operand
TILE = (4, 16, 16)  # rows, terms and columns whose time each product spends on the edges of its tiles


def node_cost(node: Node) -> tuple[float, float]:
    """(flops, bytes) of one node: its op's rule, or one flop per output element and every operand's bytes once."""
    op = node.op
    if op.cost is not None:
        specs = [None if v is None else Spec(v.shape, v.dtype) for v in node.inputs]
        outputs = [Spec(v.shape, v.dtype) for v in node.outputs]
        flops, moved = op.call("cost", dict(node.attrs) | op.bind_inputs(specs) | op.bind_outputs(outputs))
        return float(flops), float(moved)
    read = sum(v.bytes for v in node.inputs if v is not None)
    return float(sum(v.size for v in node.outputs)), float(read + sum(v.bytes for v in node.outputs))


def node_seconds(node: Node, rates: Rates, parts: Sequence[int] | None = None) -> float:
    """Predicted seconds of one node on the CPU. parts: those of each phase, as planned; without them, work of more than
    20 microseconds counts as divided among all threads. 0 for leaves and views."""
    op = node.op
    if op.leaf or op.view is not None:
        return 0.0
    flops, moved = node_cost(node)
    near = min(moved, rates.cache_bytes)
    seconds = near / rates.cached + (moved - near) / rates.memory
    if op.name in SHARES:
        flops += DECODE_FLOPS * sum(v.size for v in node.inputs if v is not None and v.dtype.is_quantised)
        seconds = max(seconds, flops / (_unit(node, rates) * SHARES[op.name] * _filled(node)))
    alone = seconds * rates.threads
    if parts is None:
        parts = (rates.threads if alone > PART_SECONDS else 1,)
    threads = min(rates.threads, max(parts))
    handovers = sum(count > 1 for count in parts) if rates.threads > 1 else 0
    return alone / threads + INSTRUCTION_SECONDS + HANDOVER_SECONDS * handovers


def limit_seconds(node: Node, rates: Rates) -> float:
    """Seconds of one node at the speeds of a machine: of its arithmetic at the rate of a large product of its dtype, or
    of its bytes, whichever is more."""
    flops, moved = node_cost(node)
    near = min(moved, rates.cache_bytes)
    return max(flops / _unit(node, rates), near / rates.cached + (moved - near) / rates.memory)


def program_seconds(plan: Plan, rates: Rates) -> float:
    """Predicted seconds of one run of a planned program on the CPU."""
    steps = zip(plan.order.steps, plan.needs, strict=True)
    return sum(node_seconds(node, rates, needs.parts) for node, needs in steps)


def _unit(node: Node, rates: Rates) -> float:
    """FLOP/s of the unit that computes the node's products."""
    rounded = () if node.op.name in ATTENTION else node.op.rounds
    first = node.op.bind_inputs(node.inputs).get(rounded[0]) if rounded else None
    return rates.product_bf16 if first is not None and first.dtype.name == "bf16" else rates.product


def _filled(node: Node) -> float:
    """The share of a product's time that is not spent on the edges of its tiles."""
    if node.op.name in MATRIX:
        (x, y), z = node.inputs[:2], node.outputs[0]
        assert x is not None and y is not None
        rows, terms, columns = (x.shape[-2] if len(x.shape) > 1 else 1), x.shape[-1], z.shape[-1]
        padded = -(-columns // TILE[2]) * TILE[2]
        return rows / (rows + TILE[0]) * terms / (terms + TILE[1]) * columns / padded
    named = node.op.bind_inputs(node.inputs) | node.op.bind_outputs(node.outputs)
    if node.op.name.startswith("conv2d"):
        kernel = named["w"] if "w" in named else named["dw"]
        terms = kernel.size // kernel.shape[0]
    elif node.op.name in ATTENTION:
        terms = named["q"].shape[-1]
    else:
        return 1.0
    return float(terms / (terms + TILE[1]))


def cost_table(title: str, timed: Iterable[tuple[Node, int, str]]) -> str:
    """Microseconds, GB/s and GFLOP/s of each instruction. timed: (node, nanoseconds, remark).

    An instruction of 0 nanoseconds has no rates; where all have 0, one line states that no time was measured."""
    lines, timed = [f"{'us':>10} {'GB/s':>8} {'GFLOP/s':>8}  {title}"], list(timed)
    if not any(took for _, took, _ in timed):
        return "\n".join([*lines, "no time was measured; need collect_times(), and then a run"])
    for node, took, what in timed:
        flops, moved = node_cost(node)
        rates = (f"{moved / took:.1f}", f"{flops / took:.1f}") if took else ("-", "-")
        lines.append(f"{took / 1e3:10.2f} {rates[0]:>8} {rates[1]:>8}  {what}")
    return "\n".join(lines)

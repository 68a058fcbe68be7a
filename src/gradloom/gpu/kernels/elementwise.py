"""Elementwise ops: a formula each, over inputs that broadcast."""

from __future__ import annotations

from ..calls import Arg, Call, Dispatch, groups_for, joined, spread
from .table import Rule, kernel

# Each op as an expression of x (and y), as in csrc/kernels/elementwise.h; P0, P1: its attributes.
UNARY = {
    "neg": "-x",
    "abs": "abs(x)",
    "sgn": "select(select(select(0.0, x, is_nan(x)), -1.0, x < 0.0), 1.0, x > 0.0)",
    "step": "where_positive(x, 1.0, 0.0)",
    "sqr": "x * x",
    "sqrt": "root(x)",
    "exp": "exp_(x)",
    "exp2": "exp2_(x)",
    "expm1": "expm1_(x)",
    "log": "log_(x)",
    "log1p": "log1p_(x)",
    "erf": "erf_(x)",
    "floor": "floor(x)",
    "ceil": "ceil(x)",
    "round": "round(x)",
    "trunc": "trunc(x)",
    "sin": "sin_(x)",
    "cos": "cos_(x)",
    "relu": "larger(x, 0.0)",
    "leaky_relu": "where_positive(x, x, x * P0)",
    "elu": "where_positive(x, x, P0 * expm1_(x))",
    "sigmoid": "sigmoid_(x)",
    "tanh": "tanh_(x)",
    "gelu": "x * normal_cdf_(x)",
    "gelu_tanh": "x * sigmoid_(gelu_2u(x))",
    "silu": "x * sigmoid_(x)",
    "softplus": "softplus_(x)",
    "clamp": "smaller(larger(x, P0), P1)",
    "scale": "fma(x, P0, P1)",
}
BINARY = {
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "div": "x / y",
    "remainder": "remainder_(x, y)",
    "pow": "pow_(x, y)",
    "maximum": "larger(x, y)",
    "minimum": "smaller(x, y)",
    "swiglu": "x * sigmoid_(x) * y",
    "geglu": "x * sigmoid_(gelu_2u(x)) * y",
    "relu_back": "where_positive(y, x, 0.0)",
    "leaky_relu_back": "where_positive(y, x, x * P0)",
    "elu_back": "where_positive(y, x, x * (P0 * exp_(y)))",
    "sigmoid_back": "x * (y * (1.0 - y))",
    "tanh_back": "x * ((1.0 - y) * (1.0 + y))",
    "gelu_back": "x * fma(y, normal_density_(y), normal_cdf_(y))",
    "silu_back": "x * (sigmoid_(y) * fma(y, sigmoid_(-y), 1.0))",
    "clamp_back": "select(0.0, x, y >= P0 && y <= P1)",
    "gelu_tanh_back": "x * fma(gelu_x_slope(y), sigmoid_(gelu_2u(y)) * sigmoid_(-gelu_2u(y)), sigmoid_(gelu_2u(y)))",
}
COMPARE = {"equal": "x == y", "less": "x < y", "greater": "x > y"}
CAST = {
    "u8_f32": "f32(x)", "i8_f32": "f32(x)", "i32_f32": "whole(x)", "i64_f32": "from_i64(x)", "f64_f32": "x",
    "f16_f32": "x", "bf16_f32": "x", "f32_i32": "to_i32(x)", "i64_i32": "saturated(x)", "u8_i32": "x",
}  # fmt: skip


def _aligned(output: Arg, inputs: list[Arg]) -> tuple[Arg, ...]:
    """Output and inputs under the output's shape, with as few axes as all allow."""
    return joined([output, *[spread(x, output.shape) for x in inputs]])


def _map(formula: str, second: bool) -> Rule:
    value = formula.replace("P0", "param(0u)").replace("P1", "param(1u)")
    defines = {"VALUE": value, "SECOND": "at_2(offset(2u, i))" if second else "0.0"}
    source = ("math", "elementwise") if "_(" in formula else ("elementwise",)

    def rule(call: Call) -> list[Dispatch]:
        *inputs, output = call.args
        args = _aligned(output, inputs)
        return [Dispatch(source, "map", args, groups_for(output.size), tuple(call.attrs.values()), defines)]

    return rule


def _compare(formula: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        x, y, output = call.args
        groups = groups_for(-(-output.size // 4))
        return [Dispatch(("compare",), "compare", _aligned(output, [x, y]), groups, (), {"VALUE": formula})]

    return rule


def _cast(formula: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        x, output = call.args
        return [Dispatch(("cast",), "convert", _aligned(output, [x]), groups_for(output.size), (), {"VALUE": formula})]

    return rule


def _halves(bits: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        x, output = call.args
        groups = groups_for(-(-output.size // 2))
        return [Dispatch(("halves",), "halves", _aligned(output, [x]), groups, (), {"BITS": bits})]

    return rule


def _where(call: Call) -> list[Dispatch]:
    *inputs, output = call.args
    return [Dispatch(("where",), "choose", _aligned(output, inputs), groups_for(output.size))]


for _name, _formula in UNARY.items():
    kernel(_name, "f32", _map(_formula, second=False))
for _name, _formula in BINARY.items():
    kernel(_name, "f32", _map(_formula, second=True))
for _name, _formula in COMPARE.items():
    kernel(_name, "f32_u8", _compare(_formula))
kernel("equal", "i32_u8", _compare(COMPARE["equal"]))
for _name, _formula in CAST.items():
    kernel("cast", _name, _cast(_formula))
kernel("cast", "f32_f16", _halves("f16_bits"))
kernel("cast", "f32_bf16", _halves("bf16_bits"))
kernel("round_bf16", "f32_bf16", _halves("bf16_bits"))
kernel("where", "u8_f32", _where)

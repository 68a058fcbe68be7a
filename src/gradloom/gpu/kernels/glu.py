"""The gradients of gated linear units; the units themselves are elementwise."""

from __future__ import annotations

from ..calls import Call, Dispatch, groups_for, joined
from .table import Rule, kernel

ACTIVATIONS = {  # value and derivative at x
    "swiglu_back": ("x * sigmoid_(x)", "sigmoid_(x) * fma(x, sigmoid_(-x), 1.0)"),
    "geglu_back": (
        "x * sigmoid_(gelu_2u(x))",
        "fma(gelu_x_slope(x), sigmoid_(gelu_2u(x)) * sigmoid_(-gelu_2u(x)), sigmoid_(gelu_2u(x)))",
    ),
}


def _back(value: str, slope: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        args, groups = joined(call.args), groups_for(call[3].size)
        return [Dispatch(("math", "glu"), "glu_back", args, groups, (), {"VALUE": value, "SLOPE": slope})]

    return rule


for _name, (_value, _slope) in ACTIVATIONS.items():
    kernel(_name, "f32 f32_bf16_f32", _back(_value, _slope))

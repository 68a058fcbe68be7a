"""Makes docs/layers.md of the docstrings of gl.nn (a test keeps the page equal to it).

python docs/layers.py > docs/layers.md
"""

from __future__ import annotations

import inspect

import gradloom as gl

SECTIONS = {
    "Linear layers and convolutions": "Linear Conv1d Conv2d ConvTranspose1d ConvTranspose2d Embedding",
    "Activations": (
        "ReLU LeakyReLU PReLU ELU GELU SiLU Mish Hardswish Hardsigmoid Sigmoid Tanh Softplus Softmax LogSoftmax GLU"
    ),
    "Norms": "BatchNorm LayerNorm RMSNorm GroupNorm InstanceNorm Standardize",
    "Pools and sizes": (
        "MaxPool2d AvgPool2d AdaptiveAvgPool1d AdaptiveMaxPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d Upsample Flatten "
        "Unflatten Permute"
    ),
    "Dropout": "Dropout Dropout2d HiddenDropout",
    "Sequences": "RNN LSTM GRU MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer PositionalEncoding",
    "Containers": "Sequential Residual ModuleList ModuleDict Identity Module",
    "Tables": "Ensemble MemberLinear Periodic",
}

HEAD = """# Layers

Printed from the docstrings of `gl.nn` by `python docs/layers.py`; a test keeps it so. Layers of PyTorch have its names,
and their parameters, too (`weight`, `weight_ih_l0`), so that arrays can be copied by name:
`net.load_state_dict(arrays)`. Keywords are those shown here; for a keyword of PyTorch or Keras the error names ours.
Projections of `MultiheadAttention` are separate: `query.weight`, `key.weight`, `value.weight` are the thirds of
PyTorch's `in_proj_weight`, and `out.weight` is its `out_proj.weight`. Images are [N, channels, height, width]. In
`gl.fit` the first axis of each array is the rows; an LSTM over such rows needs `batch_first=True`. It
returns (outputs, state), and a module of your own passes on one of them.

`gl.nn.stacked` declares a parameter that holds several arrays."""


def page() -> str:
    """The page: a section per kind, each layer with its signature and docstring."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names.split():
            layer = getattr(gl.nn, name)
            signature = inspect.signature(layer.__init__)
            own = [p.replace(annotation=inspect.Parameter.empty) for p in list(signature.parameters.values())[1:]]
            shown = str(inspect.Signature([] if layer.__init__ is gl.nn.Module.__init__ else own))
            text = (inspect.getdoc(layer) or "").replace("\n", "\n    ").replace("\n    \n", "\n\n")
            parts.append(f"### {name}\n\n    {name}{shown}\n\n    {text}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")

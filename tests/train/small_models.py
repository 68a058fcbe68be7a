"""Two small models, and data for them with ignored rows and row weights."""

import numpy as np

import gradloom as gl


def mlp():
    nn = gl.nn
    return nn.Sequential(nn.Linear(50, 300, activation="relu"), nn.Dropout(0.3), nn.LayerNorm(300), nn.Linear(300, 10))


def cnn():
    nn = gl.nn
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.BatchNorm(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def data(make, n=150):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 50) if make is mlp else (n, 2, 16, 16)).astype(np.float32)
    labels = rng.integers(0, 10, n)
    labels[::7] = -100
    return gl.data.Dataset(x, labels, weights=rng.uniform(0.5, 2, n))

"""Settings that would have no effect are rejected."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import SGD, Adam, AdamW, schedules

X = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def net():
    return gl.nn.Linear(4, 2)


@pytest.mark.parametrize("name", ["max_norm", "max_value"])
@pytest.mark.parametrize("build", ["forward", "grad"])
def test_clipping_without_an_update(build, name):
    with pytest.raises(gl.SettingError, match=name):
        gl.Trainer(net(), build=build, **{name: 1.0})


def test_an_exchange_without_ranks():
    with pytest.raises(gl.SettingError, match="exchange"):
        gl.Trainer(net(), exchange="fast")


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_class_weights_without_labels(loss):
    with pytest.raises(gl.SettingError, match="class_weights"):
        gl.Trainer(net(), loss, class_weights=np.ones(2, np.float32))


def test_no_decay_where_nothing_ever_decays():
    with pytest.raises(gl.SettingError, match="no_decay"):
        Adam(no_decay="norms_and_biases")
    Adam(no_decay="norms_and_biases", groups=[{"match": "0.*", "weight_decay": 0.1}])
    AdamW(no_decay="norms_and_biases").weight_decay = 0.1  # may be set later


def test_a_warmup_that_exceeds_the_training():
    def run(warmup, **options):
        rate = schedules.Constant(0.1, warmup=warmup)
        return gl.fit(net(), (X, Y), batch_size=10, epochs=2, optimizer=SGD(lr=rate), progress=False, **options)

    with pytest.raises(gl.SettingError, match="lr.*warmup=9"):
        run(9)
    run(8)
    model = net()
    optimizer = SGD(model.parameters(), lr=schedules.Constant(0.1, warmup=6))
    for _ in range(2):  # it continues in the next call
        gl.fit(model, (X, Y), batch_size=10, optimizer=optimizer, progress=False)


def test_patience_of_an_estimator_without_validation():
    from gradloom.sklearn import Classifier

    with pytest.raises(gl.SettingError, match="patience"):
        Classifier(patience=3, folds=0, val_split=0.0, epochs=1).fit(X, Y)
    Classifier(patience=0, folds=0, val_split=0.0, epochs=1).fit(X, Y)

"""MultiheadAttention: outputs and all gradients are PyTorch's; masks, groups of heads, dropout, errors."""

import itertools

import numpy as np
import pytest

import gradloom as gl

nn = gl.nn
B, T, S, E, H = 3, 7, 5, 24, 4


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def layer(kv_heads=None, **options):
    """Initialised, with biases that are not 0."""
    net = nn.MultiheadAttention(E, H, kv_heads, **options).init(3)
    rng = np.random.default_rng(9)
    for name, p in net.named_parameters().items():
        if name.endswith("bias"):
            p.assign(rng.standard_normal(p.shape))
    return net


def ours(net, feeds, mask=None, weight=None):
    """Output, and gradients of sum(output * weight) by parameter name and by input."""
    leaves = {n: gl.input(n, x.shape) for n, x in feeds.items()}
    y = net(*leaves.values(), mask=mask)
    loss = gl.ops.sum(y * weight)
    named = net.named_parameters()
    grads = gl.gradients(loss, [*named.values(), *leaves.values()])
    assert all(g is not None for g in grads)
    found = gl.compile([y, *grads])(**feeds)
    return found[0], dict(zip([*named, *leaves], found[1:], strict=True))


def theirs(net, feeds, weight, hidden=None, added=None):
    """The same by torch.nn.MultiheadAttention in float64."""
    torch = pytest.importorskip("torch")
    theirs = torch.nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    state = {n: torch.tensor(a.astype(np.float64)) for n, a in net.state_dict().items()}
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([state[f"{n}.weight"] for n in ("query", "key", "value")]))
        theirs.in_proj_bias.copy_(torch.cat([state[f"{n}.bias"] for n in ("query", "key", "value")]))
        theirs.out_proj.weight.copy_(state["out.weight"])
        theirs.out_proj.bias.copy_(state["out.bias"])
    xs = {n: torch.tensor(x.astype(np.float64), requires_grad=True) for n, x in feeds.items()}
    q, k, v = [*xs.values(), *[list(xs.values())[-1]] * 2][:3]
    mask = None
    if hidden is not None or added is not None:
        mask = torch.tensor(np.ascontiguousarray(hidden if hidden is not None else added.astype(np.float64)))
        if mask.ndim > 2:
            mask = mask.expand(B, H, q.shape[1], k.shape[1]).reshape(B * H, q.shape[1], k.shape[1])
    y, _ = theirs(q, k, v, attn_mask=mask, need_weights=False)
    (y * torch.tensor(weight)).sum().backward()
    grads = {}
    for i, name in enumerate(("query", "key", "value")):
        grads |= {f"{name}.weight": theirs.in_proj_weight.grad.chunk(3)[i]}
        grads |= {f"{name}.bias": theirs.in_proj_bias.grad.chunk(3)[i]}
    grads |= {"out.weight": theirs.out_proj.weight.grad, "out.bias": theirs.out_proj.bias.grad}
    grads |= {n: x.grad for n, x in xs.items()}
    return y.detach().numpy(), {n: g.numpy() for n, g in grads.items()}


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5 * np.abs(expected[0]).max())
    assert set(found[1]) == set(expected[1])
    largest = max(np.abs(g).max() for g in expected[1].values())
    for name, g in expected[1].items():
        np.testing.assert_allclose(found[1][name], g, atol=1e-5 * largest, err_msg=name)
        if name != "key.bias":  # softmax does not feel what is added to a whole row of scores
            assert np.abs(found[1][name]).max() > 1e-3 * largest, name


CASES = [
    ("self", False, ("q",), None), ("causal", True, ("q",), None), ("cross", False, ("q", "k"), None),
    ("three", False, ("q", "k", "v"), None), ("causal three", True, ("q", "k", "v"), None),
    *[(f"{kind} {shape} causal={causal}", causal, names, (kind, shape))
      for kind, shape, (causal, names) in itertools.product(
          ("bool", "float"), ("TS", "BTS", "BHTS", "B11S"), ((False, ("q", "k", "v")), (True, ("q",))))],
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize(("causal", "names", "masked"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_outputs_and_all_gradients_are_those_of_pytorch(causal, names, masked):
    """The known fault: keys and values that silently do not train."""
    net = layer(causal=causal)
    s = T if causal or names == ("q",) else S
    feeds = dict(zip(names, arrays((B, T, E), (B, s, E), (B, s, E)), strict=False))
    (weight,) = arrays((B, T, E), seed=1)
    mask = hidden = added = None
    later = np.triu(np.ones((T, s), bool), 1) if causal else np.zeros((T, s), bool)
    if masked:
        shape = {"TS": (T, s), "BTS": (B, T, s), "BHTS": (B, H, T, s), "B11S": (B, 1, 1, s)}[masked[1]]
        wide = (B, 1, T, s) if masked[1] == "BTS" else shape
        rng = np.random.default_rng(2)
        if masked[0] == "bool":
            mask = rng.random(shape) < 0.4
            mask[..., 0] = False  # every query sees something
            hidden = mask.reshape(wide) | later
        else:
            mask = rng.standard_normal(shape).astype(np.float32)
            added = np.where(later, -np.inf, mask.reshape(wide))
    elif causal:
        hidden = later
    assert_same(ours(net, feeds, mask, weight), theirs(net, feeds, weight, hidden, added))


@pytest.mark.oracle
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_are_repeated_heads(kv_heads, causal):
    """kv_heads = n is full attention with each key head repeated; gradients add up over the repetitions."""
    net, full = layer(kv_heads, causal=causal), layer(causal=causal)
    group, depth = H // kv_heads, E // H
    state = net.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        heads = state[name].reshape(kv_heads, depth, -1)
        state[name] = np.repeat(heads, group, 0).reshape(full.state_dict()[name].shape)
    full.load_state_dict(state)
    (x, weight) = arrays((B, T, E), (B, T, E))
    y, grads = ours(net, {"q": x}, None, weight)
    hidden = np.triu(np.ones((T, T), bool), 1) if causal else None
    expected, expected_grads = theirs(full, {"q": x}, weight, hidden)
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        g = expected_grads[name].reshape(kv_heads, group, depth, -1).sum(1)
        expected_grads[name] = g.reshape(grads[name].shape)
    assert_same((y, grads), (expected, expected_grads))


def test_the_fused_way_and_the_plain_one_agree():
    net = layer(causal=True)
    x, weight = arrays((B, T, E), (B, T, E))
    y, grads = ours(net, {"q": x}, None, weight)
    plain, plain_grads = ours(net, {"q": x}, np.zeros((T, T), bool), weight)
    np.testing.assert_allclose(y, plain, atol=1e-5)
    for name in grads:
        np.testing.assert_allclose(grads[name], plain_grads[name], atol=1e-4, err_msg=name)

    def ops_of(mask):
        run = gl.compile(net(gl.input("q", x.shape), mask=mask))
        return str(run.plan)

    assert "attention" in ops_of(None) and "softmax" not in ops_of(None)
    assert "softmax" in ops_of(np.zeros((T, T), bool))


@pytest.mark.parametrize(
    "limits", [{"window": 1}, {"window": 3}, {"softcap": 0.8}, {"window": 4, "softcap": 2.0}], ids=str
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_windows_and_caps_fused_and_plain(limits, kind):
    net = layer(causal=True, **limits)
    x, weight = arrays((B, T, E), (B, T, E))
    y, grads = ours(net, {"q": x}, None, weight)
    mask = np.zeros((T, T), bool if kind == "bool" else np.float32)
    plain, plain_grads = ours(net, {"q": x}, mask, weight)
    np.testing.assert_allclose(y, plain, atol=1e-5)
    for name in grads:
        np.testing.assert_allclose(grads[name], plain_grads[name], atol=1e-4, err_msg=name)
    unlimited, _ = ours(layer(causal=True), {"q": x}, None, weight)
    assert np.abs(y - unlimited).max() > 1e-3


def test_a_window_hides_what_lies_before_it():
    net = layer(causal=True, window=3)
    (x,) = arrays((B, T, E))
    run = gl.compile(net(gl.input("q", x.shape)))
    other = x.copy()
    other[:, 3] = 100
    seen = (run(q=x)[0] != run(q=other)[0]).any((0, 2))
    np.testing.assert_array_equal(seen, [False, False, False, True, True, True, False])


def test_softcap_without_causal():
    """Keys of another sequence: capped scores by hand."""
    net = layer(softcap=0.5)
    x, k = arrays((B, T, E), (B, S, E))
    (got,) = gl.compile(net(gl.input("q", x.shape), gl.input("k", k.shape)))(q=x, k=k)
    state = {n: a.astype(np.float64) for n, a in net.state_dict().items()}

    def heads(z, name):
        return (z @ state[f"{name}.weight"].T + state[f"{name}.bias"]).reshape(B, -1, H, E // H)

    z = np.einsum("bthd,bshd->bhts", heads(x, "query"), heads(k, "key")) / np.sqrt(E // H)
    p = np.exp(np.tanh(z / 0.5) * 0.5)
    y = np.einsum("bhts,bshd->bthd", p / p.sum(-1, keepdims=True), heads(k, "value")).reshape(B, T, E)
    np.testing.assert_allclose(got, y @ state["out.weight"].T + state["out.bias"], atol=1e-5)


def test_a_query_that_sees_nothing_gets_nothing():
    """No NaN, no gradient, and the other rows as without it."""
    net = layer()
    x, weight = arrays((B, T, E), (B, T, E))
    mask = np.zeros((B, T, T), bool)
    mask[0, 2] = True
    y, grads = ours(net, {"q": x}, mask, weight)
    np.testing.assert_allclose(y[0, 2], net.out.bias.numpy(), atol=1e-6)
    plain, _ = ours(net, {"q": x}, None, weight)
    np.testing.assert_array_equal(np.delete(y[0], 2, 0), np.delete(plain[0], 2, 0))
    assert all(np.isfinite(g).all() for g in grads.values())


def test_masks_may_be_fed():
    net = layer()
    (x,) = arrays((B, T, E))
    hidden = np.random.default_rng(0).random((B, 1, 1, T)) < 0.5
    hidden[..., 0] = False
    run = gl.compile(net(gl.input("q", x.shape), mask=gl.input("m", hidden.shape, "u8")))
    expected = gl.compile(net(gl.input("q", x.shape), mask=hidden))(q=x)[0]
    np.testing.assert_array_equal(run(q=x, m=hidden.astype(np.uint8))[0], expected)


def test_hidden_keys_have_no_influence():
    net = layer()
    (x,) = arrays((B, T, E))
    hidden = np.zeros((B, 1, T), bool)
    hidden[:, :, 4:] = True
    run = gl.compile(net(gl.input("q", x.shape), gl.input("k", x.shape), mask=hidden))
    other = x.copy()
    other[:, 4:] = 100
    np.testing.assert_array_equal(run(q=x, k=x)[0], run(q=x, k=other)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_drops_weights_in_training_only(causal):
    net = layer(dropout=0.5, causal=causal)
    (x,) = arrays((B, T, E))
    leaf = gl.input("q", x.shape)
    run, still = gl.compile(net(leaf)), gl.compile(net.eval()(leaf))
    np.testing.assert_array_equal(still(q=x)[0], gl.compile(layer(causal=causal)(leaf))(q=x)[0])
    drawn = [run(q=x, seed=s, step=0)[0] for s in range(300)]
    assert (drawn[0] != drawn[1]).any()
    # its mean over many masks is the output without it
    spread = np.std(drawn, 0) / np.sqrt(len(drawn))
    assert np.mean(np.abs(np.mean(drawn, 0) - still(q=x)[0]) < 3 * spread + 1e-6) > 0.98


def test_initialisation_is_that_of_pytorch():
    net = nn.MultiheadAttention(256, 8).init(0)
    for name, array in net.state_dict().items():
        if name.endswith("bias"):
            np.testing.assert_array_equal(array, 0)
            continue
        bound = 1 / np.sqrt(256) if name == "out.weight" else np.sqrt(6 / (4 * 256))
        assert 0.98 * bound < np.abs(array).max() <= bound
        assert array.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    assert list(nn.MultiheadAttention(8, 2, bias=False).named_parameters()) == [
        "query.weight", "key.weight", "value.weight", "out.weight",
    ]  # fmt: skip


def test_it_trains_inside_a_model():
    """A copying task: the answer is the token at a marked place, which only attention can fetch."""
    rng = np.random.default_rng(0)
    n, length, classes = 512, 6, 5
    tokens = rng.integers(0, classes, (n, length)).astype(np.int32)
    place = rng.integers(0, length, n)
    marked = tokens + classes * (np.arange(length) == place[:, None]).astype(np.int32)
    labels = tokens[np.arange(n), place]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(2 * classes, 24)
            self.attend = nn.MultiheadAttention(24, 2)
            self.head = nn.Linear(24, classes)

        def forward(self, ids):
            return self.head(gl.ops.mean(self.attend(self.embed(ids)), 1))

    net = Net()
    options = {"epochs": 15, "batch_size": 64, "progress": False}
    history = gl.fit(net, (marked, labels), optimizer=gl.optim.AdamW(lr=1e-2), **options)
    assert history[-1].train.accuracy > 0.95


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: nn.MultiheadAttention(10, 4),
            gl.ShapeError,
            "features=10, heads=4, kv_heads=4 do not fit; need",
        ),
        (lambda: nn.MultiheadAttention(12, 4, 3), gl.ShapeError, "heads=4, kv_heads=3 do not fit"),
        (lambda: nn.MultiheadAttention(12, 0), gl.ShapeError, "MultiheadAttention: heads=0 is not usable"),
        (lambda: nn.MultiheadAttention(12, 4, dropout=1.0), gl.SettingError, r"rate=1\.0: must be"),
        (lambda: nn.MultiheadAttention(12, 4, window=3), gl.SettingError, "window=3 without causal; need causal=True"),
        (lambda: nn.MultiheadAttention(12, 4, causal=True, window=0), gl.SettingError, "window=0: must be"),
        (
            lambda: nn.MultiheadAttention(12, 4, softcap=0.0),
            gl.SettingError,
            r"softcap=0\.0: must be a number",
        ),
        (lambda: nn.MultiheadAttention(12, 4, softcap="5"), gl.SettingError, "softcap='5': must be"),
        (lambda: call((B, T, E + 1)), gl.ShapeError, r"q is f32\[3,7,25\]; need \[batch, tokens, 24\]"),
        (lambda: call((T, E)), gl.ShapeError, r"q is f32\[7,24\]"),
        (lambda: call((B, T, E), (B + 1, S, E)), gl.ShapeError, r"k is f32\[4,5,24\]"),
        (lambda: call((B, T, E), (B, S, E), (B, T, E)), gl.ShapeError, "5 keys, 7 values; need a value for each key"),
        (lambda: call((B, T, E), (B, S, E), causal=True), gl.ShapeError, "causal with 7 queries and 5 keys"),
        (
            lambda: call((B, T, E), mask=np.zeros((T, S), bool)),
            gl.ShapeError,
            r"mask is u8\[7,5\]; need \[7, 7\]",
        ),
        (lambda: call((B, T, E), mask=np.zeros(T, bool)), gl.ShapeError, r"mask is u8\[7\]"),
        (lambda: call((B, T, E), mask=np.zeros((H, T, T))), gl.ShapeError, r"mask is f32\[4,7,7\]"),
        (lambda: call((B, T, E), mask=np.zeros((T, T), int)), gl.DTypeError, r"mask is i32\[7,7\]; need bools"),
        (
            lambda: nn.MultiheadAttention(E, H)(gl.input("q", (B, T, E)), v=gl.input("v", (B, T, E))),
            gl.ShapeError,
            "v without k; need both, k alone, or none",
        ),
    ],
)
def test_what_is_refused(make, kind, message):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def call(*shapes, mask=None, **options):
    net = nn.MultiheadAttention(E, H, **options)
    return net(*[gl.input(f"x{i}", s) for i, s in enumerate(shapes)], mask=mask)

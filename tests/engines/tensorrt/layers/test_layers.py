"""Layers with many settings against torch and numpy, where ONNX has no test of the setting."""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt.evaluate.kernels import PLUGIN_KINDS
from trtdx.engines.tensorrt.layers.kernel_registry import KERNEL_MAKERS
from trtdx.engines.tensorrt.network.graph import CONDITIONAL_KINDS, LOOP_KINDS

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
F = torch.nn.functional


def value_of(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("WRAP", [2, 3, 4, 0, 1, 2, 3]),
        ("CLAMP", [0, 0, 0, 0, 1, 2, 3]),
        ("REFLECT", [3, 2, 1, 0, 1, 2, 3]),
        ("FILL", [9, 9, 9, 0, 1, 2, 3]),
    ],
)
def test_slices_out_of_bounds(net, mode, expected):
    layer = net.add_slice(net.input("x", (5,)), (-3,), (7,), (1,))
    layer.mode = getattr(trt.SampleMode, mode)
    if mode == "FILL":
        layer.set_input(4, net.constant(np.float32(9)))
    net.out(layer)
    assert net.run(x=np.arange(5, dtype=np.float32))["y"].tolist() == expected


def test_a_strict_slice_out_of_bounds_stops(net):
    layer = net.add_slice(net.input("x", (-1,)), (1,), (3,), (1,))
    layer.name = "cut"
    net.out(layer)
    assert net.run(x=np.arange(4, dtype=np.float32))["y"].tolist() == [1, 2, 3]
    with pytest.raises(LayerError, match=r"from \[1\] of \[3\] by \[1\] leaves \[3\]"):
        net.run(x=np.arange(3, dtype=np.float32))


def test_slices_go_backward_repeat_and_name_their_axes(net, rng):
    value = value_of(rng, 2, 5, 3)
    x = net.input("x", value.shape)
    net.out(net.add_slice(x, (1, 4, 0), (2, 3, 3), (-1, -2, 1)), "back")
    net.out(net.add_slice(x, (0, 2, 0), (2, 4, 3), (1, 0, 1)), "repeated")
    some = net.add_slice(x, (1, 1), (2, 1), (2, 1))
    some.axes = (-2, 0)
    net.out(some, "some")
    found = net.run(x=value)
    np.testing.assert_array_equal(found["back"], value[::-1, 4::-2])
    np.testing.assert_array_equal(found["repeated"], value[:, 2:3].repeat(4, 1))
    np.testing.assert_array_equal(found["some"], value[1:2, 1:4:2])


def test_shuffles_transpose_reshape_and_transpose(net, rng):
    value = value_of(rng, 2, 3, 4)
    layer = net.add_shuffle(net.input("x", value.shape))
    layer.first_transpose, layer.reshape_dims, layer.second_transpose = (2, 0, 1), (0, -1), (1, 0)
    net.out(layer)
    np.testing.assert_array_equal(net.run(x=value)["y"], value.transpose(2, 0, 1).reshape(4, 6).T)


@pytest.mark.parametrize(("placeholder", "shape"), [(True, (2, 0)), (False, (0, 2))])
def test_a_zero_in_a_reshape_stands_for_a_length_or_is_one(net, placeholder, shape):
    layer = net.add_shuffle(net.input("x", (2, -1)))
    layer.set_input(1, net.input("shape", (2,), trt.int64))
    layer.zero_is_placeholder = placeholder
    net.out(layer)
    told = np.array([0, 0] if placeholder else [0, 2])
    assert net.run(x=np.zeros((2, 0), np.float32), shape=told)["y"].shape == shape


@pytest.mark.parametrize("mode", ["EXPLICIT_ROUND_DOWN", "EXPLICIT_ROUND_UP", "SAME_UPPER", "SAME_LOWER"])
def test_convolutions(net, rng, mode):
    value, kernel, bias = value_of(rng, 2, 4, 8, 9), value_of(rng, 6, 2, 3, 2), value_of(rng, 6)
    net.kept += [kernel, bias]
    layer = net.add_convolution_nd(net.input("x", value.shape), 6, (3, 2), kernel, bias)
    layer.num_groups, layer.stride_nd, layer.dilation_nd = 2, (2, 2), (1, 2)
    layer.pre_padding, layer.post_padding = (1, 0), (0, 2)
    layer.padding_mode = getattr(trt.PaddingMode, mode)
    net.out(layer)
    sides = {  # left, right, top, bottom; the window is 3 by 3, rounding up pads what is missing
        "EXPLICIT_ROUND_DOWN": (0, 2, 1, 0),
        "EXPLICIT_ROUND_UP": (0, 2, 1, 0),
        "SAME_UPPER": (1, 1, 0, 1),
        "SAME_LOWER": (1, 1, 1, 0),
    }[mode]
    padded = F.pad(torch.from_numpy(value), sides)
    expected = F.conv2d(padded, torch.from_numpy(kernel), torch.from_numpy(bias), 2, 0, (1, 2), 2)
    found = net.run(x=value)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert found.shape == tuple(layer.get_output(0).shape)


def test_a_convolution_whose_kernel_is_a_tensor_in_three_dimensions(net, rng):
    value, kernel = value_of(rng, 1, 2, 4, 4, 4), value_of(rng, 3, 2, 2, 2, 2)
    layer = net.add_convolution_nd(net.input("x", value.shape), 3, (2, 2, 2), trt.Weights())
    layer.set_input(1, net.input("kernel", kernel.shape))
    net.out(layer)
    expected = F.conv3d(torch.from_numpy(value), torch.from_numpy(kernel))
    np.testing.assert_allclose(net.run(x=value, kernel=kernel)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["EXPLICIT_ROUND_DOWN", "SAME_UPPER", "SAME_LOWER"])
def test_deconvolutions(net, rng, mode):
    value, kernel, bias = value_of(rng, 1, 4, 5, 5), value_of(rng, 4, 3, 4, 4), value_of(rng, 6)
    net.kept += [kernel, bias]
    layer = net.add_deconvolution_nd(net.input("x", value.shape), 6, (4, 4), kernel, bias)
    layer.num_groups, layer.stride_nd = 2, (3, 3)
    layer.pre_padding, layer.post_padding = (1, 2), (0, 1)
    layer.padding_mode = getattr(trt.PaddingMode, mode)
    net.out(layer)
    full = F.conv_transpose2d(torch.from_numpy(value), torch.from_numpy(kernel), torch.from_numpy(bias), 3, groups=2)
    cut = {
        "EXPLICIT_ROUND_DOWN": full[..., 1:, 2:-1],
        "SAME_UPPER": full[..., :-1, :-1],
        "SAME_LOWER": full[..., 1:, 1:],
    }[mode]
    np.testing.assert_allclose(net.run(x=value)["y"], cut, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("excludes", [True, False])
@pytest.mark.parametrize("kind", ["MAX", "AVERAGE", "MAX_AVERAGE_BLEND"])
def test_pooling(net, rng, kind, excludes):
    value = value_of(rng, 1, 2, 6, 6)
    layer = net.add_pooling_nd(net.input("x", value.shape), getattr(trt.PoolingType, kind), (3, 3))
    layer.stride_nd, layer.padding_nd = (2, 2), (1, 1)
    layer.average_count_excludes_padding = excludes
    layer.blend_factor = 0.25
    net.out(layer)
    x = torch.from_numpy(value)
    largest = F.max_pool2d(x, 3, 2, 1)
    mean = F.avg_pool2d(x, 3, 2, 1, count_include_pad=not excludes)
    expected = {"MAX": largest, "AVERAGE": mean, "MAX_AVERAGE_BLEND": 0.75 * largest + 0.25 * mean}[kind]
    np.testing.assert_allclose(net.run(x=value)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["UNIFORM", "CHANNEL", "ELEMENTWISE"])
def test_scales(net, rng, mode):
    value = rng.random((2, 3, 4, 5), np.float32) + 1
    shape = {"UNIFORM": (), "CHANNEL": (3, 1, 1), "ELEMENTWISE": (3, 4, 5)}[mode]
    shift, scale, power = (np.array(rng.random(shape, np.float32) + 0.5, order="C") for _ in range(3))
    net.kept += [shift, scale, power]
    flat = [np.ascontiguousarray(each.reshape(-1)) for each in (shift, scale, power)]
    net.kept += flat
    net.out(net.add_scale(net.input("x", value.shape), getattr(trt.ScaleMode, mode), *flat))
    np.testing.assert_allclose(net.run(x=value)["y"], (value * scale + shift) ** power, rtol=1e-5)


def test_a_scale_without_coefficients_changes_nothing(net, rng):
    value = value_of(rng, 1, 2, 2, 2)
    net.out(net.add_scale(net.input("x", value.shape), trt.ScaleMode.UNIFORM))
    np.testing.assert_array_equal(net.run(x=value)["y"], value)


def test_padding_adds_zeros_and_crops(net, rng):
    value = value_of(rng, 1, 2, 4, 5)
    net.out(net.add_padding_nd(net.input("x", value.shape), (1, -1), (0, 2)))
    np.testing.assert_array_equal(net.run(x=value)["y"], np.pad(value[..., 1:], ((0, 0), (0, 0), (1, 0), (0, 2))))


@pytest.mark.parametrize("kind", [*trt.ActivationType.__members__])
def test_activations(net, rng, kind):
    value = value_of(rng, 50)
    layer = net.add_activation(net.input("x", value.shape), getattr(trt.ActivationType, kind))
    layer.alpha, layer.beta = 0.3, 0.7
    net.out(layer)
    x = torch.from_numpy(value)
    expected = {
        "RELU": lambda: F.relu(x),
        "SIGMOID": lambda: torch.sigmoid(x),
        "TANH": lambda: torch.tanh(x),
        "LEAKY_RELU": lambda: F.leaky_relu(x, 0.3),
        "ELU": lambda: F.elu(x, 0.3),
        "SELU": lambda: torch.where(x > 0, 0.7 * x, 0.7 * 0.3 * (torch.exp(x) - 1)),
        "SOFTSIGN": lambda: F.softsign(x),
        "SOFTPLUS": lambda: 0.3 * torch.log(torch.exp(0.7 * x) + 1),
        "CLIP": lambda: x.clamp(0.3, 0.7),
        "HARD_SIGMOID": lambda: (0.3 * x + 0.7).clamp(0, 1),
        "SCALED_TANH": lambda: 0.3 * torch.tanh(0.7 * x),
        "THRESHOLDED_RELU": lambda: F.threshold(x, 0.3, 0),
        "GELU_ERF": lambda: F.gelu(x),
        "GELU_TANH": lambda: F.gelu(x, approximate="tanh"),
    }[kind]()
    np.testing.assert_allclose(net.run(x=value)["y"], expected, rtol=1e-4, atol=1e-6)


def test_ragged_softmax_looks_at_each_rows_length(net, rng):
    value, bounds = value_of(rng, 3, 5), np.array([[2], [5], [1]], np.int32)
    net.out(net.add_ragged_softmax(net.input("x", value.shape), net.input("bounds", (3, 1), trt.int32)))
    found = net.run(x=value, bounds=bounds)["y"]
    for row, length in enumerate(bounds[:, 0]):
        powers = np.exp(value[row, :length])
        np.testing.assert_allclose(found[row, :length], powers / powers.sum(), rtol=1e-5)
        assert not found[row, length:].any()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("newer", [True, False])
def test_normalisation(net, rng, groups, newer):
    value = value_of(rng, 2, 4, 3, 3)
    count = 4 if newer or groups == 1 else groups
    scale, bias = value_of(rng, 1, count, 1, 1), value_of(rng, 1, count, 1, 1)
    add = net.add_normalization_v2 if newer else net.add_normalization
    layer = add(net.input("x", value.shape), net.constant(scale), net.constant(bias), 0b1100)
    layer.num_groups, layer.epsilon = groups, 1e-3
    net.out(layer)
    per_channel = np.repeat(np.stack([scale, bias]).reshape(2, count), 4 // count, 1)
    x, (weight, offset) = torch.from_numpy(value), torch.from_numpy(per_channel)
    if groups == 1:
        expected = F.instance_norm(x, weight=weight, bias=offset, eps=1e-3)
    else:
        expected = F.group_norm(x, groups, weight, offset, 1e-3)
    np.testing.assert_allclose(net.run(x=value)["y"], expected, rtol=1e-4, atol=1e-5)


def test_layer_normalisation_in_half_precision(net, rng):
    value = value_of(rng, 2, 16).astype(np.float16)
    weight, bias = (value_of(rng, 1, 16).astype(np.float16) for _ in range(2))
    net.out(
        net.add_normalization_v2(net.input("x", value.shape, trt.float16), net.constant(weight), net.constant(bias), 2)
    )
    wide = [torch.from_numpy(each.astype(np.float32)) for each in (value, weight[0], bias[0])]
    expected = F.layer_norm(wide[0], (16,), *wide[1:]).numpy().astype(np.float16)
    np.testing.assert_array_equal(net.run(x=value)["y"], expected)


INTERPOLATIONS = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}


@pytest.mark.parametrize("mode", ["LINEAR", "CUBIC"])
@pytest.mark.parametrize("corners", [True, False])
def test_resizes_between_elements(net, rng, mode, corners):
    value = value_of(rng, 1, 2, 4, 5)
    layer = net.add_resize(net.input("x", value.shape))
    layer.shape, layer.resize_mode = (1, 2, 7, 3), getattr(trt.InterpolationMode, mode)
    kind = "ALIGN_CORNERS" if corners else "HALF_PIXEL"
    layer.coordinate_transformation = getattr(trt.ResizeCoordinateTransformation, kind)
    net.out(layer)
    expected = F.interpolate(torch.from_numpy(value), (7, 3), mode=INTERPOLATIONS[mode], align_corners=corners)
    np.testing.assert_allclose(net.run(x=value)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [("FLOOR", [0, 0, 1, 1]), ("CEIL", [0, 1, 1, 2]), ("HALF_UP", [0, 1, 1, 2]), ("HALF_DOWN", [0, 0, 1, 1])],
)
def test_nearest_neighbours_round_as_told(net, rounding, expected):
    """Doubling puts elements at 0, 0.5, 1 and 1.5."""
    layer = net.add_resize(net.input("x", (3,)))
    layer.shape, layer.resize_mode = (6,), trt.InterpolationMode.NEAREST
    layer.coordinate_transformation = trt.ResizeCoordinateTransformation.ASYMMETRIC
    layer.nearest_rounding = getattr(trt.ResizeRoundMode, rounding)
    net.out(layer)
    assert net.run(x=np.arange(3, dtype=np.float32))["y"][:4].tolist() == expected


def test_resizes_by_scale_and_to_a_shape_given_at_run_time(make_net):
    value = np.arange(4, dtype=np.float32).reshape(1, 4)
    net = make_net()
    layer = net.add_resize(net.input("x", (1, 4)))
    layer.scales = [1, 1.5]
    net.out(layer)
    assert net.run(x=value)["y"].tolist() == [[0, 0, 1, 2, 2, 3]]
    net = make_net()
    layer = net.add_resize(net.input("x", (1, 4)))
    layer.set_input(1, net.constant(np.array([2, 2], np.int64)))
    net.out(layer)
    assert net.run(x=value)["y"].tolist() == [[0, 2], [0, 2]]


@pytest.mark.parametrize("mode", ["NEAREST", "LINEAR", "CUBIC"])
@pytest.mark.parametrize("border", ["FILL", "CLAMP", "REFLECT"])
def test_grid_samples(net, rng, mode, border):
    value, grid = value_of(rng, 1, 2, 4, 4), rng.uniform(-1.5, 1.5, (1, 3, 3, 2)).astype(np.float32)
    layer = net.add_grid_sample(net.input("x", value.shape), net.input("grid", grid.shape))
    layer.interpolation_mode, layer.sample_mode = (
        getattr(trt.InterpolationMode, mode),
        getattr(trt.SampleMode, border),
    )
    net.out(layer)
    padding = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}[border]
    x, where = torch.from_numpy(value), torch.from_numpy(grid)
    expected = F.grid_sample(x, where, INTERPOLATIONS[mode], padding, align_corners=False)
    np.testing.assert_allclose(net.run(x=value, grid=grid)["y"], expected, rtol=1e-4, atol=1e-5)


def test_gathers_in_batches_by_element_and_by_tuples(net, rng):
    value, index = value_of(rng, 2, 5, 3), rng.integers(0, 5, (2, 4)).astype(np.int32)
    x, i = net.input("x", value.shape), net.input("i", index.shape, trt.int32)
    batch = net.add_gather(x, i, 1)
    batch.num_elementwise_dims = 1
    net.out(batch, "batch")
    element = net.input("e", (2, 2, 3), trt.int32)
    by_element = net.add_gather_v2(x, element, trt.GatherMode.ELEMENT)
    by_element.axis = 1
    net.out(by_element, "element")
    pairs = net.input("pairs", (2, 2, 2), trt.int32)
    by_tuple = net.add_gather_v2(x, pairs, trt.GatherMode.ND)
    by_tuple.num_elementwise_dims = 1
    net.out(by_tuple, "tuples")
    elements = rng.integers(-5, 5, (2, 2, 3)).astype(np.int32)
    tuples = np.stack([rng.integers(0, 5, (2, 2)), rng.integers(0, 3, (2, 2))], -1).astype(np.int32)
    found = net.run(x=value, i=index, e=elements, pairs=tuples)
    np.testing.assert_array_equal(found["batch"], np.stack([value[row][index[row]] for row in range(2)]))
    np.testing.assert_array_equal(found["element"], np.take_along_axis(value, elements % 5, 1))
    expected = [[value[row][tuple(pair)] for pair in tuples[row]] for row in range(2)]
    np.testing.assert_array_equal(found["tuples"], np.array(expected))


def test_scatters_by_element_and_by_tuples(net, rng):
    value, updates = value_of(rng, 3, 4), value_of(rng, 2, 4)
    x, u = net.input("x", value.shape), net.input("u", updates.shape)
    index = net.constant(np.array([[0, 2, 1, 0], [1, 0, 2, 2]], np.int32))
    by_element = net.add_scatter(x, index, u, trt.ScatterMode.ELEMENT)
    net.out(by_element, "element")
    rows = net.constant(np.array([[2], [7]], np.int32))  # the second is out of bounds and left out
    net.out(net.add_scatter(x, rows, u, trt.ScatterMode.ND), "tuples")
    found = net.run(x=value, u=updates)
    expected = value.copy()
    np.put_along_axis(expected, np.array([[0, 2, 1, 0], [1, 0, 2, 2]]), updates, 0)
    np.testing.assert_array_equal(found["element"], expected)
    expected = value.copy()
    expected[2] = updates[0]
    np.testing.assert_array_equal(found["tuples"], expected)


def test_products_of_matrices_and_vectors(net, rng):
    kinds = {name: getattr(trt.MatrixOperation, name) for name in ("NONE", "TRANSPOSE", "VECTOR")}
    a, b, v = value_of(rng, 2, 3, 4), value_of(rng, 1, 5, 4), value_of(rng, 2, 4)
    inputs = {name: net.input(name, each.shape) for name, each in (("a", a), ("b", b), ("v", v))}
    for name, left, first, right, second in (
        ("turned", "a", "NONE", "b", "TRANSPOSE"),
        ("matrix_vector", "a", "NONE", "v", "VECTOR"),
        ("vector_vector", "v", "VECTOR", "v", "VECTOR"),
        ("square", "a", "TRANSPOSE", "a", "NONE"),
    ):
        net.out(net.add_matrix_multiply(inputs[left], kinds[first], inputs[right], kinds[second]), name)
    found = net.run(a=a, b=b, v=v)
    np.testing.assert_allclose(found["turned"], a @ b.swapaxes(1, 2), rtol=1e-5)
    np.testing.assert_allclose(found["matrix_vector"], np.einsum("bij,bj->bi", a, v), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["vector_vector"], np.einsum("bi,bi->b", v, v), rtol=1e-5)
    np.testing.assert_allclose(found["square"], a.swapaxes(1, 2) @ a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
@pytest.mark.parametrize("turned", [False, True])
def test_weights_times_few_and_many_rows(net, rng, rows, turned):
    """One path of numpy for a row or two, one of torch for more; both give the same."""
    weights = value_of(rng, 1, 300, 200) if turned else value_of(rng, 1, 200, 300)
    none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    x = net.input("x", (1, -1, 200))
    net.out(net.add_matrix_multiply(x, none, net.constant(weights), transpose if turned else none))
    value = value_of(rng, 1, rows, 200)
    expected = value @ (weights.swapaxes(1, 2) if turned else weights)
    np.testing.assert_allclose(net.run(x=value)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_cumulative_sums(net, exclusive, backward):
    axis = net.constant(np.array(1, np.int32))
    net.out(
        net.add_cumulative(net.input("x", (1, 3), trt.int32), axis, trt.CumulativeOperation.SUM, exclusive, backward)
    )
    expected = {
        (False, False): [1, 3, 6],
        (True, False): [0, 1, 3],
        (False, True): [6, 5, 3],
        (True, True): [5, 3, 0],
    }
    assert net.run(x=np.array([[1, 2, 3]], np.int32))["y"].tolist() == [expected[exclusive, backward]]


def test_fills_count_along_every_axis(net):
    layer = net.add_fill((3, 4), trt.FillOperation.LINSPACE, trt.int32)
    layer.set_input(0, net.constant(np.array([3, 4], np.int64)))
    layer.set_input(1, net.constant(np.array(1, np.int32)))
    layer.set_input(2, net.constant(np.array([100, 10], np.int32)))
    net.out(layer)
    assert net.run()["y"].tolist() == [[1 + 100 * i + 10 * j for j in range(4)] for i in range(3)]


def test_one_hot_non_zero_and_reversed_sequences(net):
    index = net.input("i", (3,), trt.int32)
    net.out(
        net.add_one_hot(index, net.constant(np.array([2, 5], np.float32)), net.constant(np.array(4, np.int32)), 0),
        "hot",
    )
    x = net.input("x", (3, 4))
    net.out(net.add_non_zero(x), "places")
    lengths = net.constant(np.array([3, 1, 2, 0], np.int32))
    net.out(net.add_reverse_sequence(x, lengths), "backward")
    value = np.arange(12, dtype=np.float32).reshape(3, 4) % 5
    found = net.run(i=np.array([0, 3, -2], np.int32), x=value)
    np.testing.assert_array_equal(found["hot"], np.where(np.arange(4)[:, None] == [0, 3, 2], 5, 2))
    np.testing.assert_array_equal(found["places"], np.stack(np.nonzero(value)))
    expected = value.copy()
    expected[:, 0], expected[:2, 2] = value[::-1, 0], value[1::-1, 2]
    np.testing.assert_array_equal(found["backward"], expected)


def test_shapes_that_depend_on_data_are_not_foreseen(net):
    """Two runs with inputs of the same shape, whose non-zero elements are not as many."""
    x = net.input("x", (6,))
    places = net.add_non_zero(x).get_output(0)
    net.out(net.add_shape(places), "shape")
    ready = net.prepare()
    assert ready({"x": np.array([1, 0, 0, 0, 0, 0], np.float32)})["shape"].tolist() == [1, 1]
    assert ready({"x": np.ones(6, np.float32)})["shape"].tolist() == [1, 6]


def test_every_kind_of_layer_of_these_bindings_is_known(net):
    """Those that are not in the table are borders of loops and conditionals, plugins and collectives."""
    net.out(net.add_identity(net.input("x", (1,))))
    net.prepare()
    special = {*LOOP_KINDS, *CONDITIONAL_KINDS, *PLUGIN_KINDS, "DIST_COLLECTIVE"}
    assert set(trt.LayerType.__members__) - special - set(KERNEL_MAKERS) == set()

"""Small ONNX models of operator sets 7 to 21, with inputs and what onnx.reference makes of them:
tests/data/opsets/NAME.onnx and NAME.txt, in the form that reference.py writes. Each holds the operators in the
spelling of its set: attributes that became inputs, element types, and activations as exporters take them apart."""
import os
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

WHERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "opsets")
ROWS = 3
rng = np.random.default_rng(21)
node = helper.make_node
FLOAT = TensorProto.FLOAT


class BatchNormalization(OpRun):
    """For sets before 14: onnx.reference fails at 6 and takes the statistics of the batch at 9, though one output
    means inference."""

    def _run(self, x, scale, shift, mean, variance, epsilon=None, momentum=None, training_mode=None):
        axes = [1, -1] + [1] * (x.ndim - 2)
        factor = scale / np.sqrt(variance + epsilon)
        return ((x - mean.reshape(axes)) * factor.reshape(axes) + shift.reshape(axes),)


class GlobalLpPool(OpRun):
    """onnx.reference has none."""

    def _run(self, x, p=None):
        return ((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


class LpNormalization(OpRun):
    """onnx.reference forgets the sizes where p is 1."""

    def _run(self, x, axis=None, p=None):
        return (x / (np.abs(x) ** p).sum(axis=axis, keepdims=True) ** (1 / p),)


class LRN(OpRun):
    """onnx.reference counts channels by the batch."""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        sums = np.zeros_like(x)
        for c in range(x.shape[1]):
            first = max(0, c - (size - 1) // 2)
            sums[:, c] = (x[:, first:c + size // 2 + 1] ** 2).sum(axis=1)
        return (x / (bias + alpha / size * sums) ** beta,)


def weights(name, *shape):
    return numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name)


def positive(name, *shape):
    return numpy_helper.from_array(rng.uniform(0.5, 2, shape).astype(np.float32), name)


def number(name, value):
    return numpy_helper.from_array(np.array(value, dtype=np.float32), name)


def whole(name, *values):
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def case(name, opset, shape, nodes, initialisers, outputs=("y",), listed=(), size=1.0):
    make = helper.make_tensor_value_info
    inputs = [make("x", FLOAT, shape)] + [make(t.name, t.data_type, list(t.dims)) for t in listed]
    graph = helper.make_graph(nodes, name, inputs, [make(o, FLOAT, None) for o in outputs], initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(10, 3 if opset < 9 else 8),
                              producer_name="ckksd tests/models")
    path = os.path.join(WHERE, name)
    onnx.save(model, path + ".onnx")
    session = ReferenceEvaluator(path + ".onnx", new_ops=[GlobalLpPool, LpNormalization, LRN] + [BatchNormalization] * (opset < 14))
    lines = []
    for _ in range(ROWS):
        row = rng.uniform(-size, size, [1 if isinstance(d, str) else d for d in shape]).astype(np.float32)
        got = np.concatenate([np.ravel(np.asarray(v, dtype=np.float64)) for v in session.run(None, {"x": row})])
        lines.append(np.concatenate([row.ravel(), got]))
    with open(path + ".txt", "w", encoding="ascii") as out:
        out.write(f"{ROWS} {row.size} {len(got)}\n")
        for line in lines:
            out.write(" ".join(f"{v:.9g}" for v in line) + "\n")


def listed(nodes, initialisers, opset, since, op, inputs, output, name, values, **attributes):
    """An operator whose lists are attributes before version `since` and inputs from it on."""
    if opset < since:
        spelled = {key: value for key, value in values.items() if value is not None}
        nodes.append(node(op, inputs, [output], name, **spelled, **attributes))
        return
    names = []
    for key, value in values.items():
        names.append("" if value is None else f"{name}_{key}")
        if value is None:
            continue
        initialisers.append(number(names[-1], value) if isinstance(value, float) else whole(names[-1], *value))
    while names and not names[-1]:
        names.pop()
    nodes.append(node(op, inputs + names, [output], name, **attributes))


def moves(opset):
    """Every operator whose parameters moved, on [n, 2, 3, 4]."""
    nodes, given = [], [positive("scale", 2), weights("shift", 2), weights("mean", 2), positive("variance", 2)]
    nodes.append(node("BatchNormalization", ["x", "scale", "shift", "mean", "variance"], ["a"], "normalise", epsilon=1e-3))
    pads = [0, 0, 1, 0, 0, 0, 0, 2]
    if opset < 11:
        nodes.append(node("Pad", ["a"], ["b"], "pad", pads=pads, value=0.5))
    else:
        given += [whole("pads", *pads), number("pad_value", 0.5)]
        nodes.append(node("Pad", ["a", "pads", "pad_value"], ["b"], "pad"))
    if opset >= 18:
        given += [whole("pads_of_two", 1, 0, 0, 1), whole("axes_of_two", -1, 1)]
        nodes.append(node("Pad", ["b", "pads_of_two", "", "axes_of_two"], ["b18"], "pad_some", mode="edge"))
    last = "b18" if opset >= 18 else "b"
    if opset < 10:
        nodes.append(node("Slice", [last], ["c"], "slice", starts=[1, -3], ends=[9, 2147483647], axes=[2, 3]))
    else:
        given += [whole("starts", 3, -3), whole("ends", 0, 9223372036854775807), whole("slice_axes", 2, 3), whole("steps", -1, 1)]
        nodes.append(node("Slice", [last, "starts", "ends", "slice_axes", "steps"], ["c"], "slice"))
    if opset < 11:
        nodes.append(node("Clip", ["c"], ["d"], "clip", min=-0.75, max=2.0))
    else:
        given += [number("low", -0.75), number("high", 2.0)]
        nodes.append(node("Clip", ["c", "low", "high"], ["d"], "clip"))
    listed(nodes, given, opset, 13, "Split", ["d"], "e", "split", {"split": [1, 2]}, axis=2)
    nodes[-1].output.append("f")
    nodes.append(node("Add", ["e", "f"], ["g"], "add_rows"))
    if opset >= 18:
        nodes.append(node("Split", ["g"], ["g1", "g2"], "split_evenly", axis=2, num_outputs=2))
        nodes.append(node("Concat", ["g2", "g1"], ["h"], "join", axis=2))
    else:
        nodes.append(node("Split", ["g"], ["g1", "g2"], "split_evenly", axis=2))
        nodes.append(node("Concat", ["g2", "g1"], ["h"], "join", axis=2))
    listed(nodes, given, opset, 13, "Unsqueeze", ["h"], "i", "longer", {"axes": [1]})
    listed(nodes, given, opset, 13, "Squeeze", ["i"], "j", "shorter", {"axes": [1]})
    listed(nodes, given, opset, 13, "ReduceSum", ["j"], "k", "sum", {"axes": [-1]}, keepdims=0)
    listed(nodes, given, opset, 18, "ReduceMean", ["j"], "l", "mean", {"axes": [3]}, keepdims=0)
    nodes.append(node("Sub", ["k", "l"], ["m"], "difference"))
    ratio = {"ratio": 0.25} if opset < 12 else {}
    nodes.append(node("Dropout", ["m"], ["n"], "dropout", **ratio))
    given.append(whole("flat", 0, -1))
    nodes.append(node("Reshape", ["n", "flat"], ["y"], "flatten", **({"allowzero": 0} if opset >= 14 else {})))
    case(f"moves-{opset}", opset, ["n", 2, 3, 4], nodes, given)


def images():
    case("image-21", 21, ["n", 2, 9, 8],
         [node("Conv", ["x", "w1", "b1"], ["a"], "conv", pads=[1, 0, 2, 1], strides=[2, 1]),
          node("BatchNormalization", ["a", "s", "o", "m", "v"], ["b"], "normalise"),
          node("Relu", ["b"], ["c"], "relu"),
          node("AveragePool", ["c"], ["d"], "pool", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1, pads=[0, 1, 0, 1],
               count_include_pad=1),
          node("Conv", ["d", "w2"], ["e"], "depthwise", group=4, dilations=[2, 1], pads=[2, 1, 2, 1]),
          node("AveragePool", ["e"], ["f"], "dilated", kernel_shape=[2, 2], dilations=[1, 2]),
          node("GlobalAveragePool", ["f"], ["g"], "all"), node("Flatten", ["g"], ["h"], "flatten"),
          node("Gemm", ["h", "w3", "b3"], ["y"], "dense", transB=1)],
         [weights("w1", 4, 2, 3, 3), weights("b1", 4), positive("s", 4), weights("o", 4), weights("m", 4), positive("v", 4),
          weights("w2", 8, 1, 2, 3), weights("w3", 3, 8), weights("b3", 3)])
    case("same-12", 12, ["n", 1, 6, 5],
         [node("Conv", ["x", "w1"], ["a"], "upper", auto_pad="SAME_UPPER", strides=[2, 2]),
          node("Conv", ["x", "w1"], ["b"], "lower", auto_pad="SAME_LOWER", strides=[2, 2]),
          node("Conv", ["x", "w1"], ["c"], "valid", auto_pad="VALID"),
          node("AveragePool", ["x"], ["d"], "pool", auto_pad="SAME_UPPER", kernel_shape=[2, 2]),
          node("Sub", ["a", "b"], ["e"], "difference"), node("Flatten", ["e"], ["f"], "f1"), node("Flatten", ["c"], ["g"], "f2"),
          node("Flatten", ["d"], ["h"], "f3"), node("Concat", ["f", "g", "h"], ["y"], "join", axis=1)],
         [weights("w1", 2, 1, 4, 3)])
    case("sequence-18", 18, ["n", 3, 10],
         [node("Conv", ["x", "w1", "b1"], ["a"], "first", pads=[2, 1], dilations=[2]),
          node("Softplus", ["a"], ["b"], "softplus"), node("Conv", ["b", "w2"], ["c"], "grouped", group=2, strides=[3]),
          node("ReduceMean", ["c", "axes"], ["y"], "mean", keepdims=0)],
         [weights("w1", 4, 3, 3), weights("b1", 4), weights("w2", 6, 2, 2), whole("axes", 2)])


def shapes():
    case("dynamic_batch-17", 17, ["n", 2, 3, 2],
         [node("Shape", ["x"], ["s"], "shape_of"), node("Gather", ["s", "zero"], ["n0"], "batch", axis=0),
          node("Unsqueeze", ["n0", "front"], ["n1"], "as_list"), node("Concat", ["n1", "minus"], ["to"], "shape", axis=0),
          node("Reshape", ["x", "to"], ["a"], "view"), node("MatMul", ["a", "w"], ["b"], "dense"),
          node("Shape", ["b"], ["s2"], "columns", start=1), node("ConstantOfShape", ["s2"], ["c"], "ones",
               value=helper.make_tensor("v", FLOAT, [1], [1.5])),
          node("Size", ["x"], ["count"], "size"), node("Cast", ["count"], ["f"], "as_float", to=FLOAT),
          node("Div", ["b", "f"], ["d"], "per_element"), node("Add", ["d", "c"], ["y"], "plus")],
         [numpy_helper.from_array(np.array(0, dtype=np.int64), "zero"), whole("front", 0), whole("minus", -1), weights("w", 12, 4)])
    case("selection-20", 20, ["n", 4, 3],
         [node("Transpose", ["x"], ["a"], "turn", perm=[0, 2, 1]), node("Gather", ["a", "picked"], ["b"], "pick", axis=2),
          node("Tile", ["b", "twice"], ["c"], "tile"), node("Expand", ["narrow", "wide"], ["k"], "expand"),
          node("Mul", ["c", "k"], ["d"], "weigh"), node("Where", ["mask", "d", "other"], ["e"], "choose"),
          node("Concat", ["e", "other"], ["f"], "beside", axis=1), node("Neg", ["f"], ["g"], "negative"),
          node("ReduceSumSquare", ["g", "axis"], ["h"], "squares", keepdims=0), node("Sum", ["h", "row", "h"], ["i"], "sum"),
          node("Mean", ["i", "h"], ["y"], "mean")],
         [whole("picked", -1, 0, 2), whole("twice", 1, 2, 1), weights("narrow", 1, 6, 1), whole("wide", 1, 1, 3),
          numpy_helper.from_array(rng.uniform(size=(1, 6, 3)) < 0.6, "mask"), weights("other", 1, 6, 3), whole("axis", 2),
          weights("row", 12)])
    case("depth-13", 13, ["n", 4, 2, 2],
         [node("DepthToSpace", ["x"], ["a"], "spread", blocksize=2, mode="CRD"),
          node("SpaceToDepth", ["a"], ["b"], "gather", blocksize=2), node("Sub", ["x", "b"], ["y"], "difference")], [])
    case("batched-15", 15, ["n", 2, 3, 4],
         [node("MatMul", ["x", "right"], ["a"], "right_of"), node("MatMul", ["left", "a"], ["y"], "left_of")],
         [weights("right", 2, 4, 5), weights("left", 2, 2, 3)])


def types():
    def raw(name, array, kind):
        made = helper.make_tensor(name, kind, list(array.shape), array.astype(np.float32).ravel().tolist())
        return made
    values = np.array([[0.5, -1.25, 2], [3, -0.75, 1.5]])
    given = [raw("half", values, TensorProto.FLOAT16), raw("brain", values, TensorProto.BFLOAT16),
             numpy_helper.from_array(values.astype(np.float16), "half_raw"), numpy_helper.from_array(values, "double_raw"),
             helper.make_tensor("double", TensorProto.DOUBLE, [2, 3], values.ravel().tolist())]
    whole_values = np.array([[1, 2, 3], [4, 5, 100]])
    for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        given.append(numpy_helper.from_array(whole_values.astype(kind), kind + "_raw"))
        given.append(helper.make_tensor(kind, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [2, 3], whole_values.ravel().tolist()))
    given.append(numpy_helper.from_array(whole_values > 2, "bool_raw"))
    given.append(helper.make_tensor("bool", TensorProto.BOOL, [2, 3], [0, 1, 0, 1, 1, 0]))
    nodes, last = [], "x"
    for i, t in enumerate(given):
        nodes.append(node("Cast", [t.name], [f"c{i}"], f"cast_{t.name}", to=FLOAT))
        nodes.append(node("Add" if i % 2 else "Sub", [last, f"c{i}"], [f"s{i}"], f"with_{t.name}"))
        last = f"s{i}"
    nodes.append(node("Identity", [last], ["y"], "out"))
    case("types-16", 16, ["n", 2, 3], nodes, given)
    listed_weights = [weights("w", 3, 4), weights("c", 4)]
    case("listed-7", 7, ["n", 3], [node("Gemm", ["x", "w", "c"], ["y"], "layer")], listed_weights, listed=listed_weights)


def functions():
    plain = [("Elu", {"alpha": 0.7}), ("Selu", {}), ("Celu", {"alpha": 1.5}), ("LeakyRelu", {"alpha": 0.2}), ("Softplus", {}),
             ("Softsign", {}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("HardSwish", {}), ("Gelu", {}),
             ("Gelu", {"approximate": "tanh"}), ("Mish", {}), ("Erf", {}), ("Abs", {}), ("Exp", {}), ("Relu", {}), ("Tanh", {})]
    nodes = [node(op, ["x"], [f"v{i}"], f"{op}_{i}", **attributes) for i, (op, attributes) in enumerate(plain)]
    nodes += [node("PRelu", ["x", "slopes"], ["p"], "prelu"), node("Max", ["x", "low"], ["q"], "at_least"),
              node("Min", ["high", "x"], ["r"], "at_most"), node("Pow", ["x", "three"], ["t"], "cube"),
              node("Concat", [f"v{i}" for i in range(len(plain))] + ["p", "q", "r", "t"], ["y"], "join", axis=1)]
    case("functions-20", 20, ["n", 5], nodes,
         [weights("slopes", 5), number("low", -0.25), number("high", 0.5), number("three", 3.0)], size=4.0)


def gates():
    """Activations as exporters take them apart: each becomes one function."""
    spelled = {
        "silu": [("Sigmoid", ["x"], "g"), ("Mul", ["x", "g"], "y")],
        "silu_turned": [("Sigmoid", ["x"], "g"), ("Mul", ["g", "x"], "y")],
        "silu_steep": [("Mul", ["x", "k1702"], "s"), ("Sigmoid", ["s"], "g"), ("Mul", ["x", "g"], "y")],
        "gelu_torch": [("Div", ["x", "root2"], "s"), ("Erf", ["s"], "e"), ("Add", ["e", "one"], "f"), ("Mul", ["x", "f"], "g"),
                       ("Mul", ["g", "half"], "y")],
        "gelu_keras": [("Mul", ["x", "half"], "h"), ("Mul", ["x", "inv_root2"], "s"), ("Erf", ["s"], "e"), ("Add", ["one", "e"], "f"),
                       ("Mul", ["h", "f"], "y")],
        "gelu_split": [("Mul", ["x", "half"], "h"), ("Mul", ["x", "inv_root2"], "s"), ("Erf", ["s"], "e"), ("Mul", ["h", "e"], "f"),
                       ("Add", ["f", "h"], "y")],
        "gelu_tanh_power": [("Pow", ["x", "three"], "c"), ("Mul", ["c", "k044"], "d"), ("Add", ["x", "d"], "s"),
                            ("Mul", ["s", "k0797"], "t"), ("Tanh", ["t"], "e"), ("Add", ["e", "one"], "f"), ("Mul", ["f", "half"], "h"),
                            ("Mul", ["x", "h"], "y")],
        "gelu_tanh_products": [("Mul", ["x", "x"], "b"), ("Mul", ["b", "x"], "c"), ("Mul", ["k044", "c"], "d"), ("Add", ["d", "x"], "s"),
                               ("Mul", ["k0797", "s"], "t"), ("Tanh", ["t"], "e"), ("Add", ["one", "e"], "f"), ("Mul", ["x", "half"], "h"),
                               ("Mul", ["h", "f"], "y")],
        "hardswish_clip": [("Add", ["x", "three"], "s"), ("Clip", ["s", "zero", "six"], "g"), ("Mul", ["x", "g"], "m"),
                           ("Div", ["m", "six"], "y")],
        "hardswish_gate": [("HardSigmoid", ["x"], "g"), ("Mul", ["x", "g"], "y")],
        "mish": [("Softplus", ["x"], "s"), ("Tanh", ["s"], "g"), ("Mul", ["x", "g"], "y")],
    }
    constants = {"k1702": 1.702, "root2": 2 ** 0.5, "inv_root2": 0.5 ** 0.5, "one": 1, "half": 0.5, "three": 3, "zero": 0, "six": 6,
                 "k044": 0.044715, "k0797": (2 / np.pi) ** 0.5}
    for name, steps in spelled.items():
        nodes = [node("MatMul", ["input", "w"], ["x"], "layer")]
        for op, inputs, output in steps:
            extra = {"alpha": 1 / 6, "beta": 0.5} if op == "HardSigmoid" else {}
            nodes.append(node(op, inputs, [output], f"{op}_{output}", **extra))
        nodes.append(node("MatMul", ["y", "v"], ["out"], "after"))
        used = {i for _, inputs, _ in steps for i in inputs}
        given = [weights("w", 3, 4), weights("v", 4, 2)] + [number(k, v) for k, v in constants.items() if k in used]
        for n in nodes:
            n.input[:] = ["x" if i == "input" else "hidden" if i == "x" else i for i in n.input]
            n.output[:] = ["hidden" if o == "x" else o for o in n.output]
        case(f"gate_{name}-17", 17, ["n", 3], nodes, given, outputs=("out",), size=3.0)


def normalisations():
    """Statistics of the row itself; one small model each, so that each is compiled by itself."""
    scale, shift = positive("scale", 4), weights("shift", 4)
    by_group = [positive("scale", 2), weights("shift", 2)]
    group = node("GroupNormalization", ["x", "scale", "shift"], ["y"], "norm", num_groups=2, epsilon=0.01)
    case("group_norm-18", 18, ["n", 4, 2, 2], [group], by_group)
    case("group_norm-21", 21, ["n", 4, 2, 2], [group], [scale, shift])
    case("rms_norm-23", 23, ["n", 4], [node("RMSNormalization", ["x", "scale"], ["y"], "norm", epsilon=0.1)], [scale])
    case("mean_variance-13", 13, ["n", 2, 3, 3], [node("MeanVarianceNormalization", ["x"], ["y"], "norm", axes=[2, 3])], [])
    case("lp_norm-22", 22, ["n", 6], [node("LpNormalization", ["x"], ["y"], "norm", axis=-1, p=2)], [])
    case("lp_norm_sizes-22", 22, ["n", 6], [node("LpNormalization", ["x"], ["y"], "norm", axis=1, p=1)], [])
    case("lrn-13", 13, ["n", 4, 2, 2], [node("LRN", ["x"], ["y"], "norm", size=3, alpha=0.5, beta=0.75, bias=1.5)], [])
    case("lp_pool-22", 22, ["n", 2, 4, 4], [node("LpPool", ["x"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2])], [])
    case("global_lp_pool-22", 22, ["n", 2, 3, 3], [node("GlobalLpPool", ["x"], ["y"], "pool", p=2)], [])


def attention():
    """Softmaxes within the row, and products of two encrypted matrices."""
    case("softmax_within-13", 13, ["n", 3, 4],
         [node("Softmax", ["x"], ["s"], "softmax", axis=1), node("MatMul", ["s", "w"], ["y"], "mix")], [weights("w", 4, 2)])
    case("log_softmax_within-13", 13, ["n", 2, 4], [node("LogSoftmax", ["x"], ["y"], "softmax", axis=-1)], [])
    nodes = [node("MatMul", ["x", f"w{i}"], [i], f"to_{i}") for i in "qkv"]
    nodes += [node("Transpose", ["k"], ["t"], "turn", perm=[0, 2, 1]), node("MatMul", ["q", "t"], ["s"], "scores"),
              node("Mul", ["s", "share"], ["u"], "scaled"), node("Softmax", ["u"], ["p"], "softmax", axis=-1),
              node("MatMul", ["p", "v"], ["y"], "attention")]
    case("attention-17", 17, ["n", 3, 4], nodes, [weights(f"w{i}", 4, 4) for i in "qkv"] + [number("share", 0.5)])
    nodes = [node("Einsum", ["x", "w"], ["a"], "layer", equation="b i j, jk -> b i k"),
             node("Einsum", ["a", "x"], ["s"], "scores", equation="...ik,...jk"),
             node("Einsum", ["s", "s", "v"], ["y"], "form", equation="bij,bji,j->bi")]
    case("einsum-12", 12, ["n", 2, 3], nodes, [weights("w", 3, 3), weights("v", 2)])
    nodes = [node("MatMul", ["x", "w"], ["a"], "layer"), node("Max", ["a", "x"], ["b"], "larger"),
             node("Min", ["b", "rims"], ["c"], "at_most"), node("Max", ["x", "low", "a"], ["d"], "largest"),
             node("Concat", ["c", "d"], ["y"], "join", axis=1)]
    case("extremes-13", 13, ["n", 4], nodes, [weights("w", 4, 4), weights("rims", 4), number("low", -0.2)])


def placement():
    nodes = [node("GatherElements", ["x", "order"], ["a"], "elements", axis=2), node("GatherND", ["a", "pairs"], ["b"], "slices", batch_dims=1),
             node("ScatterElements", ["x", "order", "a"], ["c"], "put", axis=2, reduction="add"),
             node("ScatterND", ["c", "spot", "row"], ["d"], "set"), node("CumSum", ["d", "two"], ["e"], "running", reverse=1),
             node("Trilu", ["e", "minus"], ["f"], "lower", upper=0), node("Compress", ["f", "keep"], ["g"], "kept", axis=2),
             node("Flatten", ["g"], ["h"], "flat"), node("Concat", ["h", "b"], ["i"], "join", axis=1),
             node("CastLike", ["i", "x"], ["y"], "real")]
    nodes.insert(0, node("Cast", ["keep_numbers"], ["keep"], "condition", to=TensorProto.BOOL))
    order = numpy_helper.from_array(np.array([[[2, 0, 1], [0, 1, 2], [1, -1, 0]]], dtype=np.int64), "order")
    case("placement-18", 18, [1, 3, 3], nodes,
         [order, numpy_helper.from_array(np.array([[1]], dtype=np.int64), "pairs"),
          numpy_helper.from_array(np.array([[0, 2]], dtype=np.int64), "spot"), weights("row", 1, 3), numpy_helper.from_array(np.array(2, dtype=np.int64), "two"),
          numpy_helper.from_array(np.array(-1, dtype=np.int64), "minus"), whole("keep_numbers", 1, 0, 1)])


def signals():
    """A spectrum: a window, half of a DFT, sizes of its parts."""
    nodes = [node("HannWindow", ["eight"], ["w"], "window", periodic=0), node("Unsqueeze", ["w", "last"], ["v"], "column"),
             node("Mul", ["x", "v"], ["a"], "windowed"), node("DFT", ["a"], ["b"], "spectrum", axis=1, onesided=1),
             node("ReduceSumSquare", ["b"], ["y"], "power", axes=[2], keepdims=0)]
    case("spectrum-17", 17, ["n", 8, 1], nodes, [numpy_helper.from_array(np.array(8, dtype=np.int64), "eight"), whole("last", 1)])
    nodes = [node("HammingWindow", ["four"], ["w"], "window"), node("STFT", ["x", "step", "w", "four"], ["y"], "frames")]
    case("frames-17", 17, ["n", 8, 1], nodes, [numpy_helper.from_array(np.array(v, dtype=np.int64), n) for n, v in (("four", 4), ("step", 2))])
    nodes = [node("BlackmanWindow", ["six"], ["w"], "window"), node("Mul", ["x", "w"], ["a"], "windowed"),
             node("Unsqueeze", ["a", "last"], ["b"], "column"), node("DFT", ["b", "", "axis"], ["y"], "whole")]
    case("dft-20", 20, ["n", 6], nodes, [numpy_helper.from_array(np.array(v, dtype=np.int64), n) for n, v in (("six", 6), ("axis", 1))] + [whole("last", 2)])


def constants():
    """What is computed while the model is read: all of it ends in weights."""
    nodes = [node("OneHot", ["classes", "depth", "marks"], ["a"], "hot"), node("EyeLike", ["a"], ["b"], "eye", k=1),
             node("Add", ["a", "b"], ["w"], "weights"), node("MatMul", ["x", "w"], ["c"], "layer"),
             node("NonZero", ["classes"], ["d"], "found"), node("Mod", ["d", "two"], ["e"], "odd"), node("Cast", ["e"], ["f"], "real", to=FLOAT),
             node("ReduceSum", ["f"], ["g"], "count", keepdims=0), node("Mul", ["c", "g"], ["h"], "times"),
             node("IsNaN", ["w"], ["i"], "nan"), node("IsInf", ["w"], ["j"], "inf"), node("Or", ["i", "j"], ["k"], "bad"),
             node("Where", ["k", "zero", "w"], ["l"], "clean"), node("MatMul", ["h", "l"], ["y"], "last")]
    case("constants-17", 17, ["n", 3], nodes,
         [whole("classes", 2, -1, 0), numpy_helper.from_array(np.array(3, dtype=np.int64), "depth"), whole("two", 2),
          numpy_helper.from_array(np.array([-0.5, 0.75], dtype=np.float32), "marks"), number("zero", 0)])


def resized():
    """Resize as its set 19 has it: chosen axes, one scale for both, antialiasing."""
    nodes = [node("Resize", ["x", "", "", "five"], ["a"], "smooth", axes=[2, 3], mode="linear", antialias=1),
             node("Resize", ["x", "", "half"], ["b"], "cubic", axes=[3, 2], mode="cubic", antialias=1, exclude_outside=1),
             node("Resize", ["x", "", "", "box"], ["c"], "within", axes=[2, 3], keep_aspect_ratio_policy="not_larger", mode="linear"),
             node("Resize", ["x", "", "", "box"], ["d"], "around", axes=[2, 3], keep_aspect_ratio_policy="not_smaller")]
    nodes += [node("Flatten", [i], [f"f{i}"], f"flat_{i}") for i in "abcd"]
    nodes.append(node("Concat", [f"f{i}" for i in "abcd"], ["y"], "join", axis=1))
    case("resized-19", 19, ["n", 1, 6, 8], nodes, [whole("five", 5, 3), numpy_helper.from_array(np.array([0.5, 0.5], dtype=np.float32), "half"),
                                                   whole("box", 7, 4)])


def choices():
    """Where by comparisons with a number: a leaky slope, a softplus as torch writes it, and a kink of a multiple."""
    nodes = [node("Greater", ["x", "zero"], ["a"], "above"), node("Mul", ["x", "tenth"], ["b"], "leak"),
             node("Where", ["a", "x", "b"], ["c"], "leaky"),
             node("Softplus", ["c"], ["d"], "soft"), node("Greater", ["c", "twenty"], ["e"], "far"), node("Where", ["e", "c", "d"], ["f"], "softplus"),
             node("Mul", ["x", "minus"], ["g"], "turned"), node("Add", ["g", "one"], ["h"], "moved"), node("LessOrEqual", ["half", "h"], ["i"], "below"),
             node("Where", ["i", "g", "g0"], ["j"], "clipped"), node("Concat", ["c", "f", "j"], ["y"], "join", axis=1)]
    case("choices-18", 18, ["n", 4], nodes, [number("zero", 0), number("tenth", 0.1), number("twenty", 20), number("minus", -2), number("one", 1),
                                             number("half", 0.5), number("g0", -0.5)], size=3.0)


def later():
    """Written after the others, with numbers of their own."""
    global rng
    rng = np.random.default_rng(23)
    normalisations()
    attention()
    placement()
    signals()
    constants()
    resized()
    choices()


if __name__ == "__main__":
    os.makedirs(WHERE, exist_ok=True)
    warnings.simplefilter("ignore")
    for version in (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21):
        moves(version)
    images()
    shapes()
    types()
    functions()
    gates()
    later()

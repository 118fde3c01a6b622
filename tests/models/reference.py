"""Small ONNX models that use every operator the compiler knows, with inputs and what onnx.reference makes of
them: tests/data/onnx/NAME.onnx and NAME.txt (rows, inputs per row, outputs per row; then one row per line)."""
import os
import warnings

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from common import tensor, write_model

WHERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "onnx")
ROWS = 6
rng = np.random.default_rng(5)
node = helper.make_node


def ml(op, inputs, outputs, name, **attributes):
    return node(op, inputs, outputs, name, domain="ai.onnx.ml", **attributes)


def random(*shape, size=0.5):
    return rng.normal(0, size, shape)


def numbers(values):
    return [float(v) for v in np.ravel(values)]


def shape(name, values):
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def case(name, input_shape, nodes, outputs, initialisers, size=1.0):
    path = os.path.join(WHERE, name + ".onnx")
    make = helper.make_tensor_value_info
    write_model(path, name, nodes, [make("x", TensorProto.FLOAT, input_shape)],
                [make(o, kind, None) for o, kind in outputs], initialisers, is_complete=False)
    session = ReferenceEvaluator(path)
    lines = []
    for _ in range(ROWS):
        row = rng.uniform(-size, size, [1 if isinstance(d, str) else d for d in input_shape]).astype(np.float32)
        got = np.concatenate([np.ravel(np.asarray(v, dtype=np.float64)) for v in session.run(None, {"x": row})])
        lines.append((row.ravel(), got))
    with open(os.path.join(WHERE, name + ".txt"), "w", encoding="ascii") as out:
        out.write(f"{ROWS} {len(lines[0][0])} {len(lines[0][1])}\n")
        for row, got in lines:
            out.write(" ".join(f"{v:.9g}" for v in np.concatenate([row, got])) + "\n")


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def main():
    os.makedirs(WHERE, exist_ok=True)
    warnings.simplefilter("ignore")
    case("gemm", ["n", 5],
         [node("Gemm", ["x", "w", "c"], ["y"], "wide", alpha=0.5, beta=2.0),
          node("Gemm", ["y", "v"], ["z"], "narrow", transB=1)],
         [("z", FLOAT)], [tensor("w", random(5, 9)), tensor("c", random(9)), tensor("v", random(3, 9))])
    case("matmul_axes", ["n", 2, 3],
         [node("MatMul", ["x", "w"], ["y"], "each_row"), node("MatMul", ["u", "y"], ["z"], "from_the_left")],
         [("z", FLOAT)], [tensor("w", random(3, 4)), tensor("u", random(5, 2))])
    case("elementwise", ["n", 2, 3],
         [node("Sub", ["two", "x"], ["a"], "two_minus"), node("Mul", ["a", "row"], ["b"], "times_row"),
          node("Add", ["b", "column"], ["c"], "plus_column"), node("Div", ["c", "three"], ["d"], "by_three"),
          node("Sub", ["d", "row"], ["y"], "minus_row")],
         [("y", FLOAT)], [tensor("two", 2.0), tensor("row", random(3)), tensor("column", random(2, 1)), tensor("three", [3.0])])
    case("squares", ["n", 4],
         [node("MatMul", ["x", "w"], ["h"], "layer"), node("Mul", ["h", "h"], ["a"], "square"),
          node("Pow", ["x", "exponent"], ["b"], "power"), node("Mul", ["h", "x"], ["c"], "product"),
          node("Add", ["a", "b"], ["d"], "sum"), node("Sub", ["d", "c"], ["y"], "difference")],
         [("y", FLOAT)], [tensor("w", random(4, 4)), tensor("exponent", 2.0)])
    case("residual", ["n", 6],
         [node("Gemm", ["x", "w", "c"], ["h"], "layer"), node("Mul", ["h", "h"], ["s"], "square"),
          node("MatMul", ["s", "v"], ["t"], "back"), node("Add", ["x", "t"], ["r"], "skip"),
          node("MatMul", ["r", "u"], ["y"], "out")],
         [("y", FLOAT)], [tensor("w", random(6, 3)), tensor("c", random(3)), tensor("v", random(3, 6)), tensor("u", random(6, 2))])
    case("shapes", ["n", 1, 2, 4],
         [node("Flatten", ["x"], ["a"], "flatten"), node("Constant", [], ["k"], "k", value_floats=numbers(random(8))),
          node("Mul", ["a", "k"], ["b"], "weigh"), node("Reshape", ["b", "split"], ["c"], "split_rows"),
          node("Cast", ["c"], ["d"], "to_double", to=TensorProto.DOUBLE), node("Identity", ["d"], ["e"], "same"),
          node("Cast", ["e"], ["f"], "to_float", to=TensorProto.FLOAT), node("MatMul", ["f", "w"], ["y"], "layer")],
         [("y", FLOAT)], [shape("split", [0, -1, 4]), tensor("w", random(4, 2))])
    for name, op in (("relu", "Relu"), ("sigmoid", "Sigmoid"), ("tanh", "Tanh")):
        case(name, ["n", 4],
             [node("Gemm", ["x", "w", "c"], ["h"], "first"), node(op, ["h"], ["a"], "activation"),
              node("MatMul", ["a", "v"], ["y"], "second")],
             [("y", FLOAT)], [tensor("w", random(4, 7)), tensor("c", random(7)), tensor("v", random(7, 2))])
    case("silu", ["n", 4],
         [node("Gemm", ["x", "w", "c"], ["h"], "first"), node("Sigmoid", ["h"], ["g"], "gate"),
          node("Mul", ["g", "h"], ["a"], "silu"), node("MatMul", ["a", "v"], ["s"], "second"),
          node("Softmax", ["s"], ["p"], "softmax"), node("ArgMax", ["s"], ["label"], "label", axis=1, keepdims=0)],
         [("label", INT), ("p", FLOAT)], [tensor("w", random(4, 7)), tensor("c", random(7)), tensor("v", random(7, 3))])
    case("scaler", ["n", 3],
         [ml("Scaler", ["x"], ["a"], "scaler", offset=[10.0, -200.0, 0.5], scale=[0.1, 0.01, 2.0]),
          node("MatMul", ["a", "w"], ["y"], "layer")],
         [("y", FLOAT)], [tensor("w", random(3, 2))], size=300.0)
    case("classifier_many", ["n", 5],
         [ml("LinearClassifier", ["x"], ["label", "scores"], "classifier", coefficients=numbers(random(4, 5)),
             intercepts=numbers(random(4)), classlabels_ints=[0, 1, 2, 3], post_transform="SOFTMAX")],
         [("label", INT), ("scores", FLOAT)], [])
    case("classifier_binary", ["n", 5],
         [ml("Scaler", ["x"], ["a"], "scaler", offset=[0.25], scale=[2.0]),
          ml("LinearClassifier", ["a"], ["label", "scores"], "classifier", coefficients=numbers(random(5)),
             intercepts=[0.3], classlabels_ints=[0, 1], post_transform="LOGISTIC"),
          ml("Normalizer", ["scores"], ["p"], "normalise", norm="L1")],
         [("label", INT), ("p", FLOAT)], [])
    case("raw_numbers", ["n", 3],
         [node("Gemm", ["x", "w", "c"], ["h"], "layer"), node("Gemm", ["h", "v"], ["y"], "price")],
         [("y", FLOAT)], [tensor("w", random(3, 4, size=0.01)), tensor("c", random(4)), tensor("v", random(4, 2, size=40))],
         size=5000.0)


def refused():
    """A model with three operators that cannot run encrypted; there is nothing to evaluate."""
    make = helper.make_tensor_value_info
    write_model(os.path.join(WHERE, "refused.onnx"), "refused",
                [node("MatMul", ["x", "w"], ["h"], "layer"), node("ReduceMax", ["h"], ["c"], "maximum_1", axes=[1]),
                 node("Floor", ["h"], ["e"], "floor_1"), node("Mod", ["x", "h"], ["r"], "ratio", fmod=1),
                 node("Add", ["c", "e"], ["s"], "sum_1"), node("Add", ["s", "r"], ["y"], "sum_2")],
                [make("x", TensorProto.FLOAT, ["n", 4])], [make("y", TensorProto.FLOAT, None)],
                [tensor("w", random(4, 4))], is_complete=False)


def deep():
    """Fourteen layers, each followed by tanh: more levels than there are without bootstrapping."""
    make = helper.make_tensor_value_info
    weights, nodes, at = np.random.default_rng(6), [], "x"
    for i in range(1, 15):
        nodes += [node("MatMul", [at, f"w{i}"], [f"h{i}"], f"layer_{i}"), node("Tanh", [f"h{i}"], [f"a{i}"], f"tanh_{i}")]
        at = f"a{i}"
    nodes[-1].output[0] = "y"
    write_model(os.path.join(WHERE, "deep.onnx"), "deep", nodes, [make("x", TensorProto.FLOAT, ["n", 4])],
                [make("y", TensorProto.FLOAT, None)],
                [tensor(f"w{i}", weights.normal(0, 0.7, (4, 4))) for i in range(1, 15)], is_complete=False)


if __name__ == "__main__":
    main()
    refused()
    deep()

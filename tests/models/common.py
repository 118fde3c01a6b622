"""What the three training scripts share: a small network in numpy, and writers of ONNX, CSV and IDX."""
import gzip
import os
import struct

import numpy as np
import onnx
from onnx import TensorProto, checker, helper, numpy_helper

OPSET = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]


def folder(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    os.makedirs(path, exist_ok=True)
    return path


def tensor(name, array):
    return numpy_helper.from_array(np.asarray(array, dtype=np.float32), name)


def write_model(path, name, nodes, inputs, outputs, initialisers, is_complete=True):
    graph = helper.make_graph(nodes, name, inputs, outputs, initialisers)
    model = helper.make_model(graph, opset_imports=OPSET, producer_name="ckksd tests/models", ir_version=8)
    if is_complete:
        checker.check_model(model)
    onnx.save(model, path)


def write_csv(path, header, rows):
    with open(path, "w", encoding="utf-8") as out:
        out.write(",".join(header) + "\n")
        for row in rows:
            out.write(",".join(f"{value:.7g}" for value in row) + "\n")


def write_labels(path, labels):
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(f"{label}\n" for label in labels)


def read_idx(path):
    with gzip.open(path, "rb") as file:
        data = file.read()
    dimensions = data[3]
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def write_idx(path, array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(head + array.astype(np.uint8).tobytes())


def calibration_rows(rows, count, rng):
    """Rows that show every column's extremes, filled up at random: `count` of them or a few more."""
    chosen = set(rows.argmin(axis=0).tolist()) | set(rows.argmax(axis=0).tolist())
    for index in rng.permutation(len(rows)):
        if len(chosen) >= count:
            break
        chosen.add(int(index))
    return rows[sorted(chosen)]


class Adam:
    """Decoupled weight decay on matrices; the caller holds the parameters."""

    def __init__(self, parameters, decay):
        self.parameters, self.decay, self.step_count = parameters, decay, 0
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]

    def step(self, gradients, rate):
        self.step_count += 1
        correction1, correction2 = 1 - 0.9**self.step_count, 1 - 0.999**self.step_count
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            if p.ndim > 1:
                p *= 1 - rate * self.decay
            p -= rate * (m / correction1) / (np.sqrt(v / correction2) + 1e-8)


__all__ = ["Adam", "TensorProto", "calibration_rows", "folder", "helper", "read_idx", "tensor", "write_csv",
           "write_idx", "write_labels", "write_model"]

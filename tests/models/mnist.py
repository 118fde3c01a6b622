"""MNIST digits, 784-64-10 with squares: the network that runs encrypted without any approximation.

Reads the IDX files in the folder given as argument or in MNIST_DIR.
"""
import os
import sys

import numpy as np
from scipy import ndimage

from common import Adam, TensorProto, folder, helper, read_idx, tensor, write_idx, write_model

HIDDEN, EPOCHS, VARIANTS, BATCH = 64, 40, 12, 128
TEST_ROWS, CALIBRATION_ROWS = 200, 256


def distorted(images, rng):
    """One gently rotated, sheared, scaled and shifted copy of each image."""
    out = np.empty_like(images)
    for i, image in enumerate(images):
        angle, shear = rng.normal(0, 0.13), rng.normal(0, 0.12)
        zoom = 1 + rng.normal(0, 0.07, 2)
        matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = matrix @ np.array([[1, shear], [0, 1]]) @ np.diag(zoom)
        offset = 13.5 - matrix @ np.array([13.5, 13.5]) + rng.normal(0, 0.9, 2)
        out[i] = ndimage.affine_transform(image, matrix, offset, order=1)
    return out


def train(images, labels, rng):
    w1 = rng.normal(0, 0.06, (784, HIDDEN)).astype(np.float32)
    b1 = rng.normal(0, 0.1, HIDDEN).astype(np.float32)
    w2 = rng.normal(0, 0.05, (HIDDEN, 10)).astype(np.float32)
    b2 = np.zeros(10, np.float32)
    parameters = [w1, b1, w2, b2]
    average = [p.copy() for p in parameters]
    optimiser = Adam(parameters, decay=0.02)
    step_total, step = EPOCHS * (len(images) // BATCH), 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            x = images[batch]
            hidden = x @ w1 + b1
            logits = hidden * hidden @ w2 + b2
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p -= 0.005
            p[np.arange(BATCH), labels[batch]] -= 0.95
            p /= BATCH
            g_hidden = 2 * hidden * (p @ w2.T)
            gradients = [x.T @ g_hidden, g_hidden.sum(0), (hidden * hidden).T @ p, p.sum(0)]
            rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * step / step_total))
            optimiser.step(gradients, np.float32(rate))
            for a, q in zip(average, parameters):
                a += 0.002 * (q - a)
            step += 1
    return average


def scores(parameters, images):
    w1, b1, w2, b2 = parameters
    return (images @ w1 + b1) ** 2 @ w2 + b2


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MNIST_DIR")
    if not source:
        sys.exit("mnist.py: name the folder of the MNIST IDX files, as argument or in MNIST_DIR")
    images = read_idx(os.path.join(source, "train-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(source, "train-labels-idx1-ubyte.gz"))
    test_images = read_idx(os.path.join(source, "test-images-idx3-ubyte.gz"))
    test_labels = read_idx(os.path.join(source, "test-labels-idx1-ubyte.gz"))
    rng = np.random.default_rng(2024)
    clean = images.astype(np.float32) / 255
    pool = np.concatenate([clean] + [distorted(clean, rng) for _ in range(VARIANTS)]).reshape(-1, 784)
    parameters = train(pool, np.tile(labels, VARIANTS + 1), rng)
    flat = test_images.reshape(-1, 784).astype(np.float32) / 255
    hit = scores(parameters, flat).argmax(1) == test_labels
    print(f"mnist: {hit.mean():.4f} of {len(hit)} test images, {hit[:TEST_ROWS].mean():.4f} of the first {TEST_ROWS}")

    where = folder("mnist")
    w1, b1, w2, b2 = parameters
    nodes = [
        helper.make_node("Div", ["pixels", "white"], ["unit"], "scale"),
        helper.make_node("Flatten", ["unit"], ["flat"], "flatten", axis=1),
        helper.make_node("Gemm", ["flat", "hidden_weight", "hidden_bias"], ["hidden"], "hidden", transB=1),
        helper.make_node("Mul", ["hidden", "hidden"], ["squared"], "square"),
        helper.make_node("Gemm", ["squared", "logits_weight", "logits_bias"], ["logits"], "logits", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax", axis=1),
        helper.make_node("ArgMax", ["logits"], ["label"], "label", axis=1, keepdims=0),
    ]
    write_model(
        os.path.join(where, "mnist.onnx"), "mnist", nodes,
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 28, 28])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
         helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [tensor("white", 255.0), tensor("hidden_weight", w1.T), tensor("hidden_bias", b1),
         tensor("logits_weight", w2.T), tensor("logits_bias", b2)])
    write_idx(os.path.join(where, "calibration-images-idx3-ubyte.gz"), images[:CALIBRATION_ROWS])
    write_idx(os.path.join(where, "test-images-idx3-ubyte.gz"), test_images[:TEST_ROWS])
    write_idx(os.path.join(where, "test-labels-idx1-ubyte.gz"), test_labels[:TEST_ROWS])


if __name__ == "__main__":
    main()

"""Two convolutional networks on MNIST, in numpy: the shape of LoLa (one convolution, squares) and of LeNet (two
convolutions, SiLU). Strides in place of pooling, since pooling costs a level where it does not fold.

Reads the IDX files in the folder given as argument or in MNIST_DIR. Calibration and test images are those of
mnist/.
"""
import os
import sys

import numpy as np

from common import Adam, TensorProto, folder, helper, read_idx, tensor, write_model
from mnist import distorted

VARIANTS, BATCH = 8, 128


class Dense:
    def __init__(self, rng, inputs, outputs, size):
        self.weight = rng.normal(0, size / np.sqrt(inputs), (inputs, outputs)).astype(np.float32)
        self.bias = np.zeros(outputs, np.float32)

    def forward(self, x):
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.weight + self.bias

    def backward(self, g):
        self.gradients = [self.x.T @ g, g.sum(0)]
        return (g @ self.weight.T).reshape(self.shape)


class Convolution:
    """Square kernel, stride 2, input [row, channel, y, x]."""

    def __init__(self, rng, inputs, outputs, kernel, padding, size):
        self.kernel, self.padding = kernel, padding
        self.weight = rng.normal(0, size / np.sqrt(inputs * kernel * kernel),
                                 (inputs * kernel * kernel, outputs)).astype(np.float32)
        self.bias = np.zeros(outputs, np.float32)

    def forward(self, x):
        p, k = self.padding, self.kernel
        x = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
        self.shape = x.shape
        windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::2, ::2]
        rows, channels, height, width = windows.shape[:4]
        self.columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(rows * height * width, -1)
        y = self.columns @ self.weight + self.bias
        self.places = (rows, height, width)
        return y.reshape(rows, height, width, -1).transpose(0, 3, 1, 2)

    def backward(self, g):
        rows, height, width = self.places
        g = g.transpose(0, 2, 3, 1).reshape(rows * height * width, -1)
        self.gradients = [self.columns.T @ g, g.sum(0)]
        if self.shape[1] == 1:
            return None  # the first layer
        p, k = self.padding, self.kernel
        back = (g @ self.weight.T).reshape(rows, height, width, self.shape[1], k, k)
        x = np.zeros(self.shape, np.float32)
        for dy in range(k):
            for dx in range(k):
                x[:, :, dy : dy + 2 * height : 2, dx : dx + 2 * width : 2] += back[..., dy, dx].transpose(0, 3, 1, 2)
        return x[:, :, p : x.shape[2] - p, p : x.shape[3] - p]


class Square:
    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, g):
        return 2 * self.x * g


class Silu:
    """With a price on inputs outside of [-5, 5]: what stays in a small range needs a polynomial of low degree."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, g):
        outside = self.x - np.clip(self.x, -5, 5)
        return g * self.s * (1 + self.x * (1 - self.s)) + np.float32(0.02 / len(g)) * outside


def forward(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x


def train(layers, images, labels, rng, epochs, rate, decay):
    """Adam with decoupled decay, smoothed labels, cosine rate; the parameters end as their running average."""
    trained = [layer for layer in layers if hasattr(layer, "weight")]
    parameters = [p for layer in trained for p in (layer.weight, layer.bias)]
    average = [p.copy() for p in parameters]
    optimiser = Adam(parameters, decay=decay)
    step_total, step = epochs * (len(images) // BATCH), 0
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            logits = forward(layers, images[batch])
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p -= 0.005
            p[np.arange(BATCH), labels[batch]] -= 0.95
            g = (p / BATCH).astype(np.float32)
            for layer in reversed(layers):
                g = layer.backward(g)
            gradients = [q for layer in trained for q in layer.gradients]
            size = np.sqrt(sum(float((q * q).sum()) for q in gradients))
            if size > 1:
                gradients = [q / size for q in gradients]
            optimiser.step(gradients, np.float32(rate * 0.5 * (1 + np.cos(np.pi * step / step_total))))
            for a, q in zip(average, parameters):
                a += 0.003 * (q - a)
            step += 1
    for a, q in zip(average, parameters):
        q[...] = a


def export(name, layers):
    nodes = [helper.make_node("Div", ["pixels", "white"], ["unit"], "scale")]
    tensors, at, count, is_flat = [tensor("white", 255.0)], "unit", {}, False

    def add(kind, inputs, op, **attributes):
        nonlocal at
        count[kind] = count.get(kind, 0) + 1
        out = f"{kind}_{count[kind]}"
        nodes.append(helper.make_node(op, inputs, [out], out, **attributes))
        at = out

    for layer in layers:
        if isinstance(layer, (Convolution, Dense)):
            weight, bias = f"weight_{len(tensors)}", f"bias_{len(tensors)}"
        if isinstance(layer, Convolution):
            k, p = layer.kernel, layer.padding
            tensors += [tensor(weight, layer.weight.T.reshape(layer.weight.shape[1], -1, k, k)), tensor(bias, layer.bias)]
            add("conv", [at, weight, bias], "Conv", kernel_shape=[k, k], strides=[2, 2], pads=[p, p, p, p])
        elif isinstance(layer, Dense):
            if not is_flat:
                add("flatten", [at], "Flatten", axis=1)
                is_flat = True
            tensors += [tensor(weight, layer.weight.T), tensor(bias, layer.bias)]
            add("dense", [at, weight, bias], "Gemm", transB=1)
        elif isinstance(layer, Square):
            add("square", [at, at], "Mul")
        else:
            gated = at
            add("gate", [gated], "Sigmoid")
            add("silu", [gated, at], "Mul")
    nodes[-1].output[0] = "logits"
    nodes.append(helper.make_node("ArgMax", ["logits"], ["label"], "label", axis=1, keepdims=0))
    make = helper.make_tensor_value_info
    write_model(os.path.join(folder(name), f"{name}.onnx"), name, nodes,
                [make("pixels", TensorProto.FLOAT, ["batch", 1, 28, 28])],
                [make("label", TensorProto.INT64, ["batch"]), make("logits", TensorProto.FLOAT, ["batch", 10])], tensors)


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MNIST_DIR")
    if not source:
        sys.exit("image_networks.py: name the folder of the MNIST IDX files, as argument or in MNIST_DIR")
    wanted = sys.argv[2:] or ["lola", "lenet"]
    images = read_idx(os.path.join(source, "train-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(source, "train-labels-idx1-ubyte.gz"))
    test = read_idx(os.path.join(source, "test-images-idx3-ubyte.gz")).astype(np.float32)[:, None] / 255
    test_labels = read_idx(os.path.join(source, "test-labels-idx1-ubyte.gz"))
    rng = np.random.default_rng(77)
    clean = images.astype(np.float32) / 255
    pool = np.concatenate([clean] + [distorted(clean, rng) for _ in range(VARIANTS)])[:, None]
    pool_labels = np.tile(labels, VARIANTS + 1)
    networks = {
        "lola": ([Convolution(rng, 1, 5, 5, 1, 1.0), Square(), Dense(rng, 845, 100, 1.0), Square(),
                  Dense(rng, 100, 10, 0.5)], 16, 2e-3, 0.05),
        "lenet": ([Convolution(rng, 1, 6, 5, 2, 1.5), Silu(), Convolution(rng, 6, 16, 5, 0, 1.5), Silu(),
                   Dense(rng, 400, 64, 1.5), Silu(), Dense(rng, 64, 10, 1.0)], 6, 3e-3, 0.05),
    }
    for name in wanted:
        layers, epochs, rate, decay = networks[name]
        train(layers, pool, pool_labels, rng, epochs, rate, decay)
        hit = forward(layers, test).argmax(1) == test_labels
        print(f"{name}: {hit.mean():.4f} of {len(hit)} test images, {hit[:200].mean():.4f} of the first 200", flush=True)
        for layer in layers:
            if hasattr(layer, "x"):
                print(f"  {type(layer).__name__}: inputs within {layer.x.min():.2f} and {layer.x.max():.2f}", flush=True)
        export(name, layers)


if __name__ == "__main__":
    main()

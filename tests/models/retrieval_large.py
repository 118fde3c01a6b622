"""Private retrieval over as many embeddings as asked for: unit vectors in float32, each query one of them, disturbed.
Writes the model with its weights in a file beside it, calibration and test queries, and which row each finds. Needs
numpy alone: the ONNX file is put together byte by byte.

    python3 tests/models/retrieval_large.py FOLDER [ROWS]
"""
import os
import sys

import numpy as np

WIDTH, CALIBRATION_ROWS, TEST_ROWS = 128, 16, 24
FLOAT, INT64 = 1, 7


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def number(field, n):
    return varint(field << 3) + varint(n)


def block(field, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(key, value):
    return block(1, key) + block(2, value)


def value_info(name, kind, dims):
    shape = b"".join(block(1, block(2, d) if isinstance(d, str) else number(1, d)) for d in dims)
    return block(1, name) + block(2, block(1, number(1, kind) + block(2, shape)))


def attribute(name, n):
    return block(1, name) + number(3, n) + number(20, 2)


def node(kind, name, inputs, output, **attributes):
    out = b"".join(block(1, i) for i in inputs) + block(2, output) + block(3, name) + block(4, kind)
    return out + b"".join(block(5, attribute(k, v)) for k, v in attributes.items())


def model(rows, size):
    tensor = number(1, rows) + number(1, WIDTH) + number(2, FLOAT) + block(8, "embeddings")
    tensor += block(13, entry("location", "embeddings.bin")) + block(13, entry("length", str(size))) + number(14, 1)
    graph = block(1, node("Gemm", "compare", ["query", "embeddings"], "similarity", transB=1))
    graph += block(1, node("ArgMax", "nearest", ["similarity"], "nearest_row", axis=1, keepdims=0))
    graph += block(2, "retrieval") + block(5, tensor) + block(11, value_info("query", FLOAT, ["batch", WIDTH]))
    graph += block(12, value_info("nearest_row", INT64, ["batch"]))
    graph += block(12, value_info("similarity", FLOAT, ["batch", rows]))
    return number(1, 8) + block(2, "ckksd") + block(7, graph) + block(8, number(2, 13))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def main():
    where, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000000
    rng = np.random.default_rng(rows)
    os.makedirs(where, exist_ok=True)
    chosen = rng.choice(rows, CALIBRATION_ROWS + TEST_ROWS, replace=False)
    queries = np.zeros((len(chosen), WIDTH), np.float32)
    best, nearest = np.full(len(chosen), -2.0), np.zeros(len(chosen), np.int64)
    step = 65536
    with open(os.path.join(where, "embeddings.bin"), "wb") as f:
        for at in range(0, rows, step):
            part = unit(rng.standard_normal((min(step, rows - at), WIDTH), dtype=np.float32))
            mine = (chosen >= at) & (chosen < at + len(part))
            queries[mine] = part[chosen[mine] - at]
            part.astype("<f4").tofile(f)
    queries = unit(queries + 0.5 * unit(rng.standard_normal(queries.shape, dtype=np.float32))).astype(np.float32)
    # the oracle: clear scores in binary64
    stored = np.memmap(os.path.join(where, "embeddings.bin"), "<f4", "r", shape=(rows, WIDTH))
    for at in range(0, rows, step):
        scores = stored[at:at + step].astype(np.float64) @ queries.astype(np.float64).T
        top, place = scores.max(0), scores.argmax(0)
        nearest[top > best] = place[top > best] + at
        best = np.maximum(best, top)
    print(f"retrieval of {rows} x {WIDTH}: {(nearest == chosen).mean():.4f} of {len(chosen)} queries find their row")
    with open(os.path.join(where, "retrieval.onnx"), "wb") as f:
        f.write(model(rows, rows * WIDTH * 4))
    np.save(os.path.join(where, "calibration.npy"), queries[:CALIBRATION_ROWS])
    np.save(os.path.join(where, "test.npy"), queries[CALIBRATION_ROWS:])
    with open(os.path.join(where, "test-labels.txt"), "w") as f:
        f.write("".join(f"{n}\n" for n in nearest[CALIBRATION_ROWS:]))


if __name__ == "__main__":
    main()

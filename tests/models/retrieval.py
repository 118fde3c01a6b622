"""Private retrieval: an encrypted 128-dimensional query against 10,000 clear embeddings. No data set: unit vectors in
clusters of unequal size and spread, so that a query has near misses and the nearest neighbour means something; each
query is one of the embeddings, disturbed. Embeddings rest as 8-bit integers with one scale.
"""
import os

import numpy as np

from common import TensorProto, folder, helper, write_labels, write_model

WIDTH, ROWS, CLUSTERS, CALIBRATION_ROWS, TEST_ROWS = 128, 10000, 400, 128, 200


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def main():
    rng = np.random.default_rng(128)
    centres = unit(rng.normal(size=(CLUSTERS, WIDTH)))
    share = rng.dirichlet(np.full(CLUSTERS, 2.0))
    spread = rng.uniform(0.3, 0.9, CLUSTERS)
    member = rng.choice(CLUSTERS, ROWS, p=share)
    rows = unit(centres[member] + spread[member, None] * unit(rng.normal(size=(ROWS, WIDTH))))
    scale = float(np.abs(rows).max() / 127)
    stored = np.clip(np.rint(rows / scale), -127, 127).astype(np.int8)

    chosen = rng.choice(ROWS, CALIBRATION_ROWS + TEST_ROWS, replace=False)
    queries = unit(rows[chosen] + 0.25 * unit(rng.normal(size=(len(chosen), WIDTH)))).astype(np.float32)
    calibration, test = queries[:CALIBRATION_ROWS], queries[CALIBRATION_ROWS:]
    scores = test @ (stored * np.float32(scale)).T
    found = scores.argmax(1) == chosen[CALIBRATION_ROWS:]
    exact = (test @ rows.T).argsort(1)[:, -10:]
    top = scores.argsort(1)[:, -10:]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, top)])
    print(f"retrieval: {found.mean():.4f} of {len(test)} queries find their row, {recall:.4f} of the exact ten nearest")

    where = folder("retrieval")
    nodes = [
        helper.make_node("Cast", ["stored"], ["embeddings"], "widen", to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["query", "embeddings"], ["similarity"], "compare", transB=1, alpha=scale),
        helper.make_node("ArgMax", ["similarity"], ["nearest"], "nearest", axis=1, keepdims=0),
    ]
    make = helper.make_tensor_value_info
    write_model(os.path.join(where, "retrieval.onnx"), "retrieval", nodes,
                [make("query", TensorProto.FLOAT, ["batch", WIDTH])],
                [make("nearest", TensorProto.INT64, ["batch"]),
                 make("similarity", TensorProto.FLOAT, ["batch", ROWS])],
                [helper.make_tensor("stored", TensorProto.INT8, stored.shape, stored.tobytes(), raw=True)])
    np.save(os.path.join(where, "calibration.npy"), calibration)
    np.save(os.path.join(where, "test.npy"), test)
    write_labels(os.path.join(where, "test-labels.txt"), chosen[CALIBRATION_ROWS:])


if __name__ == "__main__":
    main()

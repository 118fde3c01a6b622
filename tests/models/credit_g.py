"""German credit (credit-g): a 61-32-1 network with SiLU over the one-hot encoded table.

Reads the ARFF file given as argument or in CREDIT_G_ARFF (Debian's package weka has it among its examples).
"""
import os
import re
import sys

import numpy as np

from common import Adam, TensorProto, calibration_rows, folder, helper, tensor, write_csv, write_labels, write_model

HIDDEN, EPOCHS, BATCH, TEST_ROWS = 32, 60, 50, 200


def read_arff(path):
    """The table with nominal attributes one-hot encoded, its header, and the class as 0 (bad) or 1 (good)."""
    attributes, rows = [], []
    with open(path, encoding="latin-1") as file:
        for line in map(str.strip, file):
            if line.lower().startswith("@attribute"):
                name, kind = re.match(r"@attribute\s+'?([^'\s]+)'?\s+(.*)", line, re.I).groups()
                values = re.findall(r"'[^']*'|[^,{}\s]+", kind) if kind.startswith("{") else None
                attributes.append((name, [v.strip("'") for v in values] if values else None))
            elif line and line[0] not in "%@":
                rows.append([v.strip("'") for v in re.findall(r"'[^']*'|[^,\s]+", line)])
    header, columns = [], []
    for index, (name, values) in enumerate(attributes[:-1]):
        cells = [row[index] for row in rows]
        if values is None:
            header.append(name)
            columns.append([float(cell) for cell in cells])
            continue
        for value in values:
            header.append(f"{name}={value}".replace(" ", "_"))
            columns.append([float(cell == value) for cell in cells])
    # two categories never occur in the table: nothing could be learnt about them
    table = np.array(columns).T
    occurs = table.any(axis=0)
    target = np.array([row[-1] == "good" for row in rows], dtype=np.float64)
    return table[:, occurs], [name for name, keep in zip(header, occurs) if keep], target


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def train(x, y, rng):
    w1 = rng.normal(0, 0.15, (x.shape[1], HIDDEN))
    b1 = np.zeros(HIDDEN)
    w2 = rng.normal(0, 0.2, (HIDDEN, 1))
    b2 = np.zeros(1)
    parameters = [w1, b1, w2, b2]
    optimiser = Adam(parameters, decay=0.7)
    step_total, step = EPOCHS * (len(x) // BATCH), 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            xb = x[batch] * (rng.random((len(batch), x.shape[1])) > 0.1)
            hidden = xb @ w1 + b1
            gate = sigmoid(hidden)
            active = hidden * gate
            g = (sigmoid(active @ w2 + b2) - y[batch, None]) / len(batch)
            g_hidden = g @ w2.T * (gate + active * (1 - gate))
            gradients = [xb.T @ g_hidden, g_hidden.sum(0), active.T @ g, g.sum(0)]
            optimiser.step(gradients, 3e-3 * 0.5 * (1 + np.cos(np.pi * step / step_total)))
            step += 1
    return parameters


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CREDIT_G_ARFF")
    if not source:
        sys.exit("credit_g.py: name credit-g.arff, as argument or in CREDIT_G_ARFF")
    table, header, target = read_arff(source)
    rng = np.random.default_rng(11)
    order = rng.permutation(len(table))
    test, fit = order[:TEST_ROWS], order[TEST_ROWS:]
    mean, deviation = table[fit].mean(0), table[fit].std(0)
    deviation[deviation == 0] = 1
    # rare categories would reach far out once standardised: one-hot columns are centred only
    is_flag = ((table == 0) | (table == 1)).all(0)
    deviation[is_flag] = 1
    standard = (table - mean) / deviation
    w1, b1, w2, b2 = train(standard[fit], target[fit], rng)
    hidden = standard @ w1 + b1
    score = (hidden * sigmoid(hidden) @ w2 + b2)[:, 0]
    hit = (score > 0) == (target > 0.5)
    print(f"credit-g: {hit[test].mean():.4f} of {TEST_ROWS} test rows, {hit[fit].mean():.4f} of the training rows, "
          f"hidden in [{hidden.min():.2f}, {hidden.max():.2f}], score in [{score.min():.2f}, {score.max():.2f}]")

    where = folder("credit-g")
    nodes = [
        helper.make_node("Sub", ["applicant", "mean"], ["centred"], "centre"),
        helper.make_node("Div", ["centred", "deviation"], ["standard"], "standardise"),
        helper.make_node("MatMul", ["standard", "hidden_weight"], ["hidden_product"], "hidden"),
        helper.make_node("Add", ["hidden_product", "hidden_bias"], ["hidden_sum"], "hidden_bias_add"),
        helper.make_node("Sigmoid", ["hidden_sum"], ["gate"], "gate"),
        helper.make_node("Mul", ["hidden_sum", "gate"], ["active"], "silu"),
        helper.make_node("Gemm", ["active", "score_weight", "score_bias"], ["score"], "score"),
        helper.make_node("Sigmoid", ["score"], ["probability"], "probability"),
    ]
    write_model(
        os.path.join(where, "credit-g.onnx"), "credit_g", nodes,
        [helper.make_tensor_value_info("applicant", TensorProto.FLOAT, ["batch", table.shape[1]])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", 1])],
        [tensor("mean", mean), tensor("deviation", deviation), tensor("hidden_weight", w1),
         tensor("hidden_bias", b1), tensor("score_weight", w2), tensor("score_bias", b2)])
    write_csv(os.path.join(where, "calibration.csv"), header, calibration_rows(table[fit], 200, rng))
    write_csv(os.path.join(where, "test.csv"), header, table[test])
    write_labels(os.path.join(where, "test-labels.txt"), target[test].astype(int))


if __name__ == "__main__":
    main()

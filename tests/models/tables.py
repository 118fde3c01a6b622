"""Pipelines of scikit-learn over real tables, exported by skl2onnx as users export them: columns with names,
text among them, imputers and encoders. Beside each model: calibration rows, test rows and what the pipeline
itself predicts for those, to the last digit that it prints.

Reads credit-g.arff and diabetes.arff (Pima) from the folder given as argument or in WEKA_DIR (Debian's package
weka has them among its examples)."""
import os
import re
import sys
import warnings

import numpy as np
import onnxruntime
import pandas as pd
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (MinMaxScaler, Normalizer, OneHotEncoder, OrdinalEncoder, StandardScaler)
from sklearn.svm import SVR

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = os.path.join(HERE, "..", "data", "tables")
OPSET = {"": 17, "ai.onnx.ml": 3}


def read_arff(path):
    names, kinds, rows = [], [], []
    with open(path, encoding="latin-1") as file:
        for line in map(str.strip, file):
            if line.lower().startswith("@attribute"):
                name, kind = re.match(r"@attribute\s+'?([^'\s]+)'?\s+(.*)", line, re.I).groups()
                names.append(name)
                kinds.append(kind.startswith("{"))
            elif line and line[0] not in "%@":
                rows.append([cell.strip("'") for cell in re.findall(r"'[^']*'|[^,\s]+", line)])
    table = pd.DataFrame(rows, columns=names)
    for name, is_text in zip(names, kinds):
        if not is_text:
            table[name] = table[name].astype(np.float64)
    return table


def types_of(table):
    kinds = {"float64": FloatTensorType, "int64": Int64TensorType}
    return [(name, kinds.get(str(table[name].dtype), StringTensorType)([None, 1])) for name in table.columns]


def feed(session, table):
    out = {}
    for given in session.get_inputs():
        if given.name == "X":
            out["X"] = table.to_numpy(np.float32)
            continue
        column = table[given.name]
        kind = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(string)": object}[given.type]
        out[given.name] = column.to_numpy(kind).reshape(-1, 1)
    return out


def write(folder, name, model, table, calibration, test, types, labels=None, options=None):
    """model and rows; expected.txt has, for each test row, a label (or -) and the numbers of the pipeline"""
    os.makedirs(folder, exist_ok=True)
    exported = to_onnx(model, initial_types=types, options=options, target_opset=OPSET)
    path = os.path.join(folder, name + ".onnx")
    with open(path, "wb") as out:
        out.write(exported.SerializeToString())
    table.iloc[calibration].to_csv(os.path.join(folder, "calibration.csv"), index=False, float_format="%.9g")
    rows = table.iloc[test]
    # another order of columns, and one that the model does not know
    shuffled = rows[list(reversed(list(rows.columns)))].copy() if types[0][0] != "X" else rows.copy()
    if types[0][0] != "X":
        shuffled.insert(1, "remark", ["none"] * len(shuffled))
    shuffled.to_csv(os.path.join(folder, "test.csv"), index=False, float_format="%.9g")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    got = session.run(None, feed(session, rows))
    if hasattr(model, "predict_proba"):
        values, names = model.predict_proba(rows), model.predict(rows)
        other = np.array([[row[k] for k in model.classes_] for row in got[1]])
    else:
        values, names = np.asarray(model.predict(rows)).reshape(len(rows), -1), ["-"] * len(rows)
        other = got[0].reshape(len(rows), -1)
    distance = np.abs(values - other).max()
    print(f"{name}: scikit-learn and onnxruntime differ by {distance:.1e} at most")
    with open(os.path.join(folder, "expected.txt"), "w", encoding="utf-8") as out:
        for label, row in zip(names, values):
            out.write("\t".join([str(label)] + [f"{v:.12g}" for v in row]) + "\n")
    if labels is not None:
        with open(os.path.join(folder, "test-labels.txt"), "w", encoding="utf-8") as out:
            out.writelines(f"{label}\n" for label in labels.iloc[test])
        print(f"  {100 * np.mean(np.asarray(names) == labels.iloc[test].to_numpy()):.1f} % of {len(rows)} test rows")


def missing(table, columns, share, rng):
    table = table.copy()
    for name in columns:
        table.loc[rng.random(len(table)) < share, name] = np.nan
    return table


def credit(folder):
    """German credit as a bank has it: seven numbers, thirteen texts, some numbers not filled in."""
    rng = np.random.default_rng(3)
    table = read_arff(os.path.join(folder, "credit-g.arff"))
    labels = table.pop("class")
    numbers = [name for name in table.columns if table[name].dtype == np.float64]
    texts = [name for name in table.columns if name not in numbers]
    table = missing(table, ["age", "duration"], 0.05, rng)
    order = rng.permutation(len(table))
    test, fit = order[:200], order[200:]
    model = make_pipeline(
        ColumnTransformer([("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
                           ("texts", OneHotEncoder(handle_unknown="ignore"), texts)]),
        LogisticRegression(C=0.3, max_iter=2000)).fit(table.iloc[fit], labels.iloc[fit])
    write(os.path.join(HERE, "credit-pipeline"), "credit-pipeline", model, table, fit[:200], test, types_of(table),
          labels)


def pima(folder):
    """Pima diabetes: zeros that mean "not measured", and a small network."""
    table = read_arff(os.path.join(folder, "diabetes.arff"))
    labels = table.pop("class")
    order = np.random.default_rng(8).permutation(len(table))
    test, fit = order[:168], order[168:]
    zeros = ["plas", "pres", "skin", "insu", "mass"]
    model = make_pipeline(
        ColumnTransformer([("zeros", SimpleImputer(strategy="median", missing_values=0.0), zeros)],
                          remainder="passthrough"),
        StandardScaler(),
        MLPClassifier((12,), activation="logistic", alpha=2, max_iter=2000, random_state=1)).fit(table.iloc[fit],
                                                                                     labels.iloc[fit])
    write(os.path.join(HERE, "pima-diabetes"), "pima-diabetes", model, table, fit[:200], test, types_of(table), labels)


def progression():
    """Diabetes progression (scikit-learn's table): a regression, one input for each column."""
    bunch = load_diabetes(as_frame=True, scaled=False)
    table = bunch.data.astype(np.float64)
    order = np.random.default_rng(2).permutation(len(table))
    test, fit = order[:92], order[92:]
    model = make_pipeline(StandardScaler(), Ridge(alpha=1.0)).fit(table.iloc[fit], bunch.target.iloc[fit])
    write(os.path.join(HERE, "progression"), "progression", model, table, fit[:150], test, types_of(table))


def small():
    """Every encoder once, on a made-up table of 60 rows."""
    rng = np.random.default_rng(6)
    n = 60
    table = pd.DataFrame({"height": np.round(rng.normal(170, 9, n), 1), "size": rng.integers(1, 5, n),
                          "colour": rng.choice(["red", "green", "dark blue"], n),
                          "town": rng.choice(["Ulm", "Bonn", "Köln", "Hof, the"], n)})
    table["weight"] = np.round(0.5 * table["height"] + rng.normal(0, 9, n), 1)
    y2, y3 = np.where(rng.random(n) > 0.5, "yes", "no"), rng.integers(0, 3, n)
    real, text = ["height", "weight"], ["colour", "town"]
    logistic = lambda: LogisticRegression(max_iter=500)
    rows = np.arange(n)

    def one(name, transformers, labels, final=None, data=table, types=None, **more):
        model = make_pipeline(ColumnTransformer(transformers), final or logistic()).fit(data, labels)
        write(os.path.join(SMALL, name), name, model, data, rows[:50], rows[40:], types or types_of(data), **more)

    one("ordinal", [("n", MinMaxScaler(), real), ("o", OrdinalEncoder(), text)], y2)
    one("refusing", [("n", StandardScaler(), real), ("o", OneHotEncoder(), text + ["size"])], y3)
    one("first_dropped", [("n", "passthrough", real),
                          ("o", OneHotEncoder(drop="first", handle_unknown="ignore"), text)], y2)
    blank = table.copy()
    blank.loc[rng.random(n) < 0.2, "colour"] = ""
    one("text_imputed", [("n", StandardScaler(), real),
                         ("t", make_pipeline(SimpleImputer(strategy="most_frequent", missing_values=""),
                                             OneHotEncoder()), ["colour"])], y2, data=blank)
    one("scaled_codes", [("a", make_pipeline(OneHotEncoder(sparse_output=False), StandardScaler()), ["colour"]),
                         ("b", make_pipeline(OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
                                             StandardScaler()), ["town"])], y3)
    one("normalised", [("n", make_pipeline(StandardScaler(), Normalizer("l2")), real),
                       ("m", Normalizer("max"), ["size"])], y2)
    matrix = pd.DataFrame(np.column_stack([table["height"], table["weight"], table["size"]]).astype(np.float64),
                          columns=["height", "weight", "size"])
    matrix = missing(matrix, ["weight"], 0.2, rng)
    model = make_pipeline(SimpleImputer(), StandardScaler(), logistic()).fit(matrix.to_numpy(), y3)
    write(os.path.join(SMALL, "matrix"), "matrix", model, matrix, rows[:50], rows[40:],
          [("X", FloatTensorType([None, 3]))])
    plain = table[["height", "size", "weight"]].astype(np.float64)
    target = 0.3 * plain["height"] - plain["size"] + rng.normal(0, 2, n)
    write(os.path.join(SMALL, "support"), "support", make_pipeline(StandardScaler(), SVR(kernel="linear")).fit(plain, target),
          plain, rows[:50], rows[40:], types_of(plain))
    write(os.path.join(SMALL, "descent"), "descent",
          make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=1)).fit(plain, y2), plain, rows[:50],
          rows[40:], types_of(plain))


def main():
    warnings.simplefilter("ignore")
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WEKA_DIR")
    if not folder:
        sys.exit("tables.py: name the folder of credit-g.arff and diabetes.arff, as argument or in WEKA_DIR")
    credit(folder)
    pima(folder)
    progression()
    small()


if __name__ == "__main__":
    main()

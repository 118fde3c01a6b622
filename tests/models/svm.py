"""Support vector machines as scikit-learn exports them: every kernel, two and three classes, with probabilities
and without, regression and novelty; in tests/data/svm with what scikit-learn itself says of the rows."""
import os
import sys
import warnings

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_diabetes, load_wine
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, NuSVC, OneClassSVM

warnings.filterwarnings("ignore")
WHERE = os.path.join(os.path.dirname(__file__), "..", "data", "svm")
ROWS = 24

wine, classes = load_wine(return_X_y=True)
patients, progress = load_diabetes(return_X_y=True)
wine, patients = wine[:, :6].astype(np.float32), patients[:, :6].astype(np.float32)
two = classes < 2
MODELS = {
    "linear2": (SVC(kernel="linear"), wine[two], classes[two]),
    "linear3": (SVC(kernel="linear", probability=True), wine, classes),
    "rbf3": (SVC(C=2), wine, classes),
    "rbf2": (SVC(probability=True), wine[two], classes[two]),
    "square2": (SVC(kernel="poly", degree=2, coef0=1), wine[two], classes[two]),
    "cubic3": (SVC(kernel="poly", degree=3, coef0=1), wine, classes),
    "sigmoid2": (SVC(kernel="sigmoid", gamma=0.05), wine[two], classes[two]),
    "nu3": (NuSVC(nu=0.3), wine, np.array(["low", "mid", "high"])[classes]),
    "regression": (SVR(C=50), patients[:120], progress[:120] / 100),
    "novelty": (OneClassSVM(nu=0.2), wine, None),
}


def main():
    os.makedirs(WHERE, exist_ok=True)
    for name, (machine, rows, wanted) in MODELS.items():
        model = make_pipeline(StandardScaler(), machine)
        model.fit(rows, wanted)
        options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
        graph = to_onnx(model, rows[:1], options=options, target_opset={"": 17, "ai.onnx.ml": 1})
        with open(os.path.join(WHERE, f"{name}.onnx"), "wb") as file:
            file.write(graph.SerializeToString())
        chosen = rows[:: len(rows) // ROWS][:ROWS]
        with open(os.path.join(WHERE, f"{name}.txt"), "w", encoding="ascii") as file:
            said = model.predict(chosen)
            shares = model.predict_proba(chosen) if hasattr(model, "predict_proba") else np.zeros((ROWS, 0))
            file.write(f"{ROWS} {rows.shape[1]} {shares.shape[1]}\n")
            for row, label, share in zip(chosen, said, shares):
                file.write(" ".join([f"{x:.9g}" for x in row] + [str(label)] + [f"{x:.6f}" for x in share]) + "\n")


if __name__ == "__main__":
    sys.exit(main())

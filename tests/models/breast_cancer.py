"""Breast cancer (Wisconsin, diagnostic; scikit-learn's table): logistic regression as a Scaler and a
LinearClassifier, the shape in which scikit-learn pipelines are usually exported."""
import os

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from common import TensorProto, calibration_rows, folder, helper, write_csv, write_labels, write_model


def main():
    table = load_breast_cancer()
    x, test_x, y, test_y = train_test_split(table.data, table.target, test_size=169, random_state=7,
                                            stratify=table.target)
    scaler = StandardScaler().fit(x)
    classifier = LogisticRegression(C=0.3, max_iter=1000).fit(scaler.transform(x), y)
    print(f"breast-cancer: {classifier.score(scaler.transform(test_x), test_y):.4f} of {len(test_y)} test rows")

    where = folder("breast-cancer")
    weight, bias = classifier.coef_[0], float(classifier.intercept_[0])
    labels = [str(name) for name in table.target_names]
    nodes = [
        helper.make_node("Scaler", ["measurements"], ["standard"], "standardise", domain="ai.onnx.ml",
                         offset=[float(v) for v in scaler.mean_], scale=[float(1 / v) for v in scaler.scale_]),
        helper.make_node("LinearClassifier", ["standard"], ["label", "scores"], "classifier", domain="ai.onnx.ml",
                         coefficients=[float(v) for v in np.concatenate([-weight, weight])],
                         intercepts=[-bias, bias], classlabels_strings=labels, multi_class=1,
                         post_transform="LOGISTIC"),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], "zip", domain="ai.onnx.ml",
                         classlabels_strings=labels),
    ]
    map_type = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    write_model(
        os.path.join(where, "breast-cancer.onnx"), "breast_cancer", nodes,
        [helper.make_tensor_value_info("measurements", TensorProto.FLOAT, ["batch", 30])],
        [helper.make_tensor_value_info("label", TensorProto.STRING, ["batch"]),
         helper.make_value_info("probabilities", helper.make_sequence_type_proto(map_type))], [])
    header = [str(name).replace(" ", "_") for name in table.feature_names]
    write_csv(os.path.join(where, "calibration.csv"), header, calibration_rows(x, 128, np.random.default_rng(1)))
    write_csv(os.path.join(where, "test.csv"), header, test_x)
    write_labels(os.path.join(where, "test-labels.txt"), [labels[v] for v in test_y])


if __name__ == "__main__":
    main()

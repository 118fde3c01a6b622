#!/usr/bin/python3
"""The foreign client against the real daemon, over ipc, tcp and TLS: its scores are the model's, computed from the ONNX file."""
import csv
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import foreign_client as foreign
import harness
import plain_client

onnx_pb2, = foreign.load_messages("onnx")


def clear_scores(rows):
    """Scaler and LinearClassifier straight from the ONNX file's attributes."""
    with open(f"{harness.MODELS}/breast-cancer/breast-cancer.onnx", "rb") as file:
        model = onnx_pb2.Model.FromString(file.read())
    attributes = {(node.op_type, a.name): a for node in model.graph.node for a in node.attribute}
    offset, scale = (np.array(attributes["Scaler", name].floats, dtype=np.float64) for name in ("offset", "scale"))
    weights = np.array(attributes["LinearClassifier", "coefficients"].floats, dtype=np.float64)
    bias = np.array(attributes["LinearClassifier", "intercepts"].floats, dtype=np.float64)
    x = (rows - offset) * scale
    return x @ weights.reshape(len(bias), -1).T + bias


def read_rows(columns, count):
    with open(f"{harness.MODELS}/breast-cancer/test.csv", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        return np.array([[float(row[c]) for c in columns] for row, _ in zip(reader, range(count))])


def scores_are_those_of_the_model(daemon, address):
    client = foreign.Client(address, daemon.token, daemon.ca)
    client.fetch("breast-cancer")
    client.register()
    rows = read_rows([c.name for c in client.description.columns], 3)
    for row, expected in zip(rows, clear_scores(rows)):
        got = client.infer(row)
        worst = np.abs(got - expected).max()
        print(f"  scores {got}, in the clear {expected}, difference {worst:.1e}")
        assert worst < client.description.promised_error, f"{got} instead of {expected}"


def scores_are_those_of_the_model_to_a_client_of_the_specification_alone(daemon, address):
    client = plain_client.Client(address, daemon.token)
    client.fetch("breast-cancer")
    client.register()
    row = read_rows([column["name"] for column in client.model["columns"]], 1)
    got, expected = client.infer(list(row[0])), clear_scores(row)[0]
    worst = np.abs(np.array(got) - expected).max()
    print(f"  scores {got}, in the clear {expected}, difference {worst:.1e}")
    assert worst < 2.25 * client.model["promised_error"], f"{got} instead of {expected}"  # and rounded, to steps of at most 5/2 of it


def a_table_with_text_scores_as_scikit_learn_does(daemon):
    client = foreign.Client(daemon.addresses()["ipc"], daemon.token)
    client.fetch("credit-pipeline")
    client.register()
    where = f"{harness.MODELS}/credit-pipeline"
    with open(f"{where}/test.csv", encoding="utf-8", newline="") as rows, open(f"{where}/expected.txt", encoding="utf-8") as answers:
        for cells, line, _ in zip(csv.DictReader(rows), answers, range(4)):
            bad, good = (float(cell) for cell in line.split("\t")[1:])
            scores = client.infer(client.raw_row(cells))
            probabilities = 1 / (1 + np.exp(-np.array(scores)))
            worst = np.abs(probabilities - [bad, good]).max()
            print(f"  good with {probabilities[1]:.4f}, scikit-learn {good:.4f}, difference {worst:.1e}")
            assert worst < client.description.promised_error


def what_the_other_tenant_registered_is_unknown(daemon):
    mine = foreign.Client(daemon.addresses()["ipc"], daemon.token)
    mine.fetch("breast-cancer")
    mine.register()
    message, segments = mine.infer_request(read_rows([c.name for c in mine.description.columns], 1)[0])
    theirs = foreign.Client(daemon.addresses()["ipc"], daemon.other_token)
    try:
        foreign.call(theirs.bulk, "Inference/ModelInfer", daemon.other_token, message, foreign.rpc_pb2.InferReply, segments)
        raise AssertionError("answered with a key set of another tenant")
    except foreign.RpcError as error:
        assert error.reason == "KEY_UNKNOWN", error


def main():
    tests = harness.Tests()
    with tempfile.TemporaryDirectory() as folder:
        models = {name: harness.compile_model(name, folder) for name in ("breast-cancer", "credit-pipeline")}
        daemon = harness.Daemon(models, tls=True, ws=True).wait_ready()
        addresses = daemon.addresses()
        for transport in ("ipc", "tcp", "tls"):
            tests.run(scores_are_those_of_the_model, daemon, addresses[transport], label=transport)
        for transport in ("ipc", "tcp", "ws"):
            tests.run(scores_are_those_of_the_model_to_a_client_of_the_specification_alone, daemon, addresses[transport], label=transport)
        tests.run(a_table_with_text_scores_as_scikit_learn_does, daemon)
        tests.run(what_the_other_tenant_registered_is_unknown, daemon)

        def the_daemon_ends_with_status_0():
            assert daemon.stop() == 0

        tests.run(the_daemon_ends_with_status_0)
    tests.finish()


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""ckksctl try and check, and a table with text columns from its CSV file to the daemon and back."""
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from test_ckksctl import User

CREDIT = f"{harness.MODELS}/credit-pipeline"
PIMA = f"{harness.MODELS}/pima-diabetes"


class Here:
    """A folder to work in, without a server."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="ckksctl-tools-")

    def run(self, *arguments):
        return subprocess.run([f"{harness.BUILD}/ckksctl", *arguments], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "XDG_CACHE_HOME": self.folder}, capture_output=True, timeout=170, check=False)

    def expect(self, code, *arguments):
        done = self.run(*arguments)
        assert done.returncode == code, f"{arguments}: exit {done.returncode} instead of {code}\n{done.stdout}{done.stderr}"
        return done

    def json(self, *arguments, code=0):
        return json.loads(self.expect(code, *arguments, "--json").stdout)

    def path(self, name):
        return f"{self.folder}/{name}"


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def write_csv(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def try_says_whether_how_well_and_how_fast(here):
    found = here.json("try", f"{CREDIT}/credit-pipeline.onnx", "--calibration", f"{CREDIT}/calibration.csv", "--data", f"{CREDIT}/test.csv",
                      "--labels", f"{CREDIT}/test-labels.txt", "--encrypted", "20", "--device", "cpu", "-o", here.path("credit.ckm"))
    device = found["devices"][0]
    print(f"  credit-pipeline: {100 * found['accuracy_original']:.1f} % original, error {device['largest_error']:.1e} of {found['promised_error']:.1e}")
    assert found["runs"] and found["good"] and found["security_bits"] == 128
    assert found["rows"] == 200 and device["rows"] == 20 and found["rows_outside"] == 0
    assert found["accuracy_original"] == found["accuracy_polynomial"] > 0.7
    assert device["labels_agreeing"] == device["labels_compared"] == 20 - device["labels_excluded"]
    assert 0 < device["largest_error"] <= found["promised_error"]
    assert device["replay_ms"] >= device["replay_minimum_ms"] > 0 and device["encrypt_ms"] > 0 and device["decrypt_ms"] > 0
    assert found["key_bytes"] > 0 and device["request_bytes"] > 0 and device["resident_key_bytes"] > 0
    text = here.expect(0, "try", f"{CREDIT}/credit-pipeline.onnx", "--data", f"{CREDIT}/calibration.csv", "--encrypted", "2", "--device", "cpu").stdout
    for word in ("runs encrypted", "encrypt", "replay", "decrypt", "bytes", "memory", "labels", "error"):
        assert word in text, text


def try_takes_whole_batches(here):
    found = here.json("try", f"{CREDIT}/credit-pipeline.onnx", "--calibration", f"{CREDIT}/calibration.csv", "--data", f"{CREDIT}/test.csv",
                      "--labels", f"{CREDIT}/test-labels.txt", "--layout", "throughput", "--device", "cpu")
    assert found["rows_per_request"] > 200 and found["devices"][0]["rows"] == 200
    assert found["good"] and found["accuracy_polynomial"] > 0.7


def try_names_what_cannot_run(here):
    write_csv(here.path("four.csv"), [["a", "b", "c", "d"], [1, 2, 3, 4], [2, 3, 4, 5]])
    done = here.expect(3, "try", f"{harness.ROOT}/tests/data/onnx/refused.onnx", "--data", here.path("four.csv"))
    assert "way out" in done.stderr and "floor_1" in done.stderr and "ratio" in done.stderr, done.stderr


def data_that_does_not_fit_is_said_at_the_start(here):
    rows = read_csv(f"{CREDIT}/calibration.csv")
    model = f"{CREDIT}/credit-pipeline.onnx"
    at = rows[0].index("purpose")
    write_csv(here.path("less.csv"), [row[:at] + row[at + 1:] for row in rows])
    done = here.expect(3, "try", model, "--data", here.path("less.csv"))
    assert "purpose" in done.stderr and "missing" in done.stderr, done.stderr
    write_csv(here.path("labels.csv"), [["label"], ["good"]])
    done = here.expect(3, "try", model, "--data", f"{CREDIT}/calibration.csv", "--labels", here.path("labels.csv"), "--device", "cpu")
    assert "labels for" in done.stderr, done.stderr
    done = here.expect(3, "try", model, "--data", f"{CREDIT}/calibration.csv", "--label-column", "class")
    assert "class" in done.stderr and "missing" in done.stderr, done.stderr
    text = [list(row) for row in rows]
    text[5][rows[0].index("duration")] = "long"
    write_csv(here.path("text.csv"), text)
    done = here.expect(3, "try", model, "--data", here.path("text.csv"))
    assert "duration" in done.stderr and "line 6" in done.stderr and "long" in done.stderr, done.stderr


def check_names_columns_and_layers_outside(here):
    here.expect(0, "compile", f"{PIMA}/pima-diabetes.onnx", "--calibration", f"{PIMA}/calibration.csv", "-o", here.path("pima.ckm"), "--quiet")
    good = here.json("check", here.path("pima.ckm"), "--onnx", f"{PIMA}/pima-diabetes.onnx", "--data", f"{PIMA}/test.csv",
                     "--labels", f"{PIMA}/test-labels.txt", "--encrypted", "5", "--device", "cpu")
    assert good["good"] and good["rows_outside"] == 0 and good["accuracy_polynomial"] > 0.7
    assert good["devices"][0]["labels_agreeing"] == good["devices"][0]["labels_compared"]
    rows = read_csv(f"{PIMA}/test.csv")
    far = [list(row) for row in rows]
    far[2][rows[0].index("age")] = "300"
    far[4][rows[0].index("age")] = "200"
    for row in far[5:8]:
        row[rows[0].index("plas")] = "260"
        row[rows[0].index("mass")] = "80"
    write_csv(here.path("far.csv"), far)
    found = here.json("check", here.path("pima.ckm"), "--onnx", f"{PIMA}/pima-diabetes.onnx", "--data", here.path("far.csv"),
                      "--encrypted", "3", "--device", "cpu")
    age = next(v for v in found["range_violations"] if v["name"] == "age")
    assert age["kind"] == "column" and age["rows"] == 2 and age["first_row"] == 2 and age["maximum"] == 300 and age["beyond"] > 0.5
    layer = next(v for v in found["range_violations"] if v["kind"] == "layer")
    assert layer["name"] == "Sigmoid" and layer["maximum"] > layer["declared_maximum"] and layer["beyond"] > 0
    assert found["rows_outside"] >= 2
    text = here.expect(0, "check", here.path("pima.ckm"), "--data", here.path("far.csv"), "--encrypted", "1", "--device", "cpu").stdout
    assert "column age" in text and "of the range beyond" in text, text
    here.expect(3, "check", here.path("pima.ckm"), "--onnx", f"{CREDIT}/credit-pipeline.onnx", "--data", f"{PIMA}/test.csv")


def explain_goes_through_the_layers(here):
    here.expect(0, "compile", f"{PIMA}/pima-diabetes.onnx", "--calibration", f"{PIMA}/calibration.csv", "-o", here.path("pima.ckm"), "--quiet")
    found = here.json("explain", here.path("pima.ckm"), "--html", here.path("pima.html"))
    assert [layer["source"] for layer in found["layers"]] == ["MatMul", "Sigmoid", "MatMul1"]
    first, second, third = found["layers"]
    assert first["elements_in"] == 8 and first["elements_out"] == 12 == second["elements_out"] and third["elements_out"] == 1
    assert first["level_in"] == found["levels"] and third["level_out"] == 0
    assert first["diagonals"] == 8 and first["rotations"] > 0 and first["weight_bytes"] > 0
    assert second["degree"] >= 3 and second["interval_low"] < 0 < second["interval_high"] and second["relinearisations"] == 0
    for layer in found["layers"] + [found]:
        assert layer["measured_ms"] > 0 and layer["predicted_ms"] > 0
    print(f"  pima-diabetes: {found['measured_ms']:.1f} ms measured, {found['predicted_ms']:.1f} ms predicted, on a machine that does other things")
    costs, probes = found["cost"]["ns"], found["cost"]["probes"]
    for layer in found["layers"]:
        counted = sum(costs.get(kernel, 0) * passes for kernel, passes in layer["passes"].items())
        assert abs(1e-6 * counted - layer["predicted_ms"]) < 1e-6 * layer["predicted_ms"]
    errors = [abs(probe["fitted_ns"] / probe["measured_ns"] - 1) for probe in probes]
    assert len(probes) >= 20 and abs(max(errors) - found["cost"]["largest_probe_error"]) < 1e-6, errors
    again = here.json("explain", here.path("pima.ckm"), "--no-measure")  # the cost model is kept
    assert abs(again["predicted_ms"] - found["predicted_ms"]) < 1e-5 * found["predicted_ms"] and again["measured_ms"] is None
    assert again["cost"]["probes"] == []
    with open(here.path("pima.html"), encoding="utf-8") as file:
        page = file.read()
    assert page.startswith("<!DOCTYPE html>") and page.count("<rect") == 3 and "MatMul1" in page
    assert "<script" not in page and "http" not in page and "src=" not in page
    text = here.expect(0, "explain", here.path("pima.ckm"), "--no-measure").stdout
    for word in ("layer", "levels", "scale", "diag", "rot", "predicted", "weights", "degree"):
        assert word in text, text
    here.expect(3, "explain", f"{PIMA}/test.csv")


def a_second_model_takes_the_parameters_of_the_first(here):
    credit = ("compile", f"{CREDIT}/credit-pipeline.onnx", "--calibration", f"{CREDIT}/calibration.csv")
    made = here.json(*credit, "--compatible-with", here.path("pima.ckm"), "-o", here.path("second.ckm"), "--predict")
    assert made["log_n"] == 14 and made["depth"] == 1 and made["levels"] == 5 and made["predicted_ms"] > 0
    parameters = {json.dumps(here.json("inspect", here.path(name))[0]["parameters"]) for name in ("pima.ckm", "second.ckm")}
    assert len(parameters) == 1, parameters
    good = here.json("check", here.path("second.ckm"), "--onnx", f"{CREDIT}/credit-pipeline.onnx", "--data", f"{CREDIT}/test.csv", "--encrypted", "3",
                     "--device", "cpu")
    assert good["good"]
    # the clients' keys: one secret for both
    here.expect(0, "keygen", "--for", here.path("pima.ckm"), "--for", here.path("second.ckm"), "--key", here.path("keys/"))
    assert len([name for name in os.listdir(here.path("keys")) if name.endswith(".secret")]) == 1, os.listdir(here.path("keys"))
    done = here.expect(3, "compile", f"{PIMA}/pima-diabetes.onnx", "--calibration", f"{PIMA}/calibration.csv", "--compatible-with", here.path("credit.ckm"),
                       "-o", here.path("never.ckm"))
    assert "needs 5 levels" in done.stderr and "have 1" in done.stderr and not os.path.exists(here.path("never.ckm")), done.stderr
    here.expect(3, *credit, "--compatible-with", here.path("pima.ckm"), "--layout", "throughput", "-o", here.path("never.ckm"))


def more_precision_than_there_is_is_refused_with_what_can_be_had(here):
    command = ["compile", f"{PIMA}/pima-diabetes.onnx", "--calibration", f"{PIMA}/calibration.csv", "-q", "-o", here.path("fine.ckm")]
    for more in ([], ["--layout", "throughput"]):
        said = here.expect(3, *command, *more, "--target-error", "1e-9").stderr
        assert said.startswith("ckksctl: precision does not suffice: target_error: scores would differ by ") and "coefficient" not in said, said
        assert "or leave it out" in said and said.count("\n") == 1, said
        least = re.search("--target-error ([0-9.e-]+) or more", said).group(1)
        if not more:  # the other layout has errors of its own on top of the polynomials'
            here.expect(0, *command, "--target-error", least)
            here.expect(3, *command, "--target-error", str(float(least) / 2))
        error = here.json(*command, *more, "--target-error", "1e-9", code=3)["error"]
        assert (error["code"], error["field"]) == ("CKKS_PRECISION", "target_error")
    here.expect(0, *command, "--layout", "throughput")


def a_ring_that_is_too_small_is_nobody_elses_fault(here):
    command = ["compile", f"{PIMA}/pima-diabetes.onnx", "--calibration", f"{PIMA}/calibration.csv", "-q", "-o", here.path("small.ckm")]
    for more in (["--log-n", "12"], ["--log-n", "11", "--layout", "throughput"]):
        said = here.run(*command, *more).stderr
        assert ": log_n: " in said and "leave --log-n out" in said and "server" not in said, said


def a_table_with_text_goes_through_the_daemon(here):
    daemon = harness.Daemon({"credit": here.path("credit.ckm")})
    user = None
    try:
        daemon.wait_ready()
        user = User(daemon)
        user.expect(0, "keygen", "--for", "credit")
        user.expect(0, "register")
        with open(f"{CREDIT}/expected.txt", encoding="utf-8") as file:
            expected = [line.rstrip("\n").split("\t") for line in file][:12]
        done = user.expect(0, "infer", "credit", f"{CREDIT}/test.csv", "--rows", "12", "--json")
        for row, (label, *values) in zip(json.loads(done.stdout)["rows"], expected):
            assert row["label"] == label or abs(float(values[0]) - 0.5) < 1e-3, (row, label)
        rows = read_csv(f"{CREDIT}/test.csv")
        empty = [rows[0], list(rows[1])]
        empty[1][rows[0].index("purpose")] = ""
        write_csv(here.path("empty.csv"), empty)
        done = user.expect(3, "infer", "credit", here.path("empty.csv"))
        assert "purpose" in done.stderr and "missing" in done.stderr, done.stderr
        far = [rows[0], list(rows[1]), list(rows[2])]
        far[1][rows[0].index("age")] = "300"
        far[2][rows[0].index("duration")] = "1000"
        write_csv(here.path("far.csv"), far)
        done = user.expect(3, "infer", "credit", here.path("far.csv"))
        assert "column age" in done.stderr and "column duration" in done.stderr and "of the range beyond" in done.stderr, done.stderr
    finally:
        if user:
            user.leave()
        daemon.stop()


def main():
    tests, here = harness.Tests(), Here()
    tests.run(try_says_whether_how_well_and_how_fast, here)
    tests.run(try_takes_whole_batches, here)
    tests.run(try_names_what_cannot_run, here)
    tests.run(data_that_does_not_fit_is_said_at_the_start, here)
    tests.run(check_names_columns_and_layers_outside, here)
    tests.run(explain_goes_through_the_layers, here)
    tests.run(a_second_model_takes_the_parameters_of_the_first, here)
    tests.run(more_precision_than_there_is_is_refused_with_what_can_be_had, here)
    tests.run(a_ring_that_is_too_small_is_nobody_elses_fault, here)
    tests.run(a_table_with_text_goes_through_the_daemon, here)
    shutil.rmtree(here.folder)
    tests.finish()


if __name__ == "__main__":
    main()

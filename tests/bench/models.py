#!/usr/bin/env python3
"""Figures of the example models, one JSON line for each step, and the tables of results/models.md made from them.

  models.py run FILE [--ctl ckksctl] [--models tests/models] [--packages FOLDER] [--mnist FOLDER]
                     [--device cpu|cuda] [--steps compile,check,explain] [--only NAME,...]
  models.py tables FILE...

`run` appends to FILE. compile: seconds and memory at the peak, as the compiler counts them, and what it chose; check:
every test row encrypted, against the polynomial and the original model; explain: the whole program's shortest replay
against the cost model, measured anew. Where several lines have the same step, model and device, the last counts, but
for compile, of which the shortest is shown beside the number of runs. --mnist names a folder with all test images
(test-images-idx3-ubyte.gz, test-labels-idx1-ubyte.gz); tests/models/mnist has 200 of them. Pin it to cores with taskset.
"""
import argparse
import json
import os
import subprocess
import sys
import time

IMAGES = "mnist/calibration-images-idx3-ubyte.gz"
# name: model, calibration rows, test rows, labels or None
MODELS = {
    "breast-cancer": ("breast-cancer/breast-cancer.onnx", "breast-cancer/calibration.csv", "breast-cancer/test.csv", "breast-cancer/test-labels.txt"),
    "progression": ("progression/progression.onnx", "progression/calibration.csv", "progression/test.csv", None),
    "credit-pipeline": ("credit-pipeline/credit-pipeline.onnx", "credit-pipeline/calibration.csv", "credit-pipeline/test.csv",
                        "credit-pipeline/test-labels.txt"),
    "pima-diabetes": ("pima-diabetes/pima-diabetes.onnx", "pima-diabetes/calibration.csv", "pima-diabetes/test.csv",
                      "pima-diabetes/test-labels.txt"),
    "credit-g": ("credit-g/credit-g.onnx", "credit-g/calibration.csv", "credit-g/test.csv", "credit-g/test-labels.txt"),
    "mnist": ("mnist/mnist.onnx", IMAGES, "MNIST", "MNIST"),
    "retrieval": ("retrieval/retrieval.onnx", "retrieval/calibration.npy", "retrieval/test.npy", "retrieval/test-labels.txt"),
    "lola": ("lola/lola.onnx", IMAGES, "MNIST", "MNIST"),
    "lenet": ("lenet/lenet.onnx", IMAGES, "MNIST", "MNIST"),
}


def test_files(name, options):
    data, labels = MODELS[name][2:]
    if data == "MNIST":
        folder = options.mnist or os.path.join(options.models, "mnist")
        return os.path.join(folder, "test-images-idx3-ubyte.gz"), os.path.join(folder, "test-labels-idx1-ubyte.gz")
    return os.path.join(options.models, data), labels and os.path.join(options.models, labels)


def command(step, name, options):
    onnx, calibration = (os.path.join(options.models, part) for part in MODELS[name][:2])
    package = os.path.join(options.packages, name + ".ckm")
    if step == "compile":
        return [options.ctl, "compile", onnx, "--calibration", calibration, "-o", package, "--json"]
    if step == "explain":
        return [options.ctl, "explain", package, "--calibrate", "--device", options.device, "--json"]
    data, labels = test_files(name, options)
    line = [options.ctl, "check", package, "--onnx", onnx, "--data", data, "--encrypted", "1000000", "--device", options.device, "--json"]
    return line + (["--labels", labels] if labels else [])


def run(options):
    os.makedirs(options.packages, exist_ok=True)
    names = options.only.split(",") if options.only else list(MODELS)
    bad = 0
    for name in names:
        for step in options.steps.split(","):
            begin = time.monotonic()
            done = subprocess.run(command(step, name, options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            row = {"step": step, "model": name, "device": options.device if step != "compile" else "cpu", "exit": done.returncode,
                   "seconds": round(time.monotonic() - begin, 3), "cores": len(os.sched_getaffinity(0))}
            try:
                row["result"] = json.loads(done.stdout)
            except json.JSONDecodeError:
                row["message"] = (done.stdout + done.stderr)[-500:]
            bad += done.returncode != 0
            with open(options.file, "a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{name}: {step} {row['seconds']} s, exit {row['exit']}", file=sys.stderr, flush=True)
    return 1 if bad else 0


# ---- tables ----

def read(paths):
    last, all_rows = {}, {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if "result" in row:
                    key = (row["step"], row["device"], row["model"])
                    last[key] = row
                    all_rows.setdefault(key, []).append(row)
    return last, all_rows


def mebibytes(count):
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count / 2**10:,.0f} KiB"


def chosen(result):
    """which polynomials the compiler took, and what it expects of them"""
    for k in result.get("polynomials", []):
        if k["chosen"]:
            degrees = str(k["degree_min"]) + ("" if k["degree_min"] == k["degree_max"] else f" to {k['degree_max']}")
            changes = f", {1000 * k['label_changes']:.2g} of 1,000 labels" if "label_changes" in k else ""
            return f"degree {degrees}{changes}"
    return "none"


def compile_table(all_rows):
    lines = ["| | N, levels | polynomials | keys | request | compile s (runs) | memory at the peak |", "| --- | --- | --- | ---: | ---: | ---: | ---: |"]
    for name in MODELS:
        rows = all_rows.get(("compile", "cpu", name))
        if rows:
            best = min(rows, key=lambda r: r["result"]["compile_seconds"])["result"]
            lines.append(f"| {name} | 2^{best['log_n']}, {best['depth']} | {chosen(best)} | {mebibytes(best['key_bytes'])} | "
                         f"{mebibytes(best['request_bytes'])} | {best['compile_seconds']:.2f} ({len(rows)}) | {mebibytes(best['peak_bytes'])} |")
    return lines if len(lines) > 2 else []


def check_table(last, device):
    lines = ["| | rows | accuracy encrypted, polynomial, original | labels as polynomial, as original | largest error (promised) | replay ms, median, shortest |",
             "| --- | ---: | --- | --- | --- | ---: |"]
    for name in MODELS:
        row = last.get(("check", device, name))
        if not row:
            continue
        r = row["result"]
        d = r["devices"][-1]
        labels = accuracy = "-"
        if "labels_compared" in d:
            labels = f"{d['labels_agreeing']} of {d['labels_compared']}"
            labels += f" ({d['labels_excluded']} margins below the promise)" if d["labels_excluded"] else ""
            labels += f", {d['labels_as_original']} of {d['rows']}"
        if "accuracy" in d:
            accuracy = ", ".join(f"{100 * x:.1f}" for x in (d["accuracy"], r["accuracy_polynomial"], r["accuracy_original"])) + " %"
        lines.append(f"| {name} | {d['rows']:,} | {accuracy} | {labels} | {d['largest_error']:.1e} ({r['promised_error']:.1e}) | "
                     f"{d['replay_ms']:.3g}, {d['replay_minimum_ms']:.3g} |")
    return lines if len(lines) > 2 else []


def explain_table(last, device):
    lines = ["| | measured ms | predicted ms | predicted / measured |", "| --- | ---: | ---: | ---: |"]
    for name in MODELS:
        row = last.get(("explain", device, name))
        if row:
            measured, predicted = row["result"]["measured_ms"], row["result"]["predicted_ms"]
            lines.append(f"| {name} | {measured:.3g} | {predicted:.3g} | {predicted / measured:.2f} |")
    return lines if len(lines) > 2 else []


def tables(paths):
    last, all_rows = read(paths)
    parts = [("Compile", compile_table(all_rows))]
    for device in ("cuda", "cpu"):
        parts.append((f"All test rows, {device}", check_table(last, device)))
        parts.append((f"Predicted against measured replay, {device}", explain_table(last, device)))
    for title, lines in parts:
        if lines:
            print(f"## {title}\n")
            print("\n".join(lines) + "\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("file")
    runner.add_argument("--ctl", default="build/gcc/ckksctl")
    runner.add_argument("--models", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models"))
    runner.add_argument("--packages", default="/tmp/ckksd-models")
    runner.add_argument("--mnist")
    runner.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    runner.add_argument("--steps", default="compile,check,explain")
    runner.add_argument("--only")
    verbs.add_parser("tables").add_argument("files", nargs="+")
    options = parser.parse_args()
    return run(options) if options.verb == "run" else tables(options.files)


if __name__ == "__main__":
    sys.exit(main())

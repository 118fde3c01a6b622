#!/usr/bin/python3
"""The throughput layout end to end: many rows in one request, a large CSV scored and gone on with after interruptions, refusals, and the
foreign client."""
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import foreign_client as foreign
import harness
import test_foreign_client as known

CTL = f"{harness.BUILD}/ckksctl"
STEP = 0.02  # more than twice the rounding of what the model promises


class Setting:
    """A daemon with one model of the throughput layout, a profile and keys."""

    def __init__(self, folder):
        self.folder = folder
        package = harness.compile_model("breast-cancer", folder, "--layout", "throughput")
        self.daemon = harness.Daemon({"bc": package}).wait_ready()
        os.mkdir(f"{folder}/gate")
        self.gate = harness.Gate(f"{folder}/gate")
        self.gated = harness.Daemon({"bc": package}, program=self.gate.PROGRAM, environment=self.gate.environment).wait_ready()
        self.environment = {**os.environ, "XDG_CONFIG_HOME": f"{folder}/config"}
        for name, daemon in (("gated", self.gated), ("t", self.daemon)):
            token = f"{folder}/{name}.token"
            with open(token, "w", encoding="utf-8") as file:
                file.write(daemon.token + "\n")
            self.ctl("profile", name, "--server", daemon.addresses()["ipc"], "--token-file", token, "--use")
        self.ctl("keygen", "--for", "bc")
        with open(f"{harness.MODELS}/breast-cancer/test.csv", encoding="utf-8", newline="") as file:
            self.header, *self.lines = file.read().splitlines(keepends=True)

    def ctl(self, *arguments, expect=0):
        done = subprocess.run([CTL, *arguments], env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == expect, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def rows(self, name, count, seed=1):
        """A file of `count` rows drawn from the test set."""
        draw, path = random.Random(seed), f"{self.folder}/{name}"
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(self.header)
            file.writelines(draw.choice(self.lines) for _ in range(count))
        return path

    def start(self, path, out, more_rows):
        """A run at the gate that has written so many rows more, and cannot come to its end."""
        before = journal_rows(out)
        run = subprocess.Popen([CTL, "infer", "bc", path, "-o", out, "--profile", "gated"], env=self.environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
        self.gate.let_until(lambda: run.poll() is not None or journal_rows(out) >= before + more_rows)
        assert run.poll() is None, run.stderr.read()
        return run

    def scored(self, path):
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


def expected_probabilities(s, path, count):
    """Softmax of the clear scores, in the model's order of classes."""
    with open(path, encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = [c for c in reader.fieldnames]
        rows = np.array([[float(row[c]) for c in names] for row, _ in zip(reader, range(count))])
    return known.clear_scores(rows)


def a_test_set_is_scored_in_one_request(s):
    done = s.ctl("infer", "bc", f"{harness.MODELS}/breast-cancer/test.csv", "--labels", f"{harness.MODELS}/breast-cancer/test-labels.txt",
                 "--reference", f"{s.folder}/breast-cancer.ckm", "--json", "--summary")
    summary = json.loads(done.stdout)["summary"]
    assert summary["rows"] == summary["labels_compared"] == summary["labels_agreeing"] == 169, summary
    assert summary["accuracy"] > 0.95


def more_rows_than_fit_one_request_are_scored_in_order(s):
    path, out = s.rows("many.csv", 5000), f"{s.folder}/many-scored.csv"
    figures = json.loads(s.ctl("infer", "bc", path, "-o", out, "--json").stdout)
    assert figures["rows"] == 5000 and figures["requests"] == 3 and figures["rows_per_request"] == 2048, figures
    scored, clear = s.scored(out), expected_probabilities(s, path, 5000)
    assert [int(r["row"]) for r in scored] == list(range(1, 5001))
    wrong = 0
    for row, scores in zip(scored, clear):
        label = ["malignant", "benign"][int(np.argmax(scores))]
        wrong += row["label"] != label and abs(scores[0] - scores[1]) > 0.5
    assert wrong == 0, f"{wrong} labels are not the model's"
    assert not os.path.exists(out + ".part") and not os.path.exists(out + ".journal")


def the_largest_values_come_with_their_places(s):
    path, out = f"{harness.MODELS}/breast-cancer/test.csv", f"{s.folder}/top.csv"
    whole = json.loads(s.ctl("infer", "bc", path, "--json").stdout)["rows"]
    top = json.loads(s.ctl("infer", "bc", path, "--top", "1", "--json").stdout)["rows"]
    s.ctl("infer", "bc", path, "--top", "5", "-o", out)  # more than there are: all, in order
    written = s.scored(out)
    names = ["malignant", "benign"]
    for a, b, c in zip(whole, top, written):
        assert "values" not in b and len(b["top"]) == 1, b
        best = max(range(2), key=lambda k: a["values"][k])
        near = abs(a["values"][0] - a["values"][1]) < 2 * STEP
        assert near or (b["top"][0]["index"] == best and b["label"] == names[best] == c["label"]), f"{a} and {b}"
        assert abs(b["top"][0]["value"] - a["values"][b["top"][0]["index"]]) <= STEP
        assert c["index_1"] == str(b["top"][0]["index"]) or near
        assert {c["index_1"], c["index_2"]} == {"0", "1"} and float(c["value_1"]) >= float(c["value_2"]), c
    assert len(whole) == len(top) == len(written) == 169


def journal_rows(out):
    try:
        with open(out + ".journal", encoding="utf-8") as file:
            lines = file.read().split("\n")[1:-1]
        return int(lines[-1].split()[0]) if lines else 0
    except FileNotFoundError:
        return 0


def same_results(a, b):
    """What was written once stays; what two runs encrypted differs by less than what is promised."""
    assert len(a) == len(b) and a[0].keys() == b[0].keys()
    for x, y in zip(a, b):
        values = [k for k in x if k.startswith("value")]
        close = all(abs(float(x[k]) - float(y[k])) <= STEP for k in values)
        assert x["row"] == y["row"] and close, f"{x} and {y}"
        assert x["label"] == y["label"] or abs(float(x[values[0]]) - 0.5) < STEP, f"{x} and {y}"


def an_interrupted_run_goes_on(s, how):
    path, out, whole = s.rows("long.csv", 60000), f"{s.folder}/long-{how}.csv", f"{s.folder}/long-whole.csv"
    if not os.path.exists(whole):
        s.ctl("infer", "bc", path, "-o", whole)
    kept = b""
    for _ in range(3):
        run = s.start(path, out, 4096)
        run.send_signal(how)
        s.gate.let_until(lambda: run.poll() is not None)  # what is under way is finished
        text = run.communicate()[1]
        assert run.returncode == (130 if how == signal.SIGINT else -how), text
        with open(out + ".part", "rb") as file:
            now = file.read()
        assert now.startswith(kept), "what was written has changed"
        kept = now if how == signal.SIGINT else kept
        assert not os.path.exists(out)
    s.ctl("infer", "bc", path, "-o", out)
    with open(out, "rb") as file:
        assert file.read().startswith(kept)
    same_results(s.scored(out), s.scored(whole))


def a_torn_journal_and_torn_results_are_cut_off(s):
    path, out = s.rows("torn.csv", 20000), f"{s.folder}/torn.csv.out"
    run = s.start(path, out, 4096)
    run.kill()
    run.communicate()
    with open(out + ".part", "ab") as file:
        file.write(b"4711,malig")
    with open(out + ".journal", "ab") as file:
        file.write(b"99999 123 4")
    s.ctl("infer", "bc", path, "-o", out)
    assert [int(r["row"]) for r in s.scored(out)] == list(range(1, 20001))


def other_rows_or_another_model_do_not_go_on(s):
    path, out = s.rows("first.csv", 20000), f"{s.folder}/other.csv"
    run = s.start(path, out, 4096)
    run.kill()
    run.communicate()
    done = s.ctl("infer", "bc", s.rows("second.csv", 20000, seed=2), "-o", out, expect=3)
    assert "other rows" in done.stderr, done.stderr
    with open(out + ".journal", encoding="utf-8") as file:
        text = file.read()
    with open(out + ".journal", "w", encoding="utf-8") as file:
        file.write(text.replace("package ", "package 0", 1))
    done = s.ctl("infer", "bc", path, "-o", out, expect=3)
    assert "another run" in done.stderr and "remove it" in done.stderr, done.stderr


def a_bad_row_is_named_and_what_came_before_is_kept(s):
    path, out = s.rows("bad.csv", 6000), f"{s.folder}/bad-out.csv"
    with open(path, encoding="utf-8", newline="") as file:
        lines = file.read().splitlines(keepends=True)
    good = lines[5001]
    lines[5001] = "x" + good
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.writelines(lines)
    done = s.ctl("infer", "bc", path, "-o", out, "--concurrency", "1", expect=3)
    assert "line 5002" in done.stderr and "4096 rows are kept" in done.stderr, done.stderr
    lines[5001] = good
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.writelines(lines)
    figures = json.loads(s.ctl("infer", "bc", path, "-o", out, "--json").stdout)
    assert figures["resumed_rows"] == 4096 and figures["rows"] == 6000, figures


def what_does_not_go_with_it_is_refused(s):
    path = f"{harness.MODELS}/breast-cancer/test.csv"
    done = s.ctl("infer", "bc", path, "-o", f"{s.folder}/x.csv", "--labels", f"{harness.MODELS}/breast-cancer/test-labels.txt", expect=2)
    assert "--labels" in done.stderr
    done = subprocess.run([CTL, "compile", f"{harness.MODELS}/breast-cancer/breast-cancer.onnx", "--calibration", path, "--layout", "auto"],
                          capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "--batch" in done.stderr


def a_request_larger_than_the_server_takes_is_refused_at_once(s):
    """The server would hang up without a word, and the client try again until its time is over."""
    small = harness.Daemon({"bc": f"{s.folder}/breast-cancer.ckm"}, extra="[listen]\nbulk_message_bytes = 512K").wait_ready()
    try:
        token = f"{s.folder}/small.token"
        with open(token, "w", encoding="utf-8") as file:
            file.write(small.token + "\n")
        done = s.ctl("infer", "bc", f"{harness.MODELS}/breast-cancer/test.csv", "--server", small.addresses()["ipc"], "--token-file", token,
                     expect=3)
        assert "524288" in done.stderr and "bulk_message_bytes" in done.stderr, done.stderr
    finally:
        assert small.stop() == 0


def auto_prints_both_layouts(s):
    source = f"{harness.MODELS}/breast-cancer"
    done = s.ctl("compile", f"{source}/breast-cancer.onnx", "--calibration", f"{source}/calibration.csv", "--layout", "auto", "--batch", "100000",
                 "-o", f"{s.folder}/auto.ckm", "--json")
    report = json.loads(done.stdout)
    trade = {row["layout"]: row for row in report["trade"]}
    assert set(trade) == {"latency", "throughput"}
    assert trade["throughput"]["rows_per_request"] == 2048 and trade["throughput"]["key_bytes"] == 0
    assert trade["latency"]["key_bytes"] > 0
    assert report["layout"] == "throughput"


def the_foreign_client_scores_a_batch(s):
    client = foreign.Client(s.daemon.addresses()["ipc"], s.daemon.token)
    client.fetch("bc")
    rows = known.read_rows([c.name for c in client.description.columns], 7)
    got, expected = client.infer_batch(rows), known.clear_scores(rows)
    worst = np.abs(got - expected).max()
    print(f"  {len(rows)} rows, largest difference {worst:.1e}")
    # whole numbers in place of weights are in the model's promise of accuracy, not of precision
    assert worst < client.description.promised_error + 0.01 * np.ptp(expected), f"{got} instead of {expected}"


def a_batch_of_another_size_is_refused_by_name(s):
    client = foreign.Client(s.daemon.addresses()["ipc"], s.daemon.token)
    client.fetch("bc")
    rows = known.read_rows([c.name for c in client.description.columns], 2)
    message, segments = client.batch_request(rows)

    def refused(reason, field, change):
        other, parts = foreign.rpc_pb2.InferRequest.FromString(message.SerializeToString()), list(segments)
        change(other, parts)
        try:
            foreign.call(client.bulk, "Inference/ModelInfer", s.daemon.token, other, foreign.rpc_pb2.InferReply, parts)
            raise AssertionError("it was answered")
        except foreign.RpcError as error:
            print(f"  {error}")
            assert reason in str(error) and field in str(error), error

    def fewer(other, parts):
        other.inputs[0].batch_count -= 1

    def shorter(other, parts):
        parts[0] = (1, parts[0][1][:-16])

    def short_seed(other, parts):
        other.seeds[0] = other.seeds[0][:31]

    refused("SIGNATURE_MISMATCH", "batch_count", fewer)
    refused("", "segment", shorter)
    refused("", "seed", short_seed)


def main():
    tests = harness.Tests()
    with tempfile.TemporaryDirectory() as folder:
        s = Setting(folder)
        for test in (a_test_set_is_scored_in_one_request, the_largest_values_come_with_their_places,
                     more_rows_than_fit_one_request_are_scored_in_order):
            tests.run(test, s)
        for how in (signal.SIGINT, signal.SIGKILL):
            tests.run(an_interrupted_run_goes_on, s, how, label=how.name)
        for test in (a_torn_journal_and_torn_results_are_cut_off, other_rows_or_another_model_do_not_go_on,
                     a_bad_row_is_named_and_what_came_before_is_kept, what_does_not_go_with_it_is_refused,
                     a_request_larger_than_the_server_takes_is_refused_at_once, auto_prints_both_layouts,
                     the_foreign_client_scores_a_batch, a_batch_of_another_size_is_refused_by_name):
            tests.run(test, s)

        def the_daemon_ends_with_status_0():
            s.gate.open()
            assert s.daemon.stop() == 0 == s.gated.stop()

        tests.run(the_daemon_ends_with_status_0)
    tests.finish()


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""The larger example models, compiled and served: a convolution whose values stay on a grid with gaps, and 10,000 scores
that come back in several ciphertexts."""
import filecmp
import json
import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from test_ckksctl import User

ROWS = {"lola": (f"{harness.MODELS}/mnist/test-images-idx3-ubyte.gz", f"{harness.MODELS}/mnist/test-labels-idx1-ubyte.gz"),
        "retrieval": (f"{harness.MODELS}/retrieval/test.npy", f"{harness.MODELS}/retrieval/test-labels.txt")}


def encrypted_rows_agree_with_the_clear_model(user, model, package, count):
    rows, labels = ROWS[model]
    found = user.json("infer", model, rows, "--labels", labels, "--reference", package, "--original",
                      f"{harness.MODELS}/{model}/{model}.onnx", "--rows", str(count), "--summary")["summary"]
    print(f"  {model}: accuracy {found['accuracy']:.3f}, difference {found['largest_difference']:.1e}, stated {found['stated_error']:.1e}")
    assert found["rows"] == count and found["implausible"] == 0
    assert found["labels_agreeing"] == found["labels_compared"]
    assert found["labels_compared"] + found["labels_excluded"] == count
    assert found["largest_difference"] <= found["stated_error"]
    assert found["accuracy"] >= 0.9


def one_request_has_one_answer(user, model):
    """The same ciphertext, sent twice, comes back as the same words."""
    user.expect(0, "encrypt", model, ROWS[model][0], "--rows", "1", "-o", user.path("request-"))
    for number in "12":
        user.expect(0, "infer", model, user.path("request-000001.ct"), "-o", user.path(f"answer-{number}.ct"))
    assert os.path.getsize(user.path("answer-1.ct")) > 10000
    assert filecmp.cmp(user.path("answer-1.ct"), user.path("answer-2.ct"), shallow=False)


def replies_through_memory_are_those_through_the_socket(user, daemon, model):
    """One connection: its first reply comes through the socket, the next through memory, and all have the same words."""
    def through_memory():
        return int(re.search(r"^ckksd_local_memory_replies_total (\d+)$", daemon.http("/metrics")[1], re.M).group(1))
    before = through_memory()
    load = user.json("bench", "load", model, "--slots", "1", "--seconds", "1", "--inputs", "1", "--server", daemon.addresses()["ipc"])
    run = load["runs"][0]
    assert run["wrong"] == 0 and run["answers"] > 0
    assert run["answers"] < 2 or through_memory() > before


def a_key_set_of_other_parameters_is_refused_before_anything_is_computed(user):
    sets = {s["key_set"] for s in user.json("status")["key_sets"]}
    user.expect(0, "encrypt", "retrieval", ROWS["retrieval"][0], "--rows", "1", "-o", user.path("mine-"))
    codes = set()
    for key_set in sets:
        done = user.run("infer", "retrieval", user.path("mine-000001.ct"), "--key-set", key_set, "-o", user.path("mine.ct"), "--json")
        codes.add(done.returncode if done.returncode == 0 else json.loads(done.stdout)["error"]["code"])
    assert len(sets) == 2 and codes == {0, "CKKS_PARAMS_MISMATCH"}, codes


def every_slot_gives_the_words_of_the_cpu(user, package):
    serve = user.json("bench", "serve", package, "--slots", "1", "--seconds", "0.5", "--inputs", "1")
    assert serve["runs"][0]["answers"] > 0 and serve["runs"][0]["wrong"] == 0


def main():
    tests = harness.Tests()
    folder = tempfile.mkdtemp(prefix="ckksd-packages-")
    packages = {model: harness.compile_model(model, folder) for model in ROWS}
    daemon = harness.Daemon(packages).wait_ready()
    user = User(daemon)
    for model in ROWS:
        user.expect(0, "keygen", "--for", model)
        user.expect(0, "register")
    tests.run(encrypted_rows_agree_with_the_clear_model, user, "lola", packages["lola"], 5, label="lola")
    tests.run(encrypted_rows_agree_with_the_clear_model, user, "retrieval", packages["retrieval"], 10, label="retrieval")
    tests.run(one_request_has_one_answer, user, "lola")
    tests.run(one_request_has_one_answer, user, "retrieval")
    tests.run(replies_through_memory_are_those_through_the_socket, user, daemon, "lola")
    tests.run(a_key_set_of_other_parameters_is_refused_before_anything_is_computed, user)
    tests.run(every_slot_gives_the_words_of_the_cpu, user, packages["lola"])
    assert daemon.stop() == 0
    user.leave()
    shutil.rmtree(folder)
    tests.finish()


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""ckksctl against the real daemon, as its users type it: the way from nothing to an answer, and each way of going wrong."""
import csv
import json
import os
import pty
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

MODEL = "breast-cancer"
ROWS = f"{harness.MODELS}/{MODEL}/test.csv"
LABELS = f"{harness.MODELS}/{MODEL}/test-labels.txt"


class User:
    """A home of one's own."""

    def __init__(self, daemon, token="alice"):
        self.folder = tempfile.mkdtemp(prefix="ckksctl-test-")
        self.environment = {**os.environ, "XDG_CONFIG_HOME": self.folder}
        self.environment.pop("CKKSCTL_PROFILE", None)
        self.expect(0, "profile", "--server", daemon.addresses()["ipc"], "--token-file", f"{daemon.folder}/{token}.token", "--use")

    def run(self, *arguments):
        return subprocess.run([f"{harness.BUILD}/ckksctl", *arguments], env=self.environment, cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)

    def expect(self, code, *arguments):
        done = self.run(*arguments)
        assert done.returncode == code, f"{arguments}: exit {done.returncode} instead of {code}\n{done.stdout}{done.stderr}"
        return done

    def json(self, *arguments, code=0):
        return json.loads(self.expect(code, *arguments, "--json").stdout)

    def path(self, name):
        return f"{self.folder}/{name}"

    def leave(self):
        shutil.rmtree(self.folder)


def read_rows():
    with open(ROWS, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def from_nothing_to_an_answer(user, package):
    dry = user.json("keygen", "--for", MODEL, "--dry-run")[0]
    assert not os.path.exists(dry["secret_file"])
    made = user.json("keygen", "--for", MODEL)[0]
    assert made["key_bytes"] == dry["key_bytes"] and made["made_secret"]
    assert stat.S_IMODE(os.stat(made["secret_file"]).st_mode) == 0o600
    first = user.json("register")[0]
    assert first["key_set"] == made["key_set"] and not first["was_there"]
    assert user.json("register")[0]["was_there"]
    found = user.json("infer", MODEL, ROWS, "--labels", LABELS, "--reference", package, "--original",
                      f"{harness.MODELS}/{MODEL}/{MODEL}.onnx", "--rows", "60", "--concurrency", "3")
    summary = found["summary"]
    print(f"  accuracy {summary['accuracy']:.3f}, difference {summary['largest_difference']:.1e} of {summary['score_range']:.1f}")
    assert summary["rows"] == 60 == len(found["rows"]) and summary["implausible"] == 0
    assert summary["labels_agreeing"] == summary["labels_compared"] and summary["labels_compared"] + summary["labels_excluded"] == 60
    assert summary["largest_difference"] <= summary["stated_error"]
    assert summary["largest_difference_relative"] <= 1e-3
    assert abs(summary["accuracy"] - summary["accuracy_original"]) < 0.02
    assert user.expect(0, "doctor").stdout.strip().endswith("everything is in place")
    assert MODEL in user.expect(0, "status").stdout and MODEL in user.expect(0, "models").stdout


def keys_that_are_there_are_kept(user):
    before = user.json("keygen", "--for", MODEL)[0]
    assert not before["made_secret"] and not before["made_keys"]
    renewed = user.json("keygen", "--for", MODEL, "--renew")[0]
    assert not renewed["made_secret"] and renewed["made_keys"] and renewed["key_set"] != before["key_set"]
    user.expect(6, "infer", MODEL, ROWS, "--rows", "1")  # the new set is not registered yet
    user.expect(0, "register")
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1")


def shuffled_columns_score_the_same(user):
    rows = read_rows()
    order = list(range(len(rows[0])))
    random.Random(7).shuffle(order)
    write_rows(user.path("shuffled.csv"), [[row[i] for i in order] + ["extra" if row is rows[0] else "9"] for row in rows])
    plain = user.json("infer", MODEL, ROWS, "--rows", "5")
    shuffled = user.json("infer", MODEL, user.path("shuffled.csv"), "--rows", "5")
    for one, other in zip(plain["rows"], shuffled["rows"]):  # fresh noise may round either way
        assert one["label"] == other["label"]
        assert all(abs(a - b) < 1.5 * plain["rounded_to"] for a, b in zip(one["scores"], other["scores"])), (one, other)


def rows_that_cannot_be_right_are_refused(user):
    rows = read_rows()
    write_rows(user.path("less.csv"), [row[1:] for row in rows])
    write_rows(user.path("twice.csv"), [row + row[:1] for row in rows])
    large = [rows[0], list(rows[1])]
    large[1][3] = "1e9"
    write_rows(user.path("large.csv"), large)
    text = [rows[0], list(rows[1])]
    text[1][3] = "many"
    write_rows(user.path("text.csv"), text)
    write_rows(user.path("empty.csv"), [rows[0], [""] + rows[1][1:]])
    for name, word in (("less", rows[0][0]), ("twice", rows[0][0]), ("large", rows[0][3]), ("text", rows[0][3]), ("empty", rows[0][0])):
        done = user.expect(3, "infer", MODEL, user.path(f"{name}.csv"))
        assert word in done.stderr and done.stdout == "", f"{name}: {done.stderr}"
    user.expect(3, "infer", MODEL, user.path("no-such-file.csv"))
    user.expect(3, "infer", MODEL, ROWS, "--labels", ROWS)  # as many lines too many as there is a header


def each_failure_has_its_exit_code(user, daemon):
    user.expect(2, "infer")
    user.expect(2, "no-such-command")
    user.expect(4, "infer", "no-such-model", ROWS)
    with open(user.path("bad.token"), "w", encoding="utf-8") as file:
        file.write("alice-1." + "0" * 64 + "\n")
    user.expect(4, "infer", MODEL, ROWS, "--token-file", user.path("bad.token"))
    user.expect(5, "status", "--server", "tcp://127.0.0.1:1")
    user.expect(5, "status", "--server", "tcp://nobody.invalid:7000")
    for address in ("somewhere", "gopher://somewhere:70"):
        assert address in user.expect(2, "status", "--server", address).stderr
        user.expect(2, "profile", "elsewhere", "--server", address)
    user.expect(5, "status", "--server", f"ipc://{user.folder}/nobody")
    user.expect(6, "infer", MODEL, ROWS, "--key", user.path("no-keys/"))
    user.expect(7, "infer", MODEL, ROWS, "--pin", "0" * 64)
    error = user.json("infer", MODEL, ROWS, "--pin", "0" * 64, code=7)["error"]
    assert error["code"] == "CKKS_UNTRUSTED_SERVER" and error["exit"] == 7 and error["advice"]
    digest = user.json("models")[0]["digest"]
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--pin", digest)
    if daemon.ca:
        tls = daemon.addresses()["tls"].replace("127.0.0.1", "localhost")  # certificates are matched by name, not by number
        user.expect(7, "status", "--server", tls)  # an authority that the system does not know
        user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--server", tls, "--ca", daemon.ca)
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--server", daemon.addresses()["tcp"])


def a_wrong_command_line_is_an_object_too(user):
    for wrong in (["infer"], ["no-such-command"], ["version", "--nonsense"], ["bench", "ops", "--threads", "0"]):
        error = user.json(*wrong, code=2)["error"]
        assert error["exit"] == 2 and error["advice"].endswith("--help"), error
    version = user.json("version")["version"]
    assert version in user.expect(0, "version").stdout
    daemon = subprocess.run([f"{harness.BUILD}/ckksd", "--version"], text=True, capture_output=True, check=True)
    assert daemon.stdout == f"ckksd {version}\n"
    assert user.expect(0, "infer", "--json", "--help").stdout.startswith("Usage:")


def a_profile_that_does_not_exist_is_named(user):
    for wrong in (["status", "--profile", "nosuch"], ["profile", "nosuch"], ["profile", "nosuch", "--use"], ["profile", "nosuch", "--delete"]):
        error = user.json(*wrong, code=3)["error"]
        assert error["field"] == "profile" and "nosuch" in error["message"], error
    user.environment["CKKSCTL_PROFILE"] = "nosuch"
    assert "nosuch" in user.expect(3, "status").stderr
    del user.environment["CKKSCTL_PROFILE"]
    assert "nosuch" not in user.expect(0, "profile").stdout


def nothing_is_computed_for_an_output_that_cannot_be_written(user, package):
    onnx, calibration = f"{harness.MODELS}/{MODEL}/{MODEL}.onnx", f"{harness.MODELS}/{MODEL}/calibration.csv"
    for wrong in (["infer", MODEL, ROWS, "-o", user.folder], ["compile", onnx, "--calibration", calibration, "-o", user.folder],
                  ["explain", package, "--html", user.folder]):
        assert user.json(*wrong, code=3)["error"]["field"] == "output"
    assert not os.path.exists(user.folder + ".part")


def a_secret_key_that_others_may_read_is_refused(user):
    secret = user.json("keygen", "--for", MODEL)[0]["secret_file"]
    os.chmod(secret, 0o644)
    assert "chmod 600" in user.expect(3, "infer", MODEL, ROWS, "--rows", "1").stderr
    os.chmod(secret, 0o600)


def a_sealed_key_opens_with_its_passphrase_alone(user):
    for name, text in (("right", "correct horse"), ("wrong", "wrong horse")):
        with open(user.path(name), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    keys = ["--key", user.path("sealed/")]
    made = user.json("keygen", "--for", MODEL, *keys, "--passphrase-file", user.path("right"))[0]
    assert "needed" in user.expect(0, "inspect", made["secret_file"]).stdout
    user.expect(0, "register", *keys)
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", *keys, "--passphrase-file", user.path("right"))
    user.expect(6, "infer", MODEL, ROWS, "--rows", "1", *keys, "--passphrase-file", user.path("wrong"))
    user.expect(6, "infer", MODEL, ROWS, "--rows", "1", *keys)  # there is no terminal to ask on


def a_passphrase_is_typed_twice_the_same(user):
    for second, code in (("correct cow", 6), ("correct horse", 0)):
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(user.folder)
            os.execve(f"{harness.BUILD}/ckksctl", ["ckksctl", "keygen", "--for", MODEL, "--passphrase", "--key", user.path("typed/")], user.environment)
        for typed in ("correct horse", second):
            said = b""
            while not said.rstrip().endswith(b":"):
                said += os.read(terminal, 1024)
            os.write(terminal, typed.encode() + b"\n")
        try:
            while os.read(terminal, 1024):
                pass
        except OSError:  # the other end has gone
            pass
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, second
        kept = os.listdir(user.path("typed")) if os.path.isdir(user.path("typed")) else []
        assert any(name.endswith(".secret") for name in kept) == (code == 0), kept


def two_offline_machines_and_a_courier(user):
    """Metadata out, requests back, results out: the machine with the secret key has no network."""
    user.expect(0, "metadata", MODEL, "-o", user.path("model.meta"))
    nowhere = ["--server", "tcp://127.0.0.1:1"]
    user.expect(0, "keygen", "--for", user.path("model.meta"), "--key", user.path("offline"), *nowhere)
    user.expect(0, "encrypt", user.path("model.meta"), ROWS, "--rows", "2", "--key", user.path("offline"), "-o", user.path("out/r-"), *nowhere)
    user.expect(0, "encrypt", user.path("model.meta"), ROWS, "--rows", "1", "--key", user.path("offline"), "--public", "-o",
                user.path("out/p-"), *nowhere)
    user.expect(0, "register", user.path("offline.keys"))
    key_set = user.json("inspect", user.path("offline.keys"))[0]["id"]
    for name in ("r-000001", "r-000002", "p-000001"):
        user.expect(0, "infer", MODEL, user.path(f"out/{name}.ct"), "-o", user.path(f"{name}.result"), "--key-set", key_set)
    apart = user.json("decrypt", user.path("model.meta"), user.path("r-000001.result"), user.path("r-000002.result"),
                      user.path("p-000001.result"), "--key", user.path("offline"), *nowhere)
    together = user.json("infer", MODEL, ROWS, "--rows", "2")["rows"]
    assert [r["label"] for r in apart] == [together[0]["label"], together[1]["label"], together[0]["label"]]
    # a request is no result, and another's key opens nothing
    done = user.expect(3, "decrypt", user.path("model.meta"), user.path("out/r-000001.ct"), "--key", user.path("offline"))
    assert "this is a request; a result is needed" in done.stderr
    user.expect(6, "decrypt", user.path("model.meta"), user.path("r-000001.result"))


def no_secret_is_ever_printed(user, daemon):
    with open(f"{daemon.folder}/alice.token", encoding="utf-8") as file:
        token = file.read().strip().split(".")[1]
    assert len(token) == 64
    for command in ("profile", "doctor", "status", "models"):
        for how in ([], ["--json"]):
            done = user.run(command, *how)
            assert token not in done.stdout + done.stderr, command
    secret = user.json("keygen", "--for", MODEL)[0]["secret_file"]
    with open(secret, "rb") as file:
        image = file.read()
    shown = user.expect(0, "inspect", secret).stdout + user.expect(0, "inspect", secret, "--json").stdout
    assert "secret key" in shown and all(image[i:i + 24].hex() not in shown for i in range(len(image) - 56, len(image) - 2000, -97))


def a_server_that_is_still_loading_is_waited_for(package):
    models = [f"copy-{i}" for i in range(8)]
    daemon = harness.Daemon({name: package for name in models}, extra="[slots]\nwarmup = 100")
    user = User(daemon)
    while daemon.http("/livez")[0] != 200:
        assert daemon.process.poll() is None, daemon.log_text()
    user.expect(4, "metadata", "another", "-o", user.path("another.meta"))  # nothing to wait for
    for name in models:
        user.expect(0, "metadata", name, "-o", user.path(f"{name}.meta"))
    user.leave()
    assert daemon.stop() == 0


def a_model_that_a_device_error_keeps_from_serving_is_said(package):
    daemon = harness.Daemon({MODEL: package}, program="tests/ckksd-fault", environment={"CKKSD_TEST_FAIL_CAPTURES": "100"})
    user = User(daemon)
    daemon.wait_ready()
    while "event=model_given_up" not in daemon.log_text():
        assert daemon.process.poll() is None, daemon.log_text()
        time.sleep(0.02)
    daemon.wait_ready()  # its slot is back
    assert f"model        {MODEL}/1 NOT SERVED: UNAVAILABLE, CKKS_DEVICE_ERROR\n" in user.expect(0, "status").stdout
    said = user.json("status")
    assert said["ready"] and said["not_ready_because"] is None and said["slots"] == said["slots_in_service"] >= 1
    assert said["models_not_served"] == [{"model": f"{MODEL}/1", "state": "UNAVAILABLE", "cause": "CKKS_DEVICE_ERROR"}]
    user.leave()
    assert daemon.stop() == 0


def what_one_tenant_registered_is_unknown_to_another(user, daemon):
    shutil.copytree(user.path("ckksctl/keys"), user.path("copied"))
    other = User(daemon, "bob")
    other.expect(6, "infer", MODEL, ROWS, "--rows", "1", "--key", user.path("copied/"))
    other.leave()


def benchmarks_run_and_check_their_results(user, package):
    short = ["bench", "ops", "--set", "no such set|2^12", "--seconds", "0.01", "--device", "cpu", "--row"]
    host, rotations = user.json(*short, "crypt"), user.json(*short, "rotat")
    assert [r["operation"] for r in host["results"]] == ["encrypt, public key", "encrypt, secret key",
                                                         "decrypt and decode, one limb", "decrypt and decode, all limbs"]
    assert [r["operation"] for r in rotations["results"]] == ["rotate", "sum of 8 hoisted rotations", "8 hoisted rotations"]
    for r in host["results"] + rotations["results"]:
        assert r["checked"] and r["error"] < 1e-2 and not r["insecure"]
        assert 0 < r["min_us"] <= r["low_us"] <= r["median_us"] <= r["high_us"] and r["rounds"] >= 5
    assert all(r["eager_median_us"] > 0 and r["ratio"] > 0 for r in rotations["results"])
    earlier = user.path("earlier.json")
    for before, code in ((1e-3, 8), (1e9, 0)):  # clearly slower, clearly faster, eager or recorded
        for member in ("median_us", "eager_median_us"):
            faked = [{**r, "median_us": 1e9, "eager_median_us": 1e9, member: before} for r in rotations["results"]]
            with open(earlier, "w", encoding="utf-8") as file:
                json.dump({**rotations, "results": faked}, file)
            assert (" SLOWER" in user.expect(code, *short, "rotate", "--compare", earlier).stdout) == (code == 8)
    user.expect(3, "bench", "ops", "--row", "no such row")
    table = subprocess.run([sys.executable, f"{harness.ROOT}/tests/bench/compare.py", earlier, "--all"], text=True,
                           capture_output=True, check=True).stdout
    assert "| rotate |" in table and "8 hoisted rotations" in table
    teams = user.json(*short, "rotate|decode, one", "--threads", "1,2")
    for r in teams["results"] + user.json(*short, "encode", "--threads", "1,2")["results"]:
        one, two = r["threads"]
        assert (one["threads"], two["threads"]) == (1, 2) and one["rounds"] == two["rounds"] >= 5
        assert one["median_us"] == r["median_us"] and "eager_median_us" not in r
        assert one["speedup"] == 1 and abs(two["speedup_min"] - one["min_us"] / two["min_us"]) < 1e-6
    with open(earlier, "w", encoding="utf-8") as file:
        json.dump(teams, file)
    table = subprocess.run([sys.executable, f"{harness.ROOT}/tests/bench/compare.py", earlier, "--threads", earlier], text=True,
                           capture_output=True, check=True).stdout
    assert table.count("| rotate | ") == 1 and table.count(" / ") == 4
    text = user.expect(0, *short, "rotate", "--threads", "2,1").stdout
    assert "in turn with 1" in text and "eager" not in text
    for wrong in (["ops", "--threads", "1,,2"], ["ops", "--threads", "1,2", "--compare", earlier], ["program", package, "--threads", "1,2"]):
        user.expect(2, "bench", *wrong)
    program = user.json("bench", "program", package, "--rounds", "3", "--device", "cpu")
    assert program["rounds_checked"] >= 6 and program["summary"]
    serve = user.json("bench", "serve", package, "--slots", "1,3", "--seconds", "0.001", "--tenants", "2", "--device", "cpu")
    assert [r["slots"] for r in serve["runs"]] == [1, 3]
    for r in serve["runs"]:
        assert r["answers"] > 0 and r["wrong"] == 0 and r["recordings"] == 0 and r["median_us"] <= r["p99_us"]
    user.expect(2, "bench", "serve", package, "--slots", "0")
    user.expect(2, "bench", "serve", package, "--slots", "1,,2")


def load_on_the_daemon_gives_the_same_words_every_time(user):
    load = user.json("bench", "load", MODEL, "--slots", "1,3", "--seconds", "0.3", "--inputs", "2", "--breakdown")
    assert load["compared"] and [r["at_a_time"] for r in load["runs"]] == [1, 3]
    for r in load["runs"]:
        assert r["answers"] > 0 and r["wrong"] == 0 and r["replay_us"] > 0 and r["median_us"] <= r["p99_us"]
        stages = {name: s for name, s in r["breakdown"].items() if isinstance(s, dict)}
        assert len(stages) == 12 and all(s["median_us"] <= s["p90_us"] for s in stages.values())
        assert 0 < stages["replay"]["median_us"] < stages["total"]["median_us"]
        assert r["breakdown"]["mean_pack_us"] > 0 and r["breakdown"]["mean_reply_us"] > 0
    short = user.json("bench", "load", MODEL, "--slots", "1", "--seconds", "0.001")["runs"][0]
    assert "breakdown" not in short and short["answers"] > 1, short  # however short, or slow the machine
    user.expect(2, "bench", "load")
    user.expect(4, "bench", "load", "no-such-model")


def main():
    tests = harness.Tests()
    folder = tempfile.mkdtemp(prefix="ckksd-packages-")
    package = harness.compile_model(MODEL, folder)
    daemon = harness.Daemon({MODEL: package}, tls=True).wait_ready()
    user = User(daemon)
    tests.run(from_nothing_to_an_answer, user, package)
    tests.run(keys_that_are_there_are_kept, user)
    tests.run(shuffled_columns_score_the_same, user)
    tests.run(rows_that_cannot_be_right_are_refused, user)
    tests.run(each_failure_has_its_exit_code, user, daemon)
    tests.run(a_wrong_command_line_is_an_object_too, user)
    tests.run(a_profile_that_does_not_exist_is_named, user)
    tests.run(nothing_is_computed_for_an_output_that_cannot_be_written, user, package)
    tests.run(a_secret_key_that_others_may_read_is_refused, user)
    tests.run(a_sealed_key_opens_with_its_passphrase_alone, user)
    tests.run(a_passphrase_is_typed_twice_the_same, user)
    tests.run(two_offline_machines_and_a_courier, user)
    tests.run(no_secret_is_ever_printed, user, daemon)
    tests.run(a_server_that_is_still_loading_is_waited_for, package)
    tests.run(a_model_that_a_device_error_keeps_from_serving_is_said, package)
    tests.run(what_one_tenant_registered_is_unknown_to_another, user, daemon)
    tests.run(benchmarks_run_and_check_their_results, user, package)
    tests.run(load_on_the_daemon_gives_the_same_words_every_time, user)
    assert daemon.stop() == 0
    user.leave()
    shutil.rmtree(folder)
    tests.finish()


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""What an operator reads when the card that was asked for cannot be had: with no driver, and with one that is made up."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

CPU = "or take the CPU (kind = cpu in [device], --device cpu)"
# the driver's version and what its start returns; what is missing; what to do about it
DRIVERS = [
    ("12020", "0", "the NVIDIA driver is for CUDA 12.2 and this build needs 13.0", "update the driver"),
    ("13000", "100", "the NVIDIA driver finds no GPU", "give the container its card (--gpus all)"),
    ("13000", "802", "the NVIDIA driver gives no access to a GPU (system not yet initialized)", "nvidia-smi must work for this user"),
]


def ctl(environment, *arguments):
    done = subprocess.run([f"{harness.BUILD}/ckksctl", "bench", "ops", "--set", "2^12", "--row", "rescale", "--seconds", "0.01", *arguments], text=True,
                          env={**os.environ, **environment}, capture_output=True, timeout=170, check=False)
    return done.returncode, done.stdout, done.stderr


def a_card_that_was_asked_for_is_missed_with_a_cause_and_a_way_out(environment, cause, advice):
    code, _, said = ctl(environment, "--device", "cuda")
    assert code == 3, f"exit {code}: {said}"
    for part in (cause, advice, CPU):
        assert part in said, f"{part!r} is not in {said!r}"


def auto_takes_the_cpu_and_says_why(environment, cause):
    daemon = harness.Daemon({}, extra="[device]\nkind = auto\n", environment=environment)
    try:
        log = daemon.wait_ready().log_text()
        assert f'why="auto: {cause}, so the CPU"' in log, log
    finally:
        assert daemon.stop() == 0


def the_daemon_that_was_told_to_take_a_card_does_not_start_without(environment, cause, advice):
    daemon = harness.Daemon({}, extra="[device]\nkind = cuda\n", environment=environment)
    status = daemon.process.wait(60)
    log = daemon.log_text()
    daemon.stop()
    assert status == 1, status
    for part in ("event=start_failed", cause, advice, CPU):
        assert part in log, f"{part!r} is not in {log!r}"


def an_operation_runs_on_what_auto_takes(environment):
    code, out, said = ctl(environment, "--json")
    assert code == 0, said
    assert json.loads(out)["device"].startswith("CPU"), out


def main():
    tests = harness.Tests()
    _, _, said = ctl({}, "--device", "cuda")
    if "no CUDA back end" in said:
        tests.run(a_card_that_was_asked_for_is_missed_with_a_cause_and_a_way_out, {}, "this build has no CUDA back end", "build it where nvcc is")
        tests.skip(3 * len(DRIVERS), "drivers that are made up (this build has no CUDA back end)")
        tests.run(an_operation_runs_on_what_auto_takes, {})
        tests.finish()
    folder = tempfile.mkdtemp(prefix="ckksd-driver-")
    try:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_driver.c")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", f"{folder}/libcuda.so.1", source], check=True)
        for version, start, cause, advice in DRIVERS:
            environment = {"LD_LIBRARY_PATH": folder, "FAKE_CUDA_VERSION": version, "FAKE_CUDA_START": start}
            tests.run(a_card_that_was_asked_for_is_missed_with_a_cause_and_a_way_out, environment, cause, advice, label=cause)
            tests.run(the_daemon_that_was_told_to_take_a_card_does_not_start_without, environment, cause, advice, label=cause)
            tests.run(auto_takes_the_cpu_and_says_why, environment, cause, label=cause)
        tests.run(an_operation_runs_on_what_auto_takes, environment)
    finally:
        shutil.rmtree(folder)
    tests.finish()


if __name__ == "__main__":
    main()

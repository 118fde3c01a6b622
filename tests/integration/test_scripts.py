#!/usr/bin/python3
"""ckksctl in scripts: what a shell sees of it (exit codes, streams, files) when it is interrupted, watched, refused or out of disk."""
import fcntl
import json
import os
import pty
import pwd
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from test_ckksctl import MODEL, ROWS, User, read_rows, write_rows

CTL = f"{harness.BUILD}/ckksctl"


def the_argument_at_fault_is_named(user):
    faults = ((["infer", MODEL, ROWS, "--rows", "-3"], "--rows"), (["encrypt", MODEL, ROWS, "--rows", "-3"], "--rows"),
              (["infer", MODEL, ROWS, "--bogus"], "--bogus"), (["infer", MODEL, ROWS, "--timeout", "1e9"], "--timeout"),
              (["infer", MODEL, ROWS, "--pin", "12"], "--pin"), (["infer", MODEL], "ROWS"),
              (["infer", MODEL, ROWS, "-o", "out.csv", "--labels", ROWS], "--output"), (["try", "m", "--data", ROWS, "--security", "100"], "--security"),
              (["compile", "m", "--calibration", ROWS, "--security", "0"], "--security"),
              (["token", "add", "--tenant", "a", "--queued", "many"], "--queued"),
              (["token", "add", "--tenant", "a", "--key-bytes", "99999999999999999999999"], "--key-bytes"),
              (["status", "--json=yes"], "--json"), (["infer", MODEL, ROWS, "more"], "more"), (["profile", "one", "two"], "two"),
              (["models", "other"], "other"), (["version", "new"], "new"), (["no-such-command"], "no-such-command"))
    for wrong, name in faults:
        is_named(user, wrong, name)


def is_named(user, wrong, name):
    done = user.expect(2, wrong[0], "--json", *wrong[1:])
    error = json.loads(done.stdout)["error"]
    assert name in error["message"] and name in done.stderr and error["exit"] == 2, (wrong, error, done.stderr)
    assert "\n" not in error["message"]
    plain = user.expect(2, *wrong)
    assert plain.stdout == "" and name in plain.stderr, (wrong, plain)


# of every command: lines that it takes
LINES = {
    "profile": [["name"]], "keygen": [["--for", "m"]], "register": [[]], "infer": [["m", "rows"]], "encrypt": [["m", "rows"]],
    "decrypt": [["m", "file"]], "inspect": [["file"]], "status": [[]], "models": [[]], "metadata": [["m"]], "doctor": [[]],
    "token": [["add", "--tenant", "t"]], "try": [["m", "--data", "rows"]], "compile": [["m", "--calibration", "rows"], ["m", "--operators"]],
    "check": [["m", "--data", "rows"]], "explain": [["m"]], "version": [[]],
    "bench": [["ops"], ["program", "file"], ["serve", "file"], ["load", "m"]],
}
# lines that lack something, and how the usage of the command calls it
LACKING = (
    (["keygen"], "--for MODEL"), (["infer"], "MODEL"), (["infer", "m"], "ROWS"), (["encrypt"], "MODEL"), (["encrypt", "m"], "ROWS"),
    (["decrypt"], "MODEL"), (["decrypt", "m"], "RESULT"), (["inspect"], "FILE"), (["metadata"], "MODEL"), (["token", "--tenant", "t"], "add"),
    (["token", "add"], "--tenant NAME"), (["token", "remove", "--tenant", "t"], "remove"), (["try", "--data", "rows"], "MODEL.onnx"),
    (["try", "m"], "--data FILE"), (["compile", "--calibration", "rows"], "MODEL.onnx"), (["compile", "m"], "--calibration FILE"),
    (["check", "--data", "rows"], "MODEL.ckm"), (["check", "m"], "--data FILE"), (["explain"], "MODEL.ckm"), (["bench"], "ops, program, serve or load"),
    (["bench", "load"], "MODEL"), (["bench", "speed"], "speed"),
)
NEED_NOTHING = {"profile", "register", "status", "models", "doctor", "version"}


def commands_of_the_program():
    text = subprocess.run([CTL, "--help"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in text.split("\n\n")[1].splitlines()]


def every_command_names_the_argument_at_fault(user):
    known = commands_of_the_program()
    assert sorted(known) == sorted(LINES) == sorted({line[0] for line, _ in LACKING} | NEED_NOTHING), known
    for line, name in LACKING:
        is_named(user, line, name)
    tried = len(LACKING)
    for command, lines in LINES.items():
        for line in lines:
            wrong = ((line + ["one-more"] * 4200, "one-more"), (line + ["--no-such"], "--no-such"), (line + ["--timeout", "0"], "--timeout"),
                     (line + ["--profile"], "--profile"), (line + ["--quiet=very"], "--quiet"))
            for arguments, name in wrong:
                is_named(user, [command, *arguments], name)
                tried += 1
    for command, options in (("keygen", ["--for"]), ("register", ["--for"]), ("infer", []), ("encrypt", []), ("decrypt", []), ("metadata", []),
                             ("bench", ["load"])):
        for model in ("mnist/", "mnist/1/", "", "/"):
            rest = ["rows"] if command in ("infer", "encrypt", "decrypt") else []
            is_named(user, [command, *options, model, *rest, "--server", "tcp://127.0.0.1:1"], f'MODEL is "{model}"')
            tried += 1
    for model in ("/no/such.ckm", "./mnist", "../mnist/1", "folder/sub/model.ckm"):
        error = user.json("infer", model, ROWS, "--server", "tcp://127.0.0.1:1", code=3)["error"]  # no server is asked about a path
        assert error["code"] == "CKKS_NOT_FOUND" and error["field"] == "file" and model in error["message"], error
        tried += 1
    print(f"  {tried} command lines")


def every_object_is_json_whatever_a_file_is_called(user):
    for name in (b"gr\xf6\xdfe.csv", b"quote\".csv", b"line\nend.csv", b"\xc2\x9b2J.csv", "größe.csv".encode()):
        done = subprocess.run([CTL, "infer", MODEL, name, "--json"], env=user.environment, cwd=user.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=60, check=False)
        error = json.loads(done.stdout.decode())["error"]
        assert done.returncode == 3 and error["code"] == "CKKS_NOT_FOUND" and ".csv" in error["message"], done
        assert b"\xc2\x9b" not in done.stdout + done.stderr, done


def unrounded_results_come_with_a_warning(user):
    assert "secret key" not in user.expect(0, "infer", MODEL, ROWS, "--rows", "1").stderr
    for how in ([], ["-o", user.path("raw.csv")]):
        assert "carry information about your secret key" in user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--raw", "--quiet", *how).stderr


def an_output_that_is_no_file_is_not_replaced_by_one(user):
    pipe = user.path("pipe")
    os.mkfifo(pipe)
    error = user.json("infer", MODEL, ROWS, "--rows", "3", "-o", pipe, code=3)["error"]
    assert error["field"] == "output" and "pipe" in error["message"]
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        user.expect(0, "metadata", MODEL, "-o", pipe)
        saved = reader.communicate(timeout=60)[0]
    user.expect(0, "metadata", MODEL, "-o", user.path("model.meta"))
    with open(user.path("model.meta"), "rb") as file:
        assert saved == file.read()
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    os.symlink("behind.csv", user.path("link.csv"))
    with open(user.path("behind.csv"), "w", encoding="utf-8") as file:
        file.write("old")
    user.expect(0, "infer", MODEL, ROWS, "--rows", "3", "-o", user.path("link.csv"))
    assert os.path.islink(user.path("link.csv")) and len(open(user.path("behind.csv"), encoding="utf-8").readlines()) == 4


def an_output_without_its_folder_is_said_at_once(user):
    """Before the model is asked for: here the server is not even there."""
    nowhere = ["--server", "tcp://127.0.0.1:1"]
    with open(user.path("a-file"), "w", encoding="utf-8"):
        pass
    for path in ("missing/out.meta", "a-file/out.meta", "x" * 5000):
        assert user.json("metadata", MODEL, "-o", path, *nowhere, code=3)["error"]["field"] == "output"
    assert user.json("infer", MODEL, ROWS, "-o", "a-file/below/out.csv", *nowhere, code=3)["error"]["field"] == "output"
    user.expect(5, "infer", MODEL, ROWS, "-o", "made/below/out.csv", *nowhere)
    assert not os.path.exists(user.path("made"))
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "-o", "made/below/out.csv")
    assert names(user.path("made/below")) == ["out.csv"]


def results_are_no_more_public_than_those_before(user):
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "-o", "private.csv")
    os.chmod(user.path("private.csv"), 0o600)
    user.expect(0, "infer", MODEL, ROWS, "--rows", "2", "-o", "private.csv")
    assert stat.S_IMODE(os.stat(user.path("private.csv")).st_mode) == 0o600


def names(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def has_nameless_files(folder):
    """What a command that is killed wrote so far goes with it; else it has a name beside the file's."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


def run_and_signal(user, number, seconds, *arguments):
    with subprocess.Popen([CTL, *arguments], env=user.environment, cwd=user.folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        time.sleep(seconds)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def an_interrupted_command_leaves_whole_files(user):
    """Interrupted and killed at many moments: what is there is whole, and the same command then succeeds."""
    rows = read_rows()
    write_rows(user.path("many.csv"), rows[:1] + rows[1:] * 20)
    is_whole = has_nameless_files(user.folder)  # else nobody removes a part of one: no signal is caught
    for moment in range(16):
        number = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[moment % 3]
        folder = user.path(f"keys-{moment}/")
        run_and_signal(user, number, 0.01 * moment, "keygen", "--for", MODEL, "--key", folder)
        if is_whole:
            assert all(name.rsplit(".", 1)[1] in ("secret", "public", "keys") for name in names(folder)), names(folder)
            for name in names(folder):
                user.expect(0, "inspect", folder + name)
        user.expect(0, "keygen", "--for", MODEL, "--key", folder)
        run_and_signal(user, number, 0.01 * moment, "register", "--key", folder)
        out = user.path(f"requests-{moment}/")
        run_and_signal(user, number, 0.02 * moment, "encrypt", MODEL, "many.csv", "--key", folder, "-o", out)
        if is_whole:
            assert all(name.endswith(".ct") for name in names(out)), names(out)
        whole = [name for name in names(out) if name.endswith(".ct")]
        if whole:
            user.expect(0, "inspect", out + whole[-1])
    user.expect(0, "register", "--key", folder)
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--key", folder)


def an_interrupted_stream_goes_on_and_has_no_rival(user):
    out = user.path("stream.csv")
    command = ["infer", MODEL, "many.csv", "-o", out]
    code, said, _ = run_and_signal(user, signal.SIGINT, 0.6, *command, "--json")
    if code == 130:  # else it was faster, or not yet at it
        assert json.loads(said)["error"]["exit"] == 130
        has_rows = "behind row 0:" not in said
        assert names(user.folder).count("stream.csv") == 0 and os.path.exists(out + ".journal") == has_rows == os.path.exists(out + ".part")
    with subprocess.Popen([CTL, *command], env=user.environment, cwd=user.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as first:
        time.sleep(0.3)
        rival = user.run(*command)
        assert 0 in (first.wait(120), rival.returncode), rival.stderr  # whichever was there first
        assert rival.returncode == 0 or "another run" in rival.stderr, rival.stderr
    with open(out, encoding="utf-8") as file:
        lines = file.readlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(i + 1) for i in range(len(lines) - 1)] and len(lines) == 20 * (len(read_rows()) - 1) + 1
    assert not os.path.exists(out + ".part") and not os.path.exists(out + ".journal")


def a_full_disk_is_said_and_leaves_nothing(user):
    """A bound on the size of files stands for a disk that gets full in the middle of one."""
    def bounded(*arguments):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        return subprocess.run([CTL, *arguments], env=user.environment, cwd=user.folder, text=True, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=60, check=False, preexec_fn=limit)
    folder = user.path("full/")
    os.mkdir(folder)
    for command in (["keygen", "--for", MODEL, "--key", folder], ["encrypt", MODEL, ROWS, "--rows", "2", "-o", folder + "r-"],
                    ["infer", MODEL, ROWS, "--rows", "169", "-o", folder + "s.csv"]):
        done = bounded(*command, "--json")
        assert done.returncode == 1, (command, done.stdout, done.stderr)
        error = json.loads(done.stdout)["error"]
        assert error["code"] == "CKKS_IO" and folder in error["message"], error
    kept = names(folder)
    assert kept == ["s.csv.journal", "s.csv.part"], kept  # whole parts only: the same command goes on behind them
    user.expect(0, "infer", MODEL, ROWS, "--rows", "169", "-o", folder + "s.csv")
    assert names(folder) == ["s.csv"]


def watch(user, *arguments, columns=80):
    """What is seen on a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(user.folder)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execve(CTL, ["ckksctl", *arguments], user.environment)
    seen = b""
    try:
        while piece := os.read(terminal, 4096):
            seen += piece
    except OSError:  # the other end has gone
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, seen
    return seen.decode()


def a_terminal_sees_progress_and_a_pipe_does_not(user):
    commands = (["keygen", "--for", MODEL, "--renew"], ["register"], ["encrypt", MODEL, ROWS, "-o", "progress/r-"], ["infer", MODEL, ROWS],
                ["infer", MODEL, ROWS, "-o", "progress.csv"])
    for command in commands:
        seen = watch(user, *command)
        assert "[#" in seen and "\r" in seen, (command, seen)
        assert "[#" not in watch(user, *command, "--quiet"), command
        done = user.expect(0, *command)
        assert "[#" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr, command
        assert user.expect(0, *command, "--quiet").stderr == "", command
        json.loads(user.expect(0, *command, "--json").stdout)


def a_bar_stays_on_its_line_on_any_terminal(user):
    for columns in (200, 80, 40, 20, 1):
        for command in (["keygen", "--for", MODEL, "--renew"], ["register"], ["infer", MODEL, ROWS], ["infer", MODEL, ROWS, "-o", "narrow.csv"]):
            seen = watch(user, *command, columns=columns)
            drawn = [piece.split("\x1b[K")[0] for piece in seen.split("\r") if "\x1b[K" in piece]
            assert drawn and all(len(piece) < columns for piece in drawn), (columns, command, drawn)
            assert columns < 80 or any("[####" in piece for piece in drawn), (columns, command, drawn)
            assert columns < 40 or any(piece for piece in drawn), (columns, command, drawn)


def a_dash_is_no_output(user):
    """It would be a file of that name: with a token in it, say."""
    options = {}
    for command in commands_of_the_program():
        text = user.expect(0, command, "--help").stdout
        options[command] = [name for name in ("--output", "--html") if name + "=" in text]
    assert sum(map(len, options.values())) >= 7 and options["token"] and options["explain"], options
    for command, names_of_files in options.items():
        for option in names_of_files:
            for name in ("-", ""):
                is_named(user, [command, option, name], option)
    assert not os.path.exists(user.path("-"))


def advice_leads_on_with_another_key(user):
    """The next command, as it is said, is the right one where the keys are not the profile's."""
    said = user.expect(0, "keygen", "--for", MODEL, "--key", "sub/other").stderr
    assert "next: ckksctl register --key sub/other" in said, said
    done = user.expect(6, "infer", MODEL, ROWS, "--rows", "1", "--key", "sub/other")
    assert "ckksctl register, with the same --key" in done.stderr, done.stderr
    user.expect(0, "register", "--key", "sub/other")
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--key", "sub/other")
    done = user.expect(6, "infer", MODEL, ROWS, "--rows", "1", "--key", "nowhere/")
    assert "a key that the model requires is missing" in done.stderr and "with the same --key" in done.stderr, done.stderr


def one_value(text):
    """JSON as the strictest reader takes it: one value on one line, no name twice, no NaN."""
    def pairs(found):
        assert len({name for name, _ in found}) == len(found), found
        return dict(found)
    def refuse(word):
        raise ValueError(word)
    assert text.endswith("\n") and text.count("\n") == 1, text
    return json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)


def json_gives_one_value_whatever_was_asked_and_nothing_secret(user):
    rows = read_rows()
    rows[1][0] = "12.34567890123"
    write_rows(user.path("marked.csv"), rows[:3])
    with open(user.token, encoding="utf-8") as file:
        token = file.read().strip().split(".")[1]
    package = f"{user.folder}/made.ckm"
    onnx, calibration = f"{harness.MODELS}/{MODEL}/{MODEL}.onnx", f"{harness.MODELS}/{MODEL}/calibration.csv"
    commands = (["profile", "spare", "--server", "tcp://127.0.0.1:1"], ["profile", "spare"], ["profile"], ["profile", "spare", "--delete"],
                ["keygen", "--for", MODEL], ["keygen", "--for", MODEL, "--dry-run"], ["register"], ["infer", MODEL, "marked.csv"],
                ["infer", MODEL, "marked.csv", "--top", "1", "--raw"], ["infer", MODEL, "marked.csv", "--summary"],
                ["infer", MODEL, "marked.csv", "-o", "marked-out.csv"], ["encrypt", MODEL, "marked.csv", "-o", "marked-"],
                ["infer", MODEL, "marked-000001.ct", "-o", "marked.result"], ["decrypt", MODEL, "marked.result"],
                ["inspect", "marked.result", "marked-000001.ct"], ["status"], ["models"], ["metadata", MODEL, "-o", "marked.meta"], ["doctor"],
                ["token", "add", "--tenant", "t", "--file", user.path("their-tokens"), "-o", user.path("t.token")],
                ["compile", onnx, "--calibration", calibration, "-o", package], ["compile", "--operators"], ["version"],
                ["try", onnx, "--data", "marked.csv", "--calibration", calibration, "--encrypted", "1"],
                ["check", package, "--data", "marked.csv", "--encrypted", "1"], ["explain", package, "--no-measure"],
                ["bench", "program", package, "--rounds", "1"])
    assert {command[0] for command in commands} == set(commands_of_the_program())
    for command in commands:
        done = user.expect(0, *command, "--json")
        one_value(done.stdout)
        assert "12.345678" not in done.stdout + done.stderr and token not in done.stdout + done.stderr, (command, done)
        assert done.stderr == "" or "--raw" in command, (command, done.stderr)
    with open(user.path("t.token"), encoding="utf-8") as file:
        made = file.read()
    assert made.strip().split(".")[1] not in open(user.path("their-tokens"), encoding="utf-8").read()


def keys_made_at_the_same_time_are_of_one_secret(user):
    command = [CTL, "keygen", "--for", MODEL, "--key", user.path("race/"), "--json"]
    processes = [subprocess.Popen(command, env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    said = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert all(code == 0 for _, code in said), said
    assert sum(one_value(out)[0]["made_secret"] for (out, _), _ in said) == 1, said
    user.expect(0, "register", "--key", user.path("race/"))
    user.expect(0, "infer", MODEL, ROWS, "--rows", "1", "--key", user.path("race/"))


def without_a_home_nothing_is_kept_in_the_folder_at_hand(user):
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return  # a user whom the system does not know
    user.expect(0, "metadata", MODEL, "-o", "home.meta")
    bare = {name: value for name, value in user.environment.items() if name not in ("HOME", "XDG_CONFIG_HOME")}
    for environment in (bare, {**bare, "HOME": ""}):
        done = subprocess.run([CTL, "keygen", "--for", user.path("home.meta"), "--dry-run", "--json"], env=environment, cwd=user.folder,
                              capture_output=True, text=True, timeout=60, check=True)
        assert one_value(done.stdout)[0]["secret_file"].startswith(home.rstrip("/") + "/.config/"), done.stdout


def a_profile_keeps_only_what_it_can_give_back(user):
    """Else its file, and with it every command, would be of no use any more."""
    before = user.expect(0, "profile").stdout
    for option in ("--server", "--token-file", "--ca", "--key"):
        for value in ("tcp://a:1\n[evil]", "tcp://a:1\r", "tcp://a:1 ", "tcp://a:1\x1b[2J", "tcp://a:1\n"):
            error = user.json("profile", "odd", option, value, code=2)["error"]
            assert error["code"] == "CKKS_INVALID_ARGUMENT" and option in error["message"], error
    assert user.expect(0, "profile").stdout == before
    user.expect(0, "profile", "odd", "--key", "a folder = of [mine]; # really/")
    assert user.json("profile", "odd")["profiles"][0]["key"] == user.path("a folder = of [mine]; # really/")
    user.expect(0, "profile", "odd", "--delete")


def requests_are_called_after_their_rows(user):
    write_rows(user.path("plain.csv"), read_rows()[:3])
    user.expect(0, "encrypt", MODEL, "plain.csv")
    with open(user.path("plain.csv"), encoding="utf-8") as rows:
        subprocess.run([CTL, "encrypt", MODEL, "-"], env=user.environment, cwd=user.folder, stdin=rows, check=True, timeout=60,
                       stderr=subprocess.DEVNULL)
    assert {name for name in names(user.folder) if name.endswith("2.ct")} >= {"plain.csv-000002.ct", "rows-000002.ct"}, names(user.folder)


def standard_input_is_called_so(user):
    assert "standard input: the file is empty" in user.json("infer", MODEL, "-", code=3)["error"]["message"]


def help_of_a_command_is_its_own(user):
    for command in commands_of_the_program():
        shown = user.expect(0, "help", command).stdout
        assert shown == user.expect(0, command, "--help").stdout and "ckksctl " + command in shown, command
    assert user.expect(0, "help").stdout == user.expect(0, "--help").stdout
    user.expect(2, "help", "no-such-command")


def dumps_core(user, is_at_work, *command):
    """Ends it as a fault of its own would: is its memory then in a file?"""
    with subprocess.Popen(command, env=user.environment, cwd=user.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 28, 1 << 28))) as process:
        end = time.monotonic() + 30
        while not is_at_work() and time.monotonic() < end:
            time.sleep(0.05)
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            command_line = file.read()
        process.send_signal(signal.SIGSEGV)
        status = os.waitpid(process.pid, 0)[1]
        process.returncode = -signal.SIGSEGV
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status
    return os.WCOREDUMP(status), command_line


def tokens_made_at_the_same_time_all_work(user):
    command = [CTL, "token", "add", "--file", user.path("tokens"), "--tenant", "many"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(12)]
    tokens = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    with open(user.path("tokens"), encoding="utf-8") as file:
        ids = sorted(line.split()[0] for line in file)
    assert ids == sorted(token.split(".")[0] for token in tokens) == sorted(f"many-{n}" for n in range(1, 13)), ids
    missing = user.json("token", "add", "--file", "missing/tokens", "--tenant", "many", code=3)["error"]
    assert missing["code"] == "CKKS_NOT_FOUND" and "missing/tokens:" in missing["message"], missing


def secrets_are_in_no_core_dump_and_on_no_command_line(user):
    if os.environ.get("SANITIZER"):
        return  # its leak check has to look in
    rows = read_rows()
    write_rows(user.path("without-end.csv"), rows[:1] + rows[1:] * 200)
    dumped, command_line = dumps_core(user, lambda: os.path.exists(user.path("never.csv.part")), CTL, "infer", MODEL, "without-end.csv", "-o",
                                      "never.csv")
    assert not dumped
    with open(user.token, encoding="utf-8") as file:
        assert file.read().split(".")[1].strip().encode() not in command_line
    print(f"  (other programs {'do' if dumps_core(user, lambda: time.sleep(0.2) or True, 'sleep', '600')[0] else 'do not either'} on this machine)")


def main():
    tests = harness.Tests()
    folder = tempfile.mkdtemp(prefix="ckksd-packages-")
    package = harness.compile_model(MODEL, folder)
    daemon = harness.Daemon({MODEL: package}).wait_ready()
    user = User(daemon)
    user.token = f"{daemon.folder}/alice.token"
    user.expect(0, "keygen", "--for", MODEL)
    user.expect(0, "register")
    tests.run(the_argument_at_fault_is_named, user)
    tests.run(every_command_names_the_argument_at_fault, user)
    tests.run(every_object_is_json_whatever_a_file_is_called, user)
    tests.run(unrounded_results_come_with_a_warning, user)
    tests.run(an_output_that_is_no_file_is_not_replaced_by_one, user)
    tests.run(an_output_without_its_folder_is_said_at_once, user)
    tests.run(results_are_no_more_public_than_those_before, user)
    tests.run(an_interrupted_command_leaves_whole_files, user)
    tests.run(an_interrupted_stream_goes_on_and_has_no_rival, user)
    tests.run(a_full_disk_is_said_and_leaves_nothing, user)
    tests.run(a_terminal_sees_progress_and_a_pipe_does_not, user)
    tests.run(a_bar_stays_on_its_line_on_any_terminal, user)
    tests.run(a_dash_is_no_output, user)
    tests.run(advice_leads_on_with_another_key, user)
    tests.run(json_gives_one_value_whatever_was_asked_and_nothing_secret, user)
    tests.run(a_profile_keeps_only_what_it_can_give_back, user)
    tests.run(requests_are_called_after_their_rows, user)
    tests.run(standard_input_is_called_so, user)
    tests.run(help_of_a_command_is_its_own, user)
    tests.run(keys_made_at_the_same_time_are_of_one_secret, user)
    user.expect(0, "metadata", MODEL, "-o", "home.meta")
    tests.run(without_a_home_nothing_is_kept_in_the_folder_at_hand, user)
    tests.run(tokens_made_at_the_same_time_all_work, user)
    tests.run(secrets_are_in_no_core_dump_and_on_no_command_line, user)
    assert daemon.stop() == 0
    user.leave()
    shutil.rmtree(folder)
    tests.finish()


if __name__ == "__main__":
    main()

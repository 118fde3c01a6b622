#!/usr/bin/python3
"""What a client developer gets: `make install-client` into an empty prefix, and programs that are built from nothing but that."""
import csv
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

HERE = os.path.dirname(os.path.abspath(__file__))
CXX = shutil.which("c++")  # the header is for both; building ckksd needs C alone
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wpedantic", "-Werror"]


class Prefix:
    """An empty prefix with the client in it, and the environment of a developer who works there."""

    def __init__(self, folder):
        self.folder = f"{folder}/prefix"
        with open(f"{harness.BUILD}/flags", encoding="utf-8") as file:
            same_build = [] if "-DCKKSD_CUDA" in file.read() else ["NVCC="]  # what was built is what is installed
        subprocess.run(["make", "-s", "-C", harness.ROOT, "install-client", f"PREFIX={self.folder}", *same_build], check=True,
                       stdout=subprocess.DEVNULL)
        self.environment = {**os.environ, "PKG_CONFIG_PATH": f"{self.folder}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{self.folder}/lib"}

    def config(self, *arguments):
        return subprocess.run(["pkg-config", *arguments, "ckksclient"], env=self.environment, text=True, check=True, capture_output=True).stdout.split()

    def compile(self, compiler, source, program):
        subprocess.run([*compiler, *WARNINGS, source, *self.config("--cflags", "--libs"), "-o", program], check=True)
        return program

    def run(self, *command, **more):
        return subprocess.run(command, env=self.environment, text=True, capture_output=True, timeout=60, check=False, **more)


def what_is_installed_is_all_there(prefix):
    found = sorted(os.path.relpath(f"{where}/{name}", prefix.folder) for where, _, names in os.walk(prefix.folder) for name in names)
    assert found == ["bin/ckksctl", "include/ckksclient.h", "lib/libckksclient.so", "lib/libckksclient.so.0", "lib/pkgconfig/ckksclient.pc",
                     "share/bash-completion/completions/ckksctl"], found
    version = prefix.config("--modversion")[0]
    assert f"ckksctl {version} " in prefix.run(f"{prefix.folder}/bin/ckksctl", "version").stdout
    with open(f"{prefix.folder}/include/ckksclient.h", encoding="utf-8") as file:
        header = file.read()
    numbers = [re.search(rf"CKKSC_VERSION_{part} (\d+)", header).group(1) for part in ("MAJOR", "MINOR")]
    assert version.split(".")[:2] == numbers, (version, numbers)


def the_library_exports_its_header_and_nothing_else(prefix):
    symbols = subprocess.run(["nm", "-D", "--defined-only", f"{prefix.folder}/lib/libckksclient.so"], text=True, check=True,
                             capture_output=True).stdout
    exported = {line.split()[2].split("@")[0] for line in symbols.splitlines() if line.split()[1] != "A"}
    with open(f"{prefix.folder}/include/ckksclient.h", encoding="utf-8") as file:
        declared = set(re.findall(r"CKKSC_API[^;]*?\b(ckksc_\w+)\(", file.read()))
    assert exported == declared, exported ^ declared
    dynamic = subprocess.run(["readelf", "-d", f"{prefix.folder}/lib/libckksclient.so"], text=True, check=True, capture_output=True).stdout
    assert "soname: [libckksclient.so.0]" in dynamic


def the_first_answer_of_the_header_compiles(prefix, folder):
    """As it is written there, between a main's braces."""
    with open(f"{prefix.folder}/include/ckksclient.h", encoding="utf-8") as file:
        lines = re.findall(r"^ \*     (.*)$", file.read().split("Conventions")[0], re.M)
    for language, compiler in (("c", ["cc", "-std=c99"]), ("cc", [CXX, "-std=c++17", "-Wno-missing-field-initializers"])):
        if not compiler[0]:
            continue
        source = f"{folder}/first.{language}"
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <ckksclient.h>\nint main(int argc, char **argv) {\ndouble row[30] = {0}, scores[2];\nconst char *token = argv[argc - 1];\n"
                       + "\n".join(lines) + "\nreturn (int)status;\n}\n")
        program = prefix.compile(compiler, source, f"{folder}/first-{language}")
        assert prefix.run(program, "a.b").returncode == 1  # host: is no machine; status keeps its first value


def a_program_predicts_what_ckksctl_does(prefix, folder, daemon):
    programs = [prefix.compile(["cc", "-std=c99", "-D_POSIX_C_SOURCE=200809L"], f"{HERE}/client_program.c", f"{folder}/predict")]
    if CXX:
        programs.append(prefix.compile([CXX, "-x", "c++", "-std=c++17", "-Wno-missing-field-initializers"], f"{HERE}/client_program.c",
                                       f"{folder}/predict-cc"))
    for model, program in (("breast-cancer", programs[0]), ("credit-pipeline", programs[-1])):
        with open(f"{harness.MODELS}/{model}/test.csv", encoding="utf-8", newline="") as file:
            lines = file.readlines()[:6]
        key = f"{folder}/{model}.secret"
        command = [program, daemon.addresses()["tcp"], f"{daemon.folder}/alice.token", model, key]
        said = [prefix.run(*command, input="".join(lines)) for _ in range(2)]  # with a new key, then with the kept one
        assert all(done.returncode == 0 for done in said), said
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
        labels = [[line.split("\t")[0] for line in done.stdout.splitlines()] for done in said]
        rows = f"{folder}/rows.csv"
        with open(rows, "w", encoding="utf-8") as file:
            file.writelines(lines)
        ctl = f"{prefix.folder}/bin/ckksctl"
        where = ["--server", command[1], "--token-file", command[2], "--key", f"{folder}/keys/"]
        for step in (["keygen", "--for", model], ["register"]):
            assert prefix.run(ctl, *step, *where).returncode == 0
        answer = prefix.run(ctl, "infer", model, rows, *where).stdout
        assert labels[0] == labels[1] == [line.split("\t")[1] for line in answer.splitlines()] and len(labels[0]) == 5, (labels, answer)
    row = list(csv.reader(lines[1:2]))[0]
    broken = lines[0] + ",".join(["?" if not cell.replace(".", "").isdigit() else "1e9" for cell in row])
    done = prefix.run(*command, input=broken)
    assert done.returncode == 3 and done.stderr.startswith("row: "), done
    nobody = prefix.run(programs[0], "tcp://127.0.0.1:1", *command[2:], input="")
    assert nobody.returncode == 5, nobody
    wrong = prefix.run(programs[0], *command[1:3], "no-such-model", key, input="")
    assert wrong.returncode == 4 and "no-such-model" in wrong.stderr, wrong


def completion_offers_what_the_program_has(prefix, daemon):
    program = f"{prefix.folder}/bin/ckksctl"

    def offered(*words):
        script = (f'source "{prefix.folder}/share/bash-completion/completions/ckksctl"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  '_ckksctl; printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", script, "bash", program, *words], env=prefix.environment, cwd=daemon.folder, text=True, check=True,
                              capture_output=True)
        assert done.stderr == "", done.stderr
        return done.stdout.split()
    commands = offered("")
    assert {"infer", "keygen", "register", "compile", "version"} <= set(commands) and len(commands) >= 18, commands
    assert offered("in") == ["infer", "inspect"]
    for command in commands:
        usage = prefix.run(program, command, "--usage").stdout
        options = set(re.findall(r"--[a-z-]+", usage))
        assert {"--json", "--help"} <= options, usage
        assert {option.rstrip("=") for option in offered(command, "--")} == options, (command, offered(command, "--"), options)
    assert offered("infer", "--token-f") == ["--token-file="]
    assert "tokens" in offered("infer", "tok")


def main():
    tests = harness.Tests()
    if os.environ.get("SANITIZER") or not os.environ.get("B", "build/gcc").endswith("build/gcc"):
        tests.skip(5, "what is installed is the plain build")
        tests.finish()
    folder = tempfile.mkdtemp(prefix="ckksd-install-")
    prefix = Prefix(folder)
    daemon = harness.Daemon({name: harness.compile_model(name, folder) for name in ("breast-cancer", "credit-pipeline")}).wait_ready()
    tests.run(what_is_installed_is_all_there, prefix)
    tests.run(the_library_exports_its_header_and_nothing_else, prefix)
    tests.run(the_first_answer_of_the_header_compiles, prefix, folder)
    tests.run(a_program_predicts_what_ckksctl_does, prefix, folder, daemon)
    tests.run(completion_offers_what_the_program_has, prefix, daemon)
    assert daemon.stop() == 0
    shutil.rmtree(folder)
    tests.finish()


if __name__ == "__main__":
    main()

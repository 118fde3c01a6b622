"""Starts the real daemon with its own folder, tokens and models; stops it and checks how it ended."""
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.join(ROOT, os.environ.get("B", "build/gcc"))
MODELS = os.path.join(ROOT, "tests", "models")


class Ports:
    """Ports that stay ours: each is bound, and nobody listens, until the daemon does. One that is merely free may be anybody's a moment later,
    and be given out twice."""

    def __init__(self):
        self.held = []

    def take(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # who sets one of these too may bind it beside us
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", 0))
        self.held.append(s)
        return s.getsockname()[1]

    def release(self):
        for s in self.held:
            s.close()


class Daemon:
    """models: {name: package file}. tls: also listen on tls+tcp with a certificate of our own making. ws: on
    WebSockets too."""

    def __init__(self, models, tls=False, ws=False, extra="", program="ckksd", environment=None):
        self.folder = tempfile.mkdtemp(prefix="ckksd-test-")
        for name, package in models.items():
            os.makedirs(f"{self.folder}/models/{name}/1")
            shutil.copy(package, f"{self.folder}/models/{name}/1/model.ckm")
        os.makedirs(f"{self.folder}/models", exist_ok=True)
        os.makedirs(f"{self.folder}/data")
        self.ports = Ports()
        self.tcp, self.tcp_bulk, self.tls, self.tls_bulk, self.ops = (self.ports.take() for _ in range(5))
        self.ca = None
        lines = ["[server]", f"models = {self.folder}/models", f"data = {self.folder}/data", f"tokens = {self.folder}/tokens",
                 "[listen]", f"control = ipc://{self.folder}/control.sock", f" tcp://127.0.0.1:{self.tcp}"]
        bulk = [f"bulk = ipc://{self.folder}/bulk.sock", f" tcp://127.0.0.1:{self.tcp_bulk}"]
        if tls:
            self.make_certificate()
            lines.append(f" tls+tcp://127.0.0.1:{self.tls}")
            bulk += [f" tls+tcp://127.0.0.1:{self.tls_bulk}", f"tls_certificate = {self.folder}/server.pem", f"tls_key = {self.folder}/server.key"]
        self.ws = self.ports.take() if ws else None
        if ws:
            lines.append(f" ws://127.0.0.1:{self.ws}/control")
            bulk.insert(1, f" ws://127.0.0.1:{self.ports.take()}/bulk")
        lines += bulk + ["[ops]", f"listen = 127.0.0.1:{self.ops}", extra]
        with open(f"{self.folder}/ckksd.conf", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        self.token = self.add_token("alice")
        self.other_token = self.add_token("bob")
        self.log = open(f"{self.folder}/log", "wb")
        self.process = subprocess.Popen([f"{BUILD}/{program}", "--config", f"{self.folder}/ckksd.conf"], stderr=self.log, stdout=self.log,
                                        env={**os.environ, **(environment or {})})

    def make_certificate(self):
        self.ca = f"{self.folder}/server.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", f"{self.folder}/server.key", "-out", self.ca],
                       check=True, stderr=subprocess.DEVNULL)

    def add_token(self, tenant, *more):
        file = f"{self.folder}/{tenant}.token"
        subprocess.run([f"{BUILD}/ckksctl", "token", "add", "--file", f"{self.folder}/tokens", "--tenant", tenant, "-o", file, "--quiet", *more],
                       check=True, stdout=subprocess.DEVNULL)
        with open(file, encoding="utf-8") as f:
            return f.readline().strip()

    def http(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ops}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError("the daemon ended: " + self.log_text()[-2000:])
            if self.http("/readyz")[0] == 200:
                return self
            time.sleep(0.05)
        raise RuntimeError("not ready: " + self.log_text()[-2000:])

    def log_text(self):
        self.log.flush()
        with open(f"{self.folder}/log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

    def stop(self, seconds=60):
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(seconds)
        self.ports.release()
        self.log.close()
        shutil.rmtree(self.folder)
        return status

    def addresses(self):
        found = {"ipc": f"ipc://{self.folder}/control.sock", "tcp": f"tcp://127.0.0.1:{self.tcp}"}
        if self.ca:
            found["tls"] = f"tls+tcp://127.0.0.1:{self.tls}"
        if self.ws:
            found["ws"] = f"ws://127.0.0.1:{self.ws}/control"
        return found


class Gate:
    """In front of every evaluation of a daemon that was started with Gate.PROGRAM and this environment: what has begun cannot come to its end
    before the test lets it."""
    PROGRAM = "tests/ckksd-fault"

    def __init__(self, folder):
        self.folder, self.environment = folder, {"CKKSD_TEST_GATE": folder}
        for name in ("arrived", "go"):
            os.mkfifo(f"{folder}/{name}")
        self.arrived, self.go = (os.open(f"{folder}/{name}", os.O_RDWR | os.O_NONBLOCK) for name in ("arrived", "go"))

    @staticmethod
    def drain(pipe):
        try:
            while os.read(pipe, 65536):
                pass
        except BlockingIOError:
            pass

    def open(self):
        self.drain(self.arrived)
        os.write(self.go, b"g" * 4096)

    def shut(self):
        self.drain(self.go)

    def let_until(self, is_enough):
        """One after another until is_enough(); one more may pass."""
        while not is_enough():
            if not select.select([self.go], [], [], 0)[0]:
                os.write(self.go, b"g")
            time.sleep(0.005)
        self.shut()


def compile_model(name, folder, *options):
    """Compiles an example model; returns the package's path. All models of digits share one sample of images."""
    source = f"{MODELS}/{name}"
    samples = f"{MODELS}/mnist" if name in ("lola", "lenet") else source
    calibration = next(f for f in sorted(os.listdir(samples)) if f.startswith("calibration"))
    out = f"{folder}/{name}.ckm"
    subprocess.run([f"{BUILD}/ckksctl", "compile", f"{source}/{name}.onnx", "--calibration", f"{samples}/{calibration}", "-o", out, "--quiet",
                    *options],
                   check=True, stdout=subprocess.DEVNULL)
    return out


class Tests:
    """A minimal runner: each test is a function; the last line is what tests/run.sh reads."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def run(self, function, *arguments, label=""):
        name = function.__name__ + (f"[{label}]" if label else "")
        try:
            function(*arguments)
            self.passed += 1
            print(f"ok      {name}", flush=True)
        except Exception as error:  # a test's failure, whatever it is, is reported and counted
            import traceback
            self.failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()

    def skip(self, count, why):
        self.skipped += count
        print(f"skipped: {why}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        raise SystemExit(1 if self.failed else 0)

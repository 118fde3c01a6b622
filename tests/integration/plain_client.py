"""A client from proto/README.md alone, with Python's standard library and `openssl enc` (ChaCha20) and nothing else: no numpy, no
protobuf, no code of ours. It reads the .proto files for field numbers, speaks REQ on tcp, ipc and WebSockets, and computes with
Python's integers: slow, short, and every formula as the specification has it.

  python3 plain_client.py ADDRESS TOKEN-FILE MODEL <rows.csv
"""
import base64
import csv
import hashlib
import math
import os
import re
import secrets
import socket
import struct
import subprocess
import sys

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")


# ---- protobuf, from the text of the .proto files -------------------------------------------------------------------------

class Schema:
    """messages[name] = {number: (field, type, is_repeated)}; enums count as numbers. Absent fields read as None or []."""

    def __init__(self, *names):
        self.messages, self.enums = {}, set()
        for name in names:
            with open(f"{PROTO}/{name}.proto", encoding="utf-8") as file:
                text = re.sub(r"//[^\n]*", "", file.read())
            scope = []
            for token in re.finditer(r"(message|enum|service) (\w+) \{|(optional|repeated) (\w+) (\w+) = (\d+)[^;]*;|\}", text):
                kind, opened, label, type_name, field, number = token.groups()
                if opened:
                    scope.append(opened)
                    if kind == "message":
                        self.messages[opened if len(scope) == 1 else ".".join(scope)] = {}
                    elif kind == "enum":
                        self.enums.add(opened)
                elif label:
                    self.messages[".".join(scope)][int(number)] = (field, type_name, label == "repeated")
                else:
                    scope.pop()

    def find(self, type_name, inside):
        nested = f"{inside}.{type_name}"
        return nested if nested in self.messages else type_name if type_name in self.messages else None

    def encode(self, name, values):
        out = b""
        for number, (field, type_name, is_repeated) in sorted(self.messages[name].items()):
            value = values.get(field)
            for one in [] if value is None else value if is_repeated else [value]:
                inner = self.find(type_name, name)
                if inner or type_name in ("string", "bytes"):
                    data = self.encode(inner, one) if inner else one.encode() if isinstance(one, str) else one
                    out += varint(number << 3 | 2) + varint(len(data)) + data
                elif type_name in ("double", "fixed64"):
                    out += varint(number << 3 | 1) + struct.pack("<d" if type_name == "double" else "<Q", one)
                else:
                    out += varint(number << 3) + varint(int(one))
        return out

    def decode(self, name, data):
        values = {field: [] if is_repeated else None for field, _, is_repeated in self.messages[name].values()}
        at = 0
        while at < len(data):
            key, at = read_varint(data, at)
            wire = key & 7
            if wire == 0:
                raw, at = read_varint(data, at)
            else:
                size, at = read_varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
                raw, at = data[at:at + size], at + size
            if key >> 3 not in self.messages[name]:
                continue
            field, type_name, is_repeated = self.messages[name][key >> 3]
            inner = self.find(type_name, name)
            if inner:
                found = [self.decode(inner, raw)]
            elif type_name in ("string", "bytes"):
                found = [raw.decode() if type_name == "string" else raw]
            elif type_name in ("double", "fixed64"):
                found = list(struct.unpack(f"<{len(raw) // 8}{'d' if type_name == 'double' else 'Q'}", raw))
            elif wire == 2:  # packed
                found, inside = [], 0
                while inside < len(raw):
                    one, inside = read_varint(raw, inside)
                    found.append(one)
            else:
                found = [raw]
            if is_repeated:
                values[field] += found
            else:
                values[field] = found[-1]
        return values


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


SCHEMA = Schema("package", "rpc")


# ---- section 1: transport ------------------------------------------------------------------------------------------------

def pad(data):
    return data + bytes(-len(data) % 16)


class Connection:
    def __init__(self, address):
        self.scheme, rest = address.split("://", 1)
        if self.scheme == "ipc":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(rest)
        else:
            host, _, path = rest.partition("/")
            self.socket = socket.create_connection(host.rsplit(":", 1))
        self.socket.settimeout(60)
        self.number = secrets.randbits(31)
        if self.scheme == "ws":
            self.upgrade(host, path)
        else:
            self.socket.sendall(bytes.fromhex("0053500000300000"))
            assert self.read(8) == bytes.fromhex("0053500000310000")

    def upgrade(self, host, path):
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                             "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: rep.sp.nanomsg.org\r\n\r\n").encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.read(1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def read(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)

    def send_message(self, data):
        if self.scheme == "ws":  # one masked binary frame; a mask of zeros changes nothing
            size = len(data)
            head = bytes([0x82, 0x80 | size]) if size < 126 else struct.pack(">BBH", 0x82, 0xFE, size) if size < 65536 else struct.pack(
                ">BBQ", 0x82, 0xFF, size)
            self.socket.sendall(head + bytes(4) + data)
        else:
            self.socket.sendall((b"\1" if self.scheme == "ipc" else b"") + struct.pack(">Q", len(data)) + data)

    def receive_message(self):
        if self.scheme != "ws":
            assert self.scheme != "ipc" or self.read(1) == b"\1"
            return self.read(struct.unpack(">Q", self.read(8))[0])
        message, is_last = b"", False
        while not is_last:
            first, size = self.read(2)
            is_last = bool(first & 0x80)
            size = struct.unpack(">H", self.read(2))[0] if size == 126 else struct.unpack(">Q", self.read(8))[0] if size == 127 else size
            message += self.read(size)
        return message

    def exchange(self, frame):
        self.number = self.number + 1 & 0x7FFFFFFF
        head = struct.pack(">I", self.number | 0x80000000)
        self.send_message(head + frame)
        while True:
            message = self.receive_message()
            if message[:4] == head:
                return message[4:]


class Refused(Exception):
    pass


def call(connection, token, method, request, values, reply, segments=()):
    area, listed = b"", []
    for kind, data in segments:
        area = pad(area)
        listed.append({"kind": kind, "offset": len(area), "length": len(data)})
        area += data
    identity = secrets.token_bytes(16)
    header = SCHEMA.encode("RequestHeader", {"method": method, "token": token, "request_id": identity, "timeout_ms": 60000,
                                             "payload": SCHEMA.encode(request, values), "segments": listed})
    frame = connection.exchange(b"CKD1" + struct.pack("<HHI", 1, 0, len(header)) + pad(header) + area)
    magic, version, flags, length = struct.unpack("<4sHHI", frame[:12])
    assert (magic, version, flags) == (b"CKD1", 1, 0)
    header = SCHEMA.decode("ReplyHeader", frame[12:12 + length])
    status = header["status"]
    if status["code"]:
        raise Refused(f"{status['reason'] or status['code']}: {status['field'] or ''}: {status['message']}")
    assert header["request_id"] == identity
    area = frame[12 + length + -length % 16:]
    parts = [area[s["offset"] or 0:(s["offset"] or 0) + (s["length"] or 0)] for s in header["segments"]]
    if header["payload"] is None and header["segments"] and header["segments"][0]["kind"] == 3:
        return SCHEMA.decode(reply, parts[0]), []
    return SCHEMA.decode(reply, header["payload"] or b""), parts


# ---- section 3: what is believed -----------------------------------------------------------------------------------------

BITS_MAX = {12: 106, 13: 214, 14: 430, 15: 868, 16: 1747, 17: 3523}


def is_prime(q):
    return all(pow(a, q - 1, q) == 1 for a in (2, 3, 5, 7, 11, 13))  # a sketch: enough against mistakes, not against malice


def check_parameters(p):
    primes, n = p["q"] + p["p"], 1 << p["log_n"]
    numbers = [p["log_n"], len(p["q"]), len(p["p"]), p["digit_size"], p["secret_distribution"], p["transform_order"]]
    text = b"CKKSPAR1" + struct.pack("<6I", *numbers) + b"".join(struct.pack("<Q", x) for x in primes + p["psi"])
    assert hashlib.sha256(text).digest() == p["id"], "the id is not that of the parameters"
    assert len(set(primes)) == len(primes) == len(p["psi"]) and p["secret_distribution"] == p["transform_order"] == 1
    for q, psi in zip(primes, p["psi"]):
        assert q < 1 << 50 and q % (2 * n) == 1 and is_prime(q) and pow(psi, n, q) == q - 1
    assert (math.prod(primes) - 1).bit_length() <= BITS_MAX.get(p["log_n"], 0), "these parameters are weak"


# ---- section 4: polynomials ----------------------------------------------------------------------------------------------

class Ring:
    def __init__(self, p):
        self.n, self.q_count, self.primes = 1 << p["log_n"], len(p["q"]), p["q"] + p["p"]
        self.digit_size, self.p_product = p["digit_size"], math.prod(p["p"])
        self.digits = -(-self.q_count // self.digit_size)
        reverse = [int(format(i, f"0{p['log_n']}b")[::-1], 2) for i in range(self.n)]
        self.twiddles = [[pow(psi, reverse[i], q) for i in range(self.n)] for q, psi in zip(self.primes, p["psi"])]
        self.inverses = [[pow(w, -1, q) for w in table] for q, table in zip(self.primes, self.twiddles)]
        self.cosines = [math.cos(math.pi * k / self.n) for k in range(2 * self.n)]
        self.powers = [pow(5, j, 2 * self.n) for j in range(self.n // 2)]

    def values(self, coefficients, limb):
        """Coefficients to values at psi^(2 r(i) + 1): a polynomial modulo X^2m - w^2 is one modulo X^m - w and one modulo X^m + w."""
        q, table = self.primes[limb], self.twiddles[limb]
        x, half, block = [c % q for c in coefficients], self.n // 2, 1
        while half:
            for b in range(block):
                w, start = table[block + b], 2 * half * b
                for i in range(start, start + half):
                    u, v = x[i], x[i + half] * w % q
                    x[i], x[i + half] = (u + v) % q, (u - v) % q
            half, block = half // 2, block * 2
        return x

    def coefficients(self, values, limb):
        q, table = self.primes[limb], self.inverses[limb]
        x, half, block = list(values), 1, self.n // 2
        while block:
            for b in range(block):
                w, start = table[block + b], 2 * half * b
                for i in range(start, start + half):
                    u, v = x[i], x[i + half]
                    x[i], x[i + half] = (u + v) % q, (u - v) * w % q
            half, block = half * 2, block // 2
        scale = pow(self.n, -1, q)
        return [v * scale % q for v in x]

    def pack(self, words, limb):
        width, stream = self.primes[limb].bit_length(), 0
        digits = "".join(format(w, f"0{width}b") for w in reversed(words))
        stream = int(digits, 2)
        return stream.to_bytes(self.packed_bytes(limb), "little")

    def packed_bytes(self, limb):
        return (self.n * self.primes[limb].bit_length() + 127) // 128 * 16

    def unpack(self, data, limb):
        width = self.primes[limb].bit_length()
        digits = format(int.from_bytes(data, "little"), f"0{self.n * width}b")
        assert len(digits) == self.n * width, "padding bits are not zero"
        words = [int(digits[i:i + width], 2) for i in range(len(digits) - width, -1, -width)]
        assert max(words) < self.primes[limb], "a residue is not below its modulus"
        return words

    def expand(self, seed, purpose, polynomial, limb):
        """openssl's 16-byte initial vector is the block counter, then the nonce."""
        vector = struct.pack("<4I", 0, purpose, polynomial, limb)
        stream = subprocess.run(["openssl", "enc", "-chacha20", "-K", seed.hex(), "-iv", vector.hex()], input=bytes(16 * self.n), check=True,
                                capture_output=True).stdout
        return [int.from_bytes(stream[i:i + 16], "little") % self.primes[limb] for i in range(0, 16 * self.n, 16)]

    def ternary(self):
        return [secrets.randbelow(3) - 1 for _ in range(self.n)]

    def error(self):
        return [(x & (1 << 21) - 1).bit_count() - (x >> 21).bit_count() for x in (secrets.randbits(42) for _ in range(self.n))]

    def encode(self, slots, scale):
        """slots: {index: number} of a vector as long as the layout says, already repeated."""
        return [round(scale * 2 / self.n * sum(z * self.cosines[k * self.powers[j] % (2 * self.n)] for j, z in slots.items()))
                for k in range(self.n)]

    def decode(self, coefficients, scale, slot):
        return sum(c * self.cosines[k * self.powers[slot] % (2 * self.n)] for k, c in enumerate(coefficients)) / scale


# ---- sections 2, 5 and 6 -------------------------------------------------------------------------------------------------

class Client:
    def __init__(self, address, token):
        self.token, self.control = token, Connection(address)
        server, _ = self.ask("Inference/ServerMetadata", "Empty", {}, "ServerMetadataReply")
        scheme, rest = address.split("://", 1)
        there = next(e["address"] for e in server["endpoints"] if e["bulk"] and e["address"].startswith(scheme + "://")).split("://", 1)[1]
        if scheme != "ipc":
            there = rest.split("/")[0].rsplit(":", 1)[0] + ":" + there.rsplit(":", 1)[1]  # our host, its port and path
        self.bulk = Connection(f"{scheme}://{there}")
        self.limits = server["limits"]

    def ask(self, method, request, values, reply, segments=()):
        connection = self.bulk if method in ("Inference/ModelInfer", "Keys/KeyPart") else self.control
        return call(connection, self.token, method, request, values, reply, segments)

    def fetch(self, model):
        self.model = self.ask("Inference/ModelMetadata", "ModelRequest", {"name": model}, "ModelMetadataReply")[0]["description"]
        check_parameters(self.model["parameters"])
        assert self.model["name"] == model and self.model["input_layout"]["kind"] == 1
        self.ring = Ring(self.model["parameters"])
        self.secret = self.ring.ternary()
        self.secret_values = [self.ring.values(self.secret, i) for i in range(len(self.ring.primes))]
        self.lineage = secrets.token_bytes(16)

    def mask(self, limb, message, a):
        """message - a·s, word by word"""
        q = self.ring.primes[limb]
        return [(m - x * s) % q for m, x, s in zip(message, a, self.secret_values[limb])]

    def hidden(self, key, limb):
        ring, q = self.ring, self.ring.primes[limb]
        if key["kind"] == 1:
            return [s * s % q for s in self.secret_values[limb]]
        turned = [0] * ring.n
        for i, s in enumerate(self.secret):
            place = i * key["galois_element"] % (2 * ring.n)
            turned[place % ring.n] = s if place < ring.n else -s
        return ring.values(turned, limb)

    def make_keys(self):
        ring, seed, payload = self.ring, secrets.token_bytes(32), b""
        for k, key in enumerate(self.model["keys"]):
            level = key["level"] or 0
            own = list(range(level + 1))
            is_public = key["kind"] == 3
            for d in range(1 if is_public else level // ring.digit_size + 1):
                error = ring.error()
                for limb in own if is_public else own + list(range(ring.q_count, len(ring.primes))):
                    a = ring.expand(seed, 3 if is_public else 2, k * ring.digits + d, limb)
                    b = self.mask(limb, ring.values(error, limb), a)
                    if not is_public and limb < ring.q_count and limb // ring.digit_size == d:
                        b = [(x + ring.p_product * h) % ring.primes[limb] for x, h in zip(b, self.hidden(key, limb))]
                    payload += ring.pack(b, limb)
        assert len(payload) == self.model["key_bytes"]
        text = b"CKKSKSET" + self.model["parameters"]["id"] + self.lineage + seed + struct.pack("<I", len(self.model["keys"]))
        text += b"".join(struct.pack("<3I", key["kind"], key["galois_element"] or 0, key["level"] or 0) for key in self.model["keys"])
        self.key_set = hashlib.sha256(text + hashlib.sha256(payload).digest()).digest()
        return payload, {"parameters": self.model["parameters"], "lineage": self.lineage, "seed": seed, "keys": self.model["keys"],
                         "id": self.key_set}

    def register(self):
        self.key_set = None
        if not self.model["keys"]:
            return
        payload, manifest = self.make_keys()
        size = min(self.limits["key_part_bytes"], max(1 << 18, len(payload) // 1000))
        parts = [payload[i:i + size] for i in range(0, len(payload), size)]
        begun, _ = self.ask("Keys/KeyBegin", "KeyBeginRequest", {"manifest": manifest, "payload_bytes": len(payload), "part_bytes": size,
                                                                  "part_digests": [hashlib.sha256(p).digest() for p in parts]}, "KeyBeginReply")
        for i in begun["missing_parts"]:
            self.ask("Keys/KeyPart", "KeyPartRequest", {"key_set": self.key_set, "index": i}, "KeyPartReply", [(2, parts[i])])
        self.ask("Keys/KeyCommit", "KeyCommitRequest", {"key_set": self.key_set}, "KeyCommitReply")

    def preprocess(self, row):
        for step in self.model["preprocess"]:
            assert step["kind"] == 1 and not step["index"], "this sketch knows affine steps"
            offset, scale = step["offset"] or [0.0], step["scale"] or [1.0]
            row = [(x - offset[i if len(offset) > 1 else 0]) * scale[i if len(scale) > 1 else 0] for i, x in enumerate(row)]
        low, high = self.model["minimum"], self.model["maximum"]
        assert all((low is None or x >= low) and (high is None or x <= high) for x in row), "a value is outside of the model's range"
        return row

    def infer(self, row):
        ring, m, layout = self.ring, self.model, self.model["input_layout"]
        elements, segments, seeds = self.preprocess(row), [], []
        for number, signature in enumerate(m["inputs"]):
            slots = {}
            for x, which, slot in zip(elements, layout["input"], layout["slot"]):
                for j in range(slot, ring.n // 2 if which == number else 0, layout["slot_count"]):
                    slots[j] = x
            seed, error = secrets.token_bytes(32), ring.error()
            plain = [a + b for a, b in zip(ring.encode(slots, bits_to_double(signature)), error)]
            segments.append((1, b"".join(ring.pack(self.mask(i, ring.values(plain, i), ring.expand(seed, 1, 0, i)), i)
                                         for i in range(signature["limb_count"]))))
            seeds.append(seed)
        reply, parts = self.ask("Inference/ModelInfer", "InferRequest", {
            "model": m["name"], "version": m["version"], "model_digest": m["digest"], "key_set": self.key_set, "lineage": self.lineage,
            "inputs": m["inputs"], "seeds": seeds}, "InferReply", segments)
        assert (reply["model"], reply["version"], reply["model_digest"]) == (m["name"], m["version"], m["digest"])
        assert reply["outputs"] == m["outputs"] and len(parts) == len(m["outputs"])
        plains = [self.decrypt(part, signature) for part, signature in zip(parts, m["outputs"])]
        places = zip(m["output_layout"]["output"], m["output_layout"]["slot"])
        return [self.rounded(ring.decode(plains[o], bits_to_double(m["outputs"][o]), slot)) for o, slot in places]

    def decrypt(self, part, signature):
        ring, at, total, modulus = self.ring, 0, [0] * self.ring.n, 1
        limbs, components = signature["limb_count"], []
        for _ in range(signature["component_count"]):
            components.append([])
            for i in range(limbs):
                components[-1].append(ring.unpack(part[at:at + ring.packed_bytes(i)], i))
                at += ring.packed_bytes(i)
        assert at == len(part)
        for i in range(limbs):
            q = ring.primes[i]
            values = [0] * ring.n
            for component in reversed(components):
                values = [(v * s + c[0]) % q for v, s, c in zip(values, self.secret_values[i], zip(component[i]))]
            found, inverse = ring.coefficients(values, i), pow(modulus, -1, q)
            total = [t + (f - t) * inverse % q * modulus for t, f in zip(total, found)]
            modulus *= q
        return [t - modulus if t > modulus // 2 else t for t in total]

    def rounded(self, score):
        error = self.model["promised_error"]
        decade = 10.0 ** math.floor(math.log10(error))
        step = min(f * decade for f in (1, 2, 5, 10) if f * decade >= error)
        return round(score / step) * step


def bits_to_double(signature):
    return struct.unpack("<d", struct.pack("<Q", signature["scale_bits"]))[0]


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        client = Client(sys.argv[1], file.readline().strip())
    client.fetch(sys.argv[3])
    client.register()
    for cells in csv.DictReader(sys.stdin):
        scores = client.infer([float(cells[column["name"]]) for column in client.model["columns"]])
        print("\t".join(f"{score:.6g}" for score in scores))


if __name__ == "__main__":
    main()

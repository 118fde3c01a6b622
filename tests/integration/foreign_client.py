"""A second client that shares no code with ours: it speaks the wire from a plain socket and does its own CKKS.

Only the .proto files are common (they are the specification); everything else - the SP handshake, framing, ChaCha20, the
transform, encoding, key generation, encryption, packing - is written again here, slowly and plainly, from the
definitions. If our library and this file agree, the wire is specified by more than one implementation.

Debian packages: python3-protobuf, python3-numpy, protobuf-compiler.
"""
import hashlib
import importlib
import math
import os
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = os.path.join(HERE, "..", "..", "proto")


def load_messages(*names):
    """Compiles the .proto files to a temporary folder and imports the modules."""
    folder = tempfile.mkdtemp(prefix="ckksd-proto-")
    subprocess.run(["protoc", "-I", PROTO, "--python_out", folder, *[os.path.join(PROTO, n + ".proto") for n in names]],
                   check=True)
    sys.path.insert(0, folder)
    return [importlib.import_module(n + "_pb2") for n in names]


package_pb2, rpc_pb2 = load_messages("package", "rpc")


# ---- scalability protocols: REQ over tcp, ipc and TLS ---------------------------------------------------------------

class Closed(Exception):
    """The peer closed the connection."""


class Req:
    """One REQ socket with one peer. address: tcp://host:port, ipc:///path or tls+tcp://host:port."""

    def __init__(self, address, ca_file=None, timeout=60.0):
        scheme, rest = address.split("://", 1)
        self.is_ipc = scheme == "ipc"
        if self.is_ipc:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout)
            self.socket.connect(rest)
        else:
            host, port = rest.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), timeout=timeout)
            if scheme == "tls+tcp":
                context = ssl.create_default_context(cafile=ca_file)
                self.socket = context.wrap_socket(self.socket, server_hostname=host)
        self.request = secrets.randbits(31)
        self.socket.sendall(b"\0SP\0" + struct.pack(">HH", 0x30, 0))
        greeting = self.read(8)
        if greeting != b"\0SP\0" + struct.pack(">HH", 0x31, 0):
            raise Closed("not a REP peer: " + greeting.hex())

    def read(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(min(1 << 20, count - len(data)))
            if not piece:
                raise Closed(f"closed after {len(data)} of {count} bytes")
            data += piece
        return bytes(data)

    def send_raw_length(self, length):
        """Announces a message of any length and sends nothing of it."""
        self.socket.sendall((b"\1" if self.is_ipc else b"") + struct.pack(">Q", length))

    def send(self, body):
        self.request = (self.request + 1) & 0x7FFFFFFF
        head = struct.pack(">I", self.request | 0x80000000)
        self.send_raw_length(len(body) + 4)
        self.socket.sendall(head + body)

    def receive(self):
        while True:
            if self.is_ipc and self.read(1) != b"\1":
                raise Closed("bad ipc message type")
            (length,) = struct.unpack(">Q", self.read(8))
            message = self.read(length)
            if struct.unpack(">I", message[:4])[0] == self.request | 0x80000000:
                return message[4:]

    def call(self, body):
        self.send(body)
        return self.receive()

    def close(self):
        self.socket.close()


# ---- frames ------------------------------------------------------------------------------------------------------------

def pad(data, to=16):
    return data + bytes(-len(data) % to)


def build_frame(header, segments=()):
    """header: RequestHeader without segments; segments: (kind, bytes)."""
    area = b""
    for kind, data in segments:
        area = pad(area)
        header.segments.add(kind=kind, offset=len(area), length=len(data))
        area += data
    packed = header.SerializeToString()
    return b"CKD1" + struct.pack("<HHI", 1, 0, len(packed)) + pad(packed) + area


def parse_frame(body):
    magic, version, flags, length = struct.unpack("<4sHHI", body[:12])
    if magic != b"CKD1" or version != 1 or flags != 0:
        raise ValueError(f"not our frame: {body[:12].hex()}")
    header = rpc_pb2.ReplyHeader.FromString(body[12:12 + length])
    area = body[12 + length + (-length % 16):]
    return header, [area[s.offset:s.offset + s.length] for s in header.segments]


class RpcError(Exception):
    def __init__(self, status):
        super().__init__(f"{status.code} {status.reason} {status.field}: {status.message}")
        self.code, self.reason, self.field = status.code, status.reason, status.field


def request_frame(method, token, message=None, segments=(), request_id=None, timeout_ms=60000):
    header = rpc_pb2.RequestHeader(method=method, request_id=request_id or secrets.token_bytes(16), timeout_ms=timeout_ms)
    if token:
        header.token = token
    if message is not None:
        header.payload = message.SerializeToString()
    return build_frame(header, segments)


def call(req, method, token, message=None, reply_type=None, segments=(), **more):
    header, parts = parse_frame(req.call(request_frame(method, token, message, segments, **more)))
    if header.status.code != 0:
        raise RpcError(header.status)
    reply = reply_type.FromString(header.payload) if reply_type else None
    return (reply, parts) if parts else reply


# ---- ChaCha20 (IETF) and seed expansion -----------------------------------------------------------------------------

def chacha20_blocks(key, nonce, count):
    """`count` blocks from counter 0 as an array of shape (count, 16) of uint32."""
    def rotate(x, n):
        return (x << np.uint32(n)) | (x >> np.uint32(32 - n))

    state = np.zeros((16, count), dtype=np.uint32)
    state[0:4] = np.array([0x61707865, 0x3320646E, 0x79622D32, 0x6B206574], dtype=np.uint32)[:, None]
    state[4:12] = np.frombuffer(key, dtype="<u4")[:, None]
    state[12] = np.arange(count, dtype=np.uint32)
    state[13:16] = np.frombuffer(nonce, dtype="<u4")[:, None]
    x = state.copy()

    def quarter(a, b, c, d):
        x[a] += x[b]
        x[d] = rotate(x[d] ^ x[a], 16)
        x[c] += x[d]
        x[b] = rotate(x[b] ^ x[c], 12)
        x[a] += x[b]
        x[d] = rotate(x[d] ^ x[a], 8)
        x[c] += x[d]
        x[b] = rotate(x[b] ^ x[c], 7)

    for _ in range(10):
        quarter(0, 4, 8, 12), quarter(1, 5, 9, 13), quarter(2, 6, 10, 14), quarter(3, 7, 11, 15)
        quarter(0, 5, 10, 15), quarter(1, 6, 11, 12), quarter(2, 7, 8, 13), quarter(3, 4, 9, 14)
    return (x + state).T


def expand(seed, purpose, polynomial, prime_index, prime, n):
    words = chacha20_blocks(seed, struct.pack("<III", purpose, polynomial, prime_index), n // 4).reshape(n, 4).astype(object)
    wide = words[:, 0] + (words[:, 1] << 32) + (words[:, 2] << 64) + (words[:, 3] << 96)
    return (wide % prime).astype(np.uint64)


# ---- arithmetic modulo primes below 2^50 ----------------------------------------------------------------------------

def mul(a, b, q):
    """a * b mod q by a quotient in 80-bit floating point, exact after one correction each way."""
    quotient = (a.astype(np.longdouble) * b.astype(np.longdouble) / np.longdouble(q)).astype(np.uint64)
    r = (a * b - quotient * np.uint64(q)).astype(np.int64)
    r = np.where(r < 0, r + q, r)
    return np.where(r >= q, r - q, r).astype(np.uint64)


def add(a, b, q):
    return (a + b) % np.uint64(q)


def sub(a, b, q):
    return (a + (np.uint64(q) - b)) % np.uint64(q)


def bit_reversed(count):
    bits = count.bit_length() - 1
    return np.array([int(format(i, f"0{bits}b")[::-1], 2) for i in range(count)], dtype=np.int64)


class Ring:
    """One prime: coefficients <-> values at psi^(2*bitrev(i)+1)."""

    def __init__(self, n, prime, psi):
        self.n, self.q = n, prime
        powers = [1] * (2 * n)
        for i in range(1, 2 * n):
            powers[i] = powers[i - 1] * psi % prime
        assert powers[n] == prime - 1, "psi is not a primitive 2N-th root"
        self.powers = np.array(powers, dtype=np.uint64)
        self.order = bit_reversed(n)

    def cyclic(self, values, root_step):
        """Plain radix-2 transform of length n with root psi^root_step (even)."""
        x = values[self.order].copy()
        half = 1
        while half < self.n:
            index = (np.arange(half) * (root_step * (self.n // (2 * half)))) % (2 * self.n)
            w = self.powers[index]
            x = x.reshape(-1, 2 * half)
            low, high = x[:, :half], mul(x[:, half:], np.broadcast_to(w, (x.shape[0], half)), self.q)
            x = np.concatenate([add(low, high, self.q), sub(low, high, self.q)], axis=1).reshape(-1)
            half *= 2
        return x

    def forward(self, coefficients):
        twisted = mul(coefficients, self.powers[:self.n], self.q)
        natural = self.cyclic(twisted, 2)  # entry k is the value at psi^(2k+1)
        return natural[self.order]

    def inverse(self, evaluations):
        natural = np.empty_like(evaluations)
        natural[self.order] = evaluations
        twisted = self.cyclic(natural, 2 * self.n - 2)
        n_inverse = pow(self.n, -1, self.q)
        back = self.powers[(-np.arange(self.n)) % (2 * self.n)]
        return mul(mul(twisted, back, self.q), np.full(self.n, n_inverse, dtype=np.uint64), self.q)

    def lift(self, signed):
        return np.array([int(v) % self.q for v in signed], dtype=np.uint64)


class Scheme:
    def __init__(self, parameters):
        self.log_n, self.n = parameters.log_n, 1 << parameters.log_n
        self.q, self.p = list(parameters.q), list(parameters.p)
        self.primes = self.q + self.p
        self.digit_size = parameters.digit_size
        self.id = parameters.id
        text = b"CKKSPAR1" + struct.pack("<6I", self.log_n, len(self.q), len(self.p), self.digit_size,
                                         parameters.secret_distribution, parameters.transform_order)
        text += b"".join(struct.pack("<Q", x) for x in self.primes) + b"".join(struct.pack("<Q", x) for x in parameters.psi)
        assert hashlib.sha256(text).digest() == self.id, "parameter id is not the hash of the parameters"
        self.rings = [Ring(self.n, q, psi) for q, psi in zip(self.primes, parameters.psi)]
        self.dnum = -(-len(self.q) // self.digit_size)
        self.p_product = 1
        for p in self.p:
            self.p_product *= p

    # -- encoding: slot j is the value at zeta^(5^j), zeta = exp(i pi / N) --
    def exponents(self):
        e, out = 1, []
        for _ in range(self.n // 2):
            out.append(e)
            e = e * 5 % (2 * self.n)
        return np.array(out)

    def encode(self, slots, scale):
        repeated = np.tile(np.asarray(slots, dtype=np.float64), self.n // 2 // len(slots))
        points = np.zeros(2 * self.n, dtype=np.complex128)
        points[self.exponents()] = repeated
        coefficients = 2.0 / self.n * np.fft.fft(points).real[:self.n]
        return [int(v) for v in np.rint(coefficients * scale)]

    def decode(self, coefficients, scale):
        values = np.fft.ifft(np.array([c / scale for c in coefficients], dtype=np.complex128), 2 * self.n) * (2 * self.n)
        return values[self.exponents()].real

    def small_error(self):
        bits = np.frombuffer(secrets.token_bytes(8 * self.n), dtype="<u8")
        count = lambda shift: sum(((bits >> np.uint64(shift + i)) & np.uint64(1)).astype(np.int64) for i in range(21))
        return count(0) - count(21)

    # -- keys --
    def make_secret(self):
        self.secret = np.array([secrets.randbelow(3) - 1 for _ in range(self.n)])
        self.lineage = secrets.token_bytes(16)
        self.secret_eval = [r.forward(r.lift(self.secret)) for r in self.rings]

    def automorphism(self, signed, g):
        out = np.zeros(self.n, dtype=np.int64)
        for i in range(self.n):
            e = i * g % (2 * self.n)
            out[e % self.n] += signed[i] if e < self.n else -signed[i]
        return out

    def key_payload(self, requirements, seed):
        payload = b""
        for index, key in enumerate(requirements):
            if key.kind == 3:
                limbs = range(key.level + 1)
                error = self.small_error()
                for i in limbs:
                    r = self.rings[i]
                    a = expand(seed, 3, index * self.dnum, i, r.q, self.n)
                    payload += pack(sub(r.forward(r.lift(error)), mul(a, self.secret_eval[i], r.q), r.q), r.q)
                continue
            limbs = list(range(key.level + 1)) + list(range(len(self.q), len(self.primes)))
            if key.kind == 1:
                hidden = [mul(self.secret_eval[i], self.secret_eval[i], self.primes[i]) for i in range(len(self.primes))]
            else:
                turned = self.automorphism(self.secret, key.galois_element)
                hidden = [r.forward(r.lift(turned)) for r in self.rings]
            for digit in range(-(-(key.level + 1) // self.digit_size)):
                error = self.small_error()
                for i in limbs:
                    r = self.rings[i]
                    a = expand(seed, 2, index * self.dnum + digit, i, r.q, self.n)
                    b = sub(r.forward(r.lift(error)), mul(a, self.secret_eval[i], r.q), r.q)
                    if i < len(self.q) and i // self.digit_size == digit:
                        factor = np.full(self.n, self.p_product % r.q, dtype=np.uint64)
                        b = add(b, mul(hidden[i], factor, r.q), r.q)
                    payload += pack(b, r.q)
        return payload

    # -- ciphertexts --
    def encrypt(self, slots, scale, limb_count, seed=None, entry=0):
        """Entries of a batch share a seed: entry i takes polynomial i."""
        seed = seed or secrets.token_bytes(32)
        plain, error = self.encode(slots, scale), self.small_error()
        packed = b""
        for i in range(limb_count):
            r = self.rings[i]
            a = expand(seed, 1, entry, i, r.q, self.n)
            message = r.forward(r.lift([m + int(e) for m, e in zip(plain, error)]))
            packed += pack(sub(message, mul(a, self.secret_eval[i], r.q), r.q), r.q)
        return packed, seed

    def decrypt(self, packed, limb_count, scale):
        residues, at = [], 0
        for component in range(2):
            for i in range(limb_count):
                size = packed_bytes(self.n, self.primes[i])
                residues.append(unpack(packed[at:at + size], self.n, self.primes[i]))
                at += size
        assert at == len(packed), "reply of another size"
        modulus, coefficients = 1, np.zeros(self.n, dtype=object)
        for i in range(limb_count):
            r = self.rings[i]
            plain = r.inverse(add(residues[i], mul(residues[limb_count + i], self.secret_eval[i], r.q), r.q)).astype(object)
            step = (plain - coefficients) * pow(modulus, -1, r.q) % r.q
            coefficients = coefficients + step * modulus
            modulus *= r.q
        centred = [int(c) - modulus if int(c) > modulus // 2 else int(c) for c in coefficients]
        return self.decode(centred, scale)


# ---- residues on the wire: one LSB-first bit stream a limb, zero-padded to 16 bytes ---------------------------------

def packed_bytes(n, prime):
    return (n * prime.bit_length() + 127) // 128 * 16


def pack(words, prime):
    width = prime.bit_length()
    bits = ((words[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)).astype(np.uint8)
    return pad(np.packbits(bits.reshape(-1), bitorder="little").tobytes())


def unpack(data, n, prime):
    width = prime.bit_length()
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    assert not bits[n * width:].any(), "padding bits are not zero"
    fields = bits[:n * width].reshape(n, width).astype(np.uint64)
    words = (fields << np.arange(width, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    assert (words < prime).all(), "a residue is not below its prime"
    return words


# ---- the client ----------------------------------------------------------------------------------------------------------

def bits_to_double(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def key_set_id(scheme, seed, requirements, payload):
    text = b"CKKSKSET" + scheme.id + scheme.lineage + seed + struct.pack("<I", len(requirements))
    for key in requirements:
        text += struct.pack("<III", key.kind, key.galois_element, key.level)
    return hashlib.sha256(text + hashlib.sha256(payload).digest()).digest()


class Client:
    def __init__(self, control, token, ca_file=None):
        self.control = Req(control, ca_file)
        self.token = token
        server = call(self.control, "Inference/ServerMetadata", token, None, rpc_pb2.ServerMetadataReply)
        scheme = control.split("://", 1)[0]
        bulk = [e.address for e in server.endpoints if e.bulk and e.address.startswith(scheme + ":")]
        self.server = server
        self.server_bulk = bulk[0] if bulk else control
        self.bulk = Req(self.server_bulk, ca_file)

    def fetch(self, model):
        reply = call(self.control, "Inference/ModelMetadata", self.token, rpc_pb2.ModelRequest(name=model),
                     rpc_pb2.ModelMetadataReply)
        self.description = reply.description
        self.scheme = Scheme(reply.description.parameters)
        self.scheme.make_secret()

    def register(self):
        seed = secrets.token_bytes(32)
        keys = list(self.description.keys)
        payload = self.scheme.key_payload(keys, seed)
        assert len(payload) == self.description.key_bytes, "key_bytes of the metadata is not what the keys have"
        self.key_set = key_set_id(self.scheme, seed, keys, payload)
        manifest = package_pb2.KeySetManifest(parameters=self.description.parameters, lineage=self.scheme.lineage, seed=seed,
                                              keys=keys, id=self.key_set)
        size = min(1 << 20, self.server.limits.key_part_bytes)
        parts = [payload[i:i + size] for i in range(0, len(payload), size)]
        begin = call(self.control, "Keys/KeyBegin", self.token, rpc_pb2.KeyBeginRequest(
            manifest=manifest, payload_bytes=len(payload), part_bytes=size,
            part_digests=[hashlib.sha256(p).digest() for p in parts]), rpc_pb2.KeyBeginReply)
        for i in begin.missing_parts:
            call(self.bulk, "Keys/KeyPart", self.token, rpc_pb2.KeyPartRequest(key_set=self.key_set, index=i),
                 rpc_pb2.KeyPartReply, [(2, parts[i])])
        call(self.control, "Keys/KeyCommit", self.token, rpc_pb2.KeyCommitRequest(key_set=self.key_set), rpc_pb2.KeyCommitReply)

    def raw_row(self, cells):
        """A row of a table, by the columns' names: numbers, NaN where missing, categories by their index."""
        row = []
        for column in self.description.columns:
            cell = cells[column.name]
            if column.kind == 2:
                row.append(list(column.categories).index(cell) if cell in column.categories else -1)
                if row[-1] < 0 and column.unknown_is_refused:
                    raise ValueError(f"{column.name}: {cell} is unknown")
            else:
                row.append(float(cell) if cell else math.nan)
        return row

    def preprocess(self, row):
        """The steps as package.proto describes them."""
        x = np.array(row, dtype=np.float64)
        for step in self.description.preprocess:
            at = list(step.index) or list(range(len(x)))
            known = [k for k, value in enumerate(step.values) if step.kind in (2, 6) and
                     (x[step.column] == value or (math.isnan(value) and math.isnan(x[step.column])))]
            if step.kind in (2, 6) and not known and step.unknown_is_error:
                raise ValueError(f"element {step.column}: {x[step.column]} is unknown")
            if step.kind == 1:
                x[at] = (x[at] - (np.array(step.offset) if step.offset else 0)) * (np.array(step.scale) if step.scale else 1)
            elif step.kind == 2:
                x = np.concatenate([x[:step.column], [float(k in known) for k in range(len(step.values))], x[step.column + 1:]])
            elif step.kind == 3:
                hit = x[at] == step.replaced if step.HasField("replaced") else np.isnan(x[at])
                x[at] = np.where(hit, np.array(step.values), x[at])
            elif step.kind == 4:
                total = {1: lambda v: np.abs(v).sum(), 2: lambda v: math.sqrt((v * v).sum()), 3: lambda v: np.abs(v).max()}[step.norm](x[at])
                x[at] = x[at] / total if total else x[at]
            elif step.kind == 5:
                x = x[list(step.index)]
            elif step.kind == 6:
                x[step.column] = step.mapped[known[0]] if known else step.otherwise
            elif step.kind == 7:
                x[at] = np.trunc(x[at])
            elif step.kind == 8:
                x[at] = x[at] > step.values[0]
            else:
                raise ValueError(f"preprocess kind {step.kind}")
        return x

    def infer_request(self, row):
        d = self.description
        x = self.preprocess(row)
        vectors = [np.zeros(d.input_layout.slot_count) for _ in d.inputs]
        for value, which, slot in zip(x, d.input_layout.input, d.input_layout.slot):
            vectors[which][slot] = value
        message = rpc_pb2.InferRequest(model=d.name, version=d.version, model_digest=d.digest, key_set=self.key_set,
                                       lineage=self.scheme.lineage, inputs=d.inputs)
        segments = []
        for vector, signature in zip(vectors, d.inputs):
            packed, seed = self.scheme.encrypt(vector, bits_to_double(signature.scale_bits), signature.limb_count)
            segments.append((1, packed))
            message.seeds.append(seed)
        return message, segments

    def batch_request(self, rows):
        """The throughput layout: element i of every row is ciphertext i, row s is slot s."""
        d, elements = self.description, np.array([self.preprocess(row) for row in rows])
        assert d.input_layout.kind == 2 and len(rows) <= d.input_layout.sample_count_max
        assert elements.shape[1] == d.input_layout.element_count == sum(s.batch_count for s in d.inputs)
        message = rpc_pb2.InferRequest(model=d.name, version=d.version, model_digest=d.digest,
                                       lineage=self.scheme.lineage, inputs=d.inputs)
        segments, element = [], 0
        for signature in d.inputs:
            seed, packed = secrets.token_bytes(32), b""
            for entry in range(signature.batch_count):
                vector = np.zeros(d.input_layout.slot_count)
                vector[:len(rows)] = elements[:, element]
                packed += self.scheme.encrypt(vector, bits_to_double(signature.scale_bits), signature.limb_count, seed, entry)[0]
                element += 1
            segments.append((1, packed))
            message.seeds.append(seed)
        return message, segments

    def infer_batch(self, rows):
        message, segments = self.batch_request(rows)
        reply, parts = call(self.bulk, "Inference/ModelInfer", self.token, message, rpc_pb2.InferReply, segments)
        vectors = []
        for part, s in zip(parts, reply.outputs):
            size = len(part) // s.batch_count
            vectors += [self.scheme.decrypt(part[i * size:(i + 1) * size], s.limb_count, bits_to_double(s.scale_bits))
                        for i in range(s.batch_count)]
        return np.array([v[:len(rows)] for v in vectors[:self.description.output_layout.element_count]]).T

    def infer(self, row):
        message, segments = self.infer_request(row)
        reply, parts = call(self.bulk, "Inference/ModelInfer", self.token, message, rpc_pb2.InferReply, segments)
        assert reply.model_digest == self.description.digest
        slots = [self.scheme.decrypt(part, s.limb_count, bits_to_double(s.scale_bits))
                 for part, s in zip(parts, reply.outputs)]
        layout = self.description.output_layout
        return np.array([slots[o][s] for o, s in zip(layout.output, layout.slot)])

#!/usr/bin/python3
"""Every check of what arrives, in order: each fault is sent exactly, to the running daemon, and a good request still works after it."""
import hashlib
import os
import secrets
import signal
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import foreign_client as foreign
import harness
from foreign_client import package_pb2, rpc_pb2

ROW = [14.0] * 30


def reason_of(reply):
    header, _ = foreign.parse_frame(reply)
    return header.status.reason or str(header.status.code), header.status.field


class World:
    """One daemon, one registered client, and a good request to check with."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.client = foreign.Client(daemon.addresses()["tcp"], daemon.token)
        self.client.fetch("breast-cancer")
        self.client.register()
        d = self.client.description
        self.row = [(c.minimum + c.maximum) / 2 for c in d.columns]
        self.expected = self.client.infer(self.row)

    def good_request_works(self):
        got = self.client.infer(self.row)
        assert abs(got - self.expected).max() < 2 * self.client.description.promised_error, f"{got} instead of {self.expected}"

    def fresh_bulk(self):
        return foreign.Req(self.client.server_bulk, self.daemon.ca)

    def message(self):
        return self.client.infer_request(self.row)


def expect(world, reply, reasons, field=""):
    got, at = reason_of(reply)
    assert got in reasons.split("|"), f"{got} ({at}) instead of {reasons}"
    assert field in at, f"field {at!r} instead of {field!r}"
    world.good_request_works()


# ---- frames: sizes, magic, version, segments ---------------------------------------------------------------------------

def frame_faults(good):
    header_length = struct.unpack("<I", good[8:12])[0]
    padded = 12 + header_length + (-header_length % 16)
    yield "empty message", b""
    yield "shorter than the prefix", good[:11]
    yield "wrong magic", b"XKD1" + good[4:]
    yield "flags set", good[:6] + b"\1\0" + good[8:]
    yield "header longer than the message", good[:8] + struct.pack("<I", 65000) + good[12:]
    yield "header over its limit", good[:8] + struct.pack("<I", 65537) + good[12:]
    yield "header of no bytes", good[:8] + struct.pack("<I", 0) + good[12:]
    yield "header that is not protobuf", good[:12] + b"\xff" * header_length + good[12 + header_length:]
    if padded != 12 + header_length:
        yield "padding not zero", good[:12 + header_length] + b"\1" + good[13 + header_length:]
    yield "one byte too few", good[:-1]
    yield "sixteen bytes too many", good + bytes(16)


def a_broken_frame_gets_an_error_and_its_connection_is_closed(world, body):
    peer = world.fresh_bulk()
    try:
        reply = peer.call(body)
        header, _ = foreign.parse_frame(reply)
        assert header.status.code != 0, "was answered"
    except (foreign.Closed, OSError):
        pass  # closed at once: no reply could be addressed
    else:
        peer.socket.settimeout(60)
        assert peer.socket.recv(1) == b"", "the connection stayed open"
    world.good_request_works()


def another_wire_version_is_told_the_range(world, good):
    header, _ = foreign.parse_frame(world.fresh_bulk().call(good[:4] + struct.pack("<H", 7) + good[6:]))
    assert (header.status.wire_version_min, header.status.wire_version_max) == (1, 1), header.status
    world.good_request_works()


# ---- method, token ------------------------------------------------------------------------------------------------------

def method_faults(world):
    token = world.daemon.token
    yield "unknown service", "Nothing/AtAll", token, "12"
    yield "unknown method", "Inference/Guess", token, "12"
    yield "method without a service", "ModelInfer", token, "12|3"
    yield "admin method on a network socket", "Admin/Drain", token, "AUTH|7|12"
    yield "no token", "Inference/ModelMetadata", None, "AUTH"
    yield "token of nobody", "Inference/ModelMetadata", "nobody." + "0" * 64, "AUTH"
    yield "token with a wrong secret", "Inference/ModelMetadata", token[:-4] + ("0000" if token[-4:] != "0000" else "1111"), "AUTH"
    yield "token of a megabyte", "Inference/ModelMetadata", "a" * 60000, "AUTH|3|MALFORMED|TOO_LARGE"
    yield "bulk method on the control socket", "Inference/ModelInfer", token, "3|7|9|12|AUTH"
    yield "token without the scope", "Keys/KeyList", world.infer_only, "AUTH"


def a_wrong_method_or_token_is_refused(world, method, token, reasons):
    peer = foreign.Req(world.daemon.addresses()["tcp"])
    expect(world, peer.call(foreign.request_frame(method, token, rpc_pb2.ModelRequest(name="breast-cancer"))), reasons)


# ---- requests: parameter id, signature, sizes, seeds, residues ------------------------------------------------------------

def infer_faults(world):
    """(label, edit of (message, segments), reasons, field)"""
    def edit(change):
        message, segments = world.message()
        change(message, segments)
        return message, segments

    def signature(**values):
        def change(message, _):
            for name, value in values.items():
                setattr(message.inputs[0], name, value)
        return change

    def segment(function):
        def change(_, segments):
            segments[0] = (segments[0][0], function(segments[0][1]))
        return change

    def kind(message, segments):
        segments[0] = (2, segments[0][1])

    first_bits = world.client.scheme.primes[0].bit_length()

    def residue_too_large(data):
        return bytes([0xFF] * ((first_bits + 7) // 8)) + data[(first_bits + 7) // 8:]

    def zero_seed_twice(message, segments):
        message.inputs.add().CopyFrom(message.inputs[0])
        message.seeds.append(message.seeds[0])
        segments.append(segments[0])

    scale = world.client.description.inputs[0].scale_bits
    yield "unknown model", edit(lambda m, s: setattr(m, "model", "nothing")), "5", ""
    yield "unknown version", edit(lambda m, s: setattr(m, "version", "99")), "5|CONFIG_RETIRED", ""
    yield "digest of another package", edit(lambda m, s: setattr(m, "model_digest", bytes(32))), "CONFIG_RETIRED", ""
    yield "unknown key set", edit(lambda m, s: setattr(m, "key_set", bytes(32))), "KEY_UNKNOWN", ""
    yield "key set id of 5 bytes", edit(lambda m, s: setattr(m, "key_set", b"12345")), "KEY_UNKNOWN|MALFORMED|3", ""
    yield "another lineage", edit(lambda m, s: setattr(m, "lineage", bytes(16))), "LINEAGE_MISMATCH", ""
    yield "another parameter id", edit(signature(parameter_id=bytes(32))), "PARAMS_MISMATCH", ""
    yield "another kind", edit(signature(kind=2)), "SIGNATURE_MISMATCH|MALFORMED", "kind"
    yield "another schema version", edit(signature(schema_version=2)), "SIGNATURE_MISMATCH|VERSION", "schema"
    yield "three components", edit(signature(component_count=3)), "SIGNATURE_MISMATCH|MALFORMED", "component_count"
    yield "two in a batch", edit(signature(batch_count=2)), "SIGNATURE_MISMATCH|MALFORMED", "batch_count"
    yield "a limb less", edit(signature(limb_count=1)), "SIGNATURE_MISMATCH|MALFORMED", "limb_count"
    yield "limbs beyond count", edit(signature(limb_count=4000000000)), "SIGNATURE_MISMATCH|MALFORMED", "limb_count"
    yield "scale off by one ulp", edit(signature(scale_bits=scale + 1)), "SIGNATURE_MISMATCH", "scale"
    yield "coefficient domain", edit(signature(domain=2)), "SIGNATURE_MISMATCH|MALFORMED", "domain"
    yield "basis QP", edit(signature(basis=2)), "SIGNATURE_MISMATCH|MALFORMED", "basis"
    yield "no ciphertext", edit(lambda m, s: s.clear()), "MALFORMED|SIGNATURE_MISMATCH|3", ""
    yield "no signature", edit(lambda m, s: m.ClearField("inputs")), "MALFORMED|SIGNATURE_MISMATCH|3", ""
    yield "a ciphertext twice", edit(zero_seed_twice), "MALFORMED|SIGNATURE_MISMATCH|3", ""
    yield "segment of another kind", edit(kind), "MALFORMED|3", ""
    yield "sixteen bytes too few", edit(segment(lambda d: d[:-16])), "MALFORMED|3|SIGNATURE_MISMATCH", ""
    yield "sixteen bytes too many", edit(segment(lambda d: d + bytes(16))), "MALFORMED|3|SIGNATURE_MISMATCH", ""
    yield "seed of 31 bytes", edit(lambda m, s: m.seeds.__setitem__(0, bytes(31))), "MALFORMED|3", "seed"
    yield "no seed for a seeded ciphertext", edit(lambda m, s: m.ClearField("seeds")), "MALFORMED|3|SIGNATURE_MISMATCH", ""
    yield "a residue not below its prime", edit(segment(residue_too_large)), "RESIDUE_RANGE", ""
    def whole_with_zero(message, segments):
        message.ClearField("seeds")
        segments[0] = (1, segments[0][1] + bytes(len(segments[0][1])))
    yield "second component all zero", edit(whole_with_zero), "RESIDUE_RANGE", ""


def a_wrong_inference_request_is_refused(world, message, segments, reasons, field):
    peer = world.fresh_bulk()
    expect(world, peer.call(foreign.request_frame("Inference/ModelInfer", world.daemon.token, message, segments)), reasons, field)


def a_request_id_with_another_body_is_refused(world):
    request_id = secrets.token_bytes(16)
    peer = world.fresh_bulk()
    message, segments = world.message()
    first = foreign.request_frame("Inference/ModelInfer", world.daemon.token, message, segments, request_id=request_id)
    assert peer.call(first) == peer.call(first), "the same request was answered in two ways"
    message, segments = world.message()
    expect(world, peer.call(foreign.request_frame("Inference/ModelInfer", world.daemon.token, message, segments, request_id=request_id)),
           "REQUEST_ID_REUSED")


# ---- keys ------------------------------------------------------------------------------------------------------------------

def key_faults(world):
    scheme, description = world.client.scheme, world.client.description
    seed = secrets.token_bytes(32)
    keys = [package_pb2.KeyRequirement.FromString(k.SerializeToString()) for k in description.keys]

    def begin(change):
        manifest = package_pb2.KeySetManifest(parameters=description.parameters, lineage=scheme.lineage, seed=seed, keys=keys, id=bytes(32))
        message = rpc_pb2.KeyBeginRequest(manifest=manifest, payload_bytes=description.key_bytes, part_bytes=1 << 20,
                                          part_digests=[bytes(32)] * -(-description.key_bytes // (1 << 20)))
        change(message)
        return message

    galois = next(i for i, k in enumerate(keys) if k.kind == 2)
    def of_key(**values):
        def change(message):
            for name, value in values.items():
                setattr(message.manifest.keys[galois], name, value)
        return change

    yield "even Galois element", begin(of_key(galois_element=4)), "MALFORMED|3"
    yield "Galois element 1", begin(of_key(galois_element=1)), "MALFORMED|3"
    yield "Galois element beyond 2N", begin(of_key(galois_element=1 << 20 | 1)), "MALFORMED|3"
    yield "a key twice", begin(lambda m: m.manifest.keys.add().CopyFrom(m.manifest.keys[galois])), "MALFORMED|3"
    yield "a level beyond the chain", begin(of_key(level=77)), "MALFORMED|3"
    yield "a key of unknown kind", begin(of_key(kind=9)), "MALFORMED|3"
    yield "no keys", begin(lambda m: m.manifest.ClearField("keys")), "MALFORMED|3"
    yield "another payload size", begin(lambda m: setattr(m, "payload_bytes", m.payload_bytes + 16)), "MALFORMED|3"
    yield "payload of exabytes", begin(lambda m: setattr(m, "payload_bytes", 1 << 62)), "MALFORMED|QUOTA|TOO_LARGE|3"
    yield "parts of no bytes", begin(lambda m: setattr(m, "part_bytes", 0)), "MALFORMED|3"
    yield "parts beyond the limit", begin(lambda m: setattr(m, "part_bytes", 1 << 30)), "MALFORMED|TOO_LARGE|3"
    yield "a digest too few", begin(lambda m: m.part_digests.pop()), "MALFORMED|3"
    yield "seed of 16 bytes", begin(lambda m: setattr(m.manifest, "seed", bytes(16))), "MALFORMED|3"
    yield "parameters that are not what their id says", begin(lambda m: setattr(m.manifest.parameters, "digit_size", 2)), \
        "MALFORMED|PARAMS_MISMATCH|3"
    weak = lambda m: m.manifest.parameters.CopyFrom(weak_parameters(description.parameters))
    yield "parameters over the security table", begin(weak), "INSECURE|PARAMS_MISMATCH|5"


def weak_parameters(parameters):
    """More primes than N carries: over the table, with a right id."""
    weak = package_pb2.Parameters.FromString(parameters.SerializeToString())
    n2, have = 2 << weak.log_n, set(weak.q) | set(weak.p)
    candidate = (1 << 37) // n2 * n2 + 1
    while len(weak.q) < 8:
        candidate -= n2
        if candidate in have or pow(2, candidate - 1, candidate) != 1 or pow(3, candidate - 1, candidate) != 1:
            continue
        generator = 2
        while pow(generator, (candidate - 1) // 2, candidate) != candidate - 1:
            generator += 1
        weak.psi.insert(len(weak.q), pow(generator, (candidate - 1) // n2, candidate))
        weak.q.append(candidate)
    text = b"CKKSPAR1" + struct.pack("<6I", weak.log_n, len(weak.q), len(weak.p), weak.digit_size, weak.secret_distribution,
                                     weak.transform_order)
    text += b"".join(struct.pack("<Q", x) for x in [*weak.q, *weak.p, *weak.psi])
    weak.id = hashlib.sha256(text).digest()
    return weak


def a_wrong_key_upload_is_refused(world, message, reasons):
    peer = foreign.Req(world.daemon.addresses()["tcp"])
    expect(world, peer.call(foreign.request_frame("Keys/KeyBegin", world.daemon.token, message)), reasons)


def a_part_with_another_digest_and_an_early_commit_are_refused(world):
    client = foreign.Client(world.daemon.addresses()["tcp"], world.daemon.token)
    client.fetch("breast-cancer")
    seed, keys = secrets.token_bytes(32), list(client.description.keys)
    payload = client.scheme.key_payload(keys, seed)
    key_set = foreign.key_set_id(client.scheme, seed, keys, payload)
    manifest = package_pb2.KeySetManifest(parameters=client.description.parameters, lineage=client.scheme.lineage, seed=seed, keys=keys, id=key_set)
    call = lambda peer, method, message, reply, segments=(): foreign.call(peer, method, world.daemon.token, message, reply, segments)
    call(client.control, "Keys/KeyBegin", rpc_pb2.KeyBeginRequest(manifest=manifest, payload_bytes=len(payload), part_bytes=len(payload),
                                                                  part_digests=[hashlib.sha256(payload).digest()]), rpc_pb2.KeyBeginReply)
    bad = bytearray(payload)
    bad[1000] ^= 1
    for method, peer, message, segments in (
            ("Keys/KeyPart", client.bulk, rpc_pb2.KeyPartRequest(key_set=key_set, index=0), [(2, bytes(bad))]),
            ("Keys/KeyPart", client.bulk, rpc_pb2.KeyPartRequest(key_set=key_set, index=7), [(2, payload)]),
            ("Keys/KeyPart", client.bulk, rpc_pb2.KeyPartRequest(key_set=key_set, index=0), [(2, payload[:-16])]),
            ("Keys/KeyCommit", client.control, rpc_pb2.KeyCommitRequest(key_set=key_set), [])):
        try:
            call(peer, method, message, None, segments)
            raise AssertionError(f"{method} was accepted")
        except foreign.RpcError as error:
            print("  ", error)
    # and then the upload goes on where it was
    call(client.bulk, "Keys/KeyPart", rpc_pb2.KeyPartRequest(key_set=key_set, index=0), rpc_pb2.KeyPartReply, [(2, payload)])
    call(client.control, "Keys/KeyCommit", rpc_pb2.KeyCommitRequest(key_set=key_set), rpc_pb2.KeyCommitReply)
    world.good_request_works()


# ---- hostile lengths ---------------------------------------------------------------------------------------------------------

def a_hostile_length_does_not_end_the_process(world, address, length):
    peer = foreign.Req(address, world.daemon.ca)
    try:
        peer.send_raw_length(length)
        peer.socket.sendall(b"\x80\0\0\1" + bytes(1000))
        peer.socket.settimeout(1)
        peer.socket.recv(1)
    except OSError:
        pass
    peer.close()
    assert world.daemon.process.poll() is None, "the daemon is gone"
    world.good_request_works()


def main():
    tests = harness.Tests()
    with tempfile.TemporaryDirectory() as folder:
        daemon = harness.Daemon({"breast-cancer": harness.compile_model("breast-cancer", folder)}, tls=True)
        while "event=start" not in daemon.log_text():
            time.sleep(0.001)
        daemon.process.send_signal(signal.SIGHUP)  # may come before anything is loaded
        daemon.wait_ready()
        infer_only = daemon.add_token("carol", "--scopes", "infer")
        daemon.process.send_signal(signal.SIGHUP)
        world = World.__new__(World)
        world.infer_only = infer_only
        world.__init__(daemon)
        message, segments = world.message()
        good = foreign.request_frame("Inference/ModelInfer", daemon.token, message, segments)
        for label, body in frame_faults(good):
            tests.run(a_broken_frame_gets_an_error_and_its_connection_is_closed, world, body, label=label)
        tests.run(another_wire_version_is_told_the_range, world, good)
        for label, method, token, reasons in method_faults(world):
            tests.run(a_wrong_method_or_token_is_refused, world, method, token, reasons, label=label)
        for label, (message, segments), reasons, field in infer_faults(world):
            tests.run(a_wrong_inference_request_is_refused, world, message, segments, reasons, field, label=label)
        tests.run(a_request_id_with_another_body_is_refused, world)
        for label, message, reasons in key_faults(world):
            tests.run(a_wrong_key_upload_is_refused, world, message, reasons, label=label)
        tests.run(a_part_with_another_digest_and_an_early_commit_are_refused, world)
        for transport, address in daemon.addresses().items():
            for length in (1 << 26, 1 << 40, (1 << 63) - 1, (1 << 64) - 1):
                tests.run(a_hostile_length_does_not_end_the_process, world, address, length, label=f"{transport}, {length:#x}")

        def the_daemon_ends_with_status_0():
            assert daemon.stop() == 0

        tests.run(the_daemon_ends_with_status_0)
    tests.finish()


if __name__ == "__main__":
    main()

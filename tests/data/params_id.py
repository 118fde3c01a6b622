#!/usr/bin/env python3
"""Parameter sets and their identities, computed without our code. Its output is params_id.txt.

Each line: log N, count of q, count of p, primes per digit, then q, p and the smallest primitive 2N-th roots of unity,
then SHA-256 over the canonical bytes.
"""
import hashlib
import struct


def is_prime(n):
    if n % 2 == 0:
        return n == 2
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for a in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(a, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(s - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def primes_below(limit, count, log_n):
    step = 2 << log_n
    n = (limit - 2) // step * step + 1
    found = []
    while len(found) < count:
        if is_prime(n):
            found.append(n)
        n -= step
    return found


def smallest_root(q, log_n):
    n = 1 << log_n
    g = 2
    while True:
        root = pow(g, (q - 1) // (2 * n), q)
        if pow(root, n, q) == q - 1:
            break
        g += 1
    square, best, x = root * root % q, root, root
    for _ in range(n - 1):
        x = x * square % q
        best = min(best, x)
    return best


def main():
    print("# made by params_id.py")
    for log_n, q_bits, q_count, p_bits, p_count, digit in (
        (10, 30, 1, 31, 1, 1),
        (12, 38, 2, 39, 1, 1),
        (13, 40, 5, 50, 1, 1),
        (14, 40, 8, 50, 2, 2),
        (15, 35, 21, 45, 3, 3),
        (17, 49, 6, 50, 2, 2),
    ):
        q = primes_below(1 << q_bits, q_count, log_n)
        p = primes_below(1 << p_bits, p_count, log_n)
        psi = [smallest_root(x, log_n) for x in q + p]
        body = b"CKKSPAR1" + struct.pack("<6I", log_n, q_count, p_count, digit, 1, 1)
        body += struct.pack(f"<{len(q + p + psi)}Q", *q, *p, *psi)
        print(log_n, q_count, p_count, digit, *q, *p, *psi, hashlib.sha256(body).hexdigest())


main()

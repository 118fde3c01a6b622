#!/usr/bin/env python3
"""Draws rows of a CSV file with replacement, the same ones for the same seed: resample.py IN.csv ROWS > OUT.csv"""
import random
import sys


def main() -> None:
    with open(sys.argv[1], encoding="utf-8", newline="") as source:
        header, *rows = source.read().splitlines(keepends=True)
    draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    sys.stdout.write(header)
    for _ in range(int(sys.argv[2])):
        sys.stdout.write(draw.choice(rows))


main()

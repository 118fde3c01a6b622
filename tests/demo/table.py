#!/usr/bin/python3
"""Prints the demo's table from the summaries that `ckksctl infer --json` wrote, and fails if they are not what they should be."""
import json
import sys

home, models = sys.argv[1], sys.argv[2:]
rows = []
for name in models:
    with open(f"{home}/result-{name}.json", encoding="utf-8") as file:
        rows.append((name, json.load(file)["summary"]))


def size(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def agreement(s):
    left_out = s["labels_excluded"]
    return f"{s['labels_agreeing']}/{s['labels_compared']}" + (f" (-{left_out})" if left_out else "")


lines = [
    ("rows", lambda s: str(s["rows"])),
    ("accuracy, clear model", lambda s: f"{100 * s['accuracy_original']:.1f} %"),
    ("accuracy, clear polynomial model", lambda s: f"{100 * s['accuracy_polynomial']:.1f} %"),
    ("accuracy, encrypted", lambda s: f"{100 * s['accuracy']:.1f} %"),
    ("labels as the clear polynomial model", agreement),
    ("largest difference of scores", lambda s: f"{s['largest_difference']:.1e}"),
    ("  of their range", lambda s: f"{s['largest_difference_relative']:.1e}"),
    ("ms a row: in the clear", lambda s: f"{s['median_ms']['clear_original']:.3f}"),
    ("  encrypt", lambda s: f"{s['median_ms']['encrypt']:.2f}"),
    ("  queue", lambda s: f"{s['median_ms']['queue']:.2f}"),
    ("  replay", lambda s: f"{s['median_ms']['replay']:.2f}"),
    ("  total, as the client sees it", lambda s: f"{s['median_ms']['total']:.2f}"),
    ("  decrypt", lambda s: f"{s['median_ms']['decrypt']:.2f}"),
    ("evaluation keys, once", lambda s: size(s["key_bytes"])),
    ("one request", lambda s: size(s["request_bytes"])),
]
width = max(len(label) for label, _ in lines)
print()
print(" " * width + "".join(f"{name:>16}" for name, _ in rows))
for label, value in lines:
    print(f"{label:<{width}}" + "".join(f"{value(s):>16}" for _, s in rows))

bad = [name for name, s in rows if s["labels_agreeing"] != s["labels_compared"] or s["largest_difference_relative"] > 1e-3]
if bad:
    print(f"\ndemo: encrypted results of {', '.join(bad)} do not agree with the clear polynomial model", file=sys.stderr)
    sys.exit(1)

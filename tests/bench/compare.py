#!/usr/bin/env python3
"""Results of `ckksctl bench ops --json` beside targets and other libraries' figures, as Markdown tables.

    tests/bench/compare.py results.json                    target, best peer, ours and their ratios
    tests/bench/compare.py results.json --all              rows without a target or a peer too
    tests/bench/compare.py results.json --machine Xeon     peers of that machine only: theirs and ours on one processor
    tests/bench/compare.py all-cores.json --against one.json     the same rows of two runs, and their ratio
    tests/bench/compare.py a.json --threads b.json ...           runs with --threads N,M beside each other: N, M, N / M of each

Figures of peers.csv are minima for CPUs and medians for GPUs; ours are taken likewise (--statistic overrides). A set in
peers.csv and targets.csv stands for every set of ours whose name begins with it.
"""

import argparse
import csv
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def read_csv(name):
    with open(os.path.join(HERE, name), newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def matching(rows, device, set_name, row_name):
    return [r for r in rows if r["device"] == device and set_name.startswith(r["set"]) and r["row"] == row_name]


def microseconds(value):
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def times(value):
    return "" if value is None else f"{value:.2f}"


def table(head, lines):
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join(["---"] + ["---:"] * (len(head) - 1)) + " |")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def by_set(results):
    sets = {}
    for r in results:
        sets.setdefault(r["set"], []).append(r)
    return sets


def title(name, rows):
    print(f"**{name}**" + (" (insecure: for comparison only)" if rows[0].get("insecure") else "") + "\n")


def against_peers(data, device, statistic, show_all, machine):
    peers, targets = read_csv("peers.csv"), read_csv("targets.csv")
    peers = [p for p in peers if machine in p["machine"]]
    for name, rows in by_set(data["results"]).items():
        lines = []
        for r in rows:
            ours = r[statistic]
            target = min((float(t["us"]) for t in matching(targets, device, name, r["operation"])), default=None)
            best = min(matching(peers, device, name, r["operation"]), key=lambda p: float(p["us"]), default=None)
            peer = float(best["us"]) if best else None
            if target is None and peer is None and not show_all:
                continue
            lines.append([r["operation"], microseconds(target), microseconds(peer), best["library"] if best else "",
                          microseconds(ours), f"{microseconds(r['low_us'])} .. {microseconds(r['high_us'])}",
                          times(peer / ours if peer else None), times(target / ours if target else None),
                          times(r.get("ratio"))])
        if lines:
            title(name, rows)
            table(["operation, µs", "target", "best peer", "", "ours", "10 % .. 90 %", "peer / ours", "target / ours",
                   "graph / eager"], lines)


def against_run(data, other, statistic):
    earlier = {(r["set"], r["operation"]): r[statistic] for r in other["results"]}
    for name, rows in by_set(data["results"]).items():
        lines = [[r["operation"], microseconds(earlier[name, r["operation"]]), microseconds(r[statistic]),
                  times(earlier[name, r["operation"]] / r[statistic])]
                 for r in rows if (name, r["operation"]) in earlier]
        if lines:
            title(name, rows)
            table(["operation, µs", other["device"], data["device"], "ratio"], lines)


def threads_side_by_side(runs, statistic):
    found = [{(r["set"], r["operation"]): r["threads"] for r in run["results"] if "threads" in r} for run in runs]
    for name, rows in by_set(runs[0]["results"]).items():
        lines = []
        for r in rows:
            line = [r["operation"]]
            for of_run in found:
                teams = of_run.get((name, r["operation"]))
                if not teams:
                    line += ["", ""]
                    continue
                line.append(" / ".join(microseconds(t[statistic]) for t in teams))
                line.append(" / ".join(times(teams[0][statistic] / t[statistic]) for t in teams[1:]))
            lines.append(line)
        title(name, rows)
        table(["operation, µs"] + [head for i in range(len(runs)) for head in (f"run {i + 1}", "ratio")], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--against", metavar="RESULTS")
    parser.add_argument("--threads", metavar="RESULTS", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--machine", metavar="TEXT", default="")
    parser.add_argument("--statistic", choices=["min_us", "median_us", "eager_median_us", "eager_min_us"])
    options = parser.parse_args()
    with open(options.results, encoding="utf-8") as f:
        data = json.load(f)
    device = "cpu" if data["device"].startswith("CPU") else "cuda"
    statistic = options.statistic or ("min_us" if device == "cpu" else "median_us")
    for r in data["results"]:
        r.setdefault(statistic, r[statistic.replace("eager_", "")])  # host rows have one way only
    threads = f", {data['threads']} thread{'s' if data['threads'] != 1 else ''} on the host" if "threads" in data else ""
    print(f"{data['machine']}; {data['device']}{threads}; "
          f"{'minima' if statistic.endswith('min_us') else 'medians'} of ours, version {data['version']}\n")
    if options.threads is not None:
        runs = [data]
        for path in options.threads:
            with open(path, encoding="utf-8") as f:
                runs.append(json.load(f))
        threads_side_by_side(runs, statistic)
    elif options.against:
        with open(options.against, encoding="utf-8") as f:
            against_run(data, json.load(f), statistic)
    else:
        against_peers(data, device, statistic, options.all, options.machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Overlap of communication with computation, from Chrome traces.

Reads traces of `sgactor train` (trace/rank*_trace.json.gz) or `sgactor simulate --trace FILE`. A
track "rank R lane 0 ..." computes, "rank R lane N ..." with N > 0 communicates. Prints, for each
rank, the share of the time spent communicating in which lane 0 computes too, and the order of
starts that overlap rests on: gathers that start before the launch ahead of their reader ends,
reductions that start before the last backward ends.

With --order it checks that order by name, for runs whose plan gathers parameters (ZeRO 3): in each
step "layer.L+1.forward.all_gather" starts before layer.L.forward ends, likewise backwards, and
"layer.L.backward.reduce_scatter" of all layers but the last to run starts before the last backward
ends. A pair is in order if it is so in more than half of the steps: where cores are shared, a step
may be cut in two by another process.

usage: overlap.py TRACE... [--json] [--skip-steps N] [--expect SHARE] [--order]
"""

import argparse
import gzip
import json
import re
import sys

LANE = re.compile(r"rank (\d+) lane (\d+)")
LAYER = re.compile(r"layer\.(\d+)\.(forward|backward)(?:\.(all_gather|reduce_scatter)(?:\.\d+)?(?:\+\d+)?)?$")


def read(path):
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as file:
        return json.load(file)["traceEvents"]


def lanes_of(events):
    names = {}
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            match = LANE.match(event["args"]["name"])
            if match:
                names[(event["pid"], event["tid"])] = (int(match[1]), int(match[2]))
    return names


def spans_by_rank(events, skip_steps):
    names = lanes_of(events)
    ranks = {}
    for event in events:
        lane = names.get((event.get("pid"), event.get("tid")))
        if event.get("ph") != "X" or lane is None:
            continue
        step = event.get("args", {}).get("step", 0)
        if step <= skip_steps:
            continue
        rank = ranks.setdefault(lane[0], {"compute": [], "communicate": []})
        kind = "compute" if lane[1] == 0 else "communicate"
        start = event["ts"]
        rank[kind].append((start, start + event["dur"], event["name"], step))
    return ranks


def union(spans):
    merged = []
    for start, end, *_ in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def covered(spans, merged):
    total = 0.0
    for start, end, *_ in spans:
        for low, high in merged:
            if high <= start:
                continue
            if low >= end:
                break
            total += min(high, end) - max(low, start)
    return total


def early(rank):
    """Of gathers and reductions: how many start while something computes."""
    merged = union(rank["compute"])
    counts = {"gather": [0, 0], "reduce": [0, 0]}
    for start, _, name, _ in rank["communicate"]:
        kind = "gather" if "all_gather" in name else "reduce" if "reduce" in name else None
        if kind is None:
            continue
        counts[kind][1] += 1
        if any(low <= start < high for low, high in merged):
            counts[kind][0] += 1
    return counts


def order_of(spans):
    """(what must start, what must not have ended) -> whether it was so, of one step's spans."""
    at = {}
    last_backward = 0.0
    for start, end, name, _ in spans["compute"] + spans["communicate"]:
        match = LAYER.match(name)
        if match:
            key = (int(match[1]), match[2], match[3])
            at[key] = (min(start, at.get(key, (start,))[0]), max(end, at.get(key, (0, end))[1]))
        if name.endswith(".backward"):
            last_backward = max(last_backward, end)
    last = min((key[0] for key in at if key[1] == "backward"), default=0)
    order = {}
    for (layer, phase, op), (start, _) in at.items():
        ahead = (layer - 1 if phase == "forward" else layer + 1, phase, None)
        if op == "all_gather" and ahead in at:
            order[(f"layer.{layer}.{phase}.{op}", f"layer.{ahead[0]}.{phase}")] = (
                start < at[ahead][1])
        if op == "reduce_scatter" and layer != last:
            order[(f"layer.{layer}.{phase}.{op}", "the last backward")] = start < last_backward
    return order


def check_order(rank):
    """Pairs of names -> [steps in order, steps]."""
    steps = {}
    for kind in ("compute", "communicate"):
        for span in rank[kind]:
            spans = steps.setdefault(span[3], {"compute": [], "communicate": []})
            spans[kind].append(span)
    counts = {}
    for spans in steps.values():
        for pair, good in order_of(spans).items():
            count = counts.setdefault(pair, [0, 0])
            count[0] += good
            count[1] += 1
    return counts


def print_order(number, counts):
    """Prints the pairs of a rank; whether there are both kinds and all are in order."""
    good = True
    for (name, other), (early, total) in sorted(counts.items()):
        verdict = "in order" if 2 * early > total else "LATE"
        good = good and 2 * early > total
        print(f"rank {number}: {name} starts before {other} ends in {early} of {total} steps: "
              f"{verdict}")
    for kind in ("all_gather", "reduce_scatter"):
        if not any(name.endswith(kind) for name, _ in counts):
            print(f"rank {number}: no {kind} of a layer in this trace")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--skip-steps", type=int, default=0, help="leave out steps 1 to N")
    parser.add_argument("--expect", type=float, help="exit 1 if a rank's share is below this")
    parser.add_argument("--order", action="store_true", help="exit 1 if a start is late")
    args = parser.parse_args()
    report = []
    in_order = True
    for path in args.traces:
        for number, rank in sorted(spans_by_rank(read(path), args.skip_steps).items()):
            busy = sum(end - start for start, end, *_ in rank["communicate"])
            hidden = covered(rank["communicate"], union(rank["compute"]))
            counts = early(rank)
            if args.order:
                in_order = print_order(number, check_order(rank)) and in_order
            report.append(
                {
                    "rank": number,
                    "compute_ms": sum(e - s for s, e, *_ in rank["compute"]) / 1e3,
                    "communicate_ms": busy / 1e3,
                    "overlap": hidden / busy if busy else 1.0,
                    "gathers_early": counts["gather"],
                    "reductions_early": counts["reduce"],
                }
            )
    if args.json:
        print(json.dumps(report))
    else:
        for r in report:
            print(
                f"rank {r['rank']}: computes {r['compute_ms']:.3f} ms, communicates "
                f"{r['communicate_ms']:.3f} ms, {100 * r['overlap']:.1f} % of it hidden; started "
                f"while computing: {r['gathers_early'][0]} of {r['gathers_early'][1]} gathers, "
                f"{r['reductions_early'][0]} of {r['reductions_early'][1]} reductions"
            )
    if not report:
        sys.exit("no lanes in these traces")
    if not in_order:
        sys.exit(1)
    if args.expect is not None and min(r["overlap"] for r in report) < args.expect:
        sys.exit(1)


if __name__ == "__main__":
    main()

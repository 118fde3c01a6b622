#!/usr/bin/env bash
# The daemon's overhead over the bare replay: medians of `ckksctl infer` on MNIST over ipc, one request at a time.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build/gcc}
work=$(mktemp -d)
trap 'kill $pid 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$work/models/mnist/1" "$work/data"
export XDG_CONFIG_HOME=$work/config
"$B/ckksctl" compile tests/models/mnist/mnist.onnx --calibration tests/models/mnist/calibration-images-idx3-ubyte.gz \
    -o "$work/models/mnist/1/model.ckm" --quiet >/dev/null
"$B/ckksctl" token add --file "$work/tokens" --tenant bench -o "$work/token" --quiet >/dev/null
printf '[server]\nmodels = %s/models\ndata = %s/data\ntokens = %s/tokens\n[listen]\ncontrol = ipc://%s/c\nbulk = ipc://%s/b\n[ops]\nlisten =\n' \
    "$work" "$work" "$work" "$work" "$work" >"$work/ckksd.conf"
"$B/ckksd" --config "$work/ckksd.conf" 2>"$work/log" &
pid=$!
"$B/ckksctl" profile bench --server "ipc://$work/c" --token-file "$work/token" --use --quiet >/dev/null
for _ in $(seq 300); do grep -q event=ready "$work/log" && break; sleep 0.1; done
"$B/ckksctl" keygen --for mnist --quiet >/dev/null
"$B/ckksctl" register --quiet >/dev/null
"$B/ckksctl" infer mnist tests/models/mnist/test-images-idx3-ubyte.gz --rows "${ROWS:-100}" --summary --json >"$work/out.json"
/usr/bin/python3 - "$work/out.json" <<'PY'
import json, sys
ms = json.load(open(sys.argv[1]))["summary"]["median_ms"]
overhead = ms["total"] - ms["replay"]
print(f"MNIST over ipc, median ms: total {ms['total']:.2f}, queue {ms['queue']:.2f}, stage {ms['stage']:.2f}, replay {ms['replay']:.2f}; "
      f"total - replay {overhead:.2f} = {100 * overhead / ms['replay']:.1f} % of the replay")
bound = max(0.15 * ms["replay"], 1.0)
print(f"bound: 15 % or 1 ms, whichever is larger = {bound:.2f} ms: {'held' if overhead <= bound else 'missed'}")
sys.exit(overhead > bound)
PY

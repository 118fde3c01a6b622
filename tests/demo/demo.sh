#!/usr/bin/env bash
# What `make demo` runs: three models compiled, served and asked over encrypted inputs, with a table of what came out.
# Everything it makes lies in build/demo; keys and packages are kept for the next run.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=${B:-build/gcc}
port=${PORT:-7000}
ops=${OPS_PORT:-9464}
home=$PWD/build/demo
ctl=$PWD/$B/ckksctl
models=(breast-cancer mnist credit-g)
export XDG_CONFIG_HOME=$home/config
daemon=

stop() {
    [ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    daemon=
}
say() { printf '%s\n' "$*"; }
die() {
    stop
    say "demo: $*" >&2
    exit 1
}
interrupted() {
    trap '' INT TERM
    stop
    say "demo: interrupted; the daemon is stopped, 'make demo' starts again where it makes sense" >&2
    exit 130
}
trap interrupted INT TERM
trap stop EXIT

mkdir -p "$home/models" "$home/data" || die "cannot write to $home"
for taken in "$port" $((port + 1)) "$ops"; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$taken") 2>/dev/null; then
        die "port $taken is taken on this machine: choose others with 'make demo PORT=7100 OPS_PORT=9500'"
    fi
done

# --- the model owner: compile -------------------------------------------------------------------------------------------
calibration() { find "tests/models/$1" -name 'calibration*' | head -n 1; }
for m in "${models[@]}"; do
    package=$home/models/$m/1/model.ckm
    if [ ! -f "$package" ] || [ "tests/models/$m/$m.onnx" -nt "$package" ] || ! "$ctl" inspect "$package" >/dev/null 2>&1; then
        mkdir -p "$(dirname "$package")"
        rm -f "$package"
        say "compiling $m"
        "$ctl" compile "tests/models/$m/$m.onnx" --calibration "$(calibration "$m")" -o "$package" >"$home/compile-$m.txt" 2>&1 ||
            die "compile $m: $(tail -n 1 "$home/compile-$m.txt")"
    fi
done

# --- the operator: token, configuration, daemon ---------------------------------------------------------------------------
if [ ! -f "$home/demo.token" ] || [ ! -f "$home/tokens" ]; then
    rm -f "$home/tokens" "$home/demo.token"
    "$ctl" token add --file "$home/tokens" --tenant demo -o "$home/demo.token" --quiet >/dev/null || die "no token could be made"
fi
cat >"$home/ckksd.conf" <<CONF
[server]
models = $home/models
data = $home/data
tokens = $home/tokens
[listen]
control = ipc://$home/control.sock
 tcp://127.0.0.1:$port
bulk = ipc://$home/bulk.sock
 tcp://127.0.0.1:$((port + 1))
[ops]
listen = 127.0.0.1:$ops
CONF
"$B/ckksd" --config "$home/ckksd.conf" >"$home/ckksd.log" 2>&1 &
daemon=$!
say "starting the daemon"
for _ in $(seq 600); do
    kill -0 "$daemon" 2>/dev/null || die "the daemon ended: $(tail -n 1 "$home/ckksd.log")"
    /usr/bin/python3 - "$ops" <<'PY' 2>/dev/null && ready=1 && break
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/readyz", timeout=2)
PY
    sleep 0.2
done
[ -n "${ready:-}" ] || die "the daemon did not become ready: $(tail -n 1 "$home/ckksd.log")"
sed -n 's/.*event=device device="\([^"]*\)".*/serving from: \1/p' "$home/ckksd.log"

# --- the client: keys, registration, encrypted inference -------------------------------------------------------------------
"$ctl" profile demo --server "tcp://127.0.0.1:$port" --token-file "$home/demo.token" --use --quiet >/dev/null || die "no profile"
say "making keys (kept for the next run)"
for m in "${models[@]}"; do
    "$ctl" keygen --for "$m" --quiet >"$home/keygen-$m.txt" || die "keygen $m: $(tail -n 1 "$home/keygen-$m.txt")"
done
"$ctl" register --quiet >"$home/register.txt" || die "register: $(tail -n 1 "$home/register.txt")"
rows() { find "tests/models/$1" -name 'test*' ! -name '*label*' | head -n 1; }
labels() { find "tests/models/$1" -name 'test*label*' | head -n 1; }
for m in "${models[@]}"; do
    say "asking $m, every row encrypted"
    "$ctl" infer "$m" "$(rows "$m")" --labels "$(labels "$m")" --reference "$home/models/$m/1/model.ckm" \
        --original "tests/models/$m/$m.onnx" --summary --json >"$home/result-$m.json" || die "infer $m: $(tail -n 1 "$home/result-$m.json")"
done
/usr/bin/python3 tests/demo/table.py "$home" "${models[@]}" || die "results are not what they should be (see $home/result-*.json)"

cat <<TXT

Who knew what: the secret keys never left $home/config/ckksctl/keys (mode 0600). What left the client: evaluation
keys, once, and one ciphertext a row. The daemon (process $daemon) computed on them without being able to read them; the
client decrypted the scores. The same client ran the models in the clear to compare.

Next, to type:
  export XDG_CONFIG_HOME=$XDG_CONFIG_HOME; $B/ckksd --config $home/ckksd.conf 2>$home/ckksd.log &
  $B/ckksctl doctor
  $B/ckksctl infer breast-cancer $(rows breast-cancer) --rows 3
TXT
stop

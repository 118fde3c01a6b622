#!/usr/bin/env bash
# What takes too long for every change. Run by hand: make long. Each part prints its figures.
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build/gcc}
status=0
part() {
    printf '\n== %s\n' "$1"
    shift
    "$@" || { echo "failed: $*"; status=1; }
}
part "10,000 requests from 8 clients" /usr/bin/python3 tests/integration/soak.py 10000 8
part "overhead of the daemon over the bare replay" tests/bench/overhead.sh
if command -v debootstrap >/dev/null && [ "$(id -u)" -eq 0 ]; then
    part "make demo on a fresh Debian 12" tests/integration/fresh_machine.sh
else
    echo "fresh machine: skipped (debootstrap and root are needed)"
fi
exit $status

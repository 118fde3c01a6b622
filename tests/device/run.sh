#!/usr/bin/env bash
# Checks a card: what is needed, every test on the CUDA device, timings. Run from a device bundle; one report on stdout.
#   run.sh [needs|tests|sanitize|bench|serve|all]      exit code 0: everything that ran passed
set -u
cd "$(dirname "$0")" || exit 1
what=${1:-all}
export CKKSD_TEST_DEVICE=cuda B=$PWD
passed=0 failed=0 skipped=0

need() { # need WORD FOUND WAY_OUT
    if [ -n "$2" ]; then printf '  %-12s %s\n' "$1" "$2"; else printf '  %-12s MISSING: %s\n' "$1" "$3"; missing=1; fi
}
needs() {
    local missing=0 cards
    echo "needs"
    need system "$(uname -sm | grep 'Linux x86_64')" "this bundle is for Linux on x86-64"
    need glibc "$(ldd --version 2>/dev/null | sed -n 1p)" "the GNU C library, 2.36 or newer"
    need libraries "$(./ckksctl --version 2>/dev/null | sed 's/^/ckksctl starts: /')" "$(./ckksctl --version 2>&1 | head -n 1)"
    need driver "$(ldconfig -p 2>/dev/null | grep -o 'libcuda.so.1' | head -n 1)" "libcuda.so.1: install the NVIDIA driver"
    cards=$(nvidia-smi --query-gpu=index,name,compute_cap,driver_version,memory.total,uuid --format=csv,noheader 2>/dev/null)
    need card "$(head -n 1 <<<"$cards")" "nvidia-smi shows no card: is the driver loaded, is the card given to this container?"
    sed -n '2,$s/^/               /p' <<<"$cards"
    need xz "$(command -v xz)" "install xz-utils"
    [ $missing -eq 0 ] || exit 1
    find models -name '*.ckm.xz' -exec xz -d {} +
    ./ckksctl doctor 2>/dev/null | sed -n 's/^\([a-zA-Z]*\) *gpu */  health       \1: /p'
}

count() { sed -n "$1" "$2" | awk '{n += $1} END {print n + 0}'; }
one() { # one NAME COMMAND...
    local log rc p f s name=$1
    shift
    log=$(mktemp)
    timeout 300 "$@" >"$log" 2>&1
    rc=$?
    p=$(count 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
    f=$(count 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log")
    s=$(count 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log")
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '  %-36s %3d passed %3d failed %3d skipped%s\n' "$name" "$p" "$f" "$s" "$([ $rc -eq 0 ] || echo ", exit code $rc")"
    [ $rc -eq 0 ] || grep -aE 'ERROR|Error|LINE|error:|word|failed|0x|fixture' "$log" | head -n 12 | sed 's/^/      /'
    rm -f "$log"
}
total() { echo "  in all: $passed passed, $failed failed, $skipped skipped"; }

tests() {
    local t source
    echo "tests on the card"
    source=$(mktemp -d)
    tar -xJf tests/source.tar.xz -C "$source"
    for t in $(./device-tests); do
        case $t in
        # these read files of the source tree
        test_c18_no_bypass) one "$t" sh -c "cd $source && exec $B/device-tests $t" ;;
        # these look at a device's memory without asking
        test_device | test_device_record | test_kernels_* | test_workload) one "$t" env CKKSD_TEST_HOST_VISIBLE=1 ./device-tests "$t" ;;
        *) one "$t" ./device-tests "$t" ;;
        esac
    done
    rm -rf "$source"
    total
}
sanitize() {
    local tool t
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here: skipped"; return; }
    export CKKSD_TEST_SHORT=1
    for tool in memcheck racecheck initcheck synccheck; do
        echo "compute-sanitizer $tool"
        for t in test_cuda_kernels test_evaluator_rotate; do
            one "$t" compute-sanitizer --tool "$tool" --error-exitcode 9 ./device-tests "$t"
        done
    done
    unset CKKSD_TEST_SHORT
    total
}
bench() {
    local m
    echo "operations"
    ./ckksctl bench ops --device cuda --all || failed=$((failed + 1))
    echo "programs, eager against recorded"
    for m in models/*/1/model.ckm; do ./ckksctl bench program "$m" --device cuda --rounds 50 || failed=$((failed + 1)); done
}
serve() {
    local m s r
    echo "full load"
    for m in models/*/1/model.ckm; do
        ./ckksctl bench serve "$m" --device cuda --tenants 2 --seconds "${SECONDS_EACH:-3}" || failed=$((failed + 1))
    done
    echo "operations under load"
    for s in '2^14, 8 + 2' '2^15, 16 + 4' '2^16, 24 + 6'; do
        for r in rotate square; do
            ./ckksctl bench serve --set "$s" --row $r --device cuda --inputs 1 --seconds 1 || failed=$((failed + 1))
        done
    done
}

needs
case $what in
needs) ;;
tests) tests ;;
sanitize) sanitize ;;
bench) bench ;;
serve) serve ;;
all) tests; sanitize; bench; serve ;;
*) echo "usage: run.sh [needs|tests|sanitize|bench|serve|all]"; exit 2 ;;
esac
[ $failed -eq 0 ]

#!/usr/bin/env bash
# Checks a card: what is needed, every test on the CUDA device, timings. Run from a device bundle; one report on stdout.
#   run.sh [tests|sanitize|bench|all]
set -u
cd "$(dirname "$0")" || exit 1
what=${1:-all}
export CKKSD_TEST_DEVICE=cuda
command -v nvidia-smi >/dev/null || { echo "no nvidia-smi: is the NVIDIA driver installed?"; exit 1; }
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader || exit 1
passed=0 failed=0 skipped=0
count() { sed -n "$1" "$2" | awk '{n += $1} END {print n + 0}'; }
one() {
    local log
    log=$(mktemp)
    timeout 300 "$@" >"$log" 2>&1
    local rc=$? p f s
    p=$(count 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
    f=$(count 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log")
    s=$(count 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log")
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '  %-60s %3d passed %3d failed %3d skipped\n' "${*: -1}" "$p" "$f" "$s"
    [ $rc -eq 0 ] || grep -aE 'ERROR|Error|word|failed|0x' "$log" | head -n 12 | sed 's/^/      /'
    rm -f "$log"
}
tests() {
    local t
    for t in $(./device-tests); do one ./device-tests "$t"; done
    echo "$passed passed, $failed failed, $skipped skipped"
}
sanitize() {
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here: skipped"; return; }
    for tool in memcheck racecheck initcheck synccheck; do
        echo "compute-sanitizer $tool"
        CKKSD_TEST_SHORT=1 one compute-sanitizer --tool "$tool" --error-exitcode 9 ./device-tests test_cuda_kernels
    done
}
bench() {
    ./ckksctl bench ops --device cuda --all
    for m in models/*/*.ckm; do ./ckksctl bench program "$m" --device cuda; done
}
case $what in
tests) tests ;;
sanitize) sanitize ;;
bench) bench ;;
all) tests; sanitize; bench ;;
*) echo "usage: run.sh [tests|sanitize|bench|all]"; exit 2 ;;
esac
[ $failed -eq 0 ]

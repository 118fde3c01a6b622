#!/usr/bin/env bash
# Runs every test binary and script of the build in $B and totals them. A crash, a time-out or a missing summary is a
# failure. The last line, alone: N passed, N failed, N skipped.
#
#   B=build/gcc tests/run.sh [pattern]        SANITIZER=asan|thread, EMULATED=1 as the build was made
#
# EMULATED: the tests of the CUDA device, in short, on the emulated card.
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build/gcc}
pattern=${1:-.}
sanitizer=${SANITIZER:-}
# far more than any of them takes: for those that hang, on a machine as slow as may be
limit=${TEST_TIMEOUT_S:-600}
[ -n "$sanitizer" ] && limit=${TEST_TIMEOUT_S:-1800}

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export B CKKSD_BUILD=$B
# teams that wait do not spin: tests share the machine
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}
if [ "$sanitizer" = thread ]; then
    archer=$(ls /usr/lib/llvm-14/lib/libarcher.so 2>/dev/null)
    export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=0 exitcode=66 suppressions=$PWD/tests/tsan/suppressions.txt"
    [ -n "$archer" ] && export OMP_TOOL_LIBRARIES=$archer
fi

passed=0 failed=0 skipped=0
failures=()
logs=$B/test-logs
mkdir -p "$logs"

# one test program: its name, its log; adds to the totals
tally_cmocka() {
    local name=$1 log=$2 rc=$3 p f s
    # a binary may run several groups: add up their closing lines
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    s=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    if ! grep -q '^\[  PASSED  \]' "$log"; then
        f=$((f + 1)); failures+=("$name: no summary (exit $rc)")
    elif [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1; failures+=("$name: exit $rc after its summary")
    elif [ "$f" -ne 0 ]; then
        failures+=("$name: $f failed")
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '  %-52s %4d passed %3d failed %3d skipped\n' "$name" "$p" "$f" "$s"
}

tally_plain() {
    local name=$1 log=$2 rc=$3 line p f s
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log" | tail -n 1)
    if [ -z "$line" ]; then
        p=0 f=1 s=0; failures+=("$name: no summary (exit $rc)")
    else
        read -r p f s <<<"$(awk -F'[ ,]+' '{print $1, $3, $5 + 0}' <<<"$line")"
        if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; failures+=("$name: exit $rc after its summary"); fi
        [ "$f" -ne 0 ] && [ "$rc" -ne 0 ] && failures+=("$name: $f failed")
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '  %-52s %4d passed %3d failed %3d skipped\n' "$name" "$p" "$f" "$s"
}

log_of() { echo "$logs/$(tr '/' '_' <<<"$1").log"; }
# execute NAME COMMAND...: into its log; the exit code is the command's
execute() {
    local log rc
    log=$(log_of "$1")
    shift
    timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    [ $rc -eq 124 ] || [ $rc -eq 137 ] && echo "timed out after $limit s" >>"$log"
    return $rc
}
run() { # run KIND NAME COMMAND...
    local kind=$1 name=$2
    shift 2
    [[ $name =~ $pattern ]] || return 0
    execute "$name" "$@"
    report "$kind" "$name" $?
}
report() { # report KIND NAME EXIT-CODE: what its log says
    local kind=$1 name=$2 rc=$3 log
    log=$(log_of "$name")
    "tally_$kind" "$name" "$log" "$rc"
    grep -aE '^skipped: ' "$log" | sort -u | sed 's/^/      /'
    if [ $rc -ne 0 ]; then
        echo "    ---- last lines of $log"
        grep -aE '\[  ERROR|\[  FAILED|ERROR:|runtime error|WARNING: ThreadSanitizer|assert|FAIL|Traceback|timed out' "$log" | head -n 12 | sed 's/^/    /'
        tail -n 12 "$log" | sed 's/^/    /'
    fi
}

total() {
    if [ ${#failures[@]} -ne 0 ]; then
        echo "failures:"
        printf '  %s\n' "${failures[@]}"
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

# The emulated card: its own control, then everything that opens a device but what is the CPU's alone, a process for each core.
# One ring degree for each radix of the passes; test_device_loss in full: what it skips in short is what it is for.
emulated() {
    local name names=()
    if ! grep -qw fma /proc/cpuinfo; then
        echo "skipped: the emulated card (this processor has no fused multiply-add)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    export CKKSD_TEST_DEVICE=cuda CKKSD_TEST_SHORT=1
    rm -f "$logs"/*.rc
    # the longest first
    for name in $(printf 'test_cuda_kernels:%s ' ${KERNEL_SIZES:-10-f64 10-i64 13-f64 13-i64}) test_evaluator_rotate test_daemon_life \
        $("$B/device-tests" | grep -vxE 'test_cpu_vector_kernels|test_cuda_kernels|test_evaluator_(chebyshev|rotate)|test_daemon_life'); do
        [[ emulated/$name =~ $pattern ]] || continue
        names+=("$name")
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
        (
            [ "$name" != test_device_loss ] || unset CKKSD_TEST_SHORT
            # shellcheck disable=SC2086 # words are arguments
            execute "emulated/$name" "$B/device-tests" ${name/:/ }
            echo $? >"$(log_of "emulated/$name").rc"
        ) &
    done
    wait
    run cmocka emulated/test_card "$B/tests/test_card"
    for name in "${names[@]}"; do report cmocka "emulated/$name" "$(cat "$(log_of "emulated/$name").rc")"; done
    total
}

echo "tests of $B"
if [ -n "${EMULATED:-}" ]; then emulated; fi
for binary in "$B"/tests/unit/test_* "$B"/tests/conformance/test_*; do
    if [ -x "$binary" ] && [ -f "$binary" ]; then run cmocka "${binary#"$B"/tests/}" "$binary"; fi
done
# corpora of the fuzz targets, as regression: one test per target
for binary in "$B"/tests/fuzz/fuzz_*; do
    if [ -x "$binary" ] && [ -f "$binary" ]; then run plain "fuzz/$(basename "$binary")" "$binary" "tests/fuzz/corpus/$(basename "$binary" | sed 's/^fuzz_//')"; fi
done
if [ "$sanitizer" != thread ] || [ -n "${TSAN_INTEGRATION:-}" ]; then
    for script in tests/integration/test_*.sh tests/integration/test_*.py; do
        [ -f "$script" ] || continue
        case $script in *.py) run plain "${script#tests/}" /usr/bin/python3 "$script" ;; *) run plain "${script#tests/}" bash "$script" ;; esac
    done
fi
if [ "$sanitizer" = thread ]; then
    # the sanitizer must be able to see a race at all
    if [ -x "$B/tests/planted_race" ]; then
        if "$B/tests/planted_race" 2>&1 | grep -q 'WARNING: ThreadSanitizer: data race'; then
            passed=$((passed + 1)); echo "  planted race found"
        else
            failed=$((failed + 1)); failures+=("planted race was not found: ThreadSanitizer is blind here")
        fi
    else
        failed=$((failed + 1)); failures+=("no planted race was built")
    fi
fi

total

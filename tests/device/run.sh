#!/usr/bin/env bash
# Checks a card: what is needed, every test on the CUDA device, compute-sanitizer on those that use it, timings. Run from a
# device bundle; one report on stdout.
#   run.sh [needs|tests|sanitize|bench|serve|all]      exit code 0: everything that ran passed
#   JOBS=8 (tests at a time), LIMIT_S=300 (seconds for each), TOOLS="memcheck racecheck" (of compute-sanitizer), SECONDS_EACH=3,
#   LOGS=FOLDER (keeps what each test said)
set -u
cd "$(dirname "$0")" || exit 1
what=${1:-all}
export CKKSD_TEST_DEVICE=cuda B=$PWD
cores=$(nproc 2>/dev/null || echo 2)
JOBS=${JOBS:-$((cores < 4 ? 1 : cores < 16 ? cores / 2 : 8))}
LIMIT_S=${LIMIT_S:-300}
TOOLS=${TOOLS:-memcheck racecheck initcheck synccheck}
# sets of test_cuda_kernels that together have every radix of every pass
KERNEL_SIZES=${KERNEL_SIZES:-1 13 15 17}
# tests that look at a device's memory without asking
VISIBLE='^test_(device|device_record|kernels_.*|workload)$'
passed=0 failed=0 skipped=0
if [ -n "${LOGS:-}" ]; then
    mkdir -p "$LOGS"
    work=$(cd "$LOGS" && pwd)
    rm -f "$work"/*.end "$work"/*.opened
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
# teams that wait do not spin: tests share the machine
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}

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

# ---- running many things at a time ----

each() { # each FUNCTION: once for each line of stdin, its words as arguments, JOBS at a time
    local line
    while read -r line; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        # shellcheck disable=SC2086 # words are arguments
        "$1" $line </dev/null &
    done
    wait
}
run_test() { # run_test TEST [PART]: output, exit code, seconds and which card was opened, in $work/TEST.*
    local test=$1 key=$1${2:+.$2} folder=$B visible='' begin=$SECONDS rc
    if [ "$test" = test_c18_no_bypass ]; then folder=$work/source; fi # it reads the sources
    if [[ $test =~ $VISIBLE ]]; then visible=CKKSD_TEST_HOST_VISIBLE=1; fi
    (cd "$folder" && exec env ${visible:+"$visible"} CKKSD_TEST_OPENED="$work/$key.opened" \
        timeout --kill-after=10 "$LIMIT_S" "$B/device-tests" "$@") >"$work/$key.log" 2>&1
    rc=$?
    printf '%s %s\n' $rc $((SECONDS - begin)) >"$work/$key.end"
}
list_tests() { # the longest first, in two parts
    printf 'test_cuda_kernels f64\ntest_cuda_kernels i64\n'
    ./device-tests | grep -v '^test_cuda_kernels$'
}
count() { sed -n "$1" "$2" | awk '{n += $1} END {print n + 0}'; }
complain() { grep -aE 'ERROR|Error|LINE|error:|word|failed|0x|fixture|asks for' "$1" | head -n 12 | sed 's/^/      /'; }

# ---- what there is to do ----

tests() {
    local t rc s p f k log
    echo "tests on the card, $JOBS at a time"
    mkdir -p "$work/source" && tar -xJf tests/source.tar.xz -C "$work/source"
    list_tests | each run_test
    for t in $(list_tests | tr ' ' '.'); do
        log=$work/$t.log
        read -r rc s _ <"$work/$t.end"
        p=$(count 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
        f=$(count 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log")
        k=$(count 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log")
        if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + k))
        printf '  %-32s %3d passed %3d failed %3d skipped %4d s%s%s\n' "$t" "$p" "$f" "$k" "$s" \
            "$([ -s "$work/$t.opened" ] || echo ', uses no card')" "$([ "$rc" -eq 0 ] || echo ", exit code $rc")"
        [ "$rc" -eq 0 ] || complain "$log"
    done
    echo "  in all: $passed passed, $failed failed, $skipped skipped"
}

# One process of a tool runs many tests, since preparing every kernel for a tool takes longer than most of them.
# GROUP: its tests; a size of test_cuda_kernels; those that look at a device's memory; those that start daemons; the rest in three
list_group() {
    case $1 in
    kernels*) echo test_cuda_kernels ;;
    visible) ./device-tests | grep -E "$VISIBLE" ;;
    daemons) ./device-tests | grep -E '^test_daemon' ;;
    rest*) ./device-tests | grep -vE "$VISIBLE|^test_daemon|^test_cuda_kernels$|^test_c18" | awk -v k="${1#rest}" 'NR % 3 == k' ;;
    esac
}
under_tool() { # under_tool GROUP TOOL
    local group=$1 tool=$2 key=$1.$2 size=1 visible='' begin=$SECONDS rc
    case $group in kernels*) size=${group#kernels} ;; visible) visible=CKKSD_TEST_HOST_VISIBLE=1 ;; esac
    # shellcheck disable=SC2046 # words are arguments
    env ${visible:+"$visible"} CKKSD_TEST_SHORT="$size" CKKSD_TEST_OPENED="$work/$key.opened" OMP_NUM_THREADS=2 \
        timeout --kill-after=10 "$LIMIT_S" compute-sanitizer --tool "$tool" --error-exitcode 9 --target-processes all \
        ./device-tests --each $(list_group "$group") >"$work/$key.log" 2>&1
    rc=$?
    printf '%s %s %s\n' $rc $((SECONDS - begin)) "$group" >"$work/$key.end"
}
verdicts() { # verdicts GROUP: for each of its tests a line: what each tool said of it
    local t tool row rc s used
    for t in $(list_group "$1"); do
        row='' used=''
        for tool in $TOOLS; do
            read -r rc s _ <"$work/$1.$tool.end"
            # what a tool says between a test's first and last line is of that test
            row+=" $(awk -v t="$t" -v limit="$LIMIT_S" -v late="$((rc == 124 || (rc == 137 && s >= LIMIT_S)))" '
                $0 == "--- " t {begun = 1}
                index($0, "--- " t ": ") == 1 {ended = 1; code = $3 + 0}
                begun && !ended && /^=========./ && !/COMPUTE-SANITIZER|SUMMARY: 0 / {said++}
                END {print said ? "errors" : ended && !code ? "clean" : ended ? "exit:" code : \
                           late ? (begun ? ">" limit "s" : "not_run") : "died"}' "$work/$1.$tool.log")"
            if grep -qE "^--- $t: [0-9]+, card" "$work/$1.$tool.log" || ! grep -qE "^--- $t: " "$work/$1.$tool.log"; then used=1; fi
        done
        if [ -n "$used" ]; then echo "$t $1$row"; fi
    done
}
sanitize() {
    local groups tool t group row v clean bad late
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here: skipped"; return; }
    groups="$(for size in $KERNEL_SIZES; do echo "kernels$size"; done | sort -rV) rest0 rest1 rest2 visible daemons"
    echo "compute-sanitizer on every test that uses the card, in short, $JOBS processes at a time, $LIMIT_S s each at most"
    for group in $groups; do for tool in $TOOLS; do echo "$group $tool"; done; done | each under_tool
    for group in $groups; do verdicts "$group"; done >"$work/verdicts"
    # shellcheck disable=SC2086
    printf "  %-34s$(printf ' %%-10s%.0s' $TOOLS)\n" '' $TOOLS
    while read -r t group row; do
        case $group in kernels1) t+=", N = 2^10, 2^11" ;; kernels*) t+=", N = 2^${group#kernels}" ;; esac
        # shellcheck disable=SC2086
        printf '  %-34s%s\n' "$t" "$(printf ' %-10s' $row)"
    done <"$work/verdicts"
    for group in $groups; do
        for tool in $TOOLS; do
            read -r v row _ <"$work/$group.$tool.end"
            [ "$v" -eq 0 ] && continue
            echo "  --- $tool, $group: exit code $v after $row s"
            grep -aE '^=========.|ERROR|FAILED|asks for' "$work/$group.$tool.log" | grep -v COMPUTE-SANITIZER | head -n 12 | sed 's/^/      /'
        done
    done
    read -r clean late bad < <(cut -d ' ' -f 3- "$work/verdicts" | tr ' ' '\n' | awk '
        /^clean$/ {c++; next} /^>|^not_run$/ {l++; next} {b++} END {print c + 0, l + 0, b + 0}')
    failed=$((failed + bad))
    echo "  in all: $clean clean, $bad with errors, $late not ended"
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
    for m in models/{breast-cancer,credit-g,mnist}/1/model.ckm; do # the demo's
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

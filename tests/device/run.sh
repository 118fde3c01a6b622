#!/usr/bin/env bash
# Checks a card: what is needed, every test on the CUDA device, compute-sanitizer on those that use it, timings. Run from a
# device bundle; one report on stdout.
#   run.sh [needs|tests|sanitize|bench|serve|all]      exit code 0: everything that ran passed
#   JOBS=8 (tests at a time), LIMIT_S=300 (seconds for each), TOOLS="memcheck racecheck" (of compute-sanitizer), SECONDS_EACH=3
set -u
cd "$(dirname "$0")" || exit 1
what=${1:-all}
export CKKSD_TEST_DEVICE=cuda B=$PWD
cores=$(nproc 2>/dev/null || echo 2)
JOBS=${JOBS:-$((cores < 4 ? 1 : cores < 16 ? cores / 2 : 8))}
LIMIT_S=${LIMIT_S:-300}
TOOLS=${TOOLS:-memcheck racecheck initcheck synccheck}
# sets of test_cuda_kernels that together have every radix of every pass; each is a row of its own under the tools
KERNEL_SIZES="1 13 15 17"
passed=0 failed=0 skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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
on_card() { # on_card KEY TEST [TOOL...]: output, exit code, seconds and which card was opened, in $work/KEY.*
    local key=$1 test=$2 folder=$B visible='' begin=$SECONDS rc
    shift 2
    case $test in
    test_c18_no_bypass) folder=$work/source ;; # it reads the sources
    # these look at a device's memory without asking
    test_device | test_device_record | test_kernels_* | test_workload) visible=CKKSD_TEST_HOST_VISIBLE=1 ;;
    esac
    (cd "$folder" && exec env ${visible:+"$visible"} CKKSD_TEST_OPENED="$work/$key.opened" \
        timeout --kill-after=10 "$LIMIT_S" "$@" "$B/device-tests" "$test") >"$work/$key.log" 2>&1
    rc=$?
    printf '%s %s %s\n' $rc $((SECONDS - begin)) "$test" >"$work/$key.end"
}
run_test() { on_card "$1" "$1"; }
run_all_tests() {
    # the longest first
    mkdir -p "$work/source" && tar -xJf tests/source.tar.xz -C "$work/source"
    { echo test_cuda_kernels; ./device-tests | grep -v '^test_cuda_kernels$'; } | each run_test
}
count() { sed -n "$1" "$2" | awk '{n += $1} END {print n + 0}'; }
complain() { grep -aE 'ERROR|Error|LINE|error:|word|failed|0x|fixture|asks for' "$1" | head -n 12 | sed 's/^/      /'; }

# ---- what there is to do ----

tests() {
    local t rc s p f k log
    echo "tests on the card, $JOBS at a time"
    run_all_tests
    for t in $(./device-tests); do
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

under_tool() { # under_tool TEST TOOL SIZE
    CKKSD_TEST_SHORT=$3 on_card "$1.$2.$3" "$1" compute-sanitizer --tool "$2" --error-exitcode 9 --target-processes all
}
verdict() { # verdict KEY: in a word or two
    local rc s n
    read -r rc s _ <"$work/$1.end"
    n=$(sed -n 's/^=* *\(ERROR\|RACECHECK\) SUMMARY: \([0-9]*\) .*/\2/p' "$work/$1.log" | awk '{n += $1} END {print n + 0}')
    if [ "$n" -gt 0 ]; then echo "$n errors"
    elif [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then echo "> $LIMIT_S s"
    elif [ "$rc" -ne 0 ]; then echo "exit $rc"
    elif ! grep -q SUMMARY "$work/$1.log"; then echo "no word"
    else echo "clean"; fi
}
sanitize() {
    local t tool size v row clean=0 bad=0 late=0
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here: skipped"; return; }
    # which tests use a card, and for how long
    if ! compgen -G "$work/*.end" >/dev/null; then CKKSD_TEST_SHORT=1 run_all_tests; fi
    for t in $(./device-tests); do
        if [ -s "$work/$t.opened" ]; then cat "$work/$t.end"; fi
    done | sort -k 2nr >"$work/used"
    echo "compute-sanitizer on every test that uses the card, in short ($(wc -l <"$work/used") tests, $JOBS runs at a time, $LIMIT_S s each at most)"
    while read -r _ _ t; do
        for size in $(if [ "$t" = test_cuda_kernels ]; then echo "$KERNEL_SIZES"; else echo 1; fi); do
            echo "$t $size"
        done
    done <"$work/used" >"$work/rows"
    while read -r t size; do
        for tool in $TOOLS; do echo "$t $tool $size"; done
    done <"$work/rows" | each under_tool
    # shellcheck disable=SC2086
    printf "  %-32s$(printf ' %%-10s%.0s' $TOOLS)\n" '' $TOOLS
    while read -r t size; do
        row=
        for tool in $TOOLS; do
            v=$(verdict "$t.$tool.$size")
            case $v in clean) clean=$((clean + 1)) ;; '>'*) late=$((late + 1)) ;; *) bad=$((bad + 1)) ;; esac
            row+=$(printf ' %-10s' "$v")
        done
        printf '  %-32s%s\n' "$t$([ "$size" = 1 ] || echo ", N = 2^$size")" "$row"
    done <"$work/rows"
    while read -r t size; do
        for tool in $TOOLS; do
            case $(verdict "$t.$tool.$size") in clean | '>'*) continue ;; esac
            echo "  --- $tool, $t"
            grep -aE '^=========|ERROR|FAILED|asks for' "$work/$t.$tool.$size.log" | head -n 12 | sed 's/^/      /'
        done
    done <"$work/rows"
    failed=$((failed + bad))
    echo "  in all: $clean clean, $bad with errors, $late not ended in $LIMIT_S s"
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

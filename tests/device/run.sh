#!/usr/bin/env bash
# Checks a card: what is needed, every test on the CUDA device, compute-sanitizer on those that use it, timings. Run from a
# device bundle; one report on stdout.
#   run.sh [needs|tests|sanitize|bench|serve|all]      exit code 0: everything that ran passed
#   JOBS=6 (processes at a time, over all cards), LIMIT_S=300 (seconds for each process), TOTAL_S=1000 (for all of them), SECONDS_EACH=3 (of load),
#   TOOLS="memcheck racecheck" (of compute-sanitizer), LOGS=FOLDER (keeps what each process said)
#   BUCKETS=8 (processes that the tests are dealt to, for each tool)
#
# Tests share processes: to give a process its card takes a second or more, one process after the other. With several
# cards, processes take turns (CUDA_VISIBLE_DEVICES=0 for one alone).
set -u
cd "$(dirname "$0")" || exit 1
what=${1:-all}
export CKKSD_TEST_DEVICE=cuda B=$PWD
cores=$(nproc 2>/dev/null || echo 2)
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then cards=1; fi
JOBS=${JOBS:-$((cores < 4 ? 1 : cores < 12 ? cores / 2 : 6))}
LIMIT_S=${LIMIT_S:-300}
TOTAL_S=${TOTAL_S:-100000}
TOOLS=${TOOLS:-racecheck initcheck memcheck synccheck} # the slowest first
# sets of test_cuda_kernels that together have every radix of every pass; the longest first
KERNEL_SIZES=${KERNEL_SIZES:-10 11 13 15 17}
BUCKETS=${BUCKETS:-8}
# tests that look at a device's memory without asking
VISIBLE='^test_(device|device_record|kernels_.*|workload)$'
# teams that wait do not spin: tests share the machine
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}
passed=0 failed=0 skipped=0
if [ -n "${LOGS:-}" ]; then
    mkdir -p "$LOGS"
    work=$(cd "$LOGS" && pwd)
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi

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

# ---- processes of several tests ----

each() { # each FUNCTION: once for each line of stdin, its words as arguments, JOBS at a time
    local line turn=0
    while read -r line; do
        card=$((cards > 1 ? turn++ % cards : -1))
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        # shellcheck disable=SC2086 # words are arguments
        "$1" $line </dev/null &
    done
    wait
}
members() { # members GROUP: its tests
    case $1 in
    kernels-*64) echo "test_cuda_kernels:${1#kernels-}" ;; # one of the two data paths
    kernels-*) echo "test_cuda_kernels:${1#kernels-}" ;; # one of the two data paths, or one ring degree of one
    visible) ./device-tests | grep -E "$VISIBLE" ;;
    visible-*) members visible | sed -n "${1#visible-}p" ;;
    rest-*) members rest | awk -v b="${1#rest-}" -v n="$BUCKETS" 'NR % n == b - 1' ;;
    sources) echo test_c18_no_bypass ;; # reads the sources
    loss) echo test_device_loss ;; # its children open the card, which a process that has it open cannot pass on
    rest) ./device-tests | grep -vE "$VISIBLE|^test_(daemon.*|cuda_kernels|c18_.*|device_loss)$" ;;
    *) echo "$1" ;;
    esac
}
run_group() { # run_group GROUP [TOOL]: its output, exit code and seconds in $work/KEY.log and .end
    local group=$1 tool=${2:-} key=$1${2:+.$2} folder=$B begin=$SECONDS rc vars=() limit=$((TOTAL_S - SECONDS))
    rm -f "$work/$key".*
    [ $limit -gt 0 ] || return
    [ $limit -lt "$LIMIT_S" ] || limit=$LIMIT_S
    if [[ $group == visible* || $group =~ $VISIBLE ]]; then vars+=(CKKSD_TEST_HOST_VISIBLE=1); fi
    if [ "$group" = sources ]; then folder=$work/source; fi
    if [ "${card:--1}" -ge 0 ]; then vars+=(CUDA_VISIBLE_DEVICES="$card"); fi
    if [ -n "$tool" ]; then
        vars+=(CKKSD_TEST_SHORT=1)
        tool="compute-sanitizer --tool $tool --error-exitcode 9 --target-processes application-only"
    fi
    # shellcheck disable=SC2046,SC2086 # words are arguments
    (cd "$folder" && exec env "${vars[@]}" CKKSD_TEST_OPENED="$work/$key.opened" \
        timeout --kill-after=5 "$limit" $tool "$B/device-tests" --each $(cd "$B" && members "$group")) >"$work/$key.log" 2>&1
    rc=$?
    printf '%s %s\n' $rc $((SECONDS - begin)) >"$work/$key.end"
}
said_of() { # said_of TEST KEY: its part of the process's output
    [ -f "$work/$2.log" ] || return
    awk -v t="$1" '$0 == "--- " t {on = 1} on {print} index($0, "--- " t ": ") == 1 {exit}' "$work/$2.log"
}
unended() { # unended KEY: why a test of that process came to no end
    local rc s
    if ! read -r rc s 2>/dev/null <"$work/$1.end"; then
        echo "not begun: no time left (TOTAL_S)"
    elif [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
        echo "not ended: its process was stopped after $s s (LIMIT_S, TOTAL_S)"
    else
        echo "not ended: its process ended with exit code $rc after $s s"
    fi
}
count() { sed -n "$1" | awk '{n += $1} END {print n + 0}'; }

# ---- what there is to do ----

tests() {
    local group t text end rc p f k
    echo "tests on the card, $JOBS processes at a time"
    mkdir -p "$work/source" && tar -xJf tests/source.tar.xz -C "$work/source"
    local groups # daemons take seconds to start on a card: a process for each of their tests
    groups="kernels-f64 kernels-i64 $(./device-tests | grep '^test_daemon' | tr '\n' ' ')rest visible loss sources"
    tr ' ' '\n' <<<"$groups" | each run_group
    for group in $groups; do
        for t in $(members "$group"); do
            text=$(said_of "$t" "$group")
            end=$(tail -n 1 <<<"$text" | sed -n 's/^--- .*: \([0-9]*\)/\1/p')
            if [ -z "$end" ] && [ "$group" = rest ]; then # its process ended before; perhaps it was another's fault
                run_group "$t"
                text=$(said_of "$t" "$t")
                end=$(tail -n 1 <<<"$text" | sed -n 's/^--- .*: \([0-9]*\)/\1/p')
            fi
            rc=${end%%,*}
            p=$(count 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' <<<"$text")
            f=$(count 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' <<<"$text")
            k=$(count 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' <<<"$text")
            if [ "$rc" != 0 ] && [ "$f" -eq 0 ]; then f=1; fi
            passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + k))
            printf '  %-32s %3d passed %3d failed %3d skipped%s%s\n' "$t" "$p" "$f" "$k" \
                "$([[ -z $end || $end == *card ]] || echo ', uses no card')" \
                "$([ "$rc" = 0 ] || echo ", ${rc:+exit code $rc}$([ -n "$rc" ] || unended "$group")")"
            [ "$rc" = 0 ] || grep -aE 'ERROR|Error|LINE|error:|word|failed|0x|fixture|asks for' <<<"$text" | head -n 12 | sed 's/^/      /'
        done
    done
    echo "  in all: $passed passed, $failed failed, $skipped skipped"
}

verdict() { # verdict TEST KEY: what a tool says between a test's first and last line is of that test
    local rc=0 s=0 late
    if [ -f "$work/$2.end" ]; then read -r rc s <"$work/$2.end"; else rc=124; fi
    late=$((rc == 124 || (rc == 137 && s >= LIMIT_S)))
    [ -f "$work/$2.log" ] || { echo not_run; return; }
    said_of "$1" "$2" | awk -v t="$1" -v limit="$LIMIT_S" -v late=$late '
        {begun = 1}
        index($0, "--- " t ": ") == 1 {ended = 1; code = $3 + 0; next}
        /^=========./ && !/COMPUTE-SANITIZER|SUMMARY: 0 / {said++}
        END {print said ? "errors" : ended && !code ? "clean" : ended ? "exit:" code : !late ? "died" : begun ? ">" limit "s" : "not_run"}'
}
sanitize() {
    local groups='' group tool t row key clean bad late
    for t in $KERNEL_SIZES; do groups+=" kernels-$t-f64 kernels-$t-i64"; done
    groups+=" $(seq -f 'rest-%g' "$BUCKETS" | tr '\n' ' ')"
    groups+=" $(seq -f 'visible-%g' "$(members visible | wc -l)" | tr '\n' ' ')"
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here: skipped"; return; }
    # left out: tests that start daemons (one for each test, and minutes for each under a tool), and the one that breaks its card
    echo "compute-sanitizer on every test that uses the card, in short, $JOBS processes at a time, $LIMIT_S s each at most"
    for tool in $TOOLS; do for group in $groups; do echo "$group $tool"; done; done | each run_group
    : >"$work/verdicts"
    # shellcheck disable=SC2086
    printf "  %-34s$(printf ' %%-10s%.0s' $TOOLS)\n" '' $TOOLS
    for group in $groups; do
        for t in $(members "$group"); do
            row='' key=''
            for tool in $TOOLS; do
                row+=" $(verdict "$t" "$group.$tool")"
                if ! grep -qsE "^--- $t: [0-9]+$" "$work/$group.$tool.log"; then key=used; fi
            done
            [ -n "$key" ] || continue # the card was not opened
            echo "$row" >>"$work/verdicts"
            if [[ $t =~ :([0-9]+)-(.*) ]]; then t="test_cuda_kernels, 2^${BASH_REMATCH[1]}, ${BASH_REMATCH[2]}"; fi
            # shellcheck disable=SC2086
            printf '  %-34s%s\n' "$t" "$(printf ' %-10s' $row)"
        done
    done
    for group in $groups; do
        for tool in $TOOLS; do
            key=$work/$group.$tool
            if [ ! -f "$key.end" ] || grep -q '^0 ' "$key.end"; then continue; fi
            echo "  --- $tool, $group: exit code and seconds $(cat "$key.end")"
            grep -aE '^=========.|ERROR|FAILED|asks for' "$key.log" | grep -v COMPUTE-SANITIZER | head -n 12 | sed 's/^/      /'
        done
    done
    read -r clean late bad < <(tr ' ' '\n' <"$work/verdicts" | awk '
        /^clean$/ {c++; next} /^>|^not_run$/ {l++; next} /./ {b++} END {print c + 0, l + 0, b + 0}')
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

#!/usr/bin/env bash
# Every libFuzzer target for FUZZ_SECONDS, from its committed corpus; new inputs stay in the build folder.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=${B:-build/clang-asan-fuzz}
seconds=${FUZZ_SECONDS:-60}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
passed=0 failed=0
for binary in "$B"/libfuzzer/fuzz/fuzz_*; do
    [ -x "$binary" ] && [ -f "$binary" ] || continue
    name=$(basename "$binary")
    work=$B/fuzz-work/$name
    mkdir -p "$work"
    corpus=tests/fuzz/corpus/${name#fuzz_}
    if "$binary" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -max_len=65536 -artifact_prefix="$work/" \
        "$work" "$corpus" >"$work.log" 2>&1; then
        printf '  %-32s %s\n' "$name" "$(grep -a '^Done' "$work.log" | tail -n 1)"
        passed=$((passed + 1))
    else
        printf '  %-32s finding: %s\n' "$name" "$(grep -aE 'SUMMARY|ERROR' "$work.log" | head -n 1)"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]

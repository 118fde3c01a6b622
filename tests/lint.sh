#!/usr/bin/env bash
# Formatting, clang-tidy, shellcheck, yamllint, systemd-analyze. Says which tool is missing; CI has them all.
set -u
cd "$(dirname "$0")/.." || exit 1
GEN=${GEN:-build/gcc/gen}
status=0
fail() { echo "lint: $*"; status=1; }
have() { command -v "$1" >/dev/null || { fail "$1 is missing (make deps-dev)"; return 1; }; }

mapfile -t sources < <(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
if have clang-format-14; then
    bad=$(clang-format-14 --dry-run "${sources[@]}" 2>&1 | grep -oE '^[^ :]+:[0-9]+:[0-9]+: (warning|error)' | cut -d: -f1 | sort -u)
    [ -z "$bad" ] || fail "not formatted (make format): $(tr '\n' ' ' <<<"$bad")"
fi
if have clang-tidy-14; then
    # one file per run: clang-tidy 14 sees uninitialised va_lists in every file but the first
    mapfile -t units < <(git ls-files -co --exclude-standard '*.c')
    if ! printf '%s\0' "${units[@]}" | xargs -0 -P "$(nproc)" -n 1 sh -c \
        'case $1 in *_avx2.c) isa="-mavx2 -mfma -mbmi2" ;; *_avx512.c) isa="-mavx512f -mavx512dq -mavx512vl -mavx512ifma -mavx512vbmi -mavx512bw -mavx2 -mfma -mbmi2" ;; *) isa= ;; esac
        clang-tidy-14 --quiet "$@" -- $isa -std=c11 -D_GNU_SOURCE -DCKKSD_VERSION=\"lint\" -DHAVE_SYSTEMD -fopenmp -I. -Iclient/include -I'"$GEN"' 2>/dev/null | grep -E "(warning|error):" && exit 1 || exit 0' tidy
    then fail "clang-tidy found something"; fi
fi
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' '*.bash' .ci/run)
if have shellcheck; then shellcheck -S warning "${scripts[@]}" || fail "shellcheck"; fi
mapfile -t yaml < <(git ls-files -co --exclude-standard '*.yml' '*.yaml')
if [ ${#yaml[@]} -ne 0 ] && have yamllint; then yamllint -s "${yaml[@]}" || fail "yamllint"; fi
if [ -f deploy/systemd/ckksd.service ] && have systemd-analyze; then
    unit=$(mktemp -d)
    # the executable must exist for `verify`: point it at one that does
    sed -e 's|@PREFIX@/sbin/ckksd|/bin/true|g' -e 's|@PREFIX@|/usr|g' deploy/systemd/ckksd.service >"$unit/ckksd.service"
    out=$(systemd-analyze verify "$unit/ckksd.service" 2>&1) || fail "systemd-analyze: $out"
    [ -z "$out" ] || fail "systemd-analyze: $out"
    rm -r "$unit"
fi
# a kernel that may start before the one ahead of it has ended must wait before it touches memory
for f in kernels/cuda/*.cu kernels/cuda/*.cuh; do
    [ -f "$f" ] || continue
    # (one without parameters touches none)
    awk -v f="$f" '/__global__ void [a-z_]*\(\)/ {next} /__global__ void/ {name = NR; waits = 0} /gpu_wait\(\)/ {waits = 1}
        /^}/ {if (name && !waits) {print "lint: " f ":" name ": a kernel without gpu_wait"; bad = 1} name = 0} END {exit bad}' "$f" || status=1
done
# every top-level name is one of the layout's
extra=$(git ls-files | cut -d/ -f1 | sort -u | grep -vxE 'Makefile|README\.md|LICENSE|CHANGELOG\.md|proto|daemon|kernels|client|config|tests|deploy|\..*')
[ -z "$extra" ] || fail "not in the layout: $extra"
[ $status -eq 0 ] && echo "lint: clean"
exit $status

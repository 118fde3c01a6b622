#!/usr/bin/env bash
# Gathers our binaries, their shared libraries (glibc apart), models and data into one folder that runs on any recent
# x86-64 Linux with an NVIDIA driver: bundle.sh BUILD_FOLDER OUT_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
B=$1 out=$2
command -v patchelf >/dev/null || { echo "device-bundle: patchelf is missing (make deps-dev)" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out/lib" "$out/tests/unit" "$out/tests/conformance" "$out/models"
binaries=("$B/ckksd" "$B/ckksctl")
for f in "$B"/tests/unit/test_* "$B"/tests/conformance/test_*; do
    case $f in *.d | *.o) ;; *) [ -x "$f" ] && binaries+=("$f") ;; esac
done
for f in "${binaries[@]}"; do
    [ -x "$f" ] || continue
    to=$out/${f#"$B"/}
    install -D "$f" "$to"
    strip --strip-debug "$to"
    depth=$(dirname "${f#"$B"/}" | tr '/' '\n' | grep -vc '^\.$' || true)
    up=$(printf '../%.0s' $(seq 1 "$depth"))
    [ "$depth" -eq 0 ] && up=""
    # shellcheck disable=SC2016 # $ORIGIN is the loader's
    patchelf --set-rpath '$ORIGIN/'"${up}lib" "$to"
    ldd "$f" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' || true
done | sort -u | while read -r lib; do
    install -D "$(realpath "$lib")" "$out/lib/$(basename "$lib")"
    # shellcheck disable=SC2016
    patchelf --set-rpath '$ORIGIN' "$out/lib/$(basename "$lib")"
done
install -D tests/device/run.sh "$out/run.sh"
[ -d tests/models ] && cp -r tests/models/. "$out/models/"
[ -d tests/data ] && mkdir -p "$out/tests/data" && cp -r tests/data/. "$out/tests/data/"
du -sh "$out"

#!/usr/bin/env bash
# Gathers our binaries, their shared libraries (glibc apart), models and data into one folder that runs on any recent
# x86-64 Linux with an NVIDIA driver: bundle.sh BUILD_FOLDER OUT_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
B=$1 out=$2
command -v patchelf >/dev/null || { echo "device-bundle: patchelf is missing (make deps-dev)" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out/lib" "$out/models"
binaries=("$B/ckksd" "$B/ckksctl" "$B/device-tests")
for f in "${binaries[@]}"; do
    [ -x "$f" ] || continue
    to=$out/${f#"$B"/}
    install -D "$f" "$to"
    strip --strip-debug "$to"
    # shellcheck disable=SC2016 # $ORIGIN is the loader's
    patchelf --set-rpath '$ORIGIN/lib' "$to"
    ldd "$f" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' || true
done | sort -u | while read -r lib; do
    install -D "$(realpath "$lib")" "$out/lib/$(basename "$lib")"
    # shellcheck disable=SC2016
    patchelf --set-rpath '$ORIGIN' "$out/lib/$(basename "$lib")"
done
install -D tests/device/run.sh "$out/run.sh"
[ -d tests/models ] && cp -r tests/models/. "$out/models/"
for m in tests/models/*/*.onnx; do
    name=$(basename "$m" .onnx)
    calibration=$(find "tests/models/$name" -name 'calibration*' | head -n 1)
    "$B/ckksctl" compile "$m" --calibration "$calibration" -o "$out/models/$name/$name.ckm" --quiet >/dev/null
done
du -sh "$out"

#!/usr/bin/env bash
# Gathers our binaries, their shared libraries (glibc apart), models and data into one folder that runs on any recent
# x86-64 Linux with an NVIDIA driver: bundle.sh BUILD_FOLDER OUT_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
B=$1 out=$2
limit_mib=60
command -v patchelf >/dev/null || { echo "device-bundle: patchelf is missing (make deps-dev)" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out/lib" "$out/models" "$out/tests"
binaries=("$B/ckksd" "$B/ckksctl" "$B/device-tests")
for f in "${binaries[@]}"; do
    to=$out/${f#"$B"/}
    install -D "$f" "$to"
    strip "$to"
    # shellcheck disable=SC2016 # $ORIGIN is the loader's
    patchelf --set-rpath '$ORIGIN/lib' "$to"
    ldd "$f" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' || true
done | sort -u | while read -r lib; do
    install -D "$(realpath "$lib")" "$out/lib/$(basename "$lib")"
    # shellcheck disable=SC2016
    patchelf --set-rpath '$ORIGIN' "$out/lib/$(basename "$lib")"
done
install tests/device/run.sh tests/device/README.md "$out/"
# the daemon with its injected faults, for the tests that start one
# shellcheck disable=SC2016 # for the script that is written
printf '#!/bin/sh\nCKKSD_DEVICE_TEST=ckksd exec "$(dirname "$0")/../device-tests" "$@"\n' >"$out/tests/ckksd-fault"
chmod 755 "$out/tests/ckksd-fault"
# one test reads the sources, another the vectors
git ls-files '*.c' '*.h' '*.cu' '*.cuh' tests/data | tar -cJf "$out/tests/source.tar.xz" -T -
for name in breast-cancer credit-g credit-pipeline pima-diabetes mnist lola lenet retrieval; do
    case $name in lola | lenet) images=mnist ;; *) images=$name ;; esac # all models of digits share one sample
    calibration=$(find "tests/models/$images" -name 'calibration*' | head -n 1)
    mkdir -p "$out/models/$name/1"
    find "tests/models/$name" -name 'test*' -exec cp {} "$out/models/$name/" \;
    "$B/ckksctl" compile "tests/models/$name/$name.onnx" --calibration "$calibration" -o "$out/models/$name/1/model.ckm" --quiet >/dev/null
    xz "$out/models/$name/1/model.ckm" # run.sh unpacks them
done
mib=$(($(du -sk "$out" | cut -f 1) / 1024 + 1))
echo "$out: $mib MiB"
[ $mib -lt $limit_mib ] || { echo "device-bundle: larger than $limit_mib MiB" >&2; exit 1; }

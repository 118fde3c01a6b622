#!/usr/bin/env bash
# Installs what is missing of our Debian packages; touches nothing and needs no network when all are there.
set -euo pipefail
run=(gcc make pkg-config libnng-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libuv1-dev libmicrohttpd-dev
     libsqlite3-dev libinih-dev libsodium-dev libssl-dev libsystemd-dev zlib1g-dev libcmocka-dev libonnx-testdata libflint-dev
     libmpfr-dev libgmp-dev libgomp1 python3 python3-protobuf python3-numpy openssl curl ca-certificates)
dev=(g++ clang-14 clang-format-14 clang-tidy-14 clang libomp-dev libclang-rt-14-dev llvm-14 shellcheck yamllint systemd
     patchelf prometheus valgrind debootstrap ccache)
packages=("${run[@]}")
[ "${1:-run}" = dev ] && packages+=("${dev[@]}")

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

command -v apt-get >/dev/null || { echo "deps: this is not Debian: install the equivalents of: ${missing[*]}" >&2; exit 1; }
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "deps: missing ${missing[*]}: run 'make deps' as root, or install sudo" >&2; exit 1; }
    sudo=(sudo)
fi
echo "deps: installing ${#missing[@]} packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { "${sudo[@]}" apt-get update -qq && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
       apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    echo "deps: apt-get failed: no network, no rights or a broken mirror? Its last lines:" >&2
    tail -n 5 "$log" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"

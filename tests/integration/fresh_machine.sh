#!/usr/bin/env bash
# A debootstrap'd Debian 12 with git and make only: clone, make demo twice, then the three commands that it prints.
# Needs root, debootstrap and a Debian mirror (MIRROR, default the system's). WITH_TESTS=1 runs make test there too.
set -euo pipefail
cd "$(dirname "$0")/../.."
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -v security | head -n 1 || true)}
mirror=${mirror:-http://deb.debian.org/debian}
root=${ROOT_FOLDER:-$(mktemp -d /var/tmp/ckksd-fresh.XXXXXX)}
cleanup() {
    umount -l "$root/proc" "$root/dev" "$root/sys" 2>/dev/null || true
    [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"
}
trap cleanup EXIT
echo "debootstrap bookworm from $mirror"
debootstrap --variant=minbase --include=git,make,ca-certificates bookworm "$root" "$mirror" >"$root.log" 2>&1
rm -f "$root.log"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t sysfs sys "$root/sys" 2>/dev/null || true
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts" # an installed machine has it, debootstrap does not write it
git clone -q . "$root/root/ckksd"
inside() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} bash -c "cd /root/ckksd && $1"; }
start=$SECONDS
inside "make demo"
echo "first run, installation included: $((SECONDS - start)) s"
start=$SECONDS
inside "make demo" | tee "$root/second.txt"
echo "second run: $((SECONDS - start)) s"
start=$SECONDS
[ -z "${WITH_TESTS:-}" ] || { inside "make -j$(nproc) test" | tail -n 1 && echo "make test: $((SECONDS - start)) s"; }
echo "the three commands, as printed:"
sed -n 's/^  \(export XDG.*\|build.*\)/\1/p' "$root/second.txt" >"$root/root/next.sh"
sed -i '1s/$/\nsleep 10/' "$root/root/next.sh"
echo 'kill %1' >>"$root/root/next.sh"
inside "bash /root/next.sh"

#!/usr/bin/env bash
# The capability report: what the build and the program will use on this machine.
cc=$1 nvcc=$2 systemd=$3
yes() { printf '  \342\234\223 %s\n' "$1"; }
no() { printf '  \342\200\223 %s\n' "$1"; }
flag() { grep -qw "$1" /proc/cpuinfo; }
if command -v "$cc" >/dev/null; then yes "$("$cc" --version | head -n 1)"; else no "no compiler: $cc"; fi
if flag avx512ifma; then yes "AVX-512 IFMA"; else no "no AVX-512 IFMA"; fi
if flag avx2 && flag fma; then yes "AVX2 with FMA"; else no "no AVX2 with FMA"; fi
if [ -n "$nvcc" ]; then yes "CUDA compiler: $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"; else no "no CUDA compiler: CPU only"; fi
if gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) && [ -n "$gpu" ]; then yes "GPU: $gpu"; else no "no GPU"; fi
if [ -n "$systemd" ]; then yes "systemd: notify, watchdog, socket activation"; else no "no libsystemd: built without notify and watchdog"; fi

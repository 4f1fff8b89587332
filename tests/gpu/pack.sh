#!/bin/bash
# usage: tests/gpu/pack.sh BUILD_DIR [PACK_DIR]
# Packs the program, the cuda module, the tests and the libraries that a bare CUDA machine lacks into
# PACK_DIR (default build/gpu-pack, which git ignores), at most 64 MiB. run.sh runs it there.
set -euo pipefail
build=${1:?usage: pack.sh BUILD_DIR [PACK_DIR]}
root=$(cd "$(dirname "$0")/../.." && pwd)
pack=${2:-$root/build/gpu-pack}
rm -rf "$pack"
mkdir -p "$pack/bin" "$pack/tests" "$pack/lib"
cp "$build/bin/sgactor" "$build/bin/sgactor_cuda.so" "$pack/bin/"
for t in conformance_test gpu_shapes_test gpu_error_table gpu_step_bench; do cp "$build/tests/$t" "$pack/tests/"; done
strip "$pack"/bin/* "$pack"/tests/*
# Libraries by ldd, without those of the C and C++ run times, CUDA and its driver, which are there.
there='linux-vdso|ld-linux|/libc\.so|/libm\.so|/libdl\.so|/libpthread\.so|/librt\.so|/libstdc\+\+|/libgcc_s|/libcu|/libnv'
ldd "$pack"/bin/* "$pack"/tests/* | awk '$3 ~ "^/" {print $3}' | sort -u | grep -vE "$there" | while read -r lib; do
  cp -L "$lib" "$pack/lib/"
done
cp -r "$root/apps/examples" "$pack/examples"
bytes=$(du -sb "$pack" | cut -f1)
echo "packed $((bytes / 1048576)) MiB in $pack: $(ls "$pack/lib" | wc -l) libraries"
[ "$bytes" -le $((64 * 1048576)) ] || { echo "more than 64 MiB" >&2; exit 1; }

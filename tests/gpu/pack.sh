#!/bin/bash
# usage: tests/gpu/pack.sh BUILD_DIR [PACK_DIR]
# Packs the program, the cuda module, the tests and the libraries that a bare CUDA machine lacks into
# PACK_DIR/pack.tar.gz (default build/gpu-pack, which git ignores), at most 64 MiB. run.sh, which is put
# beside it, unpacks and runs it there.
set -euo pipefail
build=${1:?usage: pack.sh BUILD_DIR [PACK_DIR]}
root=$(cd "$(dirname "$0")/../.." && pwd)
pack=${2:-$root/build/gpu-pack}
rm -rf "$pack"
files=$pack/files
mkdir -p "$files/bin" "$files/tests" "$files/lib"
cp "$build/bin/sgactor" "$build/bin/sgactor_cuda.so" "$files/bin/"
for t in conformance_test plan_parity_test gpu_shapes_test gpu_graphs_test gpu_memory_test gpu_xid_test gpu_error_table gpu_step_bench; do cp "$build/tests/$t" "$files/tests/"; done
strip "$files"/bin/* "$files"/tests/*
# Libraries by ldd, without those of the C and C++ run times, CUDA and its driver, which are there.
there='linux-vdso|ld-linux|/libc\.so|/libm\.so|/libdl\.so|/libpthread\.so|/librt\.so|/libstdc\+\+|/libgcc_s|/libcu|/libnv'
ldd "$files"/bin/* "$files"/tests/* | awk '$3 ~ "^/" {print $3}' | sort -u | grep -vE "$there" | while read -r lib; do
  cp -L "$lib" "$files/lib/"
done
cp -r "$root/apps/examples" "$files/examples"
mkdir -p "$files/tests/data"
cp -r "$root/tests/data/torch_parity" "$files/tests/data/"
libraries=$(find "$files/lib" -type f | wc -l)
tar -C "$files" -czf "$pack/pack.tar.gz" .
rm -rf "$files"
cp "$root/tests/gpu/run.sh" "$pack/"
bytes=$(du -sb "$pack" | cut -f1)
echo "packed $((bytes / 1048576)) MiB in $pack, $libraries libraries"
[ "$bytes" -le $((64 * 1048576)) ] || { echo "more than 64 MiB" >&2; exit 1; }

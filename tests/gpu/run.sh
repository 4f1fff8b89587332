#!/bin/bash
# usage: tests/gpu/run.sh PACK_DIR RESULTS_DIR STAGE...
# Runs what pack.sh packed on a machine with a GPU. Stages, in the order given:
#   facts        the machine
#   conformance  the suite for cuda, and the shapes of the fast paths
#   errors       the error of each op against float64
#   demo         the demo job in f32 on cpu and cuda, losses side by side
#   sanitize     compute-sanitizer, memcheck and racecheck, on the tiny model
#   bench        llama-1b, seq 4096, batch 8, bf16 (BENCH_ARGS: more keys)
#   profile      the same by op, with each kernel timed alone
#   peer         stock PyTorch at the same size (PEER: its script)
# Prints little; everything is in RESULTS_DIR. A stage that fails does not stop the next.
set -uo pipefail
pack=$(cd "${1:?}" && pwd)
mkdir -p "${2:?}"
out=$(cd "$2" && pwd)
shift 2
if [ -f "$pack/pack.tar.gz" ]; then
  mkdir -p "$pack/files" && tar -C "$pack/files" -xzf "$pack/pack.tar.gz"
  pack=$pack/files
fi
# For our programs only: Python and the tools keep their own libraries.
ours=(env "LD_LIBRARY_PATH=$pack/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64" OPENBLAS_NUM_THREADS=1)
cd "$pack"
stage_start=$SECONDS
say() { echo "[$((SECONDS - stage_start)) s] $*"; }

gtest() { # gtest FILE NAME [ARGS]: prints failed tests with their first lines, and the totals
  local name=$1
  shift
  timeout "${LIMIT:-240}" "${ours[@]}" "$@" --gtest_brief=1 >"$out/$name.txt" 2>&1
  local rc=$?
  grep -E '^\[  (FAILED|PASSED|SKIPPED)' "$out/$name.txt" | sort -u | head -40
  grep -B1 -A6 -E 'Failure$' "$out/$name.txt" | cut -c1-300 | head -"${LINES_SHOWN:-60}"
  say "$name rc $rc"
}

losses() { python3 - "$1" <<'P'
import json, sys
print(" ".join(f"{json.loads(l)['step']}:{json.loads(l)['loss']:.5f}" for l in open(sys.argv[1]) if '"loss"' in l and json.loads(l).get('step', 0) in (1, 2, 5, 10, 20, 40, 80, 160, 320)))
P
}

for stage in "$@"; do
  stage_start=$SECONDS
  echo "== $stage"
  case $stage in
    facts)
      nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.sm,clocks.mem --format=csv,noheader
      nproc
      "${ours[@]}" ./bin/sgactor --version
      for f in bin/* tests/*; do "${ours[@]}" ldd "$f" 2>/dev/null | grep 'not found' | sed "s|^|$f: |"; done
      ;;
    conformance)
      gtest conformance ./tests/conformance_test --gtest_filter='*cuda*'
      gtest shapes ./tests/gpu_shapes_test
      ;;
    errors)
      timeout 200 "${ours[@]}" ./tests/gpu_error_table cuda >"$out/errors.txt" 2>&1
      say "rc $?"
      cat "$out/errors.txt"
      ;;
    demo)
      for device in cuda cpu:8; do
        rm -rf "$out/demo-$device"
        timeout 120 "${ours[@]}" ./bin/sgactor train examples/llama-tiny.toml --devices "$device" --run-dir "$out/demo-$device" \
          --training.steps=${DEMO_STEPS:-40} --checkpoint.interval=0 --log.sample_tokens=0 >"$out/demo-$device.txt" 2>&1
        say "demo on $device rc $?"
        tail -4 "$out/demo-$device.txt" | cut -c1-200
        [ -f "$out/demo-$device/metrics.jsonl" ] && losses "$out/demo-$device/metrics.jsonl"
        rm -rf "$out/demo-$device/ckpt"
      done
      ;;
    sanitize)
      for tool in memcheck racecheck; do
        timeout 200 "${ours[@]}" compute-sanitizer --tool $tool ./tests/gpu_step_bench cuda 2 examples/llama-tiny.toml >"$out/$tool.txt" 2>&1
        say "$tool rc $?"
        grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|step 2 |Invalid|Race reported|hazard' "$out/$tool.txt" | sort | uniq -c | sort -rn | head -8
      done
      ;;
    bench | profile)
      args=(examples/llama-1b.toml --training.dtype=bf16 --training.micro_batch_size=8 --training.global_batch_size=8 ${BENCH_ARGS:-})
      export SGACTOR_CUDA_MATMULS="$out/matmuls.txt"
      if [ "$stage" = profile ]; then
        SGACTOR_CUDA_PROFILE="$out/profile.txt" timeout 200 "${ours[@]}" ./tests/gpu_step_bench cuda 2 "${args[@]}" >"$out/$stage.log" 2>&1
        say "rc $?"
        head -45 "$out/profile.txt"
      else
        timeout 200 "${ours[@]}" ./tests/gpu_step_bench cuda "${STEPS:-12}" "${args[@]}" >"$out/$stage.log" 2>&1
        say "rc $?"
        cut -c1-400 "$out/$stage.log" | tail -22
      fi
      ;;
    peer)
      timeout 250 python3 "${PEER:?}" --model 1b --seq 4096 --batch 8 --steps 12 >"$out/peer.txt" 2>&1
      say "rc $?"
      tail -1 "$out/peer.txt" | cut -c1-500
      ;;
    *) echo "no stage $stage" ;;
  esac
done

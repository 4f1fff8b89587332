#!/bin/bash
# usage: tests/gpu/run.sh PACK_DIR RESULTS_DIR STAGE...
# Runs what pack.sh packed on a machine with a GPU. Stages, in the order given:
#   facts        the machine
#   conformance  the suite for cuda, and the shapes of the fast paths
#   parity       20 steps of three small models beside PyTorch's numbers, f32 and bf16
#   errors       the error of each op against float64
#   demo         the demo job on cuda twice, which must give the same bits, in bf16, and on cpu; losses
#   sanitize     compute-sanitizer, memcheck and racecheck, on the tiny model
#   bench        llama-1b, seq 4096, batch 8, bf16 (BENCH_ARGS: more keys)
#   selective    the same with training.recompute = "selective", whose losses must be the same
#   profile      bench by op, with each kernel timed alone
#   fp8          bench with training.dtype = "fp8", after the conformance of its ops
#   graphs       the tests of recorded launches, then llama-125m and llama-1b in fp8 with and without them; losses
#   trace        6 steps of llama-1b in fp8 with a Chrome trace of who waits for whom
#   start        one step of llama-1b, bf16 and fp8, from warm caches, with the stages of the start
#   fp8-loss     LOSS_STEPS (1000) steps of llama-125m on the shipped text in bf16 and fp8; their losses
#   llama-8b     llama-8b, seq 4096, bf16, full recompute, two micro-batches of one sequence
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
print(" ".join(f"{json.loads(l)['step']}:{json.loads(l)['loss']:.5f}" for l in open(sys.argv[1]) if '"loss"' in l and json.loads(l).get('step', 0) in (1, 2, 5, 10, 20, 40, 80, 160, 320, 500, 1000)))
P
}

demo() { # demo NAME DEVICE STEPS [ARGS]
  local name=$1 device=$2 steps=$3
  shift 3
  timeout 120 "${ours[@]}" ./bin/sgactor train examples/llama-tiny.toml --devices "$device" --run-dir "$out/demo-$name" \
    "--training.steps=$steps" --log.sample_tokens=0 "$@" >"$out/demo-$name.txt" 2>&1
  say "demo $name rc $?"
  [ -f "$out/demo-$name/metrics.jsonl" ] && losses "$out/demo-$name/metrics.jsonl" || tail -4 "$out/demo-$name.txt" | cut -c1-300
}

same_state() { # same_state RUN RUN: compares the tensors of all checkpoints, and the losses
  local files=0 differ=0 file
  while read -r file; do
    files=$((files + 1))
    cmp -s "$out/$1/$file" "$out/$2/$file" || differ=$((differ + 1))
  done < <(cd "$out/$1" && find . -type f -path '*ckpt*' -size +64k)
  echo "checkpoint files $files, different $differ"
  [ "$(losses "$out/$1/metrics.jsonl")" = "$(losses "$out/$2/metrics.jsonl")" ] && echo "losses equal" || echo "losses DIFFER"
}

step_bench() { # step_bench NAME STEPS ARGS
  local name=$1 steps=$2
  shift 2
  timeout 200 "${ours[@]}" ./tests/gpu_step_bench cuda "$steps" "$@" >"$out/$name.log" 2>&1
  say "rc $?"
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
      gtest xid ./tests/gpu_xid_test
      gtest memory ./tests/gpu_memory_test
      ;;
    parity)
      gtest parity ./tests/plan_parity_test --gtest_filter='*cuda*'
      ;;
    errors)
      timeout 200 "${ours[@]}" ./tests/gpu_error_table cuda >"$out/errors.txt" 2>&1
      say "rc $?"
      cat "$out/errors.txt"
      ;;
    demo)
      rm -rf "$out"/demo-*
      demo cuda cuda:0 "${DEMO_STEPS:-320}"
      demo again cuda "${DEMO_STEPS:-320}"
      same_state demo-cuda demo-again
      demo bf16 cuda "${DEMO_STEPS:-320}" --training.dtype=bf16
      demo cpu cpu:8 80
      rm -rf "$out"/demo-*/
      ;;
    sanitize)
      for tool in memcheck racecheck; do
        for dtype in f32 bf16; do
          # racecheck takes the asynchronous copies of cuDNN's kernels for races.
          without=()
          [ $tool = racecheck ] && without=(--kernel-name-exclude kernel_substring=cudnn)
          timeout "${LIMIT:-120}" "${ours[@]}" compute-sanitizer --tool $tool "${without[@]}" ./tests/gpu_step_bench cuda 1 examples/llama-tiny.toml \
            --training.dtype=$dtype >"$out/$tool-$dtype.txt" 2>&1
          say "$tool $dtype rc $?"
          grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|step 1 |Invalid|Race reported|hazard' "$out/$tool-$dtype.txt" | sort | uniq -c | sort -rn | head -6
        done
      done
      ;;
    bench | profile | selective)
      args=(examples/llama-1b.toml --training.dtype=bf16 --training.micro_batch_size=8 --training.global_batch_size=8 ${BENCH_ARGS:-})
      export SGACTOR_CUDA_MATMULS="$out/matmuls.txt"
      case $stage in
        profile)
          rm -f "$out/profile.txt"
          SGACTOR_CUDA_PROFILE="$out/profile.txt" step_bench profile 2 "${args[@]}"
          head -"${PROFILE_LINES:-34}" "$out/profile.txt"
          ;;
        selective)
          step_bench selective "${STEPS:-10}" "${args[@]}" --training.recompute=selective
          tail -1 "$out/selective.log" | cut -c1-600
          cmp <(grep ^step "$out/bench.log" | cut -d' ' -f1-6) <(grep ^step "$out/selective.log" | cut -d' ' -f1-6) && echo "losses as bench"
          ;;
        *)
          step_bench bench "${STEPS:-12}" "${args[@]}"
          cut -c1-600 "$out/bench.log" | tail -7
          ;;
      esac
      ;;
    fp8)
      gtest conformance-fp8 ./tests/conformance_test --gtest_filter='*cuda*f8*:*cuda*scaled*:*cuda*amax*:*cuda*linear_cross*'
      export SGACTOR_CUDA_MATMULS="$out/matmuls.txt"
      step_bench fp8 "${STEPS:-12}" examples/llama-1b.toml --training.dtype=fp8 --compile.f8_layout=inner_last \
        --training.micro_batch_size=8 --training.global_batch_size=8 ${BENCH_ARGS:-}
      cut -c1-600 "$out/fp8.log" | tail -7
      ;;
    graphs)
      gtest graphs ./tests/gpu_graphs_test
      export SGACTOR_CUDA_MATMULS="$out/matmuls.txt"
      small=(examples/llama-125m.toml --training.dtype=bf16 --training.seq_len=512 --training.micro_batch_size=8 --training.global_batch_size=8)
      large=(examples/llama-1b.toml --training.dtype=fp8 --compile.f8_layout=inner_last --training.micro_batch_size=8 --training.global_batch_size=8)
      step_bench warm 1 "${large[@]}" # measures products
      for model in small large; do
        declare -n job=$model
        steps=${STEPS:-12}
        [ $model = small ] && steps=60
        for with in 1 0 1 0; do
          SGACTOR_CUDA_GRAPHS=$with step_bench graphs-$model-$with "$steps" "${job[@]}" ${BENCH_ARGS:-}
          tail -1 "$out/graphs-$model-$with.log" | cut -c1-700
        done
        cmp <(grep ^step "$out/graphs-$model-1.log" | cut -d' ' -f1-6) <(grep ^step "$out/graphs-$model-0.log" | cut -d' ' -f1-6) && echo "losses equal"
      done
      ;;
    trace)
      export SGACTOR_CUDA_MATMULS="$out/matmuls.txt"
      step_bench trace 6 examples/llama-1b.toml --training.dtype=fp8 --compile.f8_layout=inner_last --training.micro_batch_size=8 \
        --training.global_batch_size=8 --log.trace_steps=6
      mv step_bench_trace.json.gz "$out/"
      tail -3 "$out/trace.log" | cut -c1-600
      ;;
    start)
      export XDG_CACHE_HOME="$out/cache" # of plans
      export SGACTOR_CUDA_MATMULS="$out/matmuls.txt"
      for dtype in bf16 fp8; do
        args=(examples/llama-1b.toml --training.dtype=$dtype --compile.f8_layout=inner_last --training.micro_batch_size=8 --training.global_batch_size=8)
        step_bench start-cold-$dtype 1 "${args[@]}"
        step_bench start-$dtype 1 "${args[@]}" --log.level=debug
        grep -E 'compiled|allocated' "$out/start-$dtype.log" | cut -c1-120
        tail -1 "$out/start-$dtype.log" | cut -c1-700
      done
      ;;
    fp8-loss)
      for dtype in bf16 fp8; do
        timeout "${LIMIT:-120}" "${ours[@]}" ./bin/sgactor train examples/llama-125m.toml --devices cuda:0 --run-dir "$out/loss-$dtype" \
          "--training.dtype=$dtype" "--training.steps=${LOSS_STEPS:-1000}" --data.kind=text --data.path=examples/data/shakespeare.txt \
          --training.micro_batch_size=8 --training.global_batch_size=8 --training.seq_len=512 --checkpoint.interval=0 \
          --training.validation_interval=0 --log.sample_tokens=0 --log.interval=50 >"$out/loss-$dtype.txt" 2>&1
        say "$dtype rc $?"
        tail -2 "$out/loss-$dtype.txt" | cut -c1-300
        losses "$out/loss-$dtype/metrics.jsonl"
        cp "$out/loss-$dtype/metrics.jsonl" "$out/loss-$dtype.jsonl"
        rm -rf "$out/loss-$dtype"
      done
      ;;
    llama-8b)
      SGACTOR_CUDA_MATMULS="$out/matmuls.txt" step_bench 8b 4 examples/llama-8b.toml --training.dtype=bf16 --training.seq_len=4096 \
        --training.micro_batch_size=1 --training.global_batch_size=2 "--training.recompute=${RECOMPUTE:-full}"
      cut -c1-600 "$out/8b.log" | tail -6
      ;;
    peer)
      timeout 250 python3 "${PEER:?}" --model 1b --seq 4096 --batch 8 --steps 12 >"$out/peer.txt" 2>&1
      say "rc $?"
      tail -1 "$out/peer.txt" | cut -c1-500
      ;;
    *) echo "no stage $stage" ;;
  esac
done

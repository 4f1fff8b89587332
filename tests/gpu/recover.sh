#!/bin/bash
# usage: tests/gpu/recover.sh SGACTOR JOB RESULTS_DIR [DEVICES]
# Two workers and a spare share DEVICES (cuda:0). One is killed half way: its ranks go to the spare
# in place, the other executes nothing again, and the losses have the bits of a run in one process.
# Exit code 0 only where all of that is so.
set -uo pipefail
sgactor=${1:?}
job=${2:?}
mkdir -p "${3:?}"
out=$(cd "$3" && pwd)
devices=${4:-cuda:0}
steps=${STEPS:-300}
rm -rf "$out/quiet" "$out/run"
keys=("--devices" "$devices" "--parallelism.data_parallel_degree=2" "--training.micro_batch_size=4" "--training.steps=$steps"
  "--data.validation_fraction=0" "--training.validation_interval=0" "--log.sample_tokens=0" "--resilience.mirror_interval=10")
timeout 200 "$sgactor" train "$job" --run-dir "$out/quiet" "${keys[@]}" >"$out/quiet.txt" 2>&1 || {
  tail -5 "$out/quiet.txt"
  exit 1
}
timeout 200 "$sgactor" train "$job" --run-dir "$out/run" --workers 2 --spares 1 "${keys[@]}" >"$out/run.txt" 2>&1 &
run=$!
while kill -0 $run 2>/dev/null && [ "$(cat "$out/run/metrics.jsonl" 2>/dev/null | wc -l)" -lt $((steps / 3)) ]; do sleep 0.05; done
victim=$(python3 -c 'import json, sys; print([w["pid"] for w in json.load(open(sys.argv[1]))["workers"] if w["ranks"]][-1])' "$out/run/control/state.json") || exit 1
kill -9 "$victim"
wait $run
code=$?
[ $code = 0 ] || tail -5 "$out/run.txt"
cat "$out/run/recoveries.jsonl"
python3 - "$out" "$code" <<'P'
import json, sys
out, code = sys.argv[1], int(sys.argv[2])
bits = [[json.loads(line)["loss_bits"] for line in open(f"{out}/{run}/metrics.jsonl")] for run in ("quiet", "run")]
recoveries = [json.loads(line) for line in open(f"{out}/run/recoveries.jsonl")]
attempts = "a new attempt" in open(f"{out}/run.txt").read()
good = code == 0 and bits[0] == bits[1] and len(recoveries) == 1 and recoveries[0]["survivors_reexecuted"] == 0 and not attempts
print("exit code", code, "losses", "equal" if bits[0] == bits[1] else "DIFFER", "recoveries", len(recoveries), "new attempts", attempts)
sys.exit(0 if good else 1)
P

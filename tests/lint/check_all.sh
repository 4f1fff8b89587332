#!/usr/bin/env bash
# Every static check, the same here and in CI. Prints one line a check that passes.
set -uo pipefail
cd "$(dirname "$0")/../.."
failed=0

format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $format ]]; then
  echo "format: clang-format 14 is missing; run make deps"
  failed=1
else
  mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | while read -r f; do [[ -f $f ]] && echo "$f"; done)
  if "$format" --dry-run -Werror "${files[@]}"; then echo "format: ${#files[@]} files"; else failed=1; fi
fi
python3 tests/lint/check_layers.py || failed=1
python3 tests/lint/check_text.py || failed=1
for script in $(git ls-files '*.sh') .ci/run; do bash -n "$script" || failed=1; done
exit $failed

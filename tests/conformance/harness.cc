#include "tests/conformance/harness.h"

#include "graph/base/units.h"
#include "graph/ir/op_table.h"
#include "kernels/backend/module_loader.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/symbolic/symbolic_backend.h"
#include "tests/conformance/native.h"
#ifdef SGA_TEST_CPU
#include "kernels/cpu/cpu_backend.h"
#endif

#include <algorithm>
#include <chrono>
#include <cstring>

namespace sgactor::testing {
namespace {

using graph::AliasSpec;
using graph::Graph;
using graph::ValueId;
using kernels::Backend;
using kernels::BackendEntry;
using kernels::Place;

constexpr int64_t kAlign = 256;
constexpr std::byte kPattern{0xa5};

/// Hands out pieces of one arena with a gap behind each.
class Cutter {
 public:
  int64_t take(int64_t bytes) {
    const int64_t offset = end_;
    pieces_.emplace_back(offset, bytes);
    end_ = round_up(offset + bytes + kAlign, kAlign);
    return offset;
  }
  [[nodiscard]] int64_t end() const { return end_; }
  /// Whether all bytes outside the pieces still have the pattern.
  [[nodiscard]] bool gaps_are_clean(const std::byte* arena) const {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const int64_t from = pieces_[i].first + pieces_[i].second;
      const int64_t to = i + 1 < pieces_.size() ? pieces_[i + 1].first : end_;
      if (!std::all_of(arena + from, arena + to, [](std::byte b) { return b == kPattern; }))
        return false;
    }
    return true;
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> pieces_;
  int64_t end_ = 0;
};

/// Places of a launch's memory in the arena, by kind.
struct Cut {
  Cutter cutter;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  int64_t workspace = 0;
  int64_t scratch = 0;
};

Cut cut_arena(const Backend& backend, const Graph& graph, const Layout& layout,
              int64_t scratch_bytes) {
  Cut cut;
  for (const graph::GraphInput& input : graph.inputs())
    cut.inputs.push_back(cut.cutter.take(backend.storage_bytes(graph.type(input.value))));
  for (size_t j = 0; j < graph.outputs().size(); ++j) {
    const int32_t shared = layout.output_shares_input[j];
    cut.outputs.push_back(
        shared >= 0 ? cut.inputs[static_cast<size_t>(shared)]
                    : cut.cutter.take(backend.storage_bytes(graph.type(graph.outputs()[j].value))));
  }
  cut.workspace = cut.cutter.take(layout.workspace_bytes);
  cut.scratch = cut.cutter.take(scratch_bytes);
  return cut;
}

/// Which alias of the table a layout uses.
bool uses(const AliasSpec& alias, bool is_last, const LayoutOptions& options) {
  if (alias.kind == AliasSpec::Kind::kMust) return true;
  if (alias.kind == AliasSpec::Kind::kView) return options.views_share;
  return is_last && alias.result == options.may_result && alias.operand == options.may_operand;
}

struct Planner {
  const Backend& backend;
  const Graph& graph;
  Layout layout;
  std::vector<bool> placed;

  void put(ValueId v, Place place) {
    layout.places[v] = place;
    placed[v] = true;
  }
  void put_in_workspace(ValueId v) {
    put(v, {Place::Space::kWorkspace, 0, layout.workspace_bytes});
    layout.workspace_bytes += round_up(backend.storage_bytes(graph.type(v)), kAlign);
  }

  /// Puts the result and the operand on the same bytes. Results that are outputs lie there, and
  /// their operand with them; an operand that is an input lends its bytes to the output.
  void share(ValueId result, ValueId operand) {
    const int32_t output = output_of(result);
    const bool is_input = graph.value(operand).producer == graph::kNoOp;
    if (output < 0) {
      put(result, layout.places[operand]);
    } else if (is_input) {
      const bool is_view = graph.op(graph.value(result).producer).kind == graph::OpKind::kReshape;
      // A view of an input cannot be the input's bytes under another name: it is copied out.
      if (!is_view)
        layout.output_shares_input[static_cast<size_t>(output)] =
            static_cast<int32_t>(graph.value(operand).result);
    } else {
      put(operand, layout.places[result]);
    }
  }

  [[nodiscard]] int32_t output_of(ValueId v) const {
    for (size_t j = 0; j < graph.outputs().size(); ++j) {
      if (graph.outputs()[j].value == v) return static_cast<int32_t>(j);
    }
    return -1;
  }
};

RunResult failed(Status status) { return {std::move(status), {}}; }

/// Writes inputs, launches, waits and reads the outputs.
RunResult execute(Backend& backend, const Graph& graph,
                  const std::vector<std::vector<double>>& inputs,
                  const kernels::Executable& executable, const Cut& cut, std::byte* arena) {
  std::vector<std::byte*> in;
  std::vector<std::byte*> out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(arena + cut.inputs[i]);
    const TensorType& type = graph.type(graph.inputs()[i].value);
    if (Status s = backend.write_tensor(in.back(), type, to_native(type, inputs[i])); !s.ok())
      return failed(s);
  }
  for (int64_t offset : cut.outputs) out.push_back(arena + offset);
  Result<std::unique_ptr<kernels::Stream>> stream = backend.create_stream();
  if (!stream.ok()) return failed(stream.status());
  RecordingSink sink;
  (*stream)->launch(executable, {in, out, arena + cut.workspace, arena + cut.scratch}, 7, sink);
  (*stream)->synchronize();
  const std::vector<Completion> completions = sink.wait_for(1);
  if (completions.size() != 1 || completions[0].token != 7)
    return failed(internal_error("one launch gave other than one completion"));
  if (!completions[0].status.ok()) return failed(completions[0].status);
  RunResult result;
  for (size_t j = 0; j < out.size(); ++j) {
    const TensorType& type = graph.type(graph.outputs()[j].value);
    result.outputs.emplace_back(static_cast<size_t>(type.bytes()));
    if (Status s = backend.read_tensor(result.outputs.back(), type, out[j]); !s.ok())
      return failed(s);
  }
  return result;
}

}  // namespace

kernels::BackendTable conformance_backends() {
  kernels::BackendTable table;
  table.add({"reference", kernels::create_reference_backend, ""});
  table.add({"symbolic", kernels::create_symbolic_backend, ""});
#ifdef SGA_TEST_CPU
  table.add({"cpu", kernels::create_cpu_backend, ""});
#else
  table.add({"cpu", {}, "this build has no cpu backend"});
#endif
  table.add(
      kernels::probed_module_backend("cuda", kernels::beside_program("../bin/sgactor_cuda.so")));
  return table;
}

std::vector<std::string> backend_names() {
  const kernels::BackendTable table = conformance_backends();
  std::vector<std::string> names;
  for (const BackendEntry& entry : table.entries()) names.push_back(entry.name);
  return names;
}

bool keeps_numbers(const std::string& backend) { return backend != "symbolic"; }

void RecordingSink::on_complete(uint64_t token, const Status& status,
                                kernels::LaunchTiming timing) noexcept {
  const std::lock_guard lock(mutex_);
  completions_.push_back({token, status, timing});
  arrived_.notify_all();
}

std::vector<Completion> RecordingSink::wait_for(size_t n) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::minutes(1), [&] { return completions_.size() >= n; });
  return completions_;
}

Layout make_layout(const Backend& backend, const Graph& graph, const LayoutOptions& options) {
  Planner p{backend, graph, {}, std::vector<bool>(graph.values().size())};
  p.layout.places.resize(graph.values().size());
  p.layout.output_shares_input.assign(graph.outputs().size(), -1);
  for (size_t i = 0; i < graph.inputs().size(); ++i)
    p.put(graph.inputs()[i].value, {Place::Space::kInput, static_cast<int32_t>(i), 0});
  for (size_t j = graph.outputs().size(); j-- > 0;) {
    const ValueId v = graph.outputs()[j].value;
    if (!p.placed[v]) p.put(v, {Place::Space::kOutput, static_cast<int32_t>(j), 0});
  }
  for (const graph::Op& op : graph.ops()) {
    for (ValueId v : op.results) {
      if (!p.placed[v]) p.put_in_workspace(v);
    }
    const bool is_last = &op == &graph.ops().back();
    for (const AliasSpec& alias : graph::op_info(op.kind).aliases) {
      if (uses(alias, is_last, options))
        p.share(op.results[static_cast<size_t>(alias.result)],
                op.operands[static_cast<size_t>(alias.operand)]);
    }
  }
  return std::move(p.layout);
}

RunResult run_on(Backend& backend, const Graph& graph,
                 const std::vector<std::vector<double>>& inputs, const Layout& layout) {
  Result<std::unique_ptr<kernels::Executable>> executable =
      backend.compile({&graph, layout.places, layout.workspace_bytes, "case"});
  if (!executable.ok()) return failed(executable.status());
  const Cut cut = cut_arena(backend, graph, layout, (*executable)->scratch_bytes());
  Result<std::unique_ptr<kernels::DeviceMemory>> memory =
      backend.allocate(cut.cutter.end(), "conformance");
  if (!memory.ok()) return failed(memory.status());
  std::byte* arena = (*memory)->data();
  if (backend.host_visible())
    std::memset(arena, static_cast<int>(kPattern), static_cast<size_t>(cut.cutter.end()));
  RunResult result = execute(backend, graph, inputs, **executable, cut, arena);
  if (result.status.ok() && backend.host_visible() && !cut.cutter.gaps_are_clean(arena))
    return failed(internal_error("bytes outside the launch's memory were written"));
  return result;
}

RunResult run_on(Backend& backend, const Graph& graph,
                 const std::vector<std::vector<double>>& inputs, const LayoutOptions& options) {
  return run_on(backend, graph, inputs, make_layout(backend, graph, options));
}

}  // namespace sgactor::testing

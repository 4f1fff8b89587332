#include "tests/unit/graph/passes/run_plan.h"

#include "graph/plan/program_order.h"
#include "kernels/reference/kernels.h"
#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace sgactor::graph {
namespace {

using kernels::reference::Tensor;

std::vector<double> find_or_zeros(const Values& values, const std::string& name,
                                  const TensorType& type) {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  return std::vector<double>(static_cast<size_t>(type.num_elements()), 0.0);
}

void write_cells(const Tensor& to, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_float(to.type->dtype)) {
      to.f64()[i] = values[i];
    } else {
      to.i64()[i] = static_cast<int64_t>(values[i]);
    }
  }
}

std::vector<double> read_cells(const Tensor& from) {
  std::vector<double> values(static_cast<size_t>(from.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = is_float(from.type->dtype) ? from.f64()[i] : static_cast<double>(from.i64()[i]);
  }
  return values;
}

class Arena {
 public:
  explicit Arena(const Plan& plan)
      : plan_(plan),
        program_(plan.programs[0]),
        cells_(static_cast<size_t>(program_.arena_bytes / 8 + 1),
               std::numeric_limits<double>::quiet_NaN()) {}

  [[nodiscard]] std::byte* address(BufferId id, int32_t micro_batch) {
    const Buffer& b = buffer(id);
    return reinterpret_cast<std::byte*>(cells_.data()) +
           b.offsets[static_cast<size_t>(micro_batch % b.num_slots)];
  }
  [[nodiscard]] const Buffer& buffer(BufferId id) const {
    return program_.buffers[static_cast<size_t>(id)];
  }

  Status fire(const Firing& firing) {
    const Launch& l = program_.launches[static_cast<size_t>(firing.launch)];
    const Subgraph& subgraph = plan_.subgraphs[static_cast<size_t>(l.subgraph)];
    const auto tensor = [&](ValueId v) {
      const ValuePlace& p = subgraph.places[v];
      const auto index = static_cast<size_t>(p.index);
      const BufferId id = p.space == ValuePlace::Space::kInput    ? l.inputs[index].buffer
                          : p.space == ValuePlace::Space::kOutput ? l.outputs[index]
                                                                  : l.workspace;
      return Tensor{&subgraph.body.type(v), address(id, firing.micro_batch) + p.offset};
    };
    for (const Op& op : subgraph.body.ops()) {
      std::vector<Tensor> in;
      std::vector<Tensor> out;
      for (ValueId v : op.operands) in.push_back(tensor(v));
      for (ValueId v : op.results) out.push_back(tensor(v));
      SGA_TRY(kernels::reference::run_op(op, in, out).with_context(l.name));
    }
    return {};
  }

 private:
  const Plan& plan_;
  const RankProgram& program_;
  std::vector<double> cells_;
};

using Mailbox = std::map<int32_t, std::vector<std::vector<double>>>;  // by key

/// One stage of run_stages().
class StageRun {
 public:
  StageRun(const Plan& plan, const RankProgram& program, const Values& state)
      : plan_(plan), program_(program), order_(program_order(program)) {
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& b = program.buffers[i];
      if (is_persistent(b.kind) || b.kind == BufferKind::kBatch) {
        values_[static_cast<BufferId>(i)] = find_or_zeros(state, b.name, b.type);
      }
    }
  }

  [[nodiscard]] bool done() const { return next_ == order_.size(); }
  /// Runs until the stage is done or waits for a message. Returns whether it did anything.
  Result<bool> advance(Mailbox& mail) {
    const size_t begin = next_;
    for (; !done(); ++next_) {
      const OrderedFiring& at = order_[next_];
      const Firing& f =
          program_.lanes[static_cast<size_t>(at.lane)].order[static_cast<size_t>(at.position)];
      const Launch& l = program_.launches[static_cast<size_t>(f.launch)];
      if (l.kind == LaunchKind::kRecv) {
        posted_.push_back(&l);
        continue;
      }
      deliver(mail);
      if (reads_posted(l)) break;
      SGA_TRY(fire(l, mail));
    }
    return next_ > begin;
  }
  void read_state(Values& state) const {
    for (const auto& [id, values] : values_) {
      const Buffer& b = program_.buffers[static_cast<size_t>(id)];
      if (is_persistent(b.kind)) state[b.name] = values;
    }
  }

 private:
  void deliver(const Mailbox& mail) {
    std::erase_if(posted_, [&](const Launch* l) {
      const auto sent = mail.find(l->communication.key);
      if (sent == mail.end()) return false;
      for (size_t j = 0; j < l->outputs.size(); ++j) values_[l->outputs[j]] = sent->second[j];
      return true;
    });
  }
  [[nodiscard]] bool reads_posted(const Launch& l) const {
    for (const Launch* posted : posted_) {
      for (const LaunchInput& input : l.inputs) {
        const auto& outputs = posted->outputs;
        if (std::find(outputs.begin(), outputs.end(), input.buffer) != outputs.end()) return true;
      }
    }
    return false;
  }
  Status fire(const Launch& l, Mailbox& mail) {
    std::vector<std::vector<double>> inputs;
    for (const LaunchInput& input : l.inputs) inputs.push_back(values_.at(input.buffer));
    if (l.kind == LaunchKind::kSend) {
      mail[l.communication.key] = std::move(inputs);
      return {};
    }
    const Graph& body = plan_.subgraphs[static_cast<size_t>(l.subgraph)].body;
    SGA_ASSIGN(auto outputs, kernels::run_reference(body, inputs));
    for (size_t j = 0; j < outputs.size(); ++j) values_[l.outputs[j]] = std::move(outputs[j]);
    return {};
  }

  const Plan& plan_;
  const RankProgram& program_;
  std::vector<OrderedFiring> order_;
  size_t next_ = 0;
  std::vector<const Launch*> posted_;  // receives whose message has not come
  std::map<BufferId, std::vector<double>> values_;
};

}  // namespace

Status run_stages(const Plan& plan, Values& state) {
  std::vector<StageRun> stages;
  for (const RankProgram& program : plan.programs) stages.emplace_back(plan, program, state);
  Mailbox mail;
  for (bool moved = true; moved;) {
    moved = false;
    for (StageRun& stage : stages) {
      SGA_ASSIGN(const bool did, stage.advance(mail));
      moved = moved || did;
    }
  }
  for (const StageRun& stage : stages) {
    if (!stage.done()) return invalid_plan("stages wait for each other");
  }
  // Metrics are made by one stage; the others hold what they began with.
  for (size_t s = 0; s < stages.size(); ++s) {
    Values held;
    stages[s].read_state(held);
    for (auto& [name, values] : held) {
      const auto before = state.find(name);
      if (before == state.end() || before->second != values) state[name] = std::move(values);
    }
  }
  return {};
}

Status run_graph(const Graph& graph, Values& values) {
  std::vector<std::vector<double>> inputs;
  for (const GraphInput& input : graph.inputs()) {
    inputs.push_back(find_or_zeros(values, input.name, graph.type(input.value)));
  }
  SGA_ASSIGN(const auto outputs, kernels::run_reference(graph, inputs));
  for (size_t j = 0; j < outputs.size(); ++j) values[graph.outputs()[j].name] = outputs[j];
  return {};
}

Status run_by_buffers(const Plan& plan, const std::vector<Values>& batches, Values& state) {
  const RankProgram& program = plan.programs[0];
  std::map<std::pair<BufferId, int32_t>, std::vector<double>> slots;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (!is_persistent(b.kind)) continue;
    slots[{static_cast<BufferId>(i), 0}] = find_or_zeros(state, b.name, b.type);
  }
  for (const Firing& f : program.lanes[0].order) {
    const Launch& l = program.launches[static_cast<size_t>(f.launch)];
    std::vector<std::vector<double>> inputs;
    for (const LaunchInput& input : l.inputs) {
      const Buffer& b = program.buffers[static_cast<size_t>(input.buffer)];
      inputs.push_back(b.kind == BufferKind::kBatch
                           ? batches[static_cast<size_t>(f.micro_batch)].at(b.name)
                           : slots.at({input.buffer, f.micro_batch % b.num_slots}));
    }
    const Graph& body = plan.subgraphs[static_cast<size_t>(l.subgraph)].body;
    SGA_ASSIGN(const auto outputs, kernels::run_reference(body, inputs));
    for (size_t j = 0; j < outputs.size(); ++j) {
      const Buffer& b = program.buffers[static_cast<size_t>(l.outputs[j])];
      slots[{l.outputs[j], f.micro_batch % b.num_slots}] = outputs[j];
    }
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (is_persistent(b.kind)) state[b.name] = slots.at({static_cast<BufferId>(i), 0});
  }
  return {};
}

Status run_in_arena(const Plan& plan, const std::vector<Values>& batches, Values& state) {
  const RankProgram& program = plan.programs[0];
  Arena arena(plan);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (!is_persistent(b.kind)) continue;
    write_cells({&b.type, arena.address(static_cast<BufferId>(i), 0)},
                find_or_zeros(state, b.name, b.type));
  }
  int32_t filled = -1;
  for (const Firing& f : program.lanes[0].order) {
    for (; filled < f.micro_batch; ++filled) {
      for (size_t i = 0; i < program.buffers.size(); ++i) {
        const Buffer& b = program.buffers[i];
        if (b.kind != BufferKind::kBatch) continue;
        write_cells({&b.type, arena.address(static_cast<BufferId>(i), filled + 1)},
                    batches[static_cast<size_t>(filled) + 1].at(b.name));
      }
    }
    SGA_TRY(arena.fire(f));
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (is_persistent(b.kind)) {
      state[b.name] = read_cells({&b.type, arena.address(static_cast<BufferId>(i), 0)});
    }
  }
  return {};
}

Status run_step(const Graph& training, const Graph& update, const std::vector<Values>& batches,
                Values& state) {
  for (const Values& batch : batches) {
    for (const auto& [name, values] : batch) state[name] = values;
    SGA_TRY(run_graph(training, state));
  }
  SGA_TRY(run_graph(update, state));
  for (const auto& [name, values] : batches.at(0)) state.erase(name);
  return {};
}

}  // namespace sgactor::graph

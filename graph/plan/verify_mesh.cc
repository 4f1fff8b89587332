#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace sgactor::graph {
namespace {

/// Runs the stages of one pipeline side by side. Ranks along dp and tp do the same at the same
/// place, so what they do together is done when one of them comes to it.
class MeshRun {
 public:
  explicit MeshRun(const Plan& plan) : plan_(plan) {}

  Status run() {
    SGA_TRY(find_stages());
    bool moved = true;
    while (moved) {
      moved = false;
      for (Stage& stage : stages_) {
        SGA_ASSIGN(const bool advanced, advance(stage));
        moved = moved || advanced;
      }
    }
    for (const Stage& stage : stages_) SGA_TRY(check_done(stage));
    for (const auto& [message, sent] : sent_) {
      if (sent.launch != nullptr) {
        return invalid_plan(
            fmt::format("what launch \"{}\" sends is received by nobody", sent.launch->name));
      }
    }
    return {};
  }

 private:
  struct Stage {
    int32_t pp = 0;
    const RankProgram* program = nullptr;
    std::vector<size_t> next;                    // by lane
    std::vector<int64_t> done;                   // by launch: firings complete
    std::vector<Firing> waiting;                 // receives that are posted
    std::vector<std::vector<LaunchId>> writers;  // by buffer
  };
  struct Sent {
    const Launch* launch = nullptr;  // null once received
    const RankProgram* program = nullptr;
  };
  using Message = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // from, to, key, micro-batch

  Status find_stages() {
    stages_.resize(static_cast<size_t>(plan_.mesh.pp));
    for (size_t r = 0; r < plan_.ranks.size(); ++r) {
      const RankPlacement& p = plan_.ranks[r];
      const RankProgram* program = &plan_.programs[static_cast<size_t>(p.program)];
      Stage& stage = stages_[static_cast<size_t>(p.pp)];
      if (stage.program != nullptr && stage.program != program) {
        return invalid_plan(
            fmt::format("rank {} runs another program than its pipeline stage {}", r, p.pp));
      }
      stage.pp = p.pp;
      stage.program = program;
    }
    for (Stage& stage : stages_) {
      stage.next.assign(stage.program->lanes.size(), 0);
      stage.done.assign(stage.program->launches.size(), 0);
      stage.writers.resize(stage.program->buffers.size());
      for (size_t l = 0; l < stage.program->launches.size(); ++l) {
        for (BufferId b : stage.program->launches[l].outputs) {
          stage.writers[static_cast<size_t>(b)].push_back(static_cast<LaunchId>(l));
        }
      }
    }
    return {};
  }

  static bool ready(const Stage& stage, const Firing& f) {
    const Launch& l = stage.program->launches[static_cast<size_t>(f.launch)];
    const auto is_done = [&](LaunchId w, const LaunchInput& input) {
      const Launch& writer = stage.program->launches[static_cast<size_t>(w)];
      int64_t needed = f.micro_batch + 1;
      if (input.edge == EdgeKind::kPrepared) needed = 1;
      if (input.edge == EdgeKind::kLastMicroBatch) {
        needed = fires_per_micro_batch(writer.phase) ? stage.program->num_micro_batches : 1;
      }
      return stage.done[static_cast<size_t>(w)] >= needed;
    };
    return std::all_of(l.inputs.begin(), l.inputs.end(), [&](const LaunchInput& input) {
      if (input.producer == kNoLaunch) return true;
      if (input.edge != EdgeKind::kLastMicroBatch) return is_done(input.producer, input);
      const auto& writers = stage.writers[static_cast<size_t>(input.buffer)];
      return std::all_of(writers.begin(), writers.end(),
                         [&](LaunchId w) { return is_done(w, input); });
    });
  }

  Result<bool> advance(Stage& stage) {
    bool moved = false;
    for (size_t lane = 0; lane < stage.next.size(); ++lane) {
      const std::vector<Firing>& order = stage.program->lanes[lane].order;
      while (stage.next[lane] < order.size()) {
        const Firing& f = order[stage.next[lane]];
        if (lane > 0 && f.start > static_cast<int64_t>(stage.next[0])) break;
        if (!ready(stage, f)) break;
        ++stage.next[lane];
        moved = true;
        SGA_TRY(post(stage, f));
      }
    }
    for (size_t i = 0; i < stage.waiting.size();) {
      SGA_ASSIGN(const bool arrived, receive(stage, stage.waiting[i]));
      if (!arrived) {
        ++i;
        continue;
      }
      stage.waiting.erase(stage.waiting.begin() + static_cast<std::ptrdiff_t>(i));
      moved = true;
    }
    return moved;
  }

  Status post(Stage& stage, const Firing& f) {
    const Launch& l = stage.program->launches[static_cast<size_t>(f.launch)];
    const Communication& c = l.communication;
    if (l.kind == LaunchKind::kRecv) {
      stage.waiting.push_back(f);
      return {};
    }
    if (l.kind != LaunchKind::kSubgraph &&
        plan_.groups[static_cast<size_t>(c.group)].axis == MeshAxis::kPp &&
        l.kind != LaunchKind::kSend) {
      return invalid_plan(fmt::format("launch \"{}\" is a collective along pp", l.name));
    }
    if (l.kind == LaunchKind::kSend &&
        !sent_.try_emplace({stage.pp, c.peer, c.key, f.micro_batch}, Sent{&l, stage.program})
             .second) {
      return invalid_plan(fmt::format("launch \"{}\" sends key {} twice", l.name, c.key));
    }
    ++stage.done[static_cast<size_t>(f.launch)];
    return {};
  }

  Result<bool> receive(Stage& stage, const Firing& f) {
    const Launch& l = stage.program->launches[static_cast<size_t>(f.launch)];
    const Communication& c = l.communication;
    const auto found = sent_.find({c.peer, stage.pp, c.key, f.micro_batch});
    if (found == sent_.end() || found->second.launch == nullptr) return false;
    const Launch& from = *found->second.launch;
    bool fits = from.inputs.size() == l.outputs.size();
    for (size_t i = 0; fits && i < l.outputs.size(); ++i) {
      fits = found->second.program->buffers[static_cast<size_t>(from.inputs[i].buffer)].type ==
             stage.program->buffers[static_cast<size_t>(l.outputs[i])].type;
    }
    if (!fits) {
      return invalid_plan(
          fmt::format("launch \"{}\" sends other tensors than \"{}\" receives", from.name, l.name));
    }
    found->second.launch = nullptr;
    ++stage.done[static_cast<size_t>(f.launch)];
    return true;
  }

  static Status check_done(const Stage& stage) {
    if (!stage.waiting.empty()) {
      const Firing& f = stage.waiting[0];
      return invalid_plan(fmt::format(
          "stage {}: launch \"{}\" of micro-batch {} receives what nobody sends", stage.pp,
          stage.program->launches[static_cast<size_t>(f.launch)].name, f.micro_batch));
    }
    for (size_t lane = 0; lane < stage.next.size(); ++lane) {
      const std::vector<Firing>& order = stage.program->lanes[lane].order;
      if (stage.next[lane] == order.size()) continue;
      const Firing& f = order[stage.next[lane]];
      return invalid_plan(fmt::format(
          "stage {}, lane {} cannot go on at launch \"{}\" of micro-batch {}", stage.pp, lane,
          stage.program->launches[static_cast<size_t>(f.launch)].name, f.micro_batch));
    }
    return {};
  }

  const Plan& plan_;
  std::vector<Stage> stages_;
  std::map<Message, Sent> sent_;
};

}  // namespace

Status verify_mesh(const Plan& plan) { return MeshRun(plan).run().with_context("mesh"); }

}  // namespace sgactor::graph

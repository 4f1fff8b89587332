#include "apps/sgactor/device.h"

#include "actors/runtime/rank_setup.h"
#include "actors/runtime/snapshot.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/device_deal.h"
#include "graph/base/log.h"
#include "graph/base/units.h"
#include "transport/topology/nvml_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>
#include <tuple>
#include <vector>

namespace sgactor::apps {
namespace {

constexpr int64_t kLooks = 20;  // while memory is waited for
constexpr const char* kTrainingHint =
    "less take a smaller training.micro_batch_size, training.seq_len or model, "
    "training.recompute, training.memory_budget, and, with more workers, parallelism.zero_stage, "
    "parallelism.tensor_parallel_degree or parallelism.pipeline_parallel_degree";

/// Of a program that reads the parameters of another one.
int64_t own_bytes(const graph::RankProgram& program) {
  int64_t bytes = program.arena_bytes;
  for (const graph::Buffer& b : program.buffers) {
    if (b.kind == graph::BufferKind::kParameter) bytes -= b.bytes;
  }
  return bytes;
}

struct Need {
  int64_t arenas = 0;
  int64_t copies = 0;   // of the state, for checkpoints
  int64_t scratch = 0;  // and all else that a backend keeps beside what plans say
  int64_t ranks = 0;
  int64_t workers = 0;
  [[nodiscard]] int64_t total() const { return arenas + copies + scratch; }
  Need& operator+=(const Need& other) {
    arenas += other.arenas;
    copies += other.copies;
    scratch += other.scratch;
    ranks += other.ranks;
    workers += other.workers;
    return *this;
  }
};

/// What ranks of a plan need, as the runtime allocates it (actors/runtime/rank_setup.cc).
class Needs {
 public:
  Needs(const graph::Plan& plan, const HeldBeside& beside) : plan_(plan), beside_(beside) {
    if (beside.validation != nullptr && !beside.validation->programs.empty())
      validates_ = actors::whole_model_rank(plan);
  }

  Need of(const std::vector<int32_t>& ranks, const kernels::DeviceInfo& info) {
    Need need;
    for (const int32_t r : ranks) {
      const graph::RankProgram& program = program_of(r);
      need.arenas += program.arena_bytes;
      if (r == validates_) need.arenas += own_bytes(beside_.validation->programs[0]);
      if (beside_.verifies) need.arenas += own_bytes(program);
      if (beside_.snapshots) need.copies += snapshot_bytes(r);
      need.scratch += info.scratch_bytes * (beside_.verifies ? 2 : 1);
    }
    need.ranks = static_cast<int64_t>(ranks.size());
    need.workers = ranks.empty() ? 0 : 1;
    need.scratch += info.process_bytes * need.workers;
    return need;
  }

 private:
  [[nodiscard]] const graph::RankProgram& program_of(int32_t rank) const {
    return plan_.programs[static_cast<size_t>(plan_.ranks[static_cast<size_t>(rank)].program)];
  }
  /// Ranks of a program differ only in whether they are the first of their peers.
  int64_t snapshot_bytes(int32_t rank) {
    const graph::RankPlacement& at = plan_.ranks[static_cast<size_t>(rank)];
    const auto key = std::tuple(at.program, at.pp, at.dp > 0, at.tp > 0);
    if (const auto known = snapshots_.find(key); known != snapshots_.end()) return known->second;
    return snapshots_[key] = actors::staging_bytes(plan_, rank);
  }

  const graph::Plan& plan_;
  const HeldBeside& beside_;
  int32_t validates_ = -1;
  std::map<std::tuple<int32_t, int32_t, bool, bool>, int64_t> snapshots_;
};

int64_t room_of(const kernels::DeviceInfo& info, bool whole) {
  return whole || info.free_bytes <= 0 ? info.memory_bytes : info.free_bytes;
}

Status refuse(const Need& need, const kernels::DeviceInfo& info, bool whole, bool another,
              const char* hint) {
  std::string who;
  if (need.workers > 1) {
    who = fmt::format(" for the {} workers that share it", need.workers);
  } else if (need.ranks > 1) {
    who = fmt::format(" for the {} ranks of one process", need.ranks);
  }
  std::string parts;
  if (need.copies > 0)
    parts += fmt::format(", {} of copies for checkpoints", format_bytes(need.copies));
  if (need.scratch > 0)
    parts += fmt::format(", {} of scratch and libraries", format_bytes(need.scratch));
  if (!parts.empty()) parts = fmt::format(" ({} of arenas{})", format_bytes(need.arenas), parts);
  const int64_t room = room_of(info, whole);
  std::string there = format_bytes(room);
  if (room != info.memory_bytes) {
    there += " free";
    if (info.memory_bytes > 0) there += " of " + format_bytes(info.memory_bytes);
  }
  return make_status(
      Code::kOutOfMemory,
      fmt::format("the plan needs {}{}{} and {}{} has {}; {}", format_bytes(need.total()), who,
                  parts, another ? "a device like " : "", info.device, there, hint),
      Scope::kDevice);
}

/// Where the host does not see the device's memory, copies of the state lie in the host's if the
/// device has no room (actors/runtime/snapshot.h), so they are not needed of the device.
HeldBeside counted(HeldBeside beside, const kernels::Backend& backend) {
  beside.snapshots = beside.snapshots && backend.host_visible();
  return beside;
}

Status check_ranks(const graph::Plan& plan, const std::vector<int32_t>& ranks,
                   const kernels::Backend& backend, const HeldBeside& beside, bool whole) {
  const kernels::DeviceInfo& info = backend.info();
  const Need need = Needs(plan, counted(beside, backend)).of(ranks, info);
  const int64_t room = room_of(info, whole);
  if (room <= 0 || need.total() <= room) return {};
  return refuse(need, info, whole, false, kTrainingHint);
}

}  // namespace

Result<DeviceSpec> parse_devices(const std::string& text) {
  DeviceSpec spec;
  const size_t colon = text.find(':');
  spec.backend = text.substr(0, colon);
  if (colon == std::string::npos) return spec;
  const std::string count = text.substr(colon + 1);
  const auto expected = invalid_argument("--devices " + text +
                                         ": expected cpu, cpu:THREADS, reference, symbolic, "
                                         "cuda, cuda:INDEX or cuda:all");
  if (spec.backend == "cuda" && count == "all") return spec;
  int32_t number = 0;
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), number);
  const int32_t least = spec.backend == "cuda" ? 0 : 1;
  if (error != std::errc() || end != count.data() + count.size() || number < least || number > 4096)
    return expected;
  if (spec.backend == "cpu") {
    spec.options.num_threads = number;
  } else if (spec.backend == "cuda") {
    spec.options.device_index = number;
  } else {
    return expected;
  }
  return spec;
}

Result<std::unique_ptr<kernels::Backend>> create_device(const kernels::BackendTable& backends,
                                                        const DeviceSpec& device) {
  auto backend = backends.create(device.backend, device.options);
  if (backend.ok()) return backend;
  const Status& s = backend.status();
  return Status(Code::kUnsupported, Scope::kDevice, s.message(), s.origin());
}

graph::StorageModel storage_model(const kernels::Backend& backend) {
  const TensorType four{DType::kF32, Shape{4}};
  const int64_t bytes = backend.storage_bytes(four);
  for (const auto model : {graph::StorageModel::kFloat64, graph::StorageModel::kHash}) {
    if (bytes == graph::storage_bytes(four, model)) return model;
  }
  return graph::StorageModel::kNative;
}

int64_t held_bytes(const graph::Plan& plan, const std::vector<int32_t>& ranks,
                   const HeldBeside& beside) {
  return Needs(plan, beside).of(ranks, {}).total();
}

Result<std::vector<std::string>> devices_here(const std::string& text) {
  if (devices_of_host(text, 2).size() == 1) return std::vector<std::string>{text};
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  SGA_ASSIGN(const int32_t num,
             transport::count_devices({.visible = visible == nullptr ? "" : visible}));
  return devices_of_host(text, num);
}

Status check_memory(const graph::Plan& plan, const kernels::Backend& backend,
                    const DeviceShare& share) {
  if (plan.ranks.empty()) return {};
  const kernels::DeviceInfo& info = backend.info();
  const auto most = static_cast<int64_t>(plan.ranks.size());
  const auto dealt =
      deal_ranks(plan, static_cast<int32_t>(std::clamp<int64_t>(share.workers, 1, most)));
  const auto workers = static_cast<int64_t>(dealt.size());
  std::vector<Need> on(
      static_cast<size_t>(share.devices > 0 ? std::min(share.devices, workers) : workers));
  const HeldBeside beside = counted(share.beside, backend);
  Needs needs(plan, beside);
  for (size_t w = 0; w < dealt.size(); ++w) on[w % on.size()] += needs.of(dealt[w], info);
  // What is free is known of the first device alone.
  const bool first_is_here = share.devices > 0;
  size_t worst = 0;
  int64_t lacks = 0;
  for (size_t d = 0; d < on.size(); ++d) {
    const int64_t room = room_of(info, share.whole || d > 0 || !first_is_here);
    if (room <= 0 || on[d].total() - room <= lacks) continue;
    worst = d;
    lacks = on[d].total() - room;
  }
  if (lacks == 0) return {};
  return refuse(on[worst], info, share.whole || worst > 0 || !first_is_here, worst > 0,
                share.hint != nullptr ? share.hint : kTrainingHint);
}

Status await_memory(const kernels::BackendTable& backends, const DeviceSpec& device,
                    const graph::Plan& plan, const std::vector<int32_t>& ranks,
                    const HeldBeside& beside, int64_t patience_ms,
                    std::unique_ptr<kernels::Backend>& backend) {
  const auto pause = std::chrono::microseconds(patience_ms * 1000 / kLooks);
  for (int64_t looks = 0;; ++looks) {
    const Status fits = check_ranks(plan, ranks, *backend, beside, false);
    if (fits.ok() || looks >= kLooks) return fits;
    if (!check_ranks(plan, ranks, *backend, beside, true).ok()) return fits;
    if (looks == 0) log::info("waits for memory: {}", fits.message());
    std::this_thread::sleep_for(pause);
    backend.reset();
    SGA_ASSIGN(backend, create_device(backends, device));
  }
}

}  // namespace sgactor::apps

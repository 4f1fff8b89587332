#include "tests/support/mesh_executor.h"

#include "graph/plan/program_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sgactor::testing_support {
namespace {

using graph::Buffer;
using graph::BufferKind;
using graph::Launch;
using graph::LaunchKind;

/// Neighbours first, level by level, an odd one carried up.
template <class T, class Combine>
T tree(std::vector<T> level, Combine combine) {
  while (level.size() > 1) {
    std::vector<T> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      next.push_back(combine(level[i], level[i + 1]));
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  return level[0];
}

struct Member {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t num_in = 0;
  int64_t num_out = 0;
};

/// `Stored` is T, or uint16_t for bf16, which is combined in f32 and rounded once.
template <class T, class Stored = T>
void run_collective(const Launch& launch, const std::vector<Member>& members) {
  const auto at = [](const std::byte* p, int64_t i) -> T {
    Stored value;
    std::memcpy(&value, p + i * static_cast<int64_t>(sizeof value), sizeof value);
    if constexpr (std::is_same_v<Stored, T>) {
      return value;
    } else {
      return bf16_to_float(value);
    }
  };
  const auto put = [](std::byte* p, int64_t i, T number) {
    Stored value;
    if constexpr (std::is_same_v<Stored, T>) {
      value = number;
    } else {
      value = float_to_bf16(number);
    }
    std::memcpy(p + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
  };
  const bool largest = launch.communication.reduction == graph::Reduction::kMax;
  const auto combine = [&](T a, T b) { return largest ? std::max(a, b) : a + b; };
  const auto reduced = [&](int64_t i) {
    std::vector<T> parts;
    for (const Member& m : members) parts.push_back(at(m.in, i));
    return tree(std::move(parts), combine);
  };
  if (launch.kind == LaunchKind::kAllGather) {
    for (const Member& to : members) {
      for (int64_t i = 0; i < to.num_out; ++i) {
        const Member& from = members[static_cast<size_t>(i / to.num_in)];
        put(to.out, i, at(from.in, i % to.num_in));
      }
    }
    return;
  }
  std::vector<T> sums;
  for (int64_t i = 0; i < members[0].num_in; ++i) sums.push_back(reduced(i));
  for (size_t m = 0; m < members.size(); ++m) {
    const int64_t first = launch.kind == LaunchKind::kReduceScatter
                              ? static_cast<int64_t>(m) * members[m].num_out
                              : 0;
    for (int64_t i = 0; i < members[m].num_out; ++i) {
      const bool inside = first + i < members[m].num_in;
      put(members[m].out, i, inside ? sums[static_cast<size_t>(first + i)] : T{});
    }
  }
}

/// Offsets of a part's elements in the whole tensor; -1: padding.
std::vector<int64_t> part_of(const Buffer& b, const graph::RankPlacement& at, int32_t tp) {
  const graph::StateSlice& s = b.slice;
  const Shape& full = s.sharded() ? s.full : b.type.shape;
  std::vector<int64_t> local;
  if (s.tp_dim < 0) {
    for (int64_t i = 0; i < full.num_elements(); ++i) local.push_back(i);
  } else {
    const auto dim = static_cast<size_t>(s.tp_dim);
    int64_t inner = 1;
    int64_t outer = 1;
    for (size_t d = 0; d < full.dims().size(); ++d) {
      if (d < dim) outer *= full.dims()[d];
      if (d > dim) inner *= full.dims()[d];
    }
    const int64_t extent = full.dims()[dim];
    const int64_t piece = (extent + tp - 1) / tp;
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t k = 0; k < piece; ++k) {
        const int64_t row = at.tp * piece + k;
        for (int64_t i = 0; i < inner; ++i) {
          local.push_back(row < extent ? ((o * extent + row) * inner) + i : -1);
        }
      }
    }
  }
  if (s.dp_piece == 0) return local;
  std::vector<int64_t> mine(static_cast<size_t>(s.dp_piece), -1);
  for (int64_t i = 0; i < s.dp_piece; ++i) {
    const int64_t k = at.dp * s.dp_piece + i;
    if (k < static_cast<int64_t>(local.size()))
      mine[static_cast<size_t>(i)] = local[static_cast<size_t>(k)];
  }
  return mine;
}

bool is_state(const Buffer& b) {
  return b.kind == BufferKind::kParameter || b.kind == BufferKind::kMoment;
}

}  // namespace

Result<std::unique_ptr<MeshExecutor>> MeshExecutor::create(const graph::Plan& plan,
                                                           kernels::Backend& backend) {
  std::unique_ptr<MeshExecutor> made(new MeshExecutor(plan, backend));
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    Rank rank;
    rank.index = static_cast<int32_t>(r);
    SGA_ASSIGN(rank.executor, PlanExecutor::create_member(plan, backend, rank.index));
    const graph::RankProgram& program = rank.executor->program_;
    for (const graph::OrderedFiring& at : graph::program_order(program)) {
      rank.order.push_back(
          program.lanes[static_cast<size_t>(at.lane)].order[static_cast<size_t>(at.position)]);
    }
    made->ranks_.push_back(std::move(rank));
  }
  return made;
}

const Buffer& MeshExecutor::buffer(int32_t rank, graph::BufferId id) const {
  return ranks_[static_cast<size_t>(rank)].executor->program_.buffers[static_cast<size_t>(id)];
}

std::byte* MeshExecutor::address(int32_t rank, graph::BufferId id, int32_t m) const {
  return ranks_[static_cast<size_t>(rank)].executor->address(id, m);
}

Status MeshExecutor::load_state(const transport::StateSource& source) {
  for (Rank& rank : ranks_) {
    const graph::RankPlacement& at = plan_.ranks[static_cast<size_t>(rank.index)];
    for (const Buffer& b : rank.executor->program_.buffers) {
      if (!is_state(b)) continue;
      TensorType whole = b.type;
      if (b.slice.sharded()) whole.shape = b.slice.full;
      std::vector<float> full(static_cast<size_t>(whole.num_elements()));
      SGA_TRY(source.load(b.name, whole, std::as_writable_bytes(std::span(full))));
      std::vector<float> part;
      for (int64_t i : part_of(b, at, plan_.mesh.tp)) {
        part.push_back(i < 0 ? 0.0F : full[static_cast<size_t>(i)]);
      }
      SGA_TRY(rank.executor->write(b, 0, std::as_bytes(std::span(part))));
    }
  }
  return {};
}

Status MeshExecutor::run_step(int64_t step, double inv_valid_tokens,
                              const std::vector<std::vector<PlanExecutor::MicroBatch>>& batches) {
  for (Rank& rank : ranks_) {
    PlanExecutor& e = *rank.executor;
    SGA_TRY(e.zero_accumulators());
    if (e.find("step") != nullptr) SGA_TRY(e.set_scalar("step", static_cast<double>(step)));
    if (e.find("inv_valid_tokens") != nullptr) {
      SGA_TRY(e.set_scalar("inv_valid_tokens", inv_valid_tokens));
    }
    if (const Buffer* b = e.find("tp_index"); b != nullptr) {
      const int32_t tp = plan_.ranks[static_cast<size_t>(rank.index)].tp;
      SGA_TRY(e.write(*b, 0, std::as_bytes(std::span(&tp, 1))));
    }
    rank.next = 0;
    rank.filled.assign(static_cast<size_t>(e.program_.num_micro_batches), false);
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (Rank& rank : ranks_) {
      SGA_ASSIGN(const bool advanced, advance(rank, batches));
      moved = moved || advanced;
    }
  }
  std::string stuck;
  for (const Rank& rank : ranks_) {
    if (rank.next == rank.order.size()) continue;
    const auto& launches = rank.executor->program_.launches;
    const graph::Firing& at = rank.order[rank.next];
    stuck += fmt::format("rank {} at {}@{}", rank.index,
                         launches[static_cast<size_t>(at.launch)].name, at.micro_batch);
    for (const graph::Firing& w : rank.waiting) {
      stuck += fmt::format(", without {}@{}", launches[static_cast<size_t>(w.launch)].name,
                           w.micro_batch);
    }
    stuck += "; ";
  }
  if (!stuck.empty()) return internal_error("stuck: " + stuck);
  return sent_.empty() ? Status() : internal_error("a message nobody received");
}

Result<bool> MeshExecutor::advance(
    Rank& rank, const std::vector<std::vector<PlanExecutor::MicroBatch>>& batches) {
  const auto dp = static_cast<size_t>(plan_.ranks[static_cast<size_t>(rank.index)].dp);
  bool moved = false;
  while (rank.next < rank.order.size()) {
    const graph::Firing& f = rank.order[rank.next];
    const Launch& l = rank.executor->program_.launches[static_cast<size_t>(f.launch)];
    SGA_ASSIGN(const bool waits, must_wait(rank, f));
    if (waits) return moved;
    if (l.kind == LaunchKind::kSubgraph) {
      const auto m = static_cast<size_t>(f.micro_batch);
      const bool reads_batch = std::any_of(
          l.inputs.begin(), l.inputs.end(),
          [](const graph::LaunchInput& in) { return in.edge == graph::EdgeKind::kBatch; });
      if (reads_batch && !rank.filled[m]) {
        SGA_TRY(rank.executor->fill_batch(f.micro_batch, batches[dp][m]));
        rank.filled[m] = true;
      }
      SGA_TRY(rank.executor->fire(f));
      ++rank.next;
    } else {
      SGA_ASSIGN(const bool done, communicate(rank, f));
      if (!done) return moved;
    }
    moved = true;
  }
  return moved;
}

Result<bool> MeshExecutor::receive(Rank& rank, const graph::Firing& f) {
  const Launch& l = rank.executor->program_.launches[static_cast<size_t>(f.launch)];
  const graph::Communication& c = l.communication;
  const int32_t from =
      graph::group_members(plan_, c.group, rank.index)[static_cast<size_t>(c.peer)];
  const auto found = sent_.find({from, rank.index, c.key, f.micro_batch});
  if (found == sent_.end()) return false;
  for (size_t i = 0; i < l.outputs.size(); ++i) {
    std::memcpy(address(rank.index, l.outputs[i], f.micro_batch), found->second[i].data(),
                found->second[i].size());
  }
  sent_.erase(found);
  return true;
}

Result<bool> MeshExecutor::must_wait(Rank& rank, const graph::Firing& f) {
  for (size_t i = 0; i < rank.waiting.size();) {
    SGA_ASSIGN(const bool arrived, receive(rank, rank.waiting[i]));
    if (arrived) {
      rank.waiting.erase(rank.waiting.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  const auto& launches = rank.executor->program_.launches;
  for (const graph::Firing& w : rank.waiting) {
    if (w.micro_batch != f.micro_batch) continue;
    const auto& outputs = launches[static_cast<size_t>(w.launch)].outputs;
    for (const graph::LaunchInput& in : launches[static_cast<size_t>(f.launch)].inputs) {
      if (std::find(outputs.begin(), outputs.end(), in.buffer) != outputs.end()) return true;
    }
  }
  return false;
}

Result<bool> MeshExecutor::communicate(Rank& rank, const graph::Firing& f) {
  const Launch& l = rank.executor->program_.launches[static_cast<size_t>(f.launch)];
  const graph::Communication& c = l.communication;
  const std::vector<int32_t> members = graph::group_members(plan_, c.group, rank.index);
  const auto bytes_of = [&](graph::BufferId id) {
    return static_cast<size_t>(backend_.storage_bytes(buffer(rank.index, id).type));
  };
  if (l.kind == LaunchKind::kSend) {
    auto& message = sent_[{rank.index, members[static_cast<size_t>(c.peer)], c.key, f.micro_batch}];
    for (const graph::LaunchInput& in : l.inputs) {
      const std::byte* from = address(rank.index, in.buffer, f.micro_batch);
      message.emplace_back(from, from + bytes_of(in.buffer));
    }
    ++rank.next;
    return true;
  }
  if (l.kind == LaunchKind::kRecv) {
    rank.waiting.push_back(f);
    ++rank.next;
    return true;
  }
  rank.posted = true;
  for (int32_t m : members) {
    const Rank& other = ranks_[static_cast<size_t>(m)];
    if (!other.posted || other.order[other.next] != f) return false;
  }
  SGA_TRY(exchange(members, f));
  for (int32_t m : members) {
    ranks_[static_cast<size_t>(m)].posted = false;
    ++ranks_[static_cast<size_t>(m)].next;
  }
  return true;
}

Status MeshExecutor::exchange(const std::vector<int32_t>& members, const graph::Firing& f) {
  const graph::RankProgram& program = ranks_[static_cast<size_t>(members[0])].executor->program_;
  const Launch& l = program.launches[static_cast<size_t>(f.launch)];
  for (size_t i = 0; i < l.inputs.size(); ++i) {
    std::vector<Member> parts;
    for (int32_t m : members) {
      const Buffer& in = buffer(m, l.inputs[i].buffer);
      const Buffer& out = buffer(m, l.outputs[i]);
      parts.push_back({address(m, l.inputs[i].buffer, f.micro_batch),
                       address(m, l.outputs[i], f.micro_batch), in.type.num_elements(),
                       out.type.num_elements()});
    }
    const DType dtype = buffer(members[0], l.inputs[i].buffer).type.dtype;
    if (plan_.storage == graph::StorageModel::kFloat64 || dtype == DType::kF64) {
      run_collective<double>(l, parts);
    } else if (dtype == DType::kF32) {
      run_collective<float>(l, parts);
    } else if (dtype == DType::kBF16) {
      run_collective<float, uint16_t>(l, parts);
    } else {
      return unsupported(fmt::format("a collective of {}", dtype_name(dtype)));
    }
  }
  return {};
}

Result<float> MeshExecutor::loss() const {
  std::vector<float> losses;
  for (int32_t dp = 0; dp < plan_.mesh.dp; ++dp) {
    for (int32_t pp = 0; pp < plan_.mesh.pp; ++pp) {
      const auto rank = static_cast<size_t>(graph::rank_at(plan_, pp, dp, 0));
      if (ranks_[rank].executor->find("loss") == nullptr) continue;
      SGA_ASSIGN(const auto value, ranks_[rank].executor->read("loss"));
      losses.push_back(static_cast<float>(value[0]));
    }
  }
  return tree(std::move(losses), [](float a, float b) { return a + b; });
}

Result<float> MeshExecutor::metric(const std::string& name) const {
  const int32_t rank = graph::rank_at(plan_, plan_.mesh.pp - 1, 0, 0);
  SGA_ASSIGN(const auto value, ranks_[static_cast<size_t>(rank)].executor->read(name));
  return static_cast<float>(value[0]);
}

Result<std::vector<float>> MeshExecutor::state(const std::string& name) const {
  std::vector<float> whole;
  for (const Rank& rank : ranks_) {
    const Buffer* b = rank.executor->find(name);
    if (b == nullptr) continue;
    const Shape& full = b->slice.sharded() ? b->slice.full : b->type.shape;
    whole.resize(static_cast<size_t>(full.num_elements()));
    SGA_ASSIGN(const auto part, rank.executor->read(name));
    const std::vector<int64_t> places =
        part_of(*b, plan_.ranks[static_cast<size_t>(rank.index)], plan_.mesh.tp);
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] >= 0) whole[static_cast<size_t>(places[i])] = static_cast<float>(part[i]);
    }
  }
  if (whole.empty()) return invalid_argument("no tensor " + name);
  return whole;
}

int64_t MeshExecutor::state_bytes(int32_t rank) const {
  int64_t bytes = 0;
  for (const Buffer& b : ranks_[static_cast<size_t>(rank)].executor->program_.buffers) {
    if (is_state(b) || b.kind == BufferKind::kAccumulator) bytes += b.bytes;
  }
  return bytes;
}

}  // namespace sgactor::testing_support

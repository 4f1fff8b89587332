#include "graph/passes/bucket_collectives.h"

#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace sgactor::graph {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

bool may_change(const Plan& plan, const Launch& l) {
  const bool gathers = l.kind == LaunchKind::kAllGather && l.phase < Phase::kReduce;
  const bool sums = (l.kind == LaunchKind::kAllReduce || l.kind == LaunchKind::kReduceScatter) &&
                    l.phase <= Phase::kReduce && l.communication.reduction == Reduction::kSum;
  if (!gathers && !sums) return false;
  const RankGroup& group = plan.groups[static_cast<size_t>(l.communication.group)];
  return group.axis == MeshAxis::kDp && group.coordinates.empty();
}

/// One tensor of a launch.
struct Pair {
  LaunchId launch = kNoLaunch;
  size_t index = 0;
  int64_t bytes = 0;
  int32_t ready = 0;        ///< firings of lane 0 after which its operand is on its way
  int32_t wanted = kNever;  ///< firings of lane 0 before the first that reads it
  LaunchId reader = kNoLaunch;
};

struct Bucket {
  std::vector<Pair> pairs;
  LaunchId place = kNoLaunch;  ///< fires where this launch of the old program did
  LaunchId id = kNoLaunch;     ///< in the new program
};

class Bucketing {
 public:
  Bucketing(const Plan& plan, RankProgram& program, int64_t bytes, int32_t* next_key)
      : plan_(plan), program_(program), target_(bytes), next_key_(next_key) {}

  void run() {
    find_positions();
    find_pairs();
    for (auto& [of, pairs] : classes_) fill(of, pairs);
    if (buckets_.empty()) return;
    name_parts();
    rebuild();
  }

 private:
  /// What may share an operation: kind, group, phase, exactness, and stretch or launch.
  using Class = std::tuple<LaunchKind, int32_t, Phase, bool, int32_t>;

  [[nodiscard]] const Launch& launch(LaunchId id) const {
    return program_.launches[static_cast<size_t>(id)];
  }
  [[nodiscard]] bool computes(LaunchId id) const {
    return launch(id).kind == LaunchKind::kSubgraph;
  }
  void find_positions();
  void find_pairs();
  [[nodiscard]] bool find_times(LaunchId id, Pair& pair) const;
  [[nodiscard]] int32_t ready_at(const LaunchInput& input) const;
  void fill(const Class& of, std::vector<Pair>& pairs);
  void close(std::vector<Pair> pairs, bool gathers);
  void name_parts();
  Launch merge(const Bucket& bucket);
  void rebuild();
  void remap_producers(const std::vector<LaunchId>& moved);

  const Plan& plan_;
  RankProgram& program_;
  int64_t target_;
  int32_t* next_key_;
  std::vector<int32_t> first_, last_;  // by launch: firings of lane 0 before its first, its last
  std::vector<int32_t> stretch_;       // by launch: of its first firing
  std::vector<std::vector<LaunchId>> writers_, readers_;  // by buffer
  std::vector<bool> changes_;                             // by launch
  std::map<Class, std::vector<Pair>> classes_;
  std::vector<Bucket> buckets_;
  std::map<std::pair<LaunchId, size_t>, int32_t> part_;  // by launch and first index of a bucket
  std::map<std::pair<LaunchId, BufferId>, LaunchId> writer_now_;  // old launch and output
};

void Bucketing::find_positions() {
  const size_t n = program_.launches.size();
  first_.assign(n, -1);
  last_.assign(n, 0);
  stretch_.assign(n, 0);
  int32_t computed = 0;
  int32_t stretch = 0;
  const Firing* before = nullptr;
  for (const Firing& f : program_.lanes[0].order) {
    const auto l = static_cast<size_t>(f.launch);
    const bool same = before != nullptr && before->micro_batch == f.micro_batch &&
                      launch(before->launch).phase == launch(f.launch).phase;
    if (!same) ++stretch;
    before = &f;
    if (first_[l] < 0) {
      first_[l] = computed;
      stretch_[l] = stretch;
    }
    last_[l] = computed;
    if (computes(f.launch)) ++computed;
  }
  writers_.resize(program_.buffers.size());
  readers_.resize(program_.buffers.size());
  for (size_t l = 0; l < n; ++l) {
    const auto id = static_cast<LaunchId>(l);
    for (BufferId b : program_.launches[l].outputs) {
      writers_[static_cast<size_t>(b)].push_back(id);
    }
    for (const LaunchInput& input : program_.launches[l].inputs) {
      readers_[static_cast<size_t>(input.buffer)].push_back(id);
    }
  }
}

/// -1 if another channel makes it.
int32_t Bucketing::ready_at(const LaunchInput& input) const {
  if (input.producer == kNoLaunch) return 0;
  int32_t ready = 0;
  const bool last = input.edge == EdgeKind::kLastMicroBatch;
  const std::vector<LaunchId> one = {input.producer};
  for (LaunchId w : last ? writers_[static_cast<size_t>(input.buffer)] : one) {
    if (!computes(w)) return -1;
    const auto i = static_cast<size_t>(w);
    ready = std::max(ready, (last ? last_[i] : first_[i]) + 1);
  }
  return ready;
}

/// Only what lane 0 makes and reads is moved, so that no channel comes to wait for another.
bool Bucketing::find_times(LaunchId id, Pair& pair) const {
  const Launch& l = launch(id);
  pair.ready = ready_at(l.inputs[pair.index]);
  if (pair.ready < 0) return false;
  const BufferId out = l.outputs[pair.index];
  if (writers_[static_cast<size_t>(out)].size() != 1) return false;
  for (LaunchId r : readers_[static_cast<size_t>(out)]) {
    if (!computes(r)) return false;
    if (first_[static_cast<size_t>(r)] >= pair.wanted) continue;
    pair.wanted = first_[static_cast<size_t>(r)];
    pair.reader = r;
  }
  return pair.reader != kNoLaunch;
}

void Bucketing::find_pairs() {
  changes_.assign(program_.launches.size(), false);
  for (size_t i = 0; i < program_.launches.size(); ++i) {
    const Launch& l = program_.launches[i];
    if (!may_change(plan_, l)) continue;
    std::vector<Pair> pairs;
    bool movable = true;
    for (size_t k = 0; k < l.inputs.size(); ++k) {
      const BufferId whole = l.kind == LaunchKind::kAllGather ? l.outputs[k] : l.inputs[k].buffer;
      Pair pair{static_cast<LaunchId>(i), k,
                program_.buffers[static_cast<size_t>(whole)].type.bytes()};
      movable = movable && find_times(pair.launch, pair);
      pairs.push_back(pair);
    }
    if (!movable) continue;
    changes_[i] = true;
    // What is gathered for one use is held until then: joined, it would be held longer.
    const bool for_use = l.kind == LaunchKind::kAllGather && fires_per_micro_batch(l.phase);
    const int32_t together = for_use ? -1 - static_cast<int32_t>(i) : stretch_[i];
    auto& all = classes_[{l.kind, l.communication.group, l.phase, l.communication.exact, together}];
    all.insert(all.end(), pairs.begin(), pairs.end());
  }
}

void Bucketing::fill(const Class& of, std::vector<Pair>& pairs) {
  const bool gathers = std::get<0>(of) == LaunchKind::kAllGather;
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
    return gathers ? std::tie(a.wanted, a.launch) < std::tie(b.wanted, b.launch)
                   : std::tie(a.ready, a.launch) < std::tie(b.ready, b.launch);
  });
  std::vector<Pair> open;
  std::set<BufferId> operands;
  int64_t bytes = 0;
  int32_t ready = 0;
  int32_t wanted = kNever;
  for (const Pair& p : pairs) {
    const BufferId operand = launch(p.launch).inputs[p.index].buffer;
    const bool joins = bytes + p.bytes <= target_ && !operands.contains(operand) &&
                       std::max(ready, p.ready) <= std::min(wanted, p.wanted);
    if (!open.empty() && !joins) {
      close(std::move(open), gathers);
      open = {};
      operands.clear();
      bytes = 0;
      ready = 0;
      wanted = kNever;
    }
    open.push_back(p);
    operands.insert(operand);
    bytes += p.bytes;
    ready = std::max(ready, p.ready);
    wanted = std::min(wanted, p.wanted);
  }
  if (!open.empty()) close(std::move(open), gathers);
}

void Bucketing::close(std::vector<Pair> pairs, bool gathers) {
  Bucket bucket;
  const auto first = std::min_element(
      pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.launch < b.launch; });
  bucket.place = first->launch;
  const bool for_use = gathers && fires_per_micro_batch(launch(first->launch).phase);
  // Its start counts from its place: a part that is read later is fetched later.
  if (for_use) bucket.place = pairs.front().reader;
  bucket.pairs = std::move(pairs);
  buckets_.push_back(std::move(bucket));
}

/// Several buckets may begin with one launch: its parts.
void Bucketing::name_parts() {
  std::map<LaunchId, int32_t> given;
  for (const Bucket& bucket : buckets_) {
    const Pair& first = bucket.pairs.front();
    part_[{first.launch, first.index}] = given[first.launch]++;
  }
}

Launch Bucketing::merge(const Bucket& bucket) {
  const Pair& first = bucket.pairs.front();
  Launch out = launch(first.launch);
  out.inputs.clear();
  out.outputs.clear();
  std::set<LaunchId> others;
  for (const Pair& p : bucket.pairs) {
    out.inputs.push_back(launch(p.launch).inputs[p.index]);
    out.outputs.push_back(launch(p.launch).outputs[p.index]);
    if (p.launch != first.launch) others.insert(p.launch);
  }
  const int32_t part = part_.at({first.launch, first.index});
  if (part > 0) {
    out.name += fmt::format(".{}", part);
    out.communication.key = (*next_key_)++;
  }
  if (!others.empty()) out.name += fmt::format("+{}", others.size());
  return out;
}

void Bucketing::rebuild() {
  std::multimap<LaunchId, size_t> at;  // by least old launch: where it stands in the new list
  for (size_t b = 0; b < buckets_.size(); ++b) {
    LaunchId least = buckets_[b].pairs.front().launch;
    for (const Pair& p : buckets_[b].pairs) least = std::min(least, p.launch);
    at.emplace(least, b);
  }
  std::vector<Launch> launches;
  std::vector<LaunchId> moved(program_.launches.size(), kNoLaunch);
  for (size_t i = 0; i < program_.launches.size(); ++i) {
    const auto id = static_cast<LaunchId>(i);
    const auto [begin, end] = at.equal_range(id);
    for (auto it = begin; it != end; ++it) {
      Bucket& bucket = buckets_[it->second];
      bucket.id = static_cast<LaunchId>(launches.size());
      for (const Pair& p : bucket.pairs) {
        writer_now_[{p.launch, launch(p.launch).outputs[p.index]}] = bucket.id;
      }
      launches.push_back(merge(bucket));
    }
    if (changes_[i]) continue;
    moved[i] = static_cast<LaunchId>(launches.size());
    launches.push_back(program_.launches[i]);
  }
  std::multimap<LaunchId, LaunchId> firing_at;  // old launch -> buckets that fire there
  for (const Bucket& b : buckets_) firing_at.emplace(b.place, b.id);
  std::vector<Firing> order;
  for (const Firing& f : program_.lanes[0].order) {
    const auto [begin, end] = firing_at.equal_range(f.launch);
    for (auto it = begin; it != end; ++it) order.push_back({it->second, f.micro_batch, 0});
    if (changes_[static_cast<size_t>(f.launch)]) continue;
    order.push_back({moved[static_cast<size_t>(f.launch)], f.micro_batch, 0});
  }
  program_.launches = std::move(launches);
  program_.lanes[0].order = std::move(order);
  remap_producers(moved);
}

void Bucketing::remap_producers(const std::vector<LaunchId>& moved) {
  for (Launch& l : program_.launches) {
    for (LaunchInput& input : l.inputs) {
      if (input.producer == kNoLaunch) continue;
      const auto bucket = writer_now_.find({input.producer, input.buffer});
      input.producer =
          bucket != writer_now_.end() ? bucket->second : moved[static_cast<size_t>(input.producer)];
    }
  }
}

}  // namespace

void bucket_collectives(Plan& plan, int64_t bytes) {
  int32_t next_key = 0;
  for (const RankProgram& program : plan.programs) {
    for (const Launch& l : program.launches) {
      next_key = std::max(next_key, l.communication.key + 1);
    }
  }
  for (RankProgram& program : plan.programs) Bucketing(plan, program, bytes, &next_key).run();
}

int32_t count_buckets(const Plan& plan, const RankProgram& program) {
  int32_t count = 0;
  for (const Launch& l : program.launches) {
    if (l.kind != LaunchKind::kSubgraph && may_change(plan, l)) ++count;
  }
  return count;
}

}  // namespace sgactor::graph

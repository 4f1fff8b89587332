// Random programs of one compute lane and two channels, laid out in memory as tightly as the order
// of all lanes allows, run to their end whatever the order of messages and completions.
#include "actors/core/pool_core.h"
#include "actors/core/subgraph_core.h"
#include "graph/base/hash.h"
#include "graph/plan/program_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

namespace sgactor::actors {
namespace {

using graph::LaunchId;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  int32_t below(int64_t n) {
    state_ = mix64(state_, 7);
    return static_cast<int32_t>(state_ % static_cast<uint64_t>(n));
  }

 private:
  uint64_t state_;
};

constexpr int32_t kNumMicroBatches = 2;

void add_launches(graph::RankProgram& p, Random& random) {
  const int32_t n = 6 + random.below(8);
  for (LaunchId l = 0; l < n; ++l) {
    graph::Launch launch;
    launch.name = "l" + std::to_string(l);
    launch.phase = graph::Phase::kForward;
    launch.lane = l == 0 ? 0 : std::max(0, random.below(5) - 2);
    if (launch.lane > 0) launch.kind = graph::LaunchKind::kAllReduce;
    std::set<LaunchId> producers;
    for (int i = 0; l > 0 && i < 2; ++i) producers.insert(random.below(l));
    for (LaunchId from : producers) {
      launch.inputs.push_back({from, from, graph::EdgeKind::kSameMicroBatch});
    }
    launch.outputs = {l};
    p.launches.push_back(launch);
    graph::Buffer b;
    b.name = launch.name;
    b.bytes = 256 * (1 + random.below(3));
    p.buffers.push_back(b);
  }
}

/// Starts between what the inputs need and where the launch stands among those of lane 0.
void order_lanes(graph::RankProgram& p, Random& random) {
  p.lanes.resize(3);
  std::vector<int32_t> last(3, 0);
  std::map<std::pair<LaunchId, int32_t>, int32_t> needed;  // firings of lane 0 behind it
  for (int32_t m = 0; m < kNumMicroBatches; ++m) {
    for (LaunchId l = 0; l < std::ssize(p.launches); ++l) {
      const auto lane = static_cast<size_t>(p.launches[static_cast<size_t>(l)].lane);
      const auto here = static_cast<int32_t>(p.lanes[0].order.size());
      int32_t start = last[lane];
      for (const graph::LaunchInput& in : p.launches[static_cast<size_t>(l)].inputs) {
        start = std::max(start, needed[{in.producer, m}]);
      }
      if (lane > 0) {
        p.lanes[lane].kind = graph::LaneKind::kCommunication;
        start += random.below(here - start + 1);
        last[lane] = start;
      } else {
        start = 0;
      }
      p.lanes[lane].order.push_back({l, m, start});
      needed[{l, m}] = lane > 0 ? start : here + 1;
    }
  }
}

struct Range {
  int32_t first = INT32_MAX, last = -1;
};

/// First fit in random order: bytes are shared wherever the order of all lanes allows it.
void lay_out(graph::RankProgram& p, Random& random) {
  std::map<std::pair<graph::BufferId, int32_t>, Range> ranges;  // by micro-batch
  graph::for_each_touch(p, [&](graph::BufferId b, const graph::Firing& f, int32_t at, bool) {
    Range& r = ranges[{b, f.micro_batch}];
    r.first = std::min(r.first, at);
    r.last = std::max(r.last, at);
  });
  struct Placed {
    int64_t begin, end;
    std::vector<Range> live;
  };
  std::vector<Placed> placed;
  std::vector<graph::BufferId> todo;
  for (graph::BufferId b = 0; b < std::ssize(p.buffers); ++b) {
    todo.insert(todo.begin() + random.below(std::ssize(todo) + 1), b);
  }
  for (const graph::BufferId b : todo) {
    graph::Buffer& buffer = p.buffers[static_cast<size_t>(b)];
    buffer.num_slots = ranges[{b, 0}].last < ranges[{b, 1}].first ? 1 : kNumMicroBatches;
    for (int32_t slot = 0; slot < buffer.num_slots; ++slot) {
      Placed here{0, buffer.bytes, {}};
      for (int32_t m = slot; m < kNumMicroBatches; m += buffer.num_slots) {
        here.live.push_back(ranges[{b, m}]);
      }
      for (bool moved = true; moved;) {
        moved = false;
        for (const Placed& other : placed) {
          const bool meet = std::any_of(here.live.begin(), here.live.end(), [&](const Range& x) {
            return std::any_of(other.live.begin(), other.live.end(), [&](const Range& y) {
              return x.first <= y.last && y.first <= x.last;
            });
          });
          if (!meet || here.begin >= other.end || other.begin >= here.end) continue;
          here.begin = other.end;
          here.end = here.begin + buffer.bytes;
          moved = true;
        }
      }
      buffer.offsets.push_back(here.begin);
      placed.push_back(here);
    }
  }
}

graph::Plan random_plan(Random& random) {
  graph::Plan plan;
  graph::RankProgram& p = plan.programs.emplace_back();
  p.num_micro_batches = kNumMicroBatches;
  add_launches(p, random);
  order_lanes(p, random);
  lay_out(p, random);
  return plan;
}

/// The actors of a rank, one message or completion at a time.
class World {
 public:
  World(const graph::Plan& plan, Random& random)
      : program_(plan.programs[0]),
        random_(random),
        schedule_(build_schedule(plan, 0).value()),
        pool_(program_, schedule_) {
    for (LaunchId l = 0; l < std::ssize(program_.launches); ++l) {
      cores_.emplace_back(0, l, schedule_.launches[static_cast<size_t>(l)]);
    }
  }

  /// True if everything of the step has been executed and all leases have come back.
  bool run_step(int64_t step) {
    step_ = step;
    next_.assign(3, 0);
    next_[0] = 1;  // the feed
    for (const Gate& g : schedule_.opens_at_begin) post({g.launch, g.input, g.micro_batch, {}});
    while (true) {
      std::vector<size_t> can_fire;
      for (size_t lane = 0; lane < 3; ++lane) {
        if (may_fire(lane)) can_fire.push_back(lane);
      }
      const size_t n = can_fire.size() + messages_.size() + running_.size();
      if (n == 0) break;
      auto pick = static_cast<size_t>(random_.below(static_cast<int64_t>(n)));
      if (pick < can_fire.size()) {
        fire(can_fire[pick]);
      } else if (pick -= can_fire.size(); pick < messages_.size()) {
        deliver(pick);
      } else {
        complete(pick - messages_.size());
      }
    }
    bool whole = pool_.stats().num_held == 0;
    for (size_t lane = 0; lane < 3; ++lane) {
      whole = whole && next_[lane] + 1 == std::ssize(schedule_.lanes[lane]);
    }
    return whole;
  }

 private:
  using Lease = std::shared_ptr<LanePoint>;  // last use; its end gives back
  struct Message {
    LaunchId launch;
    int32_t input;
    int32_t micro_batch;
    Lease lease;
  };
  struct Execution {
    bool granted = false;
    std::vector<Lease> inputs, own;
  };
  struct Running {
    LaunchId launch;
    int32_t micro_batch;
  };

  void post(Message m) { messages_.push_back(std::move(m)); }
  Execution& execution(LaunchId l, int32_t m) { return executions_[{l, m}]; }
  const LaunchWiring& wiring(LaunchId l) const {
    return schedule_.launches[static_cast<size_t>(l)];
  }

  void take_grants(std::vector<LeaseGrant> grants) {
    for (const LeaseGrant& g : grants) {
      const LaneItem& item =
          schedule_.lanes[static_cast<size_t>(g.lane)][static_cast<size_t>(g.at.position)];
      Execution& e = execution(item.launch, item.micro_batch);
      e.granted = true;
      for (size_t i = 0; i < g.leases.size(); ++i) {
        const graph::Buffer& b = program_.buffers[static_cast<size_t>(item.leases[i].buffer)];
        const int64_t begin = b.offsets[static_cast<size_t>(item.leases[i].slot)];
        for (const auto& [other, end] : out_) {
          EXPECT_TRUE(begin >= end || other >= begin + b.bytes) << "bytes are out twice";
        }
        out_[begin] = begin + b.bytes;
        e.own.push_back(Lease(new LanePoint(g.at), [this, id = g.leases[i], begin](LanePoint* at) {
          out_.erase(begin);
          std::vector<LeaseGrant> more;
          EXPECT_TRUE(pool_.release(id, *at, &more).ok());
          delete at;
          later_.insert(later_.end(), more.begin(), more.end());
        }));
      }
    }
    while (!later_.empty()) take_grants(std::exchange(later_, {}));
  }

  void ask(LaunchId l, int32_t m) {
    if (!cores_[static_cast<size_t>(l)].claim_leases(step_, m)) return;
    std::vector<LeaseGrant> grants;
    const LaunchWiring& w = wiring(l);
    const LanePoint at{step_, w.positions[static_cast<size_t>(m)]};
    EXPECT_TRUE(pool_.request(w.lane, at, &grants).ok());
    take_grants(std::move(grants));
  }

  void deliver(size_t index) {
    const Message m = messages_[index];
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(index));
    const auto taken =
        cores_[static_cast<size_t>(m.launch)].on_input(m.input, step_, m.micro_batch);
    ASSERT_TRUE(taken.ok()) << taken.status().to_string();
    if (m.lease) execution(m.launch, m.micro_batch).inputs.push_back(m.lease);
    if (taken->arrival == SubgraphCore::Arrival::kComplete) ask(m.launch, m.micro_batch);
  }

  bool may_fire(size_t lane) {
    const LaneItem& item = schedule_.lanes[lane][static_cast<size_t>(next_[lane])];
    if (item.kind != ItemKind::kLaunch) return false;
    if (wiring(item.launch).awaited.empty()) ask(item.launch, item.micro_batch);
    return execution(item.launch, item.micro_batch).granted;
  }

  void hand_on(LaunchId l, int32_t m, bool complete) {
    for (const Consumer& c : wiring(l).consumers[0]) {
      if ((c.on_completion || wiring(l).communicates) != complete) continue;
      post({c.launch, c.input, m, execution(l, m).own[0]});
    }
  }

  void fire(size_t lane) {
    const LaneItem& item = schedule_.lanes[lane][static_cast<size_t>(next_[lane])];
    const LanePoint at{step_, next_[lane]++};
    Execution& e = execution(item.launch, item.micro_batch);
    e.granted = false;
    EXPECT_TRUE(cores_[static_cast<size_t>(item.launch)].on_fired(step_, item.micro_batch).ok());
    running_.push_back({item.launch, item.micro_batch});
    for (const Gate& g : item.opens) post({g.launch, g.input, g.micro_batch, {}});
    if (lane > 0) return;
    for (const Lease& lease : e.own) *lease = std::max(*lease, at);
    for (size_t i = 0; i < e.inputs.size(); ++i) *e.inputs[i] = std::max(*e.inputs[i], at);
    hand_on(item.launch, item.micro_batch, false);
  }

  /// Of lane 0 in order, of channels in any.
  void complete(size_t index) {
    const bool channel = wiring(running_[index].launch).communicates;
    for (size_t i = 0; !channel && i < index; ++i) {
      if (!wiring(running_[i].launch).communicates) index = i;
    }
    const Running r = running_[index];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    EXPECT_TRUE(cores_[static_cast<size_t>(r.launch)].on_complete(step_, r.micro_batch).ok());
    hand_on(r.launch, r.micro_batch, true);
    Execution& e = execution(r.launch, r.micro_batch);
    e.own.clear();
    e.inputs.clear();
    std::vector<LeaseGrant> grants = std::exchange(later_, {});
    if (!channel) {
      const int32_t position = wiring(r.launch).positions[static_cast<size_t>(r.micro_batch)];
      pool_.on_progress(0, {step_, position}, &grants);
    }
    take_grants(std::move(grants));
  }

  const graph::RankProgram& program_;
  Random& random_;
  Schedule schedule_;
  PoolCore pool_;
  std::vector<SubgraphCore> cores_;
  int64_t step_ = 0;
  std::vector<int32_t> next_;
  std::vector<Message> messages_;
  std::vector<Running> running_;
  std::map<int64_t, int64_t> out_;  // bytes under lease
  std::vector<LeaseGrant> later_;   // grants that a release has made
  std::map<std::pair<LaunchId, int32_t>, Execution> executions_;
};

TEST(LanesProperty, NoOrderOfMessagesAndCompletionsStopsAStep) {
  int32_t with_channels = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    const graph::Plan plan = random_plan(random);
    with_channels += plan.programs[0].lanes[1].order.empty() ? 0 : 1;
    for (int run = 0; run < 4; ++run) {
      World world(plan, random);
      for (int64_t step = 3; step <= 5; ++step) {
        ASSERT_TRUE(world.run_step(step)) << "seed " << seed << " step " << step;
      }
    }
  }
  EXPECT_GT(with_channels, 200);
}

}  // namespace
}  // namespace sgactor::actors

// Channels that keep a log, under members that die at any moment and are replaced.
#include "actors/runtime/channel_log.h"

#include "kernels/cpu/cpu_backend.h"
#include "tests/actor/faulty_backend.h"
#include "transport/inproc/inproc_fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>

namespace sgactor::actors {
namespace {

constexpr int64_t kPiece = 6;
constexpr int32_t kMicroBatches = 3;
constexpr int32_t kNumLanes = 3;  // beside the compute lane: gathers, reductions, neighbours
constexpr std::chrono::seconds kPatience{30};
constexpr int32_t kHidden = 100;  // added to the number of members

enum Op : int32_t { kGather = 0, kScatter, kReduceInPlace, kSend, kRecv, kNumOps };
// One buffer each, and the output of the gather, the piece, and what is received.
enum Place : int32_t { kShard = 0, kFull, kWide, kPieceOut, kSum, kSent, kReceived, kNumPlaces };

graph::Launch launch(Op op, int32_t lane, graph::LaunchKind kind, Place in, Place out,
                     int32_t peer = -1, int32_t key = -1) {
  graph::Launch l;
  l.name = "op " + std::to_string(op);
  l.kind = kind;
  l.lane = lane;
  if (kind != graph::LaunchKind::kRecv) l.inputs.push_back({in, graph::kNoLaunch, {}});
  if (kind != graph::LaunchKind::kSend) l.outputs.push_back(out);
  l.communication.group = 0;
  l.communication.peer = peer;
  l.communication.key = key < 0 ? op : key;
  return l;
}

/// Every rank has a program of its own: it sends to the one behind it.
graph::Plan ring_plan(int32_t n) {
  graph::Plan plan;
  plan.mesh.dp = n;
  plan.groups.push_back({"dp", graph::MeshAxis::kDp, {}});
  const auto buffer = [](graph::BufferKind kind, int64_t elements) {
    graph::Buffer b;
    b.type = {DType::kF32, {elements}};
    b.kind = kind;
    b.bytes = 4 * elements;
    return b;
  };
  using Kind = graph::BufferKind;
  for (int32_t r = 0; r < n; ++r) {
    plan.ranks.push_back({0, r, 0, r});
    graph::RankProgram& p = plan.programs.emplace_back();
    p.buffers = {buffer(Kind::kParameter, kPiece),      buffer(Kind::kActivation, n * kPiece),
                 buffer(Kind::kActivation, n * kPiece), buffer(Kind::kActivation, kPiece),
                 buffer(Kind::kAccumulator, kPiece),    buffer(Kind::kActivation, kPiece),
                 buffer(Kind::kActivation, kPiece)};
    const int32_t before = (r + n - 1) % n;
    p.launches = {
        launch(kGather, 1, graph::LaunchKind::kAllGather, kShard, kFull),
        launch(kScatter, 2, graph::LaunchKind::kReduceScatter, kWide, kPieceOut),
        launch(kReduceInPlace, 2, graph::LaunchKind::kAllReduce, kSum, kSum),
        launch(kSend, 3, graph::LaunchKind::kSend, kSent, kSent, (r + 1) % n, 100 + r),
        launch(kRecv, 3, graph::LaunchKind::kRecv, kReceived, kReceived, before, 100 + before)};
    p.lanes.resize(kNumLanes + 1);
  }
  return plan;
}

/// What a rank puts into a place before the operation that reads it.
float value(int32_t rank, int32_t place, int64_t step, int32_t m, int64_t i) {
  return static_cast<float>(1000 * step + 100 * m + 10 * place) + static_cast<float>(rank) +
         static_cast<float>(i) / 8;
}

class Sink final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t token, const Status& status, kernels::LaunchTiming) noexcept override {
    const std::lock_guard lock(mutex_);
    ++heard_[token];
    if (failure_.ok()) failure_ = status;
    changed_.notify_all();
  }
  bool wait_for(size_t tokens) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return heard_.size() >= tokens; });
  }
  [[nodiscard]] size_t num_heard() {
    const std::lock_guard lock(mutex_);
    return heard_.size();
  }
  [[nodiscard]] bool each_once() {
    const std::lock_guard lock(mutex_);
    return std::all_of(heard_.begin(), heard_.end(), [](const auto& h) { return h.second == 1; });
  }
  [[nodiscard]] Status failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, int> heard_;
  Status failure_;
};

struct Firing {
  Op op;
  int32_t lane;
  int32_t micro_batch;
};

/// All operations of a step; lanes are interleaved by `rng`, each in its own order.
std::vector<Firing> firings(std::mt19937& rng) {
  std::array<std::vector<Firing>, kNumLanes> lanes;
  for (int32_t m = 0; m < kMicroBatches; ++m) {
    lanes[0].push_back({kGather, 1, m});
    lanes[1].push_back({kScatter, 2, m});
    lanes[1].push_back({kReduceInPlace, 2, m});
    lanes[2].push_back({kSend, 3, m});
    lanes[2].push_back({kRecv, 3, m});
  }
  std::vector<Firing> out;
  while (true) {
    std::vector<size_t> left;
    for (size_t l = 0; l < lanes.size(); ++l) {
      if (!lanes[l].empty()) left.push_back(l);
    }
    if (left.empty()) return out;
    std::vector<Firing>& lane = lanes[left[rng() % left.size()]];
    out.push_back(lane.front());
    lane.erase(lane.begin());
  }
}
constexpr size_t kFirings = size_t{kNumOps} * kMicroBatches;

/// One process with one rank.
struct Member {
  Member(const graph::Plan& plan, kernels::Backend& backend, int32_t rank,
         const std::shared_ptr<transport::InprocNetwork>& network, transport::PeerId peer)
      : rank(rank), n(static_cast<int32_t>(plan.ranks.size())) {
    fabric = std::move(*transport::InprocFabric::create(network, peer));
    collectives = std::make_unique<transport::Collectives>(*fabric);
    for (int32_t lane = 1; lane <= kNumLanes; ++lane) {
      const ChannelSpec spec{&plan, rank, lane, &backend, collectives.get()};
      channels.push_back(create_logged_channel(spec, std::move(*create_channel(spec))));
    }
    memory.resize(kMicroBatches);
    for (auto& places : memory) {
      places.resize(kNumPlaces);
      for (int32_t p = 0; p < kNumPlaces; ++p) {
        const bool wide = p == kFull || p == kWide;
        places[static_cast<size_t>(p)].resize(static_cast<size_t>(wide ? n * kPiece : kPiece));
      }
    }
  }
  /// The process dies: what it had under way ends for the others.
  ~Member() {
    for (const auto& c : channels) c->abort(make_status(Code::kCancelled, "dead"));
    channels.clear();
    collectives.reset();
    fabric.reset();
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  std::vector<float>& place(int32_t m, int32_t p) {
    return memory[static_cast<size_t>(m)][static_cast<size_t>(p)];
  }
  void begin(int64_t s, std::mt19937& rng) {
    step = s;
    order = firings(rng);
    started = 0;
    sink = std::make_unique<Sink>();
    for (int32_t m = 0; m < kMicroBatches; ++m) {
      for (int32_t p = 0; p < kNumPlaces; ++p) {
        std::vector<float>& v = place(m, p);
        for (size_t i = 0; i < v.size(); ++i) {
          v[i] = value(rank, p, s, m, static_cast<int64_t>(i));
        }
      }
    }
  }
  /// Starts up to `count` more operations.
  void start(size_t count) {
    for (; count > 0 && started < order.size(); --count, ++started) {
      const Firing& f = order[started];
      const auto at = [&](Place p) {
        return reinterpret_cast<std::byte*>(place(f.micro_batch, p).data());
      };
      std::vector<std::byte*> in, out;
      if (f.op == kGather) in = {at(kShard)}, out = {at(kFull)};
      if (f.op == kScatter) in = {at(kWide)}, out = {at(kPieceOut)};
      if (f.op == kReduceInPlace) in = {at(kSum)}, out = {at(kSum)};
      if (f.op == kSend) in = {at(kSent)};
      if (f.op == kRecv) out = {at(kReceived)};
      channels[static_cast<size_t>(f.lane - 1)]->start(f.op, step, f.micro_batch, in, out, started,
                                                       *sink);
    }
  }
  /// What is complete may be overwritten by whatever uses the slot next.
  void spoil_inputs() {
    for (int32_t m = 0; m < kMicroBatches; ++m) {
      for (const Place p : {kWide, kSent}) std::fill(place(m, p).begin(), place(m, p).end(), -1.0F);
    }
  }
  void check() {
    ASSERT_TRUE(sink->failure().ok()) << sink->failure().to_string();
    EXPECT_TRUE(sink->each_once());
    for (int32_t m = 0; m < kMicroBatches; ++m) {
      for (int64_t i = 0; i < n * kPiece; ++i) {
        EXPECT_EQ(place(m, kFull)[static_cast<size_t>(i)],
                  value(static_cast<int32_t>(i / kPiece), kShard, step, m, i % kPiece));
      }
      for (int64_t i = 0; i < kPiece; ++i) {
        std::vector<float> wide, sum;
        for (int32_t r = 0; r < n; ++r) {
          wide.push_back(value(r, kWide, step, m, rank * kPiece + i));
          sum.push_back(value(r, kSum, step, m, i));
        }
        EXPECT_EQ(place(m, kPieceOut)[static_cast<size_t>(i)], tree(wide));
        EXPECT_EQ(place(m, kSum)[static_cast<size_t>(i)], tree(sum));
        EXPECT_EQ(place(m, kReceived)[static_cast<size_t>(i)],
                  value((rank + n - 1) % n, kSent, step, m, i));
      }
    }
  }
  static float tree(std::vector<float> v) {
    while (v.size() > 1) {
      std::vector<float> up;
      for (size_t i = 0; i < v.size(); i += 2) {
        up.push_back(i + 1 < v.size() ? v[i] + v[i + 1] : v[i]);
      }
      v = std::move(up);
    }
    return v[0];
  }

  int32_t rank, n;
  bool joined = false;  // has had routes
  int64_t step = 0;
  std::vector<Firing> order;
  size_t started = 0;
  std::unique_ptr<Sink> sink;
  std::vector<std::vector<std::vector<float>>> memory;  // micro-batch, place
  std::unique_ptr<transport::Fabric> fabric;
  std::unique_ptr<transport::Collectives> collectives;
  std::vector<std::unique_ptr<Channel>> channels;
};

class ChannelLogTest : public testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    n_ = GetParam() % kHidden;
    plan_ = ring_plan(n_);
    visible_ = std::move(*kernels::create_cpu_backend({}));
    hidden_ = std::make_unique<testing_support::HiddenBackend>(*visible_);
    backend_ = is_hidden() ? hidden_.get() : visible_.get();
    for (int32_t r = 0; r < n_; ++r) members_.push_back(fresh(r));
    connect();
  }
  void TearDown() override {
    // Nobody waits for a member that is gone already.
    for (const auto& m : members_) {
      for (const auto& c : m->channels) c->abort(make_status(Code::kCancelled, "over"));
    }
    members_.clear();
  }
  /// Memory as a GPU's: channels copy it into the host's and back.
  static bool is_hidden() { return GetParam() > kHidden; }
  std::unique_ptr<Member> fresh(int32_t rank) {
    return std::make_unique<Member>(plan_, *backend_, rank, network_, next_peer_++);
  }
  /// The routes of a new generation, in place.
  void connect() {
    ++generation_;
    std::vector<std::future<Status>> answers;
    for (const auto& from : members_) {
      for (const auto& to : members_) {
        if (from == to) continue;
        auto promise = std::make_shared<std::promise<Status>>();
        answers.push_back(promise->get_future());
        from->fabric->connect(to->fabric->self(), to->fabric->address(),
                              [promise](const Status& s) { promise->set_value(s); });
      }
    }
    for (auto& a : answers) ASSERT_TRUE(a.get().ok());
    transport::RouteTable routes;
    routes.generation = generation_;
    for (const auto& m : members_) routes.peer_of_rank[m->rank] = m->fabric->self();
    for (const auto& m : members_) {
      m->collectives->set_routes(routes);
      m->joined = true;
    }
  }
  void resume() {
    std::vector<std::pair<Member*, size_t>> all;
    for (const auto& m : members_) {
      for (size_t c = 0; c < m->channels.size(); ++c) all.emplace_back(m.get(), c);
    }
    std::shuffle(all.begin(), all.end(), rng_);
    for (const auto& [m, c] : all) m->channels[c]->resume(static_cast<int64_t>(generation_));
  }
  /// The rank's process dies; another takes its place and begins the step.
  void replace(size_t victim, int64_t step) {
    const int32_t rank = members_[victim]->rank;
    members_[victim].reset();
    members_[victim] = fresh(rank);
    members_[victim]->begin(step, rng_);
  }
  void start_some() {
    for (const auto& m : members_) {
      if (m->joined) m->start(rng_() % (kFirings + 1));
    }
  }
  void finish_step() {
    for (const auto& m : members_) m->start(kFirings);
    for (const auto& m : members_) {
      ASSERT_TRUE(m->sink->wait_for(kFirings))
          << "rank " << m->rank << ": " << m->sink->num_heard();
    }
    for (const auto& m : members_) {
      Sink drained;
      for (size_t c = 0; c < m->channels.size(); ++c) m->channels[c]->drain(c, drained);
      EXPECT_TRUE(drained.wait_for(m->channels.size()));
      EXPECT_TRUE(drained.failure().ok());
      m->check();
      for (const auto& c : m->channels) c->forget(m->step);
    }
  }

  std::mt19937 rng_{20};
  int32_t n_ = 2;
  graph::Plan plan_;
  std::unique_ptr<kernels::Backend> visible_, hidden_;
  kernels::Backend* backend_ = nullptr;
  std::shared_ptr<transport::InprocNetwork> network_ = std::make_shared<transport::InprocNetwork>();
  transport::PeerId next_peer_ = 1;
  transport::Generation generation_ = 0;
  std::vector<std::unique_ptr<Member>> members_;
};

TEST_P(ChannelLogTest, WithoutFaultsNothingChanges) {
  resume();
  for (int64_t step = 1; step <= 4; ++step) {
    for (const auto& m : members_) m->begin(step, rng_);
    finish_step();
    const int64_t now = members_[0]->channels[1]->log_high_water();
    // Copies of the scattered gradient and of the sum, and none that is kept from step to step.
    EXPECT_EQ(now, kMicroBatches * 4 * (n_ + 1) * kPiece);
    EXPECT_EQ(members_[0]->channels[0]->log_high_water(),
              is_hidden() ? kMicroBatches * 4 * kPiece : 0)
        << "a shard is state, not copied where it lies in the host's memory";
  }
}

TEST_P(ChannelLogTest, WhatIsAskedForIsKeptUntilTheNextStepThatIs) {
  std::vector<Channel::Keeps> keeps(kNumOps, Channel::Keeps::kNone);
  keeps[kGather] = Channel::Keeps::kOnce;
  keeps[kScatter] = Channel::Keeps::kEach;
  for (const auto& m : members_) {
    for (const auto& c : m->channels) c->keep_results(keeps, 2);
  }
  resume();
  for (int64_t step = 1; step <= 3; ++step) {
    for (const auto& m : members_) m->begin(step, rng_);
    finish_step();
  }
  Member& m = *members_[0];
  EXPECT_EQ(m.channels[0]->kept(kGather, 0, 3), nullptr) << "not every second step";
  const auto gathered = m.channels[0]->kept(kGather, 2, 2);
  ASSERT_NE(gathered, nullptr);
  EXPECT_EQ((*gathered)[0].size(), static_cast<size_t>(4 * n_ * kPiece));
  for (int32_t batch = 0; batch < kMicroBatches; ++batch) {
    const auto piece = m.channels[1]->kept(kScatter, batch, 2);
    ASSERT_NE(piece, nullptr);
    std::vector<float> all;
    for (int32_t r = 0; r < n_; ++r) all.push_back(value(r, kWide, 2, batch, 0));
    EXPECT_EQ(*reinterpret_cast<const float*>((*piece)[0].data()), Member::tree(all));
  }
  EXPECT_EQ(m.channels[1]->kept(kReduceInPlace, 0, 2), nullptr);
  const Channel::Results before = *gathered;
  for (const auto& member : members_) member->begin(4, rng_);
  finish_step();
  ASSERT_NE(m.channels[0]->kept(kGather, 2, 4), nullptr);
  EXPECT_EQ(*gathered, before) << "whoever reads it is not done";
}

TEST_P(ChannelLogTest, AMemberIsReplacedAtAnyMoment) {
  resume();
  for (int64_t step = 1; step <= 40; ++step) {
    SCOPED_TRACE(step);
    for (const auto& m : members_) m->begin(step, rng_);
    // Before the first operation, after the last, and anywhere between.
    if (step % 10 == 1) {
      for (const auto& m : members_) m->start(kFirings);
    } else if (step % 10 != 2) {
      start_some();
    }
    const size_t victim = rng_() % members_.size();
    replace(victim, step);
    if (step % 4 == 0) start_some();  // survivors learn of it late
    connect();
    resume();
    ASSERT_NO_FATAL_FAILURE(finish_step());
  }
}

TEST_P(ChannelLogTest, WhatIsDoneIsReplayedFromTheLog) {
  resume();
  for (const auto& m : members_) m->begin(1, rng_);
  for (const auto& m : members_) m->start(kFirings);
  for (const auto& m : members_) ASSERT_TRUE(m->sink->wait_for(kFirings));
  // The plan uses those slots again before the step commits.
  for (size_t r = 1; r < members_.size(); ++r) members_[r]->spoil_inputs();
  replace(0, 1);
  connect();
  resume();
  finish_step();
}

TEST_P(ChannelLogTest, ASecondFaultBeginsAgain) {
  resume();
  for (int64_t step = 1; step <= 25; ++step) {
    SCOPED_TRACE(step);
    for (const auto& m : members_) m->begin(step, rng_);
    start_some();
    for (int fault = 0; fault < 2; ++fault) {
      replace(rng_() % members_.size(), step);
      connect();
      resume();
      if (fault == 0) start_some();
    }
    ASSERT_NO_FATAL_FAILURE(finish_step());
  }
}

TEST_P(ChannelLogTest, AnAbortEndsWhatIsSuspended) {
  resume();
  for (const auto& m : members_) m->begin(1, rng_);
  const size_t last = members_.size() - 1;
  for (size_t r = 0; r < last; ++r) members_[r]->start(kFirings);
  members_.pop_back();
  for (const auto& m : members_) {
    // Its neighbours aside, whoever is left may be through with sends and receives.
    EXPECT_FALSE(m->channels[0]->idle());
    EXPECT_FALSE(m->channels[1]->idle());
    for (const auto& c : m->channels) {
      c->abort(make_status(Code::kCancelled, "the run is over"));
      c->wait();
      EXPECT_TRUE(c->idle());
    }
    ASSERT_TRUE(m->sink->wait_for(kFirings));
    EXPECT_TRUE(m->sink->each_once());
    const Code code = m->sink->failure().code();
    EXPECT_TRUE(code == Code::kCancelled || code == Code::kDisconnected);
  }
}

TEST_P(ChannelLogTest, ForgettingDoesNotWaitForReplays) {
  resume();
  for (const auto& m : members_) m->begin(1, rng_);
  for (const auto& m : members_) m->start(kFirings);
  for (const auto& m : members_) ASSERT_TRUE(m->sink->wait_for(kFirings));
  connect();
  // Only one of them starts again; nobody answers it.
  for (const auto& c : members_[0]->channels) {
    c->resume(static_cast<int64_t>(generation_));
    Sink drained;
    c->drain(0, drained);
    EXPECT_EQ(drained.num_heard(), 1U);
  }
  for (const auto& m : members_) {
    for (const auto& c : m->channels) c->forget(1);
  }
  // In the next generation they end, and a step goes through.
  connect();
  resume();
  for (const auto& m : members_) m->begin(2, rng_);
  finish_step();
}

INSTANTIATE_TEST_SUITE_P(Members, ChannelLogTest, testing::Values(2, 4, kHidden + 2, kHidden + 4));

}  // namespace
}  // namespace sgactor::actors

#include "actors/runtime/channel_log.h"

#include "actors/runtime/channel_operations.h"
#include "actors/runtime/gradient_check.h"
#include "graph/base/hash.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sgactor::actors {
namespace {

/// What a launch reads and writes, in bytes of the backend's storage.
struct Footprint {
  struct Input {
    size_t bytes = 0;
    bool persistent = false;  // keeps its content until the commit
  };
  std::vector<Input> inputs;
  std::vector<size_t> outputs;
  bool own = false;                         // own_posts
  graph::LaunchId same = graph::kNoLaunch;  // the first of the lane that brings what this one does
};

/// The first launch before `l` of its lane that gathers the same.
graph::LaunchId first_alike(const graph::RankProgram& program, size_t l) {
  const graph::Launch& launch = program.launches[l];
  for (size_t k = 0; k < l; ++k) {
    const graph::Launch& other = program.launches[k];
    if (other.lane != launch.lane || other.kind != launch.kind ||
        other.communication.group != launch.communication.group ||
        other.outputs.size() != launch.outputs.size() ||
        other.inputs.size() != launch.inputs.size()) {
      continue;
    }
    bool alike = true;
    for (size_t i = 0; i < launch.inputs.size(); ++i) {
      alike = alike && other.inputs[i].buffer == launch.inputs[i].buffer;
    }
    for (size_t i = 0; i < launch.outputs.size(); ++i) {
      const auto type = [&](graph::BufferId b) {
        return program.buffers[static_cast<size_t>(b)].type;
      };
      alike = alike && type(other.outputs[i]) == type(launch.outputs[i]);
    }
    if (alike) return static_cast<graph::LaunchId>(k);
  }
  return static_cast<graph::LaunchId>(l);
}

std::vector<Footprint> footprints(const ChannelSpec& spec) {
  const auto index = static_cast<size_t>(spec.plan->ranks[static_cast<size_t>(spec.rank)].program);
  const graph::RankProgram& program = spec.plan->programs[index];
  std::set<graph::BufferId> written;
  for (const graph::Launch& l : program.launches) {
    if (l.phase != graph::Phase::kUpdate) written.insert(l.outputs.begin(), l.outputs.end());
  }
  const bool staged = !spec.backend->host_visible();
  const auto bytes = [&](graph::BufferId b) {
    const graph::Buffer& buffer = program.buffers[static_cast<size_t>(b)];
    return static_cast<size_t>(staged ? buffer.type.bytes() : buffer.bytes);
  };
  std::vector<Footprint> out(program.launches.size());
  const std::vector<bool> own = own_posts(*spec.plan, program);
  for (size_t l = 0; l < program.launches.size(); ++l) {
    const graph::Launch& launch = program.launches[l];
    if (launch.lane != spec.lane) continue;
    out[l].own = own[l];
    out[l].same = first_alike(program, l);
    for (const graph::LaunchInput& in : launch.inputs) {
      const graph::BufferKind kind = program.buffers[static_cast<size_t>(in.buffer)].kind;
      // Staged, it lies in memory that the next operation uses again.
      const bool state =
          !staged && (kind == graph::BufferKind::kParameter || kind == graph::BufferKind::kMoment);
      out[l].inputs.push_back({bytes(in.buffer), state && !written.contains(in.buffer)});
    }
    for (const graph::BufferId b : launch.outputs) out[l].outputs.push_back(bytes(b));
  }
  return out;
}

class LoggedChannel final : public Channel, private kernels::CompletionSink {
 public:
  LoggedChannel(const ChannelSpec& spec, std::unique_ptr<Channel> inner)
      : footprints_(footprints(spec)),
        described_(describe_operations(spec)),
        inner_(std::move(inner)) {}
  ~LoggedChannel() override { wait(); }
  LoggedChannel(const LoggedChannel&) = delete;
  LoggedChannel& operator=(const LoggedChannel&) = delete;

  void start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
             std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
             uint64_t token, kernels::CompletionSink& sink) override;
  void drain(uint64_t token, kernels::CompletionSink& sink) override;
  void set_generation(int64_t generation) override { inner_->set_generation(generation); }
  void abort(const Status& why) override;
  bool idle() override {
    const std::lock_guard lock(mutex_);
    return is_idle();
  }
  void wait() override {
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [this] { return is_idle(); });
    }
    inner_->wait();
  }
  void list(std::vector<ChannelOperation>& out) const override;
  void resume(int64_t generation) override;
  void forget(int64_t step) override;
  [[nodiscard]] uint64_t posted(int64_t step) const override;
  void keep_results(const std::vector<Keeps>& launches, int64_t interval) override {
    keeps_ = launches;
    keep_interval_ = interval;
  }
  [[nodiscard]] std::shared_ptr<const Results> kept(graph::LaunchId launch, int32_t micro_batch,
                                                    int64_t step) const override;
  void flip_bit() override { flips_ = true; }
  void on_suspended(std::function<void(const Status&)> listener) override {
    listener_ = std::move(listener);
  }
  [[nodiscard]] int64_t log_high_water() const override {
    const std::lock_guard lock(mutex_);
    return high_water_;
  }

 private:
  using Bytes = std::vector<std::byte>;
  /// Copies of an operation's inputs; a replay holds them beyond the log.
  using Copies = std::shared_ptr<std::vector<Bytes>>;
  enum class State : uint8_t { kInFlight = 0, kSuspended, kDone };
  struct Entry {
    graph::LaunchId launch = graph::kNoLaunch;
    int64_t step = 0;
    int32_t micro_batch = 0;
    State state = State::kInFlight;
    std::vector<std::byte*> inputs, outputs;
    Copies copies;
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
    int64_t start_ns = 0;
  };
  struct Replay {
    Copies copies;
    std::vector<Bytes> outputs;
    std::vector<std::byte*> places;
    int64_t bytes = 0;
  };
  struct Drain {
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
  };
  struct Kept {
    int64_t step = 0;
    std::shared_ptr<Results> results;
  };
  static constexpr uint64_t kReplay = uint64_t{1} << 63;

  // Under the lock, but for the last three.
  [[nodiscard]] bool is_idle() const {
    return num_open_ == 0 && num_flying_ == 0 && num_telling_ == 0;
  }
  Entry& append();
  void keep_inputs(Entry& entry, std::span<std::byte* const> inputs);
  [[nodiscard]] std::pair<graph::LaunchId, int32_t> kept_as(graph::LaunchId launch,
                                                            int32_t micro_batch) const;
  void keep_outputs(const Entry& entry);
  void count(int64_t bytes) {
    bytes_ += bytes;
    high_water_ = std::max(high_water_, bytes_);
  }
  void start_all();
  void start_replay(const Entry& entry);
  void end_replay(size_t index);
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;
  /// Of an open entry.
  void tell(kernels::CompletionSink& sink, uint64_t token, const Status& status,
            kernels::LaunchTiming timing);
  void stop_telling();

  const std::vector<Footprint> footprints_;        // index: launch
  const std::vector<ChannelOperation> described_;  // index: launch
  std::function<void(const Status&)> listener_;
  std::vector<Keeps> keeps_;  // index: launch; empty: none
  int64_t keep_interval_ = 0;
  std::atomic<bool> flips_{false};
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<Entry> entries_;  // the first num_entries_ are of the open step
  size_t num_entries_ = 0;
  std::deque<Replay> replays_;
  std::vector<size_t> free_replays_;
  int64_t num_open_ = 0;     // entries whose sink has not heard
  int64_t num_flying_ = 0;   // under way in the inner channel, replays too
  int64_t num_telling_ = 0;  // a sink is used: wait() must not return
  bool resuming_ = false;    // starts when nothing flies any more
  Status ended_;             // not ok: by abort()
  Status failure_;
  std::optional<Drain> drain_;
  int64_t bytes_ = 0;        // of copies and replays
  int64_t entry_bytes_ = 0;  // of copies of the open step
  int64_t high_water_ = 0;
  std::map<std::pair<graph::LaunchId, int32_t>, Kept> kept_;  // by firing
  std::unique_ptr<Channel> inner_;                            // last: ends before what it borrows
};

LoggedChannel::Entry& LoggedChannel::append() {
  if (num_entries_ == entries_.size()) entries_.emplace_back();
  return entries_[num_entries_++];
}

void LoggedChannel::keep_inputs(Entry& entry, std::span<std::byte* const> inputs) {
  const Footprint& footprint = footprints_[static_cast<size_t>(entry.launch)];
  // A replay of an earlier step may read the old ones still.
  if (!entry.copies || entry.copies.use_count() > 1) {
    entry.copies = std::make_shared<std::vector<Bytes>>();
  }
  std::vector<Bytes>& copies = *entry.copies;
  copies.resize(inputs.size());
  entry.inputs.assign(inputs.begin(), inputs.end());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Footprint::Input& in = footprint.inputs[i];
    if (in.persistent || inputs[i] == nullptr) continue;
    copies[i].resize(in.bytes);
    std::memcpy(copies[i].data(), inputs[i], in.bytes);
    entry.inputs[i] = copies[i].data();
    entry_bytes_ += static_cast<int64_t>(in.bytes);
    count(static_cast<int64_t>(in.bytes));
  }
}

/// What all firings bring alike is that of the first launch of those that are alike.
std::pair<graph::LaunchId, int32_t> LoggedChannel::kept_as(graph::LaunchId launch,
                                                           int32_t micro_batch) const {
  const auto l = static_cast<size_t>(launch);
  if (keeps_[l] == Keeps::kOnce) return {footprints_[l].same, 0};
  return {launch, micro_batch};
}

/// Pre: nobody has heard yet that it is complete.
void LoggedChannel::keep_outputs(const Entry& entry) {
  const auto launch = static_cast<size_t>(entry.launch);
  if (keeps_.empty() || keeps_[launch] == Keeps::kNone || entry.step % keep_interval_ != 0) return;
  Kept& kept = kept_[kept_as(entry.launch, entry.micro_batch)];
  if (kept.step == entry.step) return;  // another firing, which brings the same
  const Footprint& footprint = footprints_[launch];
  kept.step = entry.step;
  // Whoever reads those of a step before may not be done.
  if (!kept.results || kept.results.use_count() > 1) kept.results = std::make_shared<Results>();
  kept.results->resize(footprint.outputs.size());
  for (size_t i = 0; i < footprint.outputs.size(); ++i) {
    (*kept.results)[i].assign(entry.outputs[i], entry.outputs[i] + footprint.outputs[i]);
  }
}

std::shared_ptr<const Channel::Results> LoggedChannel::kept(graph::LaunchId launch,
                                                            int32_t micro_batch,
                                                            int64_t step) const {
  const std::lock_guard lock(mutex_);
  if (keeps_.empty()) return nullptr;
  const auto it = kept_.find(kept_as(launch, micro_batch));
  return it != kept_.end() && it->second.step == step ? it->second.results : nullptr;
}

void LoggedChannel::start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
                          std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
                          uint64_t token, kernels::CompletionSink& sink) {
  std::unique_lock lock(mutex_);
  if (!ended_.ok()) {
    const Status why = ended_;
    ++num_telling_;
    ++num_open_;
    lock.unlock();
    tell(sink, token, why, {});
    return stop_telling();
  }
  const Footprint& footprint = footprints_[static_cast<size_t>(launch)];
  if (footprint.own && flips_.load(std::memory_order_relaxed) && flips_.exchange(false)) {
    inputs[0][footprint.inputs[0].bytes / 2] ^= std::byte{0x10};
  }
  Entry& entry = append();
  entry.launch = launch;
  entry.step = step;
  entry.micro_batch = micro_batch;
  entry.outputs.assign(outputs.begin(), outputs.end());
  entry.token = token;
  entry.sink = &sink;
  entry.start_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  keep_inputs(entry, inputs);
  ++num_open_;
  // Behind those that are started again.
  entry.state = resuming_ ? State::kSuspended : State::kInFlight;
  if (resuming_) return;
  ++num_flying_;
  inner_->start(launch, step, micro_batch, inputs, outputs, num_entries_ - 1, *this);
}

uint64_t LoggedChannel::posted(int64_t step) const {
  const std::lock_guard lock(mutex_);
  uint64_t out = 0;
  for (size_t i = 0; i < num_entries_; ++i) {
    const Entry& entry = entries_[i];
    const Footprint& footprint = footprints_[static_cast<size_t>(entry.launch)];
    if (!footprint.own || entry.step != step) continue;
    uint64_t hash = 0;
    for (size_t j = 0; j < footprint.inputs.size(); ++j) {
      hash = mix64(hash, hash64(std::span(entry.inputs[j], footprint.inputs[j].bytes)));
    }
    out += post_hash(described_[static_cast<size_t>(entry.launch)].key, entry.micro_batch, hash);
  }
  return out;
}

void LoggedChannel::list(std::vector<ChannelOperation>& out) const {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < num_entries_; ++i) {
    const Entry& entry = entries_[i];
    out.push_back(described_[static_cast<size_t>(entry.launch)]);
    ChannelOperation& o = out.back();
    o.step = entry.step;
    o.micro_batch = entry.micro_batch;
    o.sequence = static_cast<int64_t>(i) + 1;
    o.start_ns = entry.start_ns;
    o.done = entry.state == State::kDone;
  }
}

void LoggedChannel::resume(int64_t generation) {
  const std::lock_guard lock(mutex_);
  inner_->set_generation(generation);
  if (!ended_.ok()) return;
  resuming_ = true;
  if (num_flying_ == 0) start_all();
}

void LoggedChannel::start_all() {
  resuming_ = false;
  for (size_t i = 0; i < num_entries_; ++i) {
    Entry& entry = entries_[i];
    if (entry.state == State::kDone) {
      start_replay(entry);
      continue;
    }
    entry.state = State::kInFlight;
    ++num_flying_;
    inner_->start(entry.launch, entry.step, entry.micro_batch, entry.inputs, entry.outputs, i,
                  *this);
  }
}

void LoggedChannel::start_replay(const Entry& entry) {
  if (free_replays_.empty()) {
    free_replays_.push_back(replays_.size());
    replays_.emplace_back();
  }
  const size_t index = free_replays_.back();
  free_replays_.pop_back();
  Replay& replay = replays_[index];
  replay.copies = entry.copies;
  const Footprint& footprint = footprints_[static_cast<size_t>(entry.launch)];
  replay.outputs.resize(footprint.outputs.size());
  replay.places.resize(footprint.outputs.size());
  for (size_t j = 0; j < footprint.outputs.size(); ++j) {
    replay.outputs[j].resize(footprint.outputs[j]);
    replay.places[j] = entry.outputs[j] == nullptr ? nullptr : replay.outputs[j].data();
    replay.bytes += static_cast<int64_t>(footprint.outputs[j]);
  }
  count(replay.bytes);
  ++num_flying_;
  inner_->start(entry.launch, entry.step, entry.micro_batch, entry.inputs, replay.places,
                kReplay | index, *this);
}

void LoggedChannel::end_replay(size_t index) {
  count(-replays_[index].bytes);
  replays_[index] = Replay();  // seldom needed: memory is not kept
  free_replays_.push_back(index);
}

void LoggedChannel::on_complete(uint64_t token, const Status& status,
                                kernels::LaunchTiming timing) noexcept {
  std::unique_lock lock(mutex_);
  ++num_telling_;  // until all here is done
  --num_flying_;
  kernels::CompletionSink* sink = nullptr;
  uint64_t told = 0;
  bool suspended = false;
  if ((token & kReplay) != 0) {
    // A failure of its own its members hear of from the operation that it repeats.
    end_replay(token & ~kReplay);
  } else {
    Entry& entry = entries_[token];
    const bool over = !status.ok() && ended_.ok() &&
                      (status.code() == Code::kDisconnected || status.code() == Code::kCancelled);
    suspended = over;
    entry.state = over ? State::kSuspended : State::kDone;
    if (status.ok()) keep_outputs(entry);
    if (!over) {
      if (failure_.ok()) failure_ = status;
      sink = entry.sink;
      told = entry.token;
    }
  }
  if (resuming_ && num_flying_ == 0 && ended_.ok()) start_all();
  lock.unlock();
  if (suspended && listener_) listener_(status);
  if (sink != nullptr) tell(*sink, told, status, timing);
  stop_telling();
}

void LoggedChannel::tell(kernels::CompletionSink& sink, uint64_t token, const Status& status,
                         kernels::LaunchTiming timing) {
  sink.on_complete(token, status, timing);
  std::optional<Drain> drained;
  Status first;
  {
    const std::lock_guard lock(mutex_);
    if (--num_open_ == 0) drained = std::exchange(drain_, std::nullopt);
    first = failure_;
  }
  if (drained) drained->sink->on_complete(drained->token, first, {});
}

void LoggedChannel::stop_telling() {
  const std::lock_guard lock(mutex_);
  --num_telling_;
  if (is_idle()) idle_.notify_all();
}

void LoggedChannel::abort(const Status& why) {
  std::vector<std::pair<kernels::CompletionSink*, uint64_t>> suspended;
  {
    const std::lock_guard lock(mutex_);
    ++num_telling_;
    if (ended_.ok()) ended_ = why;
    if (failure_.ok()) failure_ = why;
    resuming_ = false;
    for (size_t i = 0; i < num_entries_; ++i) {
      if (entries_[i].state != State::kSuspended) continue;
      entries_[i].state = State::kDone;
      suspended.emplace_back(entries_[i].sink, entries_[i].token);
    }
  }
  inner_->abort(why);
  for (const auto& [sink, token] : suspended) tell(*sink, token, why, {});
  stop_telling();
}

void LoggedChannel::forget(int64_t step) {
  const std::lock_guard lock(mutex_);
  if (num_entries_ == 0 || entries_.front().step > step) return;
  num_entries_ = 0;
  resuming_ = false;  // nothing is left to start again
  bytes_ -= std::exchange(entry_bytes_, 0);
}

void LoggedChannel::drain(uint64_t token, kernels::CompletionSink& sink) {
  Status first;
  {
    const std::lock_guard lock(mutex_);
    if (num_open_ > 0) {
      drain_ = Drain{token, &sink};
      return;
    }
    first = failure_;
  }
  sink.on_complete(token, first, {});
}

}  // namespace

std::unique_ptr<Channel> create_logged_channel(const ChannelSpec& spec,
                                               std::unique_ptr<Channel> inner) {
  const auto log = [&spec](std::unique_ptr<Channel> below) {
    return std::make_unique<LoggedChannel>(spec, std::move(below));
  };
  if (inner->put_below(log)) return inner;
  return log(std::move(inner));
}

}  // namespace sgactor::actors

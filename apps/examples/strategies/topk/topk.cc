// Gradient compression: each rank sends the `ratio` largest elements of each gradient and keeps the
// rest for later (error feedback: Stich et al., "Sparsified SGD with Memory", 2018; Lin et al.,
// "Deep Gradient Compression", 2017).
//
//   accumulated  a = rest + gradient
//   sent         the k elements of a that are largest in magnitude, as (index, value)
//   rest         a, with zeros where something was sent
//   output       sum over the ranks of what they sent, in order of rank
//
// Of two elements of one magnitude the one with the lower index goes first, so that equal inputs
// give equal bits.
#include <actors/strategy/plugin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace sgactor::actors;
using sgactor::Result;
using sgactor::Status;

struct Settings {
  double ratio = 0.05;
  int64_t dense_below = 4096;  // elements; small tensors (norms) go whole
};

Result<Settings> read_options(const StrategyOptions& options) {
  Settings settings;
  SGA_TRY(options.check_known({"ratio", "dense_below"}));
  SGA_ASSIGN(settings.ratio, options.number("ratio", settings.ratio, 1e-6, 1));
  SGA_ASSIGN(settings.dense_below,
             options.integer("dense_below", settings.dense_below, 0, 1'000'000'000));
  return settings;
}

/// What travels.
struct Entry {
  uint32_t index = 0;
  float value = 0;
};

/// Ordered as |value|; an order over all floats, NaN above all.
uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFU; }

class TopK final : public ChannelTransform {
 public:
  explicit TopK(Settings settings) : settings_(settings) {}

  Status reduce(const Reduction& reduction, DpGroup& group) override {
    for (const ReducedTensor& t : reduction.tensors) {
      const bool dense = static_cast<int64_t>(t.input.size()) < settings_.dense_below;
      SGA_TRY(dense ? reduce_dense(t, group) : reduce_sparse(t, group));
    }
    return {};
  }

 private:
  static Status reduce_dense(const ReducedTensor& t, DpGroup& group) {
    std::copy(t.input.begin(), t.input.end(), t.output.begin());
    return group.all_reduce(t.output);
  }

  Status reduce_sparse(const ReducedTensor& t, DpGroup& group) {
    std::vector<float>& rest = rests_[t.parameter];
    rest.resize(t.input.size(), 0.0F);
    for (size_t i = 0; i < rest.size(); ++i) rest[i] += t.input[i];
    take_largest(rest);
    all_.resize(mine_.size() * static_cast<size_t>(group.size()));
    SGA_TRY(group.all_gather(std::as_bytes(std::span<const Entry>(mine_)),
                             std::as_writable_bytes(std::span<Entry>(all_))));
    std::fill(t.output.begin(), t.output.end(), 0.0F);
    for (const Entry& e : all_) t.output[e.index] += e.value;
    return {};
  }

  /// Moves the k largest elements from `rest` to mine_, by index.
  void take_largest(std::vector<float>& rest) {
    const auto n = rest.size();
    const auto wanted = static_cast<size_t>(std::ceil(settings_.ratio * static_cast<double>(n)));
    const size_t k = std::clamp<size_t>(wanted, 1, n);
    order_.resize(n);
    std::iota(order_.begin(), order_.end(), 0U);
    std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k - 1),
                     order_.end(), [&](uint32_t a, uint32_t b) {
                       const uint32_t x = magnitude(rest[a]);
                       const uint32_t y = magnitude(rest[b]);
                       return x != y ? x > y : a < b;
                     });
    std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k));
    mine_.resize(k);
    for (size_t i = 0; i < k; ++i) {
      mine_[i] = {order_[i], rest[order_[i]]};
      rest[order_[i]] = 0;
    }
  }

  const Settings settings_;
  std::map<std::string, std::vector<float>> rests_;  // by parameter
  std::vector<uint32_t> order_;
  std::vector<Entry> mine_, all_;
};

Status check(const JobFacts& job) {
  SGA_TRY(read_options(job.options).status());
  if (job.zero_stage == 0) return {};
  return sgactor::unsupported("whole gradients are compressed; expected parallelism.zero_stage 0");
}

void add_topk(StrategyTable& table) {
  Strategy s;
  s.name = "topk";
  s.summary = "the largest elements of each gradient travel, the rest waits";
  s.keeps_state = true;
  s.check = check;
  s.channel_transform = [](const JobFacts& job,
                           const RankFacts&) -> Result<std::unique_ptr<ChannelTransform>> {
    SGA_ASSIGN(const Settings settings, read_options(job.options));
    return std::unique_ptr<ChannelTransform>(std::make_unique<TopK>(settings));
  };
  table.add(std::move(s));
}

}  // namespace

SGACTOR_STRATEGY_PLUGIN(add_topk)

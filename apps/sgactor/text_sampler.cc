#include "apps/sgactor/text_sampler.h"

#include "apps/sgactor/device.h"
#include "apps/sgactor/printable.h"
#include "graph/base/hash.h"
#include "graph/base/philox.h"
#include "graph/compiler/pipeline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace sgactor::apps {
namespace {

constexpr int64_t kShortestLength = 64;
constexpr int64_t kGrowth = 4;  // lengths 64, 256, 1024 …: few compilations, little padding

}  // namespace

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     uint64_t index) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const auto x = logits[static_cast<size_t>(a)];
    const auto y = logits[static_cast<size_t>(b)];
    const bool fx = std::isfinite(x);
    const bool fy = std::isfinite(y);
    if (fx != fy) return fx;
    return fx && x != y ? x > y : a < b;
  };
  const auto first = *std::min_element(order.begin(), order.end(), better);
  if (options.temperature <= 0) return first;
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), better);
    order.resize(static_cast<size_t>(options.top_k));
  }
  const double top = logits[static_cast<size_t>(first)];
  std::vector<double> sums;
  sums.reserve(order.size());
  double sum = 0;
  for (const int32_t id : order) {
    const double logit = logits[static_cast<size_t>(id)];
    if (std::isfinite(logit)) sum += std::exp((logit - top) / options.temperature);
    sums.push_back(sum);
  }
  const PhiloxStream stream{options.seed, hash64("generate")};
  const double u = stream.uniform(index) * sum;
  const auto at = std::upper_bound(sums.begin(), sums.end(), u);
  return at == sums.end() ? first : order[static_cast<size_t>(at - sums.begin())];
}

TextSampler::TextSampler(graph::LlamaConfig config, int64_t max_context, kernels::Backend& backend,
                         const transport::StateSource& state)
    : config_(std::move(config)), max_context_(max_context), backend_(backend), state_(state) {}

int64_t TextSampler::length_for(int64_t num_tokens) const {
  int64_t length = kShortestLength;
  while (length < std::min(num_tokens, max_context_)) length *= kGrowth;
  return std::min(length, max_context_);
}

Result<graph::Plan> TextSampler::plan_of(int64_t length) const {
  graph::ForwardOptions forward;
  forward.batch = 1;
  forward.seq_len = length;
  forward.loss = false;
  graph::CompileOptions options;
  options.micro_batch_size = 1;
  options.seq_len = length;
  options.storage = storage_model(backend_);
  SGA_ASSIGN(auto compiled, graph::compile_forward(config_, forward, options));
  return std::move(compiled.plan);
}

Status TextSampler::check_memory(int64_t num_tokens) const {
  SGA_ASSIGN(const graph::Plan plan, plan_of(length_for(num_tokens)));
  return apps::check_memory(
      plan, backend_,
      {.hint = "less take a shorter --context, a shorter prompt or fewer --max-tokens"});
}

Status TextSampler::use_length(int64_t length) {
  runner_.reset();
  SGA_ASSIGN(plan_, plan_of(length));
  SGA_ASSIGN(runner_, actors::ForwardRunner::create(plan_, backend_, state_));
  length_ = length;
  return {};
}

Result<std::vector<float>> TextSampler::next_logits(std::span<const int32_t> ids) {
  if (static_cast<int64_t>(ids.size()) > max_context_)
    ids = ids.last(static_cast<size_t>(max_context_));
  const auto count = static_cast<int64_t>(ids.size());
  if (runner_ == nullptr || count > length_) {
    SGA_TRY(use_length(length_for(count)));
  }
  std::vector<int32_t> tokens(static_cast<size_t>(length_), 0);
  std::copy(ids.begin(), ids.end(), tokens.begin());
  SGA_ASSIGN(auto logits, runner_->run(tokens, {}));
  const auto vocab = config_.vocab_size;
  if (static_cast<int64_t>(logits.size()) != length_ * vocab) {
    return internal_error("the forward plan returned " + std::to_string(logits.size()) +
                          " logits, not " + std::to_string(length_ * vocab));
  }
  const auto begin = logits.begin() + (count - 1) * vocab;
  return std::vector<float>(begin, begin + vocab);
}

Status TextSampler::extend(std::vector<int32_t>& ids, const SamplingOptions& options,
                           int32_t end_of_text, const std::function<void()>& on_token) {
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    SGA_ASSIGN(const auto logits, next_logits(ids));
    const int32_t id = sample_token(logits, options, static_cast<uint64_t>(i));
    if (id == end_of_text) return {};
    ids.push_back(id);
    on_token();
  }
  return {};
}

Status print_continuation(TextSampler& sampler, const transport::Tokenizer& tokenizer,
                          int64_t vocab_size, const std::string& prompt,
                          const SamplingOptions& options) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  if (ids.empty()) return invalid_argument("--prompt: expected at least one token of text");
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return invalid_argument("--prompt: token " + std::to_string(id) +
                            " is beyond the model's vocabulary of " + std::to_string(vocab_size));
  }
  const int32_t begin = tokenizer.begin_of_text();
  const size_t head = begin >= 0 && begin < vocab_size ? 1 : 0;  // read by the model, not printed
  if (head == 1) ids.insert(ids.begin(), begin);
  size_t printed = 0;
  const auto print = [&](bool all) {
    const std::string text = tokenizer.decode(std::span(ids).subspan(head));
    const size_t end = all ? text.size() : complete_utf8(text);
    if (end <= printed) return;
    std::fputs(printable(std::string_view(text).substr(printed, end - printed)).c_str(), stdout);
    std::fflush(stdout);
    printed = end;
  };
  print(false);
  const Status status =
      sampler.extend(ids, options, tokenizer.end_of_text(), [&] { print(false); });
  print(true);
  std::fputs("\n", stdout);
  return status;
}

}  // namespace sgactor::apps

#include "apps/sgactor/text_sampler.h"

#include "apps/sgactor/device.h"
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

int utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Length of the valid character at `text`'s start; 0 if there is none. Overlong forms, surrogates
/// and values above U+10FFFF are not valid (Unicode standard, table 3-7).
size_t valid_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const auto length = static_cast<size_t>(utf8_length(lead));
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  if (length < 3) return length;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                   (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

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

size_t complete_utf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    if (is_continuation(text[at])) continue;
    const auto length = static_cast<size_t>(utf8_length(static_cast<unsigned char>(text[at])));
    return length > back ? at : text.size();
  }
  return text.size();
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = valid_character(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool control =
        (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7f ||
        (length == 2 && lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    out += length == 0 || control ? "\xEF\xBF\xBD" : std::string(text.substr(0, length));
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

TextSampler::TextSampler(graph::LlamaConfig config, int64_t max_context, kernels::Backend& backend,
                         const transport::StateSource& state)
    : config_(std::move(config)), max_context_(max_context), backend_(backend), state_(state) {}

Status TextSampler::use_length(int64_t length) {
  runner_.reset();
  graph::ForwardOptions forward;
  forward.batch = 1;
  forward.seq_len = length;
  forward.loss = false;
  graph::CompileOptions options;
  options.micro_batch_size = 1;
  options.seq_len = length;
  options.storage = storage_model(backend_);
  SGA_ASSIGN(auto compiled, graph::compile_forward(config_, forward, options));
  plan_ = std::move(compiled.plan);
  SGA_ASSIGN(runner_, actors::ForwardRunner::create(plan_, backend_, state_));
  length_ = length;
  return {};
}

Result<std::vector<float>> TextSampler::next_logits(std::span<const int32_t> ids) {
  if (static_cast<int64_t>(ids.size()) > max_context_)
    ids = ids.last(static_cast<size_t>(max_context_));
  const auto count = static_cast<int64_t>(ids.size());
  if (runner_ == nullptr || count > length_) {
    int64_t length = kShortestLength;
    while (length < count) length *= kGrowth;
    SGA_TRY(use_length(std::min(length, max_context_)));
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

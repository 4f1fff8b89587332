#include "graph/base/hash.h"
#include "graph/base/philox.h"
#include "graph/base/status.h"
#include "graph/base/units.h"
#include "transport/storage/dataset.h"

#include <algorithm>
#include <bit>

namespace sgactor::transport {
namespace {

/// Value `i` of a pseudo-random permutation of [0, n), named by (seed, epoch). A balanced Feistel
/// network over the next even number of bits (Luby and Rackoff, SIAM J. Comput. 17, 1988) with
/// Philox as round function; values that fall outside are sent through again until one is inside
/// (cycle walking: Black and Rogaway, CT-RSA 2002), on average less than four times.
int64_t permute(int64_t i, int64_t n, uint64_t seed, uint64_t epoch) {
  if (n <= 1) return 0;
  constexpr uint32_t kRounds = 6;
  const int half =
      std::max(1, (static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1))) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  auto x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      // A half has at most 32 bits; the epoch's upper 24 bits share a word with the round.
      const auto words =
          philox4x32({low(right), low(epoch), (high(epoch) << 8) | round, 0x46454953U},
                     {low(seed), high(seed)});
      const uint64_t next = left ^ (words[0] & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace

Sampler::Sampler(std::shared_ptr<const TokenStream> stream, uint64_t seed, int64_t seq_len,
                 int64_t global_batch_size, bool shuffle)
    : stream_(std::move(stream)),
      seed_(seed),
      seq_len_(seq_len),
      global_batch_(global_batch_size),
      shuffle_(shuffle) {
  SGA_CHECK(stream_ && stream_->num_tokens() >= 2, "a sampler needs two tokens");
  SGA_CHECK(seq_len_ > 0 && global_batch_ > 0, "a sampler needs a window and a batch");
}

int64_t Sampler::num_windows() const { return ceil_div(stream_->num_tokens() - 1, seq_len_); }

int64_t Sampler::window(int64_t step, int64_t row) const {
  const int64_t n = num_windows();
  const int64_t sample = (step - 1) * global_batch_ + row;
  if (!shuffle_) return sample % n;
  return permute(sample % n, n, seed_, static_cast<uint64_t>(sample / n));
}

void Sampler::fill(int64_t step, int64_t first_row, std::span<int32_t> tokens,
                   std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(seq_len_);
  SGA_CHECK(tokens.size() == targets.size() && tokens.size() % length == 0,
            "tokens and targets must be whole rows");
  for (size_t at = 0; at < tokens.size(); at += length) {
    const int64_t begin = window(step, first_row + static_cast<int64_t>(at / length)) * seq_len_;
    const std::span<int32_t> x = tokens.subspan(at, length);
    const std::span<int32_t> y = targets.subspan(at, length);
    // The last window may be short: the token after its last target does not exist.
    const auto n = static_cast<size_t>(std::min(seq_len_, stream_->num_tokens() - 1 - begin));
    stream_->read(begin, x.first(n));
    stream_->read(begin + 1, y.first(n));
    std::fill(x.begin() + static_cast<std::ptrdiff_t>(n), x.end(), 0);
    std::fill(y.begin() + static_cast<std::ptrdiff_t>(n), y.end(), -1);
  }
}

int64_t Sampler::valid_tokens(int64_t step) const {
  const int64_t last = num_windows() - 1;
  const int64_t last_size = stream_->num_tokens() - 1 - last * seq_len_;
  int64_t sum = 0;
  for (int64_t row = 0; row < global_batch_; ++row)
    sum += window(step, row) == last ? last_size : seq_len_;
  return sum;
}

uint64_t Sampler::sample_hash(int64_t step) const {
  uint64_t hash = mix64(seed_, static_cast<uint64_t>(step));
  for (int64_t row = 0; row < global_batch_; ++row)
    hash = mix64(hash, static_cast<uint64_t>(window(step, row)));
  return hash;
}

}  // namespace sgactor::transport

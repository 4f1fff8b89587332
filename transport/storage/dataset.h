#pragma once
#include "graph/base/status.h"
#include "transport/storage/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sgactor::transport {

/// A long sequence of token ids cut into windows of seq_len + 1 tokens (inputs and targets shifted
/// by one); window w starts at token w * seq_len. A last partial window is filled up and its
/// missing targets are -1 (not counted). Read-only, thread-safe.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  [[nodiscard]] virtual int64_t num_tokens() const = 0;
  [[nodiscard]] virtual int64_t max_token() const = 0;  ///< largest id present
  /// Copies tokens [begin, begin + out.size()) ; the range must be inside.
  virtual void read(int64_t begin, std::span<int32_t> out) const = 0;
};

struct DataSpec {
  std::string kind;        ///< "text", "megatron", "mock"
  std::string path;        ///< text file; prefix of .bin/.idx
  std::string tokenizer;   ///< as for create_tokenizer ("bytes", a model file); text only
  int64_t vocab_size = 0;  ///< every token must be below
  uint64_t seed = 0;       ///< mock
  int64_t mock_tokens = 0;
  double validation_fraction = 0;  ///< the last part of the stream is held out
};
struct Datasets {
  std::shared_ptr<const TokenStream> train;
  std::shared_ptr<const TokenStream> validation;  ///< null if the fraction is 0
};
/// Opens the stream and checks every token once (a Megatron file is read through: about 2 GB/s from
/// the page cache); text as bytes and Megatron files are mapped, not copied. Validation is the last
/// floor(fraction * tokens) tokens of the stream. Errors: kInvalidArgument naming file and what is
/// wrong: missing, empty, an .idx that points past its .bin, an offset or length that is negative
/// or overflows, a token id >= vocab_size (with its position), a part with fewer than two tokens.
Result<Datasets> open_datasets(const DataSpec& spec);

/// Which window a row of a batch is: a pure function of (seed, step, micro-batch, row). Each epoch
/// is one pseudo-random permutation of all windows (a Feistel network over Philox rounds with cycle
/// walking), so that no window is skipped or repeated within it.
class Sampler {
 public:
  Sampler(std::shared_ptr<const TokenStream> stream, uint64_t seed, int64_t seq_len,
          int64_t global_batch_size, bool shuffle);
  [[nodiscard]] int64_t num_windows() const;
  /// Window of sample `row` in [0, global_batch_size) of a step (first step is 1).
  [[nodiscard]] int64_t window(int64_t step, int64_t row) const;
  /// Fills rows [first_row, first_row + n) with n = tokens.size() / seq_len. Targets are -1 where
  /// not counted.
  void fill(int64_t step, int64_t first_row, std::span<int32_t> tokens,
            std::span<int32_t> targets) const;
  /// Number of targets >= 0 in the whole global batch of a step.
  [[nodiscard]] int64_t valid_tokens(int64_t step) const;
  /// Hash of the sample ids of a step, for audits.
  [[nodiscard]] uint64_t sample_hash(int64_t step) const;

 private:
  std::shared_ptr<const TokenStream> stream_;
  uint64_t seed_;
  int64_t seq_len_;
  int64_t global_batch_;
  bool shuffle_;
};

}  // namespace sgactor::transport

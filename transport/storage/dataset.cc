#include "transport/storage/dataset.h"

#include "graph/base/philox.h"
#include "transport/storage/mapped_file.h"
#include "transport/storage/megatron_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace sgactor::transport {
namespace {

Status bad_token(const std::string& path, int64_t token, int64_t position, int64_t vocab_size) {
  return invalid_argument(fmt::format("{}: token {} at position {} is outside the vocabulary of {}",
                                      path, token, position, vocab_size));
}

/// A file's bytes are its tokens.
class ByteStream : public TokenStream {
 public:
  ByteStream(std::shared_ptr<const MappedFile> file, int64_t max_token)
      : file_(std::move(file)), max_token_(max_token) {}
  [[nodiscard]] int64_t num_tokens() const override {
    return static_cast<int64_t>(file_->bytes().size());
  }
  [[nodiscard]] int64_t max_token() const override { return max_token_; }
  void read(int64_t begin, std::span<int32_t> out) const override {
    const std::byte* const from = file_->bytes().data() + begin;
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::to_integer<int32_t>(from[i]);
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  int64_t max_token_;
};

class VectorStream : public TokenStream {
 public:
  VectorStream(std::vector<int32_t> tokens, int64_t max_token)
      : tokens_(std::move(tokens)), max_token_(max_token) {}
  [[nodiscard]] int64_t num_tokens() const override { return std::ssize(tokens_); }
  [[nodiscard]] int64_t max_token() const override { return max_token_; }
  void read(int64_t begin, std::span<int32_t> out) const override {
    std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t max_token_;
};

/// Token i is drawn from (seed, i): nothing is stored.
class MockStream : public TokenStream {
 public:
  MockStream(uint64_t seed, int64_t vocab_size, int64_t num_tokens)
      : random_{seed, 0x6D6F636B}, vocab_size_(vocab_size), num_tokens_(num_tokens) {}
  [[nodiscard]] int64_t num_tokens() const override { return num_tokens_; }
  [[nodiscard]] int64_t max_token() const override { return vocab_size_ - 1; }
  void read(int64_t begin, std::span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<int32_t>(
          random_.below(static_cast<uint64_t>(begin) + i, static_cast<uint64_t>(vocab_size_)));
  }

 private:
  PhiloxStream random_;
  int64_t vocab_size_;
  int64_t num_tokens_;
};

/// Tokens [begin, begin + size) of another stream.
class SubStream : public TokenStream {
 public:
  SubStream(std::shared_ptr<const TokenStream> base, int64_t begin, int64_t size)
      : base_(std::move(base)), begin_(begin), size_(size) {}
  [[nodiscard]] int64_t num_tokens() const override { return size_; }
  [[nodiscard]] int64_t max_token() const override { return base_->max_token(); }
  void read(int64_t begin, std::span<int32_t> out) const override {
    base_->read(begin_ + begin, out);
  }

 private:
  std::shared_ptr<const TokenStream> base_;
  int64_t begin_;
  int64_t size_;
};

/// Calls `f` with a value of the C++ type of `element`.
template <class F>
auto with_element(MegatronIndex::Element element, F&& f) {
  switch (element) {
    case MegatronIndex::Element::kU8:
      return f(uint8_t{});
    case MegatronIndex::Element::kI8:
      return f(int8_t{});
    case MegatronIndex::Element::kI16:
      return f(int16_t{});
    case MegatronIndex::Element::kI32:
      return f(int32_t{});
    case MegatronIndex::Element::kI64:
      return f(int64_t{});
    case MegatronIndex::Element::kU16:
      break;
  }
  return f(uint16_t{});
}

class MegatronStream : public TokenStream {
 public:
  MegatronStream(std::shared_ptr<const MappedFile> bin, MegatronIndex index)
      : bin_(std::move(bin)), index_(std::move(index)) {}
  [[nodiscard]] int64_t num_tokens() const override { return index_.num_tokens; }
  [[nodiscard]] int64_t max_token() const override { return max_token_; }

  void read(int64_t begin, std::span<int32_t> out) const override {
    auto run = std::upper_bound(index_.runs.begin(), index_.runs.end(), begin,
                                [](int64_t b, const auto& r) { return b < r.first_token; }) -
               1;
    while (!out.empty()) {
      const int64_t skip = begin - run->first_token;
      const auto n = std::min(static_cast<int64_t>(out.size()), run->num_tokens - skip);
      const std::byte* from =
          bin_->bytes().data() + run->offset_bytes + skip * index_.element_bytes;
      with_element(index_.element, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < n; ++i)
          out[static_cast<size_t>(i)] = static_cast<int32_t>(get<T>(from, i));
      });
      out = out.subspan(static_cast<size_t>(n));
      begin += n;
      ++run;
    }
  }

  /// Reads every token once. Errors: kInvalidArgument names the first that is not in [0, vocab).
  Status check_tokens(int64_t vocab_size) {
    max_token_ = 0;
    for (const MegatronIndex::Run& run : index_.runs) {
      const std::byte* const from = bin_->bytes().data() + run.offset_bytes;
      SGA_TRY(with_element(index_.element, [&](auto zero) {
        using T = decltype(zero);
        return check_run<T>(run, from, vocab_size);
      }));
    }
    return {};
  }

 private:
  template <class T>
  static T get(const std::byte* from, int64_t i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  template <class T>
  Status check_run(const MegatronIndex::Run& run, const std::byte* from, int64_t vocab_size) {
    // In T itself and in blocks of a fixed size, so that it becomes vector instructions.
    constexpr int64_t kBlock = 64;
    T low = std::numeric_limits<T>::max();
    T high = std::numeric_limits<T>::min();
    int64_t i = 0;
    for (; i + kBlock <= run.num_tokens; i += kBlock) {
      T block[kBlock];
      std::memcpy(block, from + i * static_cast<int64_t>(sizeof(T)), sizeof block);
      for (const T value : block) low = std::min(low, value);
      for (const T value : block) high = std::max(high, value);
    }
    for (; i < run.num_tokens; ++i) {
      low = std::min(low, get<T>(from, i));
      high = std::max(high, get<T>(from, i));
    }
    max_token_ = std::max(max_token_, static_cast<int64_t>(high));
    if (static_cast<int64_t>(low) >= 0 && static_cast<int64_t>(high) < vocab_size) return {};
    i = 0;
    while (static_cast<int64_t>(get<T>(from, i)) >= 0 &&
           static_cast<int64_t>(get<T>(from, i)) < vocab_size)
      ++i;
    return bad_token(bin_->path(), static_cast<int64_t>(get<T>(from, i)), run.first_token + i,
                     vocab_size);
  }

  std::shared_ptr<const MappedFile> bin_;
  MegatronIndex index_;
  int64_t max_token_ = 0;
};

Result<std::shared_ptr<const TokenStream>> open_bytes(std::shared_ptr<const MappedFile> file,
                                                      int64_t vocab_size) {
  const std::span<const std::byte> bytes = file->bytes();
  const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
  const int64_t max_token = *std::max_element(begin, begin + bytes.size());
  if (max_token >= vocab_size) {
    const auto* bad = std::find_if(begin, begin + bytes.size(),
                                   [&](uint8_t b) { return int64_t{b} >= vocab_size; });
    return bad_token(file->path(), *bad, bad - begin, vocab_size);
  }
  return std::shared_ptr<const TokenStream>(
      std::make_shared<ByteStream>(std::move(file), max_token));
}

Result<std::shared_ptr<const TokenStream>> open_text(const DataSpec& spec) {
  SGA_ASSIGN(std::shared_ptr<const MappedFile> file, MappedFile::open(spec.path));
  if (file->bytes().empty()) return invalid_argument(spec.path + ": is empty");
  if (spec.tokenizer.empty() || spec.tokenizer == "bytes")
    return open_bytes(std::move(file), spec.vocab_size);
  SGA_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, create_tokenizer(spec.tokenizer));
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  std::vector<int32_t> tokens = tokenizer->encode(text);
  int64_t max_token = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= spec.vocab_size)
      return bad_token(spec.path, tokens[i], static_cast<int64_t>(i), spec.vocab_size);
    max_token = std::max<int64_t>(max_token, tokens[i]);
  }
  return std::shared_ptr<const TokenStream>(
      std::make_shared<VectorStream>(std::move(tokens), max_token));
}

Result<std::shared_ptr<const TokenStream>> open_megatron(const DataSpec& spec) {
  SGA_ASSIGN(const std::shared_ptr<const MappedFile> idx, MappedFile::open(spec.path + ".idx"));
  SGA_ASSIGN(std::shared_ptr<const MappedFile> bin, MappedFile::open(spec.path + ".bin"));
  SGA_ASSIGN(
      MegatronIndex index,
      parse_megatron_index(idx->bytes(), static_cast<int64_t>(bin->bytes().size()), idx->path()));
  auto stream = std::make_shared<MegatronStream>(std::move(bin), std::move(index));
  SGA_TRY(stream->check_tokens(spec.vocab_size));
  return std::shared_ptr<const TokenStream>(std::move(stream));
}

Result<std::shared_ptr<const TokenStream>> open_stream(const DataSpec& spec) {
  if (spec.vocab_size < 1 || spec.vocab_size > std::numeric_limits<int32_t>::max())
    return invalid_argument(
        fmt::format("vocab_size is {}, between 1 and 2^31 - 1 expected", spec.vocab_size));
  if (spec.kind == "text") return open_text(spec);
  if (spec.kind == "megatron") return open_megatron(spec);
  if (spec.kind == "mock")
    return std::shared_ptr<const TokenStream>(
        std::make_shared<MockStream>(spec.seed, spec.vocab_size, spec.mock_tokens));
  return invalid_argument(
      fmt::format("data kind is '{}', one of text, megatron, mock expected", spec.kind));
}

}  // namespace

Result<Datasets> open_datasets(const DataSpec& spec) {
  const double fraction = spec.validation_fraction;
  if (!(fraction >= 0.0 && fraction < 1.0))
    return invalid_argument(fmt::format(
        "validation_fraction is {}, from 0 up to but not including 1 expected", fraction));
  SGA_ASSIGN(std::shared_ptr<const TokenStream> all, open_stream(spec));
  const std::string name = spec.kind == "mock" ? "mock data" : spec.path;
  const int64_t n = all->num_tokens();
  const auto held_out = static_cast<int64_t>(std::floor(fraction * static_cast<double>(n)));
  if (n - held_out < 2)
    return invalid_argument(
        fmt::format("{}: has {} tokens to train on, at least 2 expected", name, n - held_out));
  if (fraction == 0.0) return Datasets{std::move(all), nullptr};
  if (held_out < 2)
    return invalid_argument(
        fmt::format("{}: validation_fraction {} of {} tokens holds out {}, at least 2 expected",
                    name, fraction, n, held_out));
  return Datasets{std::make_shared<SubStream>(all, 0, n - held_out),
                  std::make_shared<SubStream>(all, n - held_out, held_out)};
}

}  // namespace sgactor::transport

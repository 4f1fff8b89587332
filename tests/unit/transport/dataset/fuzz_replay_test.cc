// The fuzz targets of storage over their corpus and over mutations of it with a fixed seed. They
// abort on what must not be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

extern "C" {
int fuzz_checkpoint_manifest(const uint8_t* data, size_t size);
int fuzz_megatron_index(const uint8_t* data, size_t size);
int fuzz_tokenizer_json(const uint8_t* data, size_t size);
}

namespace sgactor::transport {
namespace {

using Target = int (*)(const uint8_t*, size_t);
using Bytes = std::vector<uint8_t>;

std::vector<Bytes> read_corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/fuzz/" + name))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

/// One to four small changes of the kinds libFuzzer makes.
Bytes mutate(Bytes bytes, const Bytes& other, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  constexpr uint8_t kInteresting[] = {0, 1, 0x7F, 0x80, 0xFF, '"', '{', ']', '9', 0x10};
  for (size_t n = 1 + below(4); n > 0; --n) {
    const size_t at = below(bytes.size());
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto length = static_cast<std::ptrdiff_t>(below(std::min<size_t>(bytes.size() - at, 16)));
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1U << below(8));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = kInteresting[below(std::size(kInteresting))];
        break;
      case 2:
        bytes.erase(from, from + length);
        break;
      case 3: {
        const Bytes copy(from, from + length);
        bytes.insert(from, copy.begin(), copy.end());
        break;
      }
      case 4:
        bytes.resize(below(bytes.size() + 1));
        break;
      default: {
        const size_t start = below(other.size());
        const size_t most = std::min<size_t>({other.size() - start, bytes.size() - at, 64});
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(start), below(most + 1), from);
      }
    }
  }
  return bytes;
}

void replay(const std::string& name, Target target, int num_mutations) {
  const std::vector<Bytes> corpus = read_corpus(name);
  ASSERT_GE(corpus.size(), 3U) << "no corpus for " << name;
  for (const Bytes& bytes : corpus) target(bytes.data(), bytes.size());
  std::mt19937_64 random(20240601);
  for (int i = 0; i < num_mutations; ++i) {
    const Bytes& seed = corpus[random() % corpus.size()];
    const Bytes bytes = mutate(seed, corpus[random() % corpus.size()], random);
    target(bytes.data(), bytes.size());
  }
}

TEST(FuzzReplay, CheckpointManifest) {
  replay("checkpoint_manifest", fuzz_checkpoint_manifest, 20000);
}
TEST(FuzzReplay, MegatronIndex) { replay("megatron_index", fuzz_megatron_index, 20000); }
TEST(FuzzReplay, TokenizerJson) { replay("tokenizer_json", fuzz_tokenizer_json, 1000); }

}  // namespace
}  // namespace sgactor::transport

// A short fuzz run of the decoders with a fixed seed; tests/fuzz has the long one. The decoders may
// say yes or no, but must not crash, hang or give a graph that does not verify.
#include "graph/base/philox.h"
#include "graph/ir/serial.h"
#include "graph/ir/text.h"
#include "graph/ir/verify.h"
#include "tests/unit/graph/ir/random_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

namespace sgactor::graph {
namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : stream_{seed, 1} {}

  std::string mutate(std::string bytes, std::string_view alphabet) {
    const int64_t edits = 1 + below(4);
    for (int64_t i = 0; i < edits && !bytes.empty(); ++i) edit(bytes, alphabet);
    return bytes;
  }

 private:
  int64_t below(size_t n) { return static_cast<int64_t>(stream_.below(next_++, n)); }

  void edit(std::string& bytes, std::string_view alphabet) {
    const auto at = static_cast<size_t>(below(bytes.size()));
    const size_t length = 1 + static_cast<size_t>(below(16));
    switch (below(5)) {
      case 0:  // one bit
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        return;
      case 1:  // one byte, from the alphabet
        bytes[at] = alphabet[static_cast<size_t>(below(alphabet.size()))];
        return;
      case 2:  // a piece goes
        bytes.erase(at, length);
        return;
      case 3:  // a piece comes twice
        bytes.insert(static_cast<size_t>(below(bytes.size())), bytes.substr(at, length));
        return;
      default:  // one word, where words lie
        for (size_t i = at / 8 * 8; i < std::min(bytes.size(), at / 8 * 8 + 8); ++i) {
          bytes[i] = static_cast<char>(below(4) == 0 ? 0x7f : 0xff);
        }
    }
  }

  PhiloxStream stream_;
  uint64_t next_ = 0;
};

struct Counts {
  int accepted = 0;
  int refused = 0;
};

Counts run(const std::function<Result<Graph>(const std::string&)>& decode,
           const std::function<std::string(const Graph&)>& encode, std::string_view alphabet) {
  Counts counts;
  Mutator mutator(20240601);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::string bytes = encode(random_graph(seed, 12));
    for (int i = 0; i < 200; ++i) {
      const Result<Graph> graph = decode(mutator.mutate(bytes, alphabet));
      if (!graph.ok()) {
        ++counts.refused;
        continue;
      }
      ++counts.accepted;
      EXPECT_TRUE(verify(*graph).ok());
      EXPECT_TRUE(decode(encode(*graph)).ok());
    }
  }
  return counts;
}

TEST(MutationTest, Text) {
  const Counts counts = run([](const std::string& text) { return parse_graph(text); }, print_graph,
                            "{}()[],=:@%#\"\\0123456789-.eainf \n");
  EXPECT_GT(counts.accepted, 50);
  EXPECT_GT(counts.refused, 1000);
}

TEST(MutationTest, CapnProto) {
  const Counts counts = run([](const std::string& bytes) { return deserialize_graph(bytes); },
                            serialize_graph, std::string_view("\0\1\2\4\x7f\x80\xff", 7));
  EXPECT_GT(counts.accepted, 50);
  EXPECT_GT(counts.refused, 1000);
}

}  // namespace
}  // namespace sgactor::graph

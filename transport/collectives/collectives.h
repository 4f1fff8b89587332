#pragma once
#include "kernels/backend/backend.h"
#include "transport/core/fabric.h"
#include "transport/core/route_table.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sgactor::transport {

enum class CollectiveKind : uint8_t {
  kAllReduce = 0,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv
};

/// What travels. kHash is a 64-bit name of a tensor (the symbolic backend): its "sum" of a and b is
/// mix64(mix64(kHashSumSeed, a), b), so that a wrong order is seen.
enum class Element : uint8_t { kF32 = 0, kF64, kBF16, kI32, kU8, kHash };
inline constexpr uint64_t kHashSumSeed = 0x7472656553756DULL;  // "treeSum"
constexpr int64_t element_bytes(Element e) {
  constexpr int64_t kBytes[] = {4, 8, 2, 4, 1, 8};
  return kBytes[static_cast<int>(e)];
}

/// kMax of floats takes b where a < b, else a; kHash is mixed whatever the reduction.
enum class Reduction : uint8_t { kSum = 0, kMax };

/// How members combine. kExact: neighbours are added level by level over the members in order, an
/// odd one is carried up (the tree of the IR's tree_sum); bf16 is added in f32 and rounded once, at
/// the end; the bits depend on nothing but the inputs. The others may add in their own order, and
/// round bf16 at each hop, yet the same order in every run; where nothing is added all give equal
/// bits. kHalvingDoubling needs a power of two of members and is kRing otherwise.
enum class Algorithm : uint8_t { kExact = 0, kRing, kTree, kHalvingDoubling };

/// One member's part of one collective. Every member of the group makes the same call but for
/// index and pointers (kSend meets kRecv). Counts are elements. `input` must stay valid and
/// unchanged and `output` untouched until the completion.
///
/// kAllReduce      input[total] -> output[total]; may be the same memory.
/// kReduceScatter  input[total] -> output[piece]: elements [index*piece, (index+1)*piece) of the
///                 sum, zeros beyond total. total <= members * piece. May not overlap, but output
///                 may be input + index*piece where the whole piece lies below total.
/// kAllGather      input[piece] -> output[total]: member i supplies [i*piece, min((i+1)*piece,
///                 total)); the rest of its piece is padding and stays home. Input may be output +
///                 index*piece.
/// kBroadcast      root's input[total] -> everyone's output[total]; the root's output may be null
///                 or its input.
/// kAllToAll       input[members*piece] -> output[members*piece]: piece j goes to member j. May
///                 not overlap. total is ignored.
/// kBarrier        done when every member has started it.
/// kSend, kRecv    input[total] to, output[total] from, member `root`.
struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Element element = Element::kF32;
  Reduction reduction = Reduction::kSum;
  Algorithm algorithm = Algorithm::kExact;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t total = 0;
  int64_t piece = 0;
  std::vector<int32_t> group;  ///< logical ranks in plan order: the order of sum and ring
  int32_t index = 0;           ///< the caller's place in `group`
  int32_t root = 0;            ///< place in `group`: root of a broadcast, peer of a send or recv
  /// Launch, step, micro-batch: the same at every member, and of no other collective with an
  /// overlapping group in this generation. Several may be in flight, started in any order.
  uint64_t key = 0;
  Generation generation = 0;
};

/// Sizes of the pipeline. The same in all processes of a job.
struct CollectivesOptions {
  int64_t chunk_bytes = 256 << 10;  ///< one message of a pipelined collective; larger for huge ones
  int32_t window = 4;               ///< chunks in flight between two members
  /// An exact all-reduce whose inputs, all together, are at most this goes in one round of
  /// messages.
  int64_t one_round_bytes = 32 << 10;
};

/// The collectives of one process, for all logical ranks that it hosts: ranks of one process
/// exchange by memcpy, others over the fabric, by the same code. Everything runs on the fabric's
/// progress thread. Thread-safe. The fabric must outlive it. Destroying it cancels what is pending:
/// the completions still come, so sinks and memory must live until num_pending() was 0 or the
/// fabric is destroyed.
///
/// Completions come once a start, on the progress thread, in no particular order; then no memory of
/// the request is touched any more. Errors: kCancelled after an abort; kDisconnected if a member's
/// process is lost; kInvalidArgument for a request that is wrong by itself, names a rank that has
/// no route, or whose sizes differ between members. After an error the output's content is unknown.
class Collectives {
 public:
  explicit Collectives(Fabric& fabric, const CollectivesOptions& options = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Makes `routes.generation` the current generation: fences the fabric, ends every collective of
  /// an older one with kCancelled, and routes later requests by `routes`. No effect if its
  /// generation is not above the current one (0 at first; the first call may be of generation 0).
  void set_routes(RouteTable routes);

  /// Returns at once. A request of an older generation than the current one completes with
  /// kCancelled, one of a later generation with kInvalidArgument.
  void start(CollectiveRequest request, uint64_t token, kernels::CompletionSink& sink);

  /// Ends every pending collective of a generation up to `generation`; starts of such generations
  /// complete with kCancelled from now on. Waits for nobody. Routes stay; later generations need
  /// set_routes.
  void abort(Generation generation, const Status& why);

  /// Ends the collectives that need `peer`, and destroys the link to it. Others go on.
  void abort_peer(PeerId peer, const Status& why);

  /// Collectives started and not completed. Any thread; a snapshot.
  [[nodiscard]] int64_t num_pending() const;

 private:
  class Engine;
  std::shared_ptr<Engine> engine_;  ///< shared with the tasks it has posted
};

}  // namespace sgactor::transport

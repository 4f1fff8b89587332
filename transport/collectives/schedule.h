#pragma once
#include "transport/collectives/collectives.h"

#include <cstdint>
#include <initializer_list>
#include <span>
#include <tuple>
#include <vector>

namespace sgactor::transport {

/// A place in the memory of one member of a collective; bytes.
struct Ref {
  /// kMessage: the message of the same step, of kRecvReduce.
  enum class Space : uint8_t { kInput = 0, kOutput, kScratch, kMessage } space = Space::kInput;
  int64_t offset = 0;
};

/// One thing that a member does.
struct Step {
  enum class Kind : uint8_t {
    kSend = 0,   ///< `at`, to member `peer`
    kRecv,       ///< into `at`, from member `peer`
    kReduce,     ///< at = the sources in order, `bytes` of each
    kCopy,       ///< at = sources[0]
    kZero,       ///< at = 0
    kJoin,       ///< nothing; gathers waits
    kRecvReduce  ///< as kReduce, one source of which is a message from `peer` on its way in
  } kind = Kind::kJoin;
  Ref at;
  int64_t bytes = 0;
  int32_t peer = 0;    ///< place in the group
  uint32_t phase = 0;  ///< the same at both ends of a message, unlike that of any other message of
                       ///< this collective with the same source and target
  int32_t first_source = 0, num_sources = 0;  ///< in Schedule::sources
  int32_t first_next = 0, num_next = 0;       ///< in Schedule::next: steps that wait for this one
  int32_t num_waits = 0;                      ///< steps that this one waits for
};

/// What one member does in a collective, as steps that wait for each other. Says nothing of
/// pointers, keys or generations, so that it is built once for a shape and used every step.
struct Schedule {
  std::vector<Step> steps;
  std::vector<Ref> sources;
  std::vector<int32_t> next;
  int64_t scratch_bytes = 0;
};

/// What a schedule depends on.
struct ScheduleShape {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Element element = Element::kF32;
  Algorithm algorithm = Algorithm::kExact;
  int64_t total = 0;
  int64_t piece = 0;
  int32_t num_members = 1;
  int32_t index = 0;
  int32_t root = 0;
  bool has_output = true;  ///< false: a broadcast's root that wants none

  [[nodiscard]] auto key() const {
    return std::tuple(kind, element, algorithm, total, piece, num_members, index, root, has_output);
  }
  [[nodiscard]] int64_t element_size() const { return element_bytes(element); }
  /// Elements of member `i`'s piece that lie below `total`.
  [[nodiscard]] int64_t piece_length(int32_t i) const;
};

/// Pure. Pre: check_shape(shape) is ok.
[[nodiscard]] Schedule build_schedule(const ScheduleShape& shape,
                                      const CollectivesOptions& options);
/// Errors: kInvalidArgument.
[[nodiscard]] Status check_shape(const ScheduleShape& shape);

/// Puts steps together; used by the builders of the algorithms.
class ScheduleBuilder {
 public:
  using StepId = int32_t;
  static constexpr StepId kNone = -1;  ///< as a wait: nothing to wait for

  ScheduleBuilder(const ScheduleShape& shape, const CollectivesOptions& options)
      : shape_(shape), options_(options) {}
  [[nodiscard]] const ScheduleShape& shape() const { return shape_; }
  [[nodiscard]] const CollectivesOptions& options() const { return options_; }

  StepId send(Ref from, int64_t bytes, int32_t peer, uint32_t phase,
              std::initializer_list<StepId> waits);
  StepId recv(Ref to, int64_t bytes, int32_t peer, uint32_t phase,
              std::initializer_list<StepId> waits);
  /// `sources`: at most kMaxRecvSources, one of them in Space::kMessage, the rest of `bytes` each.
  StepId recv_reduce(Ref to, int64_t bytes, int32_t peer, uint32_t phase,
                     std::span<const Ref> sources, std::initializer_list<StepId> waits);
  static constexpr size_t kMaxRecvSources = 4;
  StepId reduce(Ref to, int64_t bytes, std::span<const Ref> sources,
                std::initializer_list<StepId> waits);
  StepId copy(Ref to, Ref from, int64_t bytes, std::initializer_list<StepId> waits);
  StepId zero(Ref at, int64_t bytes);
  StepId join(std::initializer_list<StepId> waits);
  void wait(StepId step, StepId before);
  Ref scratch(int64_t bytes);

  [[nodiscard]] Schedule finish();

 private:
  StepId add(Step step, std::initializer_list<StepId> waits);

  const ScheduleShape shape_;
  const CollectivesOptions options_;
  Schedule schedule_;
  std::vector<std::pair<StepId, StepId>> edges_;
};

/// The algorithms; each adds the steps of one member.
void build_exact_all_reduce(ScheduleBuilder& b);
void build_exact_reduce_scatter(ScheduleBuilder& b);
void build_direct_all_gather(ScheduleBuilder& b);
void build_ring_all_reduce(ScheduleBuilder& b);
void build_ring_reduce_scatter(ScheduleBuilder& b);
void build_ring_all_gather(ScheduleBuilder& b);
void build_tree_all_reduce(ScheduleBuilder& b);
void build_tree_broadcast(ScheduleBuilder& b);
void build_halving_doubling_all_reduce(ScheduleBuilder& b);
void build_all_to_all(ScheduleBuilder& b);
void build_barrier(ScheduleBuilder& b);

/// Ranges of a piece that travel as messages.
struct Chunks {
  int64_t chunk_elements = 1;
  /// Of a piece of `piece` elements.
  Chunks(const ScheduleShape& shape, const CollectivesOptions& options, int64_t piece);
  [[nodiscard]] int64_t count(int64_t length) const {
    return (length + chunk_elements - 1) / chunk_elements;
  }
  [[nodiscard]] int64_t length(int64_t piece_length, int64_t chunk) const {
    return std::min(chunk_elements, piece_length - chunk * chunk_elements);
  }
};

/// Phases: what part of a collective a message belongs to, and its number there.
constexpr uint32_t phase_of(uint32_t part, int64_t number) {
  return part << 27 | static_cast<uint32_t>(number);
}

}  // namespace sgactor::transport

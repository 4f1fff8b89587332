// Algorithms that add on the way. Ring and recursive halving-doubling: Thakur, Rabenseifner, Gropp,
// "Optimization of collective communication operations in MPICH", 2005. The binomial tree adds in
// the order of the members.
#include "transport/collectives/schedule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace sgactor::transport {
namespace {

using StepId = ScheduleBuilder::StepId;
constexpr StepId kNone = ScheduleBuilder::kNone;

struct Ring {
  explicit Ring(const ScheduleBuilder& b)
      : n(b.shape().num_members),
        index(b.shape().index),
        size(b.shape().element_size()),
        chunks(b.shape(), b.options(), b.shape().piece),
        num_chunks(chunks.count(b.shape().piece)) {}
  int32_t n;
  int32_t index;
  int64_t size;
  Chunks chunks;
  int64_t num_chunks;

  [[nodiscard]] int32_t back(int32_t steps) const { return ((index - steps) % n + n) % n; }
  [[nodiscard]] int32_t next() const { return (index + 1) % n; }
  [[nodiscard]] int32_t previous() const { return back(1); }
  /// Bytes of a chunk of member p's piece; 0 where the piece ends before it.
  [[nodiscard]] int64_t bytes(const ScheduleShape& s, int32_t p, int64_t c) const {
    return std::max<int64_t>(0, chunks.length(s.piece_length(p), c)) * size;
  }
  [[nodiscard]] int64_t offset(const ScheduleShape& s, int32_t p, int64_t c) const {
    return (p * s.piece + c * chunks.chunk_elements) * size;
  }
  [[nodiscard]] uint32_t phase(uint32_t part, int64_t c, int32_t step) const {
    return phase_of(part, c * n + step);
  }
};

// Steps that have read the input of each member's piece, for one chunk; the last one, at the own
// piece's place, has written the result.
using Consumed = std::vector<StepId>;

// One chunk of every piece goes once around, growing by one summand a hop. Member i ends with the
// sum of its own piece in `out`. `last_use`: of the two scratch buffers of this slot.
Consumed ring_scatter_chunk(ScheduleBuilder& b, const Ring& ring, int64_t c, Ref out,
                            const std::array<Ref, 2>& buffers, std::array<StepId, 2>& last_use) {
  const ScheduleShape& s = b.shape();
  Consumed consumed(static_cast<size_t>(ring.n), kNone);
  const auto input = [&](int32_t p) { return Ref{Ref::Space::kInput, ring.offset(s, p, c)}; };
  const int32_t first = ring.back(1);
  if (const int64_t bytes = ring.bytes(s, first, c); bytes > 0) {
    // Slots are used again in order, which bounds what is under way.
    consumed[static_cast<size_t>(first)] =
        b.send(input(first), bytes, ring.next(), ring.phase(0, c, 0), {last_use[0]});
  }
  for (int32_t step = 0; step + 1 < ring.n; ++step) {
    const int32_t p = ring.back(2 + step);
    const int64_t bytes = ring.bytes(s, p, c);
    if (bytes == 0) continue;
    StepId& use = last_use[static_cast<size_t>(step % 2)];
    const Ref buffer = buffers[static_cast<size_t>(step % 2)];
    const std::array<Ref, 2> sources{Ref{Ref::Space::kMessage, 0}, input(p)};
    const bool is_own = p == ring.index;
    const StepId sum = b.recv_reduce(is_own ? out : buffer, bytes, ring.previous(),
                                     ring.phase(0, c, step), sources, {use});
    consumed[static_cast<size_t>(p)] = sum;
    use = is_own ? sum : b.send(buffer, bytes, ring.next(), ring.phase(0, c, step + 1), {sum});
  }
  return consumed;
}

// The own chunk, at `own` once `ready`, goes once around and is kept by everybody.
void ring_gather_chunk(ScheduleBuilder& b, const Ring& ring, int64_t c, Ref own, StepId ready,
                       const Consumed& consumed, std::vector<StepId>& window_of_step) {
  const ScheduleShape& s = b.shape();
  if (const int64_t bytes = ring.bytes(s, ring.index, c); bytes > 0) {
    b.send(own, bytes, ring.next(), ring.phase(1, c, 0), {ready});
  }
  for (int32_t step = 0; step + 1 < ring.n; ++step) {
    const int32_t p = ring.back(1 + step);
    const int64_t bytes = ring.bytes(s, p, c);
    if (bytes == 0) continue;
    const Ref to{Ref::Space::kOutput, ring.offset(s, p, c)};
    StepId& before = window_of_step[static_cast<size_t>((c % b.options().window) * ring.n + step)];
    const StepId free = consumed.empty() ? kNone : consumed[static_cast<size_t>(p)];
    const StepId received =
        b.recv(to, bytes, ring.previous(), ring.phase(1, c, step), {free, before});
    before = received;
    if (step + 2 < ring.n) {
      b.send(to, bytes, ring.next(), ring.phase(1, c, step + 1), {received});
    }
  }
}

void ring_reduce(ScheduleBuilder& b, Ref out, bool gather) {
  const ScheduleShape& s = b.shape();
  const Ring ring(b);
  const int64_t window =
      std::min<int64_t>(b.options().window, std::max<int64_t>(1, ring.num_chunks));
  std::vector<std::array<Ref, 2>> buffers;
  std::vector<std::array<StepId, 2>> last_use(static_cast<size_t>(window), {kNone, kNone});
  const int64_t chunk_bytes = std::min(s.piece, ring.chunks.chunk_elements) * ring.size;
  for (int64_t w = 0; w < window; ++w) {
    const Ref first = b.scratch(chunk_bytes);
    buffers.push_back({first, b.scratch(chunk_bytes)});
  }
  std::vector<StepId> gather_window(static_cast<size_t>(b.options().window * ring.n), kNone);
  for (int64_t c = 0; c < ring.num_chunks; ++c) {
    const auto slot = static_cast<size_t>(c % window);
    const Ref own{out.space, out.offset + c * ring.chunks.chunk_elements * ring.size};
    const Consumed consumed = ring_scatter_chunk(b, ring, c, own, buffers[slot], last_use[slot]);
    if (!gather) continue;
    ring_gather_chunk(b, ring, c, own, consumed[static_cast<size_t>(ring.index)], consumed,
                      gather_window);
  }
}

void copy_all(ScheduleBuilder& b) {
  const int64_t bytes = b.shape().total * b.shape().element_size();
  if (bytes > 0) b.copy({Ref::Space::kOutput, 0}, {Ref::Space::kInput, 0}, bytes, {});
}

}  // namespace

void build_ring_all_reduce(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  if (s.num_members == 1) return copy_all(b);
  ring_reduce(b, {Ref::Space::kOutput, s.index * s.piece * s.element_size()}, true);
}

void build_ring_reduce_scatter(ScheduleBuilder& b) {
  if (b.shape().num_members == 1) return copy_all(b);
  ring_reduce(b, {Ref::Space::kOutput, 0}, false);
}

void build_ring_all_gather(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const Ring ring(b);
  if (const int64_t length = s.piece_length(s.index); length > 0) {
    b.copy({Ref::Space::kOutput, s.index * s.piece * ring.size}, {Ref::Space::kInput, 0},
           length * ring.size, {});
  }
  if (ring.n == 1) return;
  std::vector<StepId> window(static_cast<size_t>(b.options().window * ring.n), kNone);
  for (int64_t c = 0; c < ring.num_chunks; ++c) {
    const Ref own{Ref::Space::kInput, c * ring.chunks.chunk_elements * ring.size};
    ring_gather_chunk(b, ring, c, own, kNone, {}, window);
  }
}

namespace {

// Sums chunk `c` up the binomial tree into member 0's output. Returns the last step on it here.
StepId tree_up(ScheduleBuilder& b, int64_t c, int64_t first, int64_t bytes,
               const std::vector<Ref>& scratch, std::vector<StepId>& scratch_use) {
  const ScheduleShape& s = b.shape();
  const Ref out{Ref::Space::kOutput, first};
  StepId last = b.copy(out, {Ref::Space::kInput, first}, bytes, {});
  size_t level = 0;
  for (int32_t mask = 1; mask < s.num_members; mask *= 2, ++level) {
    if ((s.index & mask) != 0) {
      return b.send(out, bytes, s.index - mask, phase_of(0, c), {last});
    }
    if (s.index + mask >= s.num_members) continue;
    StepId& use = scratch_use[level];
    const StepId received = b.recv(scratch[level], bytes, s.index + mask, phase_of(0, c), {use});
    const std::array<Ref, 2> sources{out, scratch[level]};
    last = use = b.reduce(out, bytes, sources, {received, last});
  }
  return last;
}

// Hands chunk `c` down the binomial tree rooted at member `root`: from `source` at the root, into
// the output elsewhere, once `free`.
void tree_down(ScheduleBuilder& b, int32_t root, int64_t c, Ref source, int64_t first,
               int64_t bytes, StepId free) {
  const ScheduleShape& s = b.shape();
  const int32_t n = s.num_members;
  const int32_t place = (s.index - root + n) % n;
  const auto member = [&](int32_t at) { return (at + root) % n; };
  Ref from = source;
  StepId ready = free;
  int32_t mask = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(n)));
  if (place != 0) {
    mask = place & -place;
    from = {Ref::Space::kOutput, first};
    ready = b.recv(from, bytes, member(place - mask), phase_of(1, c), {free});
  }
  for (mask /= 2; mask > 0; mask /= 2) {
    if (place + mask < n) b.send(from, bytes, member(place + mask), phase_of(1, c), {ready});
  }
}

}  // namespace

void build_tree_all_reduce(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const Chunks chunks(s, b.options(), s.total);
  const int64_t num_chunks = chunks.count(s.total);
  const int64_t window = std::min<int64_t>(b.options().window, std::max<int64_t>(1, num_chunks));
  const auto num_levels =
      static_cast<int64_t>(std::bit_width(static_cast<uint32_t>(s.num_members)));
  std::vector<std::vector<Ref>> scratch(static_cast<size_t>(window));
  std::vector<std::vector<StepId>> use(static_cast<size_t>(window),
                                       std::vector<StepId>(static_cast<size_t>(num_levels), kNone));
  for (auto& slot : scratch) {
    for (int64_t level = 0; level < num_levels; ++level) {
      slot.push_back(b.scratch(std::min(s.total, chunks.chunk_elements) * s.element_size()));
    }
  }
  for (int64_t c = 0; c < num_chunks; ++c) {
    const auto slot = static_cast<size_t>(c % window);
    const int64_t first = c * chunks.chunk_elements * s.element_size();
    const int64_t bytes = chunks.length(s.total, c) * s.element_size();
    const StepId last = tree_up(b, c, first, bytes, scratch[slot], use[slot]);
    tree_down(b, 0, c, {Ref::Space::kOutput, first}, first, bytes, last);
  }
}

void build_tree_broadcast(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const Chunks chunks(s, b.options(), s.total);
  if (s.index == s.root && s.has_output) copy_all(b);
  for (int64_t c = 0; c < chunks.count(s.total); ++c) {
    const int64_t first = c * chunks.chunk_elements * s.element_size();
    const int64_t bytes = chunks.length(s.total, c) * s.element_size();
    tree_down(b, s.root, c, {Ref::Space::kInput, first}, first, bytes, kNone);
  }
}

void build_halving_doubling_all_reduce(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const int64_t size = s.element_size();
  if (s.total == 0) return;
  struct Level {
    int64_t low, high;  // what this member still adds, before the split
    int64_t keep_low, keep_high;
    int32_t partner;
    bool is_lower;
    StepId sent;
  };
  std::vector<Level> levels;
  const auto output = [&](int64_t element) { return Ref{Ref::Space::kOutput, element * size}; };
  StepId ready = b.copy(output(0), {Ref::Space::kInput, 0}, s.total * size, {});
  int64_t low = 0;
  int64_t high = s.total;
  for (int32_t mask = s.num_members / 2; mask > 0; mask /= 2) {
    const int64_t middle = low + (high - low + 1) / 2;
    const bool is_lower = (s.index & mask) == 0;
    Level level{low,      high, is_lower ? low : middle, is_lower ? middle : high, s.index ^ mask,
                is_lower, kNone};
    const int64_t give_low = is_lower ? middle : low;
    const int64_t give_high = is_lower ? high : middle;
    const int64_t keep_bytes = (level.keep_high - level.keep_low) * size;
    const uint32_t phase = phase_of(0, static_cast<int64_t>(levels.size()));
    const Ref scratch = b.scratch(keep_bytes);
    const StepId received = b.recv(scratch, keep_bytes, level.partner, phase, {});
    level.sent =
        b.send(output(give_low), (give_high - give_low) * size, level.partner, phase, {ready});
    const Ref mine = output(level.keep_low);
    const std::array<Ref, 2> sources{is_lower ? mine : scratch, is_lower ? scratch : mine};
    ready = b.reduce(mine, keep_bytes, sources, {ready, received});
    low = level.keep_low;
    high = level.keep_high;
    levels.push_back(level);
  }
  for (size_t i = levels.size(); i-- > 0;) {
    const Level& level = levels[i];
    const int64_t take_low = level.is_lower ? level.keep_high : level.low;
    const int64_t take_high = level.is_lower ? level.high : level.keep_low;
    const uint32_t phase = phase_of(1, static_cast<int64_t>(i));
    const StepId received =
        b.recv(output(take_low), (take_high - take_low) * size, level.partner, phase, {level.sent});
    const StepId sent = b.send(output(level.keep_low), (level.keep_high - level.keep_low) * size,
                               level.partner, phase, {ready});
    ready = b.join({received, sent});
  }
}

}  // namespace sgactor::transport

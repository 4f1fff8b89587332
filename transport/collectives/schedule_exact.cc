// Direct algorithms: every member exchanges with every other one, and each owner adds the pieces it
// has received in the order of the members. Sums are therefore independent of timing.
#include "transport/collectives/schedule.h"

#include <algorithm>
#include <array>
#include <vector>

namespace sgactor::transport {
namespace {

using StepId = ScheduleBuilder::StepId;
constexpr StepId kNone = ScheduleBuilder::kNone;

// Ids of steps by (row, chunk); kNone where there is none.
class StepGrid {
 public:
  StepGrid(int32_t rows, int64_t columns)
      : columns_(columns), ids_(static_cast<size_t>(rows * columns), kNone) {}
  StepId& at(int32_t row, int64_t column) {
    return ids_[static_cast<size_t>(row * columns_ + column)];
  }
  StepId get(int32_t row, int64_t column) {
    return column < 0 || column >= columns_ ? kNone : at(row, column);
  }

 private:
  int64_t columns_;
  std::vector<StepId> ids_;
};

int64_t num_chunk_columns(const ScheduleBuilder& b, const Chunks& chunks) {
  return std::max<int64_t>(1, chunks.count(b.shape().piece));
}

struct Scattered {
  std::vector<StepId> reduced;  // by chunk of the own piece
  StepGrid sent;                // by member and chunk of its piece
};

// Receives the own piece from everybody, chunk by chunk, and adds it into `out`.
void receive_and_reduce(ScheduleBuilder& b, const Chunks& chunks, int64_t c, Ref out,
                        const std::vector<Ref>& scratch, Scattered& done) {
  const ScheduleShape& s = b.shape();
  const int32_t n = s.num_members;
  const int64_t size = s.element_size();
  const int64_t bytes = chunks.length(s.piece_length(s.index), c) * size;
  const int64_t first = c * chunks.chunk_elements * size;
  const int64_t window = b.options().window;
  if (n == 2) {
    // A sum of two needs no copy of the message.
    const Ref input{Ref::Space::kInput, s.index * s.piece * size + first};
    const Ref message{Ref::Space::kMessage, 0};
    const std::array<Ref, 2> both{s.index == 0 ? input : message, s.index == 0 ? message : input};
    const StepId before = c >= window ? done.reduced[static_cast<size_t>(c - window)] : kNone;
    done.reduced.push_back(b.recv_reduce({out.space, out.offset + first}, bytes, 1 - s.index,
                                         phase_of(0, c), both, {before}));
    return;
  }
  const StepId slot_free = c >= window ? done.reduced[static_cast<size_t>(c - window)] : kNone;
  std::vector<Ref> sources(static_cast<size_t>(n));
  std::vector<StepId> received;
  for (int32_t j = 0; j < n; ++j) {
    Ref& source = sources[static_cast<size_t>(j)];
    if (j == s.index) {
      source = {Ref::Space::kInput, s.index * s.piece * size + first};
      continue;
    }
    source = scratch[static_cast<size_t>((c % window) * n + j)];
    received.push_back(b.recv(source, bytes, j, phase_of(0, c), {slot_free}));
  }
  const StepId reduce = b.reduce({out.space, out.offset + first}, bytes, sources, {});
  for (const StepId r : received) b.wait(reduce, r);
  done.reduced.push_back(reduce);
}

Scattered exact_scatter(ScheduleBuilder& b, Ref out) {
  const ScheduleShape& s = b.shape();
  const int32_t n = s.num_members;
  const int64_t size = s.element_size();
  const Chunks chunks(s, b.options(), s.piece);
  const int64_t columns = num_chunk_columns(b, chunks);
  const int64_t own = s.piece_length(s.index);
  Scattered done{{}, StepGrid(n, columns)};
  std::vector<Ref> scratch;
  const int64_t num_slots =
      n == 2 ? 0 : std::min<int64_t>(chunks.count(own), b.options().window) * n;
  for (int64_t i = 0; i < num_slots; ++i) {
    const bool is_own = i % n == s.index;
    scratch.push_back(is_own ? Ref{} : b.scratch(chunks.length(own, 0) * size));
  }
  for (int64_t c = 0; c < columns; ++c) {
    if (c < chunks.count(own)) receive_and_reduce(b, chunks, c, out, scratch, done);
    for (int32_t d = 1; d < n; ++d) {
      const int32_t j = (s.index + d) % n;
      const int64_t length = s.piece_length(j);
      if (c >= chunks.count(length)) continue;
      const Ref from{Ref::Space::kInput, (j * s.piece + c * chunks.chunk_elements) * size};
      done.sent.at(j, c) = b.send(from, chunks.length(length, c) * size, j, phase_of(0, c),
                                  {done.sent.get(j, c - b.options().window)});
    }
  }
  return done;
}

// Sends the own piece, chunk by chunk behind `ready`, to everybody, and receives theirs into the
// output; a chunk of it is written only behind the step that has sent the input of the same place.
void direct_gather(ScheduleBuilder& b, Ref own, const std::vector<StepId>& ready, StepGrid* sent) {
  const ScheduleShape& s = b.shape();
  const int32_t n = s.num_members;
  const int64_t size = s.element_size();
  const Chunks chunks(s, b.options(), s.piece);
  const int64_t columns = num_chunk_columns(b, chunks);
  StepGrid gathered(n, columns);
  StepGrid given(n, columns);
  const int64_t window = b.options().window;
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t first = c * chunks.chunk_elements;
    for (int32_t d = 1; d < n; ++d) {
      const int32_t j = (s.index + n - d) % n;
      const int64_t length = s.piece_length(j);
      if (c >= chunks.count(length)) continue;
      const StepId input_sent = sent == nullptr ? kNone : sent->get(j, c);
      gathered.at(j, c) = b.recv({Ref::Space::kOutput, (j * s.piece + first) * size},
                                 chunks.length(length, c) * size, j, phase_of(1, c),
                                 {input_sent, gathered.get(j, c - 2 * window)});
    }
    const int64_t length = s.piece_length(s.index);
    if (c >= chunks.count(length)) continue;
    for (int32_t d = 1; d < n; ++d) {
      const int32_t j = (s.index + d) % n;
      const StepId is_ready = ready.empty() ? kNone : ready[static_cast<size_t>(c)];
      given.at(j, c) =
          b.send({own.space, own.offset + first * size}, chunks.length(length, c) * size, j,
                 phase_of(1, c), {is_ready, given.get(j, c - window)});
    }
  }
}

// All inputs to everybody in one round; each adds for itself, by the same tree.
void one_round_all_reduce(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const int64_t bytes = s.total * s.element_size();
  std::vector<Ref> sources;
  std::vector<StepId> before;
  for (int32_t j = 0; j < s.num_members; ++j) {
    if (j == s.index) {
      sources.push_back({Ref::Space::kInput, 0});
      continue;
    }
    sources.push_back(b.scratch(bytes));
    before.push_back(b.recv(sources.back(), bytes, j, phase_of(2, 0), {}));
  }
  for (int32_t d = 1; d < s.num_members; ++d) {
    // The sum may replace the input, so it waits for these too.
    before.push_back(
        b.send({Ref::Space::kInput, 0}, bytes, (s.index + d) % s.num_members, phase_of(2, 0), {}));
  }
  const StepId reduce = b.reduce({Ref::Space::kOutput, 0}, bytes, sources, {});
  for (const StepId id : before) b.wait(reduce, id);
}

}  // namespace

void build_exact_all_reduce(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  if (s.total == 0) return;
  if (s.total * s.element_size() * s.num_members <= b.options().one_round_bytes) {
    return one_round_all_reduce(b);
  }
  const Ref own{Ref::Space::kOutput, s.index * s.piece * s.element_size()};
  Scattered scattered = exact_scatter(b, own);
  direct_gather(b, own, scattered.reduced, &scattered.sent);
}

void build_exact_reduce_scatter(ScheduleBuilder& b) { exact_scatter(b, {Ref::Space::kOutput, 0}); }

void build_direct_all_gather(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const int64_t size = s.element_size();
  if (const int64_t length = s.piece_length(s.index); length > 0) {
    b.copy({Ref::Space::kOutput, s.index * s.piece * size}, {Ref::Space::kInput, 0}, length * size,
           {});
  }
  direct_gather(b, {Ref::Space::kInput, 0}, {}, nullptr);
}

void build_all_to_all(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const int64_t bytes = s.piece * s.element_size();
  if (bytes == 0) return;
  for (int32_t d = 1; d < s.num_members; ++d) {
    const int32_t from = (s.index + s.num_members - d) % s.num_members;
    b.recv({Ref::Space::kOutput, from * bytes}, bytes, from, phase_of(0, 0), {});
  }
  for (int32_t d = 1; d < s.num_members; ++d) {
    const int32_t to = (s.index + d) % s.num_members;
    b.send({Ref::Space::kInput, to * bytes}, bytes, to, phase_of(0, 0), {});
  }
  b.copy({Ref::Space::kOutput, s.index * bytes}, {Ref::Space::kInput, s.index * bytes}, bytes, {});
}

// Dissemination: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
void build_barrier(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  StepId entered = kNone;
  int32_t round = 0;
  for (int64_t distance = 1; distance < s.num_members; distance *= 2, ++round) {
    const auto to = static_cast<int32_t>((s.index + distance) % s.num_members);
    const auto from = static_cast<int32_t>((s.index + s.num_members - distance) % s.num_members);
    const StepId heard = b.recv({Ref::Space::kScratch, 0}, 0, from, phase_of(0, round), {});
    const StepId told = b.send({Ref::Space::kScratch, 0}, 0, to, phase_of(0, round), {entered});
    entered = b.join({entered, heard, told});
  }
}

}  // namespace sgactor::transport

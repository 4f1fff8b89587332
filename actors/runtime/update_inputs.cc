#include "actors/runtime/update_inputs.h"

#include "actors/runtime/first_failure.h"
#include "graph/base/hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>

namespace sgactor::actors {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMagic = 0x31'6E'69'41'47'53'0A'0D;  // "\r\nSGAin1"
// Copies of the state and further steps need room as well.
constexpr uint64_t kRoomFor = 8;

struct Header {
  uint64_t magic = kMagic;
  int64_t rank = 0;
  int64_t step = 0;
  uint64_t layout = 0;  // of the plan and its places
  int64_t valid_tokens = 0;
  uint64_t sample_hash = 0;
  int64_t own_bytes = 0;     // reports; right behind the header
  int64_t shared_bytes = 0;  // what the update reads; behind them, 0: in the keeper's file
  uint64_t own_hash = 0;
  uint64_t shared_hash = 0;
  uint64_t hash = 0;  // of all before
};
static_assert(sizeof(Header) == 11 * sizeof(uint64_t));

uint64_t hash_of(const Header& h) {
  return hash64(std::as_bytes(std::span(&h, 1)).first(offsetof(Header, hash)));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

std::string steps_dir(const std::string& root) { return root + "/inputs"; }
/// Pruned files wait here to be written again: their pages are there, so that a save copies only.
std::string spent_dir(const std::string& root) { return root + "/inputs/spent"; }
std::string spent_prefix(int32_t rank) { return fmt::format("rank-{}.", rank); }
std::string step_dir(const std::string& root, int64_t step) {
  return fmt::format("{}/inputs/step-{:08}", root, step);
}
std::string file_of(const std::string& root, int64_t step, int32_t rank) {
  return fmt::format("{}/rank-{}", step_dir(root, step), rank);
}

Status write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return internal_error(std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

bool read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

/// The header, if it and the file's length are what they must be.
bool read_header(int fd, int32_t rank, int64_t step, Header& h) {
  struct stat info {};
  if (!read_all(fd, std::as_writable_bytes(std::span(&h, 1))) || ::fstat(fd, &info) != 0) {
    return false;
  }
  return h.magic == kMagic && h.hash == hash_of(h) && h.rank == rank && h.step == step &&
         h.own_bytes >= 0 && h.shared_bytes >= 0 &&
         static_cast<int64_t>(info.st_size) ==
             static_cast<int64_t>(sizeof(Header)) + h.own_bytes + h.shared_bytes;
}

Status damaged(const std::string& path) {
  return corruption(path + ": missing, damaged, or of another plan");
}

/// Moves a pruned file of `rank` to `path`. False if there is none.
bool take_spent(const std::string& root, int32_t rank, const std::string& path) {
  const std::string prefix = spent_prefix(rank);
  std::error_code error;
  for (fs::directory_iterator it(spent_dir(root), error), end; !error && it != end;
       it.increment(error)) {
    if (!it->path().filename().string().starts_with(prefix)) continue;
    if (::rename(it->path().c_str(), path.c_str()) == 0) return true;
  }
  return false;
}

std::vector<graph::LaunchId> update_launches(const ProgramContext& context, size_t lane) {
  std::vector<graph::LaunchId> out;
  for (const LaneItem& item : context.schedule.lanes[lane]) {
    if (item.kind != ItemKind::kLaunch) continue;
    if (context.launch(item.launch).phase == graph::Phase::kUpdate) out.push_back(item.launch);
  }
  return out;
}

std::set<graph::BufferId> written_before_update(const ProgramContext& context) {
  std::set<graph::BufferId> out;
  for (const graph::Launch& l : context.program->launches) {
    if (l.phase != graph::Phase::kUpdate) out.insert(l.outputs.begin(), l.outputs.end());
  }
  return out;
}

bool is_state(const ProgramContext& context, graph::BufferId b) {
  const graph::BufferKind kind = context.buffer(b).kind;
  return kind == graph::BufferKind::kParameter || kind == graph::BufferKind::kMoment;
}

TensorPlace place_of(const ProgramContext& context, graph::BufferId b) {
  const graph::Buffer& buffer = context.buffer(b);
  return {b, buffer.name, buffer.type, context.address(b, 0), buffer.bytes};
}

Result<float> number_of(const ProgramContext& context, const TensorPlace* place) {
  if (place == nullptr) return 0.0F;
  std::array<std::byte, sizeof(double)> native{};
  const auto n = static_cast<size_t>(place->type.bytes());
  if (place->type.num_elements() != 1 || n > native.size()) {
    return invalid_plan(place->name + " is no number");
  }
  SGA_TRY(context.backend->read_tensor(std::span(native.data(), n), place->type, place->address));
  if (place->type.dtype == DType::kF64) {
    double wide = 0;
    std::memcpy(&wide, native.data(), sizeof wide);
    return static_cast<float>(wide);
  }
  float narrow = 0;
  std::memcpy(&narrow, native.data(), sizeof narrow);
  return narrow;
}

}  // namespace

std::vector<TensorPlace> update_inputs(const ProgramContext& context) {
  const std::set<graph::BufferId> before = written_before_update(context);
  std::set<graph::BufferId> known;  // listed, or made by the update
  std::vector<TensorPlace> out;
  const auto add = [&](graph::BufferId b) {
    if (known.insert(b).second) out.push_back(place_of(context, b));
  };
  for (const graph::LaunchId l : update_launches(context, 0)) {
    for (const graph::LaunchInput& in : context.launch(l).inputs) {
      if (!is_state(context, in.buffer)) add(in.buffer);
    }
    known.insert(context.launch(l).outputs.begin(), context.launch(l).outputs.end());
  }
  known.clear();
  for (const TensorPlace& t : out) known.insert(t.buffer);
  for (const graph::BufferId b : before) {
    if (is_state(context, b)) add(b);
  }
  return out;
}

int32_t inputs_keeper(const graph::Plan& plan, int32_t rank) {
  const graph::RankPlacement& me = plan.ranks[static_cast<size_t>(rank)];
  if (plan.zero_stage != 0) return rank;
  const int32_t first = graph::rank_at(plan, me.pp, 0, me.tp);
  if (first < 0 || plan.ranks[static_cast<size_t>(first)].program != me.program) return rank;
  return first;
}

Result<RankNumbers> step_numbers(const ProgramContext& context) {
  RankNumbers out;
  const TensorPlace* loss = context.find_report(graph::Role::kAccumulator, "loss");
  if (loss == nullptr) loss = context.find_report(graph::Role::kLoss, "");
  out.has_loss = loss != nullptr;
  SGA_ASSIGN(out.loss, number_of(context, loss));
  SGA_ASSIGN(out.grad_norm,
             number_of(context, context.find_report(graph::Role::kMetric, "grad_norm")));
  SGA_ASSIGN(out.lr, number_of(context, context.find_report(graph::Role::kMetric, "lr")));
  return out;
}

// --- UpdateInputs ---

UpdateInputs::UpdateInputs(std::shared_ptr<const ProgramContext> context, std::string root)
    : context_(std::move(context)),
      root_(std::move(root)),
      keeper_(inputs_keeper(*context_->plan, context_->rank)),
      raw_(context_->backend->host_visible()) {}

Result<std::unique_ptr<UpdateInputs>> UpdateInputs::create(
    std::shared_ptr<const ProgramContext> context, const std::string& root) {
  std::unique_ptr<UpdateInputs> out(new UpdateInputs(std::move(context), root));
  SGA_TRY(out->list_launches());
  out->list_places();
  std::error_code error;
  fs::create_directories(spent_dir(root), error);
  if (error) return internal_error(spent_dir(root) + ": " + error.message());
  return out;
}

Status UpdateInputs::list_launches() {
  const ProgramContext& c = *context_;
  launches_ = update_launches(c, 0);
  size_t all = 0;
  for (const graph::Launch& l : c.program->launches) {
    if (l.phase != graph::Phase::kUpdate) continue;
    ++all;
    if (l.kind != graph::LaunchKind::kSubgraph) {
      return unsupported(l.name + " communicates in the update");
    }
  }
  if (all != launches_.size()) return unsupported("the update runs on several lanes");
  return {};
}

void UpdateInputs::list_places() {
  const ProgramContext& c = *context_;
  shared_ = update_inputs(c);
  std::set<graph::BufferId> known;
  for (const TensorPlace& t : shared_) known.insert(t.buffer);
  for (const graph::LaunchId l : launches_) {
    known.insert(c.launch(l).outputs.begin(), c.launch(l).outputs.end());
  }
  for (const auto& [role, place] : c.reports) {
    if (known.insert(place.buffer).second) own_.push_back(place);
  }
  layout_ = mix64(c.plan->schema_hash, static_cast<uint64_t>(c.plan->zero_stage));
  for (const int32_t n : {c.plan->mesh.pp, c.plan->mesh.dp, c.plan->mesh.tp}) {
    layout_ = mix64(layout_, static_cast<uint64_t>(n));
  }
  for (const auto* places : {&own_, &shared_}) {
    for (const TensorPlace& t : *places) {
      layout_ = mix64(mix64(layout_, hash64(t.name)), static_cast<uint64_t>(t.bytes));
      if (!raw_) natives_.emplace_back(static_cast<size_t>(t.type.bytes()));
    }
  }
}

int64_t UpdateInputs::bytes() const {
  int64_t out = sizeof(Header);
  const auto add = [&](const std::vector<TensorPlace>& places) {
    for (const TensorPlace& t : places) out += raw_ ? t.bytes : t.type.bytes();
  };
  add(own_);
  if (keeper_ == context_->rank) add(shared_);
  return out;
}

Result<std::span<const std::byte>> UpdateInputs::bytes_of(const TensorPlace& place, size_t index) {
  if (raw_) return std::span<const std::byte>(place.address, static_cast<size_t>(place.bytes));
  SGA_TRY(context_->backend->read_tensor(natives_[index], place.type, place.address)
              .with_context(place.name));
  return std::span<const std::byte>(natives_[index]);
}

Status UpdateInputs::write_file(int fd, int64_t step, int64_t valid_tokens, uint64_t sample_hash) {
  Header h;
  h.rank = context_->rank;
  h.step = step;
  h.layout = layout_;
  h.valid_tokens = valid_tokens;
  h.sample_hash = sample_hash;
  // The header goes in last: its hashes are known only then.
  if (::lseek(fd, sizeof h, SEEK_SET) < 0) return internal_error(std::strerror(errno));
  const auto put = [&](const std::vector<TensorPlace>& places, size_t first, int64_t& bytes,
                       uint64_t& hash) -> Status {
    for (size_t i = 0; i < places.size(); ++i) {
      SGA_ASSIGN(const std::span<const std::byte> data, bytes_of(places[i], first + i));
      SGA_TRY(write_all(fd, data));
      bytes += static_cast<int64_t>(data.size());
      hash = mix64(hash, hash64(data));
    }
    return {};
  };
  SGA_TRY(put(own_, 0, h.own_bytes, h.own_hash));
  if (keeper_ == context_->rank) {
    SGA_TRY(put(shared_, own_.size(), h.shared_bytes, h.shared_hash));
  }
  h.hash = hash_of(h);
  if (::lseek(fd, 0, SEEK_SET) < 0) return internal_error(std::strerror(errno));
  return write_all(fd, std::as_bytes(std::span(&h, 1)));
}

Status UpdateInputs::save(int64_t step, int64_t valid_tokens, uint64_t sample_hash) {
  struct statvfs room {};
  if (::statvfs(root_.c_str(), &room) == 0 &&
      uint64_t{room.f_bavail} * room.f_frsize < kRoomFor * static_cast<uint64_t>(bytes())) {
    return make_status(Code::kOverloaded, root_ + ": not enough room for a step's update inputs");
  }
  const std::string dir = step_dir(root_, step);
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return internal_error(dir + ": " + std::strerror(errno));
  }
  const std::string path = file_of(root_, step, context_->rank);
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  const bool again = take_spent(root_, context_->rank, temporary);
  const File file(::open(temporary.c_str(),
                         O_WRONLY | O_CREAT | (again ? 0 : O_TRUNC) | O_CLOEXEC | O_NOFOLLOW,
                         0600));
  if (file.fd() < 0) return internal_error(temporary + ": " + std::strerror(errno));
  Status status = write_file(file.fd(), step, valid_tokens, sample_hash).with_context(temporary);
  // A spent file of another plan can be longer.
  if (status.ok() && again && ::ftruncate(file.fd(), bytes()) != 0) {
    status = internal_error(temporary + ": " + std::strerror(errno));
  }
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = internal_error(path + ": " + std::strerror(errno));
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Status UpdateInputs::load(int64_t step, RedoneStep& out) {
  std::vector<std::byte> buffer;
  const auto take = [&](int32_t rank, bool shared) -> Status {
    const std::string path = file_of(root_, step, rank);
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    Header h;
    if (file.fd() < 0 || !read_header(file.fd(), rank, step, h) || h.layout != layout_) {
      return damaged(path);
    }
    if (!shared) {
      out.valid_tokens = h.valid_tokens;
      out.sample_hash = h.sample_hash;
    } else if (::lseek(file.fd(), h.own_bytes, SEEK_CUR) < 0) {
      return damaged(path);
    }
    uint64_t hash = 0;
    for (const TensorPlace& t : shared ? shared_ : own_) {
      buffer.resize(static_cast<size_t>(raw_ ? t.bytes : t.type.bytes()));
      if (!read_all(file.fd(), buffer)) return damaged(path);
      hash = mix64(hash, hash64(buffer));
      if (raw_) {
        std::memcpy(t.address, buffer.data(), buffer.size());
      } else {
        SGA_TRY(context_->backend->write_tensor(t.address, t.type, buffer).with_context(t.name));
      }
    }
    return hash == (shared ? h.shared_hash : h.own_hash) ? Status() : damaged(path);
  };
  SGA_TRY(take(context_->rank, false));
  return take(keeper_, true);
}

Status UpdateInputs::redo(int64_t step) {
  FirstFailure failure;
  LaunchPointers pointers;
  for (const graph::LaunchId l : launches_) {
    enqueue_launch(*context_, l, step, 0, pointers, 0, failure);
  }
  context_->lanes->lanes[0].stream->synchronize();
  return failure.status();
}

Result<RedoneStep> UpdateInputs::load_and_redo(int64_t first, int64_t last) {
  RedoneStep out;
  for (int64_t step = first; step <= last; ++step) {
    SGA_TRY(load(step, out));
    SGA_TRY(redo(step).with_context(fmt::format("update of step {}", step)));
    out.step = step;
  }
  if (last < first) return out;
  SGA_ASSIGN(out.numbers, step_numbers(*context_));
  return out;
}

// --- the files of all ranks ---

bool inputs_whole(const graph::Plan& plan, const std::string& root, int64_t step) {
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto rank = static_cast<int32_t>(r);
    const File file(::open(file_of(root, step, rank).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    Header h;
    if (file.fd() < 0 || !read_header(file.fd(), rank, step, h)) return false;
    if (inputs_keeper(plan, rank) == rank && h.shared_bytes == 0) return false;
  }
  return true;
}

void prune_inputs(const std::string& root, int64_t step) {
  std::vector<fs::path> old;
  std::error_code error;
  constexpr std::string_view kPrefix = "step-";
  for (fs::directory_iterator it(steps_dir(root), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t found = 0;
    const char* last = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), last, found);
    if (parsed.ec == std::errc() && parsed.ptr == last && found <= step) old.push_back(it->path());
  }
  for (const fs::path& dir : old) {
    for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      // What a killed worker left half written has a second dot-separated part.
      if (name.find('.') != std::string::npos) continue;
      const std::string spent =
          fmt::format("{}/{}.{}", spent_dir(root), name, dir.filename().string());
      fs::rename(it->path(), spent, error);
    }
    fs::remove_all(dir, error);
  }
}

}  // namespace sgactor::actors

#include "apps/sgactor/tensorboard_events.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster_ranks.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace sgactor::apps {
namespace {

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}();

/// As TFRecord keeps it: a sum of bytes that hold a sum would be of little use.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

template <class T>
void put_fixed(std::string& out, T value) {  // little endian, as every machine that this runs on
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_tag(std::string& out, uint32_t field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

// Fields of Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
std::string begin_event() {
  std::string event;
  put_tag(event, 1, kFixed64);
  put_fixed(event, unix_seconds());
  return event;
}

std::string begin_event(int64_t step) {
  std::string event = begin_event();
  put_tag(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

Status cannot_write(const std::string& path) {
  return make_status(Code::kInternal, path + ": cannot write: " + std::strerror(errno));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcOfByte[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

Status TensorBoardEvents::open(const std::string& directory, int64_t first_step) {
  SGA_TRY(transport::make_dirs(directory));
  const std::string host = host_name();
  // TensorBoard reads the files of a directory in the order of their names.
  const auto seconds = static_cast<int64_t>(unix_seconds());
  path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", directory, seconds, host, getpid());
  for (int n = 1; std::filesystem::exists(path_); ++n)
    path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", directory, seconds, host,
                        getpid(), n);
  out_ = std::ofstream(path_, std::ios::binary);
  if (!out_) return cannot_write(path_);
  std::string version = begin_event();
  put_bytes(version, 3, "brain.Event:2");
  SGA_TRY(write(version));
  std::string start = begin_event(first_step);
  std::string session;
  put_tag(session, 1, kVarint);  // status
  put_varint(session, 1);        // START: what came before from this step on does not count
  put_bytes(start, 7, session);
  return write(start);
}

Status TensorBoardEvents::add(int64_t step, const Scalars& scalars) {
  if (!out_.is_open()) return {};
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    if (!std::isfinite(value)) continue;
    std::string entry;
    put_bytes(entry, 1, tag);
    put_tag(entry, 2, kFixed32);  // simple_value
    put_fixed(entry, static_cast<float>(value));
    put_bytes(summary, 1, entry);
  }
  std::string event = begin_event(step);
  put_bytes(event, 5, summary);
  return write(event);
}

Status TensorBoardEvents::write(std::string_view event) {
  std::string record;
  put_fixed(record, static_cast<uint64_t>(event.size()));
  put_fixed(record, masked_crc(record));
  record.append(event);
  put_fixed(record, masked_crc(event));
  out_ << record << std::flush;
  return out_ ? Status() : cannot_write(path_);
}

}  // namespace sgactor::apps

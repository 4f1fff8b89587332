#include "apps/sgactor/tensorboard_events.h"

#include "apps/sgactor/run_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

template <class T>
T take(std::string_view& bytes) {
  T value{};
  EXPECT_GE(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  bytes.remove_prefix(std::min(bytes.size(), sizeof value));
  return value;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

/// The fields of a message by number: numbers as the bits that were written, and bytes.
struct Fields {
  std::map<uint64_t, uint64_t> numbers;
  std::multimap<uint64_t, std::string_view> bytes;
};

Fields fields_of(std::string_view message) {
  Fields fields;
  while (!message.empty()) {
    const uint64_t tag = take_varint(message);
    const uint64_t field = tag >> 3;
    switch (tag & 7) {
      case 0:
        fields.numbers[field] = take_varint(message);
        break;
      case 1:
        fields.numbers[field] = take<uint64_t>(message);
        break;
      case 5:
        fields.numbers[field] = take<uint32_t>(message);
        break;
      case 2: {
        const uint64_t size = take_varint(message);
        EXPECT_LE(size, message.size());
        fields.bytes.emplace(field, message.substr(0, size));
        message.remove_prefix(std::min<size_t>(size, message.size()));
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (tag & 7);
        return fields;
    }
  }
  return fields;
}

struct ReadEvent {
  int64_t step = 0;
  std::string version;
  bool starts_session = false;
  std::map<std::string, float> scalars;
};

uint32_t masked(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::vector<ReadEvent> read_events(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  const std::string file = all.str();
  std::string_view left = file;
  std::vector<ReadEvent> events;
  while (!left.empty()) {
    const std::string_view size_bytes = left.substr(0, 8);
    const auto size = take<uint64_t>(left);
    EXPECT_EQ(take<uint32_t>(left), masked(size_bytes));
    if (size > left.size()) {
      ADD_FAILURE() << "a record of " << size << " bytes, " << left.size() << " left";
      return events;
    }
    const std::string_view data = left.substr(0, size);
    left.remove_prefix(size);
    EXPECT_EQ(take<uint32_t>(left), masked(data));
    const Fields event = fields_of(data);
    EXPECT_GT(std::bit_cast<double>(event.numbers.at(1)), 1.6e9);  // seconds since 1970
    ReadEvent& e = events.emplace_back();
    if (event.numbers.contains(2)) e.step = static_cast<int64_t>(event.numbers.at(2));
    if (const auto v = event.bytes.find(3); v != event.bytes.end()) e.version = v->second;
    if (const auto s = event.bytes.find(7); s != event.bytes.end())
      e.starts_session = fields_of(s->second).numbers.at(1) == 1;
    if (const auto s = event.bytes.find(5); s != event.bytes.end()) {
      const Fields summary = fields_of(s->second);
      for (const auto& [field, bytes] : summary.bytes) {
        const Fields value = fields_of(bytes);
        e.scalars[std::string(value.bytes.find(1)->second)] =
            std::bit_cast<float>(static_cast<uint32_t>(value.numbers.at(2)));
      }
    }
  }
  return events;
}

class TensorBoard : public testing::Test {
 protected:
  TensorBoard() : dir_(fs::path(testing::TempDir()) / fmt::format("tensorboard_{}", getpid())) {
    fs::remove_all(dir_);
  }
  ~TensorBoard() override { fs::remove_all(dir_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(dir_ / "tensorboard"))
      found.push_back(entry.path());
    return found;
  }

  fs::path dir_;
};

TEST(Crc32c, IsCastagnolis) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);            // the check value of its catalogues
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST_F(TensorBoard, AFileBeginsWithItsVersionAndTheSession) {
  TensorBoardEvents events;
  ASSERT_TRUE(events.open((dir_ / "tensorboard").string(), 300).ok());
  ASSERT_TRUE(events.add(300, {{"a", 1.5}, {"b", NAN}, {"c", INFINITY}, {"d", -2}}).ok());
  EXPECT_EQ(fs::path(events.path()).filename().string().rfind("events.out.tfevents.", 0), 0u);
  const auto read = read_events(events.path());
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].version, "brain.Event:2");
  EXPECT_TRUE(read[1].starts_session);
  EXPECT_EQ(read[1].step, 300);
  EXPECT_EQ(read[2].step, 300);
  EXPECT_EQ(read[2].scalars, (std::map<std::string, float>{{"a", 1.5F}, {"d", -2.F}}));
}

TEST_F(TensorBoard, EachOpeningHasAFileOfItsOwn) {
  TensorBoardEvents first, second;
  ASSERT_TRUE(first.open((dir_ / "tensorboard").string(), 1).ok());
  ASSERT_TRUE(second.open((dir_ / "tensorboard").string(), 1).ok());
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(TensorBoard, WhereNothingCanBeMadeTheErrorNamesIt) {
  fs::create_directories(dir_);
  std::ofstream(dir_ / "tensorboard") << "a file";
  TensorBoardEvents events;
  const Status status = events.open((dir_ / "tensorboard").string(), 1);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find((dir_ / "tensorboard").string()), std::string::npos);
}

TEST_F(TensorBoard, ARunsFileHasTheNumbersOfItsMetrics) {
  fs::create_directories(dir_);
  RunRecorder recorder({.run = {dir_.string()},
                        .first_step = 1,
                        .last_step = 2,
                        .flops_per_token = 1e9,
                        .memory_bytes = 1 << 30,
                        .tensorboard = (dir_ / "tensorboard").string()});
  ASSERT_TRUE(recorder.open().ok());
  actors::StepReport r;
  testing::internal::CaptureStdout();
  for (r.step = 1; r.step <= 2; ++r.step) {
    r.loss = 3.F - static_cast<float>(r.step);
    r.tokens = 2048;
    r.step_ms = 500;
    recorder.on_step(r);
  }
  recorder.on_validation(2, 1.25);
  testing::internal::GetCapturedStdout();
  EXPECT_TRUE(recorder.status().ok());
  ASSERT_EQ(files().size(), 1u);
  const auto read = read_events(files()[0].string());
  ASSERT_EQ(read.size(), 5u);
  EXPECT_EQ(read[3].step, 2);
  EXPECT_EQ(read[3].scalars.at("train/loss"), 1.F);
  EXPECT_EQ(read[3].scalars.at("train/tok_s"), 4096.F);
  EXPECT_EQ(read[3].scalars.at("train/mem_gib"), 1.F);
  EXPECT_FALSE(read[3].scalars.contains("train/mfu"));  // not known
  EXPECT_EQ(read[4].scalars, (std::map<std::string, float>{{"validation/loss", 1.25F}}));
}

}  // namespace
}  // namespace sgactor::apps

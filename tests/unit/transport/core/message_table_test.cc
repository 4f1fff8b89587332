// What a table of messages does with a link that reads and writes its callers' memory.
#include "transport/core/message_table.h"

#include "transport/core/manual_progress.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace sgactor::transport {
namespace {

using Bytes = std::vector<std::byte>;

// Keeps what it is given; lends when told to.
class FakeLink final : public Link {
 public:
  struct Frame {
    FrameHeader header;
    Bytes payload;
  };
  [[nodiscard]] size_t max_payload() const override { return 1000; }
  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override {
    if (is_lent()) return false;
    sent.push_back({header, Bytes(payload.begin(), payload.end())});
    return true;
  }
  bool try_lend(const FrameHeader& header, std::span<const std::byte> payload) override {
    if (!lends) return try_send(header, payload);
    if (!try_send(header, {})) return false;
    lent = payload;
    return true;
  }
  [[nodiscard]] bool is_lent() const override { return !lent.empty(); }
  // Reads what was lent, now.
  void keep_lent() override {
    sent.back().payload.assign(lent.begin(), lent.end());
    lent = {};
    ++num_kept;
  }
  void forget_place() override { ++num_forgotten; }
  void close() override {}

  bool lends = false;
  int num_kept = 0;
  int num_forgotten = 0;
  std::span<const std::byte> lent;
  std::vector<Frame> sent;
};

class Sink final : public TransferSink, public PayloadSink {
 public:
  void on_transfer(uint64_t token, const Status& status) noexcept override {
    ended[token] = status;
  }
  void on_payload(uint64_t /*token*/, size_t offset,
                  std::span<const std::byte> bytes) noexcept override {
    EXPECT_EQ(offset, content.size());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 16, 0U);
    content.insert(content.end(), bytes.begin(), bytes.end());
  }
  std::map<uint64_t, Status> ended;
  Bytes content;
};

Bytes counted(size_t n) {
  Bytes bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

Tag tag_of(uint64_t key) {
  Tag tag;
  tag.key = key;
  tag.generation = 1;
  return tag;
}

class MessageTableTest : public testing::Test {
 protected:
  MessageTableTest() : context_(progress_, small_eager()), table_(1, false, context_) {
    table_.open(&link_);
  }
  static MessageOptions small_eager() {
    MessageOptions options;
    options.eager_bytes = 64;
    return options;
  }
  void take(FrameHeader header, std::span<const std::byte> payload = {}) {
    header.sequence = next_++;
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    const Status status = table_.on_frame(header, payload);
    EXPECT_TRUE(status.ok()) << status.to_string();
    progress_.run_until_idle();
  }
  static FrameHeader header_of(FrameKind kind, uint64_t key, uint64_t value,
                               uint64_t receive_id = 0) {
    FrameHeader header;
    header.kind = kind;
    header.tag = tag_of(key);
    header.value = value;
    header.receive_id = receive_id;
    return header;
  }
  // The header of the data of `bytes` at `offset` that comes next.
  FrameHeader data_of(uint64_t key, uint64_t receive_id, uint64_t offset, size_t bytes) const {
    FrameHeader header = header_of(FrameKind::kData, key, offset, receive_id);
    header.sequence = next_;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    return header;
  }

  ManualProgress progress_;
  MessageContext context_;
  FakeLink link_;
  Sink sink_;
  MessageTable table_;
  uint64_t next_ = 0;
};

TEST_F(MessageTableTest, ALentSendEndsWhenTheLinkHasReadItAll) {
  link_.lends = true;
  const Bytes bytes = counted(2000);
  table_.post_send(tag_of(1), bytes, 5, sink_);
  take(header_of(FrameKind::kReady, 1, bytes.size(), 9));
  EXPECT_EQ(link_.lent.data(), bytes.data());
  link_.keep_lent();
  table_.pump();
  progress_.run_until_idle();
  EXPECT_EQ(link_.lent.data(), bytes.data() + 1000);
  EXPECT_FALSE(sink_.ended.contains(5));
  link_.keep_lent();
  table_.pump();
  progress_.run_until_idle();
  ASSERT_TRUE(sink_.ended.contains(5));
  EXPECT_TRUE(sink_.ended[5].ok());
  // The announcement, and both halves.
  ASSERT_EQ(link_.sent.size(), 3U);
  Bytes both = link_.sent[1].payload;
  both.insert(both.end(), link_.sent[2].payload.begin(), link_.sent[2].payload.end());
  EXPECT_EQ(both, bytes);
}

TEST_F(MessageTableTest, ACancelTakesTheLentMemoryBackBeforeItEnds) {
  link_.lends = true;
  const Bytes bytes = counted(2000);
  const TransferId id = table_.post_send(tag_of(1), bytes, 5, sink_);
  take(header_of(FrameKind::kReady, 1, bytes.size(), 9));
  EXPECT_EQ(link_.num_kept, 0);
  table_.cancel(id);
  EXPECT_EQ(link_.num_kept, 1);
  EXPECT_FALSE(link_.is_lent());
  progress_.run_until_idle();
  EXPECT_EQ(sink_.ended[5].code(), Code::kCancelled);
  // The half that had begun is whole, so that the next frame is a frame; the other never goes.
  table_.pump();
  EXPECT_EQ(link_.sent.size(), 2U);
  EXPECT_EQ(link_.sent[1].payload, Bytes(bytes.begin(), bytes.begin() + 1000));
}

TEST_F(MessageTableTest, APlaceIsGivenForTheNextBytesOfAPostedReceiveOnly) {
  Bytes to(1000);
  const TransferId id = table_.post_recv(tag_of(1), to, 5, sink_);
  const auto place = table_.place_for(data_of(1, id, 0, 600));
  EXPECT_EQ(place.data(), to.data());
  EXPECT_EQ(place.size(), 600U);
  EXPECT_TRUE(table_.place_for(data_of(2, id, 0, 600)).empty()) << "another tag";
  EXPECT_TRUE(table_.place_for(data_of(1, id + 1, 0, 600)).empty()) << "another receive";
  EXPECT_TRUE(table_.place_for(data_of(1, id, 8, 600)).empty()) << "another offset";
  EXPECT_TRUE(table_.place_for(data_of(1, id, 0, 1001)).empty()) << "too many bytes";
  FrameHeader repeated = data_of(1, id, 0, 600);
  repeated.sequence += 1;
  EXPECT_TRUE(table_.place_for(repeated).empty()) << "out of turn";
  context_.fence = 2;
  EXPECT_TRUE(table_.place_for(data_of(1, id, 0, 600)).empty()) << "an older generation";
}

TEST_F(MessageTableTest, BytesThatLieInPlaceAreNotCopied) {
  Bytes to(1000);
  const TransferId id = table_.post_recv(tag_of(1), to, 5, sink_);
  const Bytes bytes = counted(1000);
  for (size_t offset = 0; offset < 1000; offset += 500) {
    const FrameHeader header = data_of(1, id, offset, 500);
    const auto place = table_.place_for(header);
    ASSERT_EQ(place.data(), to.data() + offset);
    std::memcpy(place.data(), bytes.data() + offset, 500);
    take(header, place);
  }
  EXPECT_TRUE(sink_.ended[5].ok());
  EXPECT_EQ(to, bytes);
  EXPECT_EQ(link_.num_forgotten, 0);
}

TEST_F(MessageTableTest, ACancelTakesThePlaceBackBeforeItEnds) {
  Bytes to(1000);
  const TransferId id = table_.post_recv(tag_of(1), to, 5, sink_);
  const FrameHeader header = data_of(1, id, 0, 1000);
  ASSERT_FALSE(table_.place_for(header).empty());
  table_.cancel(id);
  EXPECT_EQ(link_.num_forgotten, 1);
  const Bytes elsewhere = counted(1000);
  take(header, elsewhere);
  EXPECT_EQ(context_.stats.stale_frames, 1);
  EXPECT_EQ(to, Bytes(1000));
}

TEST_F(MessageTableTest, ASinkOfThePayloadGetsItInOrderAndAligned) {
  const Bytes bytes = counted(900);
  Bytes shifted(1 + bytes.size());
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  const TransferId id = table_.post_recv_to(tag_of(1), bytes.size(), 5, sink_, sink_);
  EXPECT_TRUE(table_.place_for(data_of(1, id, 0, 640)).empty());
  const std::span<const std::byte> all(shifted.data() + 1, bytes.size());
  take(data_of(1, id, 0, 640), all.first(640));
  EXPECT_FALSE(sink_.ended.contains(5));
  take(data_of(1, id, 640, 260), all.subspan(640));
  EXPECT_TRUE(sink_.ended.at(5).ok());
  EXPECT_EQ(sink_.content, bytes);
}

TEST_F(MessageTableTest, ASinkGetsSmallMessagesToo) {
  const Bytes early = counted(64);
  take(header_of(FrameKind::kEager, 1, 0), early);
  table_.post_recv_to(tag_of(1), early.size(), 5, sink_, sink_);
  progress_.run_until_idle();
  EXPECT_TRUE(sink_.ended.at(5).ok());
  EXPECT_EQ(sink_.content, early);
}

constexpr int64_t kMs = 1'000'000;

TEST_F(MessageTableTest, AMarkShowsThatALastFrameWasLost) {
  const Bytes bytes = counted(10);
  table_.post_send(tag_of(1), bytes, 5, sink_);
  EXPECT_TRUE(table_.beat(100 * kMs).ok());
  EXPECT_TRUE(table_.beat(200 * kMs).ok());
  ASSERT_EQ(link_.sent.size(), 2U) << "one mark, behind what was sent";
  EXPECT_EQ(link_.sent[1].header.kind, FrameKind::kMark);
  MessageTable whole(0, false, context_);
  EXPECT_TRUE(whole.on_frame(link_.sent[0].header, link_.sent[0].payload).ok());
  EXPECT_TRUE(whole.on_frame(link_.sent[1].header, {}).ok());
  MessageTable lacking(0, false, context_);
  EXPECT_EQ(lacking.on_frame(link_.sent[1].header, {}).code(), Code::kCorruption);
  // Later another one, so that the peer knows that this side is there.
  EXPECT_TRUE(table_.beat(700 * kMs).ok());
  EXPECT_EQ(link_.sent.size(), 3U);
}

TEST_F(MessageTableTest, APeerThatOwesSomethingMayNotBeSilentForLong) {
  Bytes to(10);
  EXPECT_TRUE(table_.beat(1 * kMs).ok());
  EXPECT_TRUE(table_.beat(20'000 * kMs).ok()) << "it owes nothing";
  table_.post_recv(tag_of(1), to, 5, sink_);
  EXPECT_TRUE(table_.beat(24'900 * kMs).ok());
  take(header_of(FrameKind::kMark, 0, 0));
  EXPECT_TRUE(table_.beat(25'000 * kMs).ok()) << "it is there";
  EXPECT_TRUE(table_.beat(29'999 * kMs).ok());
  EXPECT_EQ(table_.beat(30'000 * kMs).code(), Code::kTimeout);
}

TEST_F(MessageTableTest, AChecksumCoversHeaderAndPayload) {
  const Bytes bytes = counted(10);
  table_.post_send(tag_of(1), bytes, 5, sink_);  // the link is a wire
  ASSERT_EQ(link_.sent.size(), 1U);
  ASSERT_NE(link_.sent[0].header.checksum, 0U);
  const auto taken = [&](const FrameHeader& header, const Bytes& payload) {
    MessageTable other(0, false, context_);
    return other.on_frame(header, payload).code();
  };
  EXPECT_EQ(taken(link_.sent[0].header, bytes), Code::kOk);
  Bytes flipped = bytes;
  flipped[3] ^= std::byte{1};
  EXPECT_EQ(taken(link_.sent[0].header, flipped), Code::kCorruption);
  FrameHeader header = link_.sent[0].header;
  header.tag.key ^= 1;
  EXPECT_EQ(taken(header, bytes), Code::kCorruption);
}

}  // namespace
}  // namespace sgactor::transport

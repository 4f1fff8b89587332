// One suite for every fabric: messages between two processes, their cancelling and their ends.
#include "graph/base/log.h"
#include "graph/base/philox.h"
#include "tests/conformance/transport/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <vector>

namespace sgactor::transport {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t n, uint64_t seed) {
  Bytes bytes(n);
  const PhiloxStream random{seed, 2};
  for (size_t i = 0; i < n; i += 8) {
    const uint64_t word = random.bits64(i / 8);
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, n - i));
  }
  return bytes;
}

Tag tag_of(uint64_t key, Generation generation = 1) {
  Tag tag;
  tag.key = key;
  tag.generation = generation;
  tag.source = 0;
  tag.target = 1;
  return tag;
}

class MessagesTest : public testing::TestWithParam<FabricKind> {
 protected:
  TransferId send(World& world, const Tag& tag, const Bytes& bytes, uint64_t token, Waiter& w) {
    TransferId id = 0;
    world.inside(0, [&] { id = world.fabric(0).endpoint(1).post_send(tag, bytes, token, w); });
    return id;
  }
  TransferId recv(World& world, const Tag& tag, Bytes& bytes, uint64_t token, Waiter& w) {
    TransferId id = 0;
    world.inside(1, [&] { id = world.fabric(1).endpoint(0).post_recv(tag, bytes, token, w); });
    return id;
  }
};

TEST_P(MessagesTest, ArriveWholeInAnyOrderOfPosting) {
  World world(GetParam(), {0, 1});
  uint64_t key = 0;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{8192}, size_t{8193},
                         size_t{65'537}, size_t{1'000'003}, size_t{64} << 20}) {
    for (const bool send_first : {true, false}) {
      const Bytes sent = random_bytes(n, n + 1);
      Bytes received(n, std::byte{0xEE});
      Waiter waiter;
      const Tag tag = tag_of(key++);
      if (send_first) send(world, tag, sent, 0, waiter);
      recv(world, tag, received, 1, waiter);
      if (!send_first) send(world, tag, sent, 0, waiter);
      ASSERT_TRUE(waiter.wait(2)) << n;
      ASSERT_TRUE(waiter.first_error().ok()) << waiter.first_error().to_string();
      EXPECT_TRUE(received == sent) << n << " bytes";
    }
  }
}

TEST_P(MessagesTest, ManyInFlightMeetByTagAlone) {
  World world(GetParam(), {0, 1});
  constexpr size_t kMessages = 400;
  std::vector<Bytes> sent;
  std::vector<Bytes> received;
  for (size_t i = 0; i < kMessages; ++i) {
    sent.push_back(random_bytes((i * 7919) % 50'000, i));
    received.emplace_back(sent.back().size());
  }
  Waiter waiter;
  world.inside(0, [&] {
    for (size_t i = 0; i < kMessages; ++i) {
      world.fabric(0).endpoint(1).post_send(tag_of(i), sent[i], i, waiter);
    }
  });
  world.inside(1, [&] {
    for (size_t i = kMessages; i-- > 0;) {
      world.fabric(1).endpoint(0).post_recv(tag_of(i), received[i], i, waiter);
    }
  });
  ASSERT_TRUE(waiter.wait(2 * kMessages));
  EXPECT_TRUE(waiter.first_error().ok()) << waiter.first_error().to_string();
  EXPECT_TRUE(received == sent);
}

TEST_P(MessagesTest, SizesThatDifferAreAnErrorAtTheReceiver) {
  World world(GetParam(), {0, 1});
  uint64_t key = 0;
  for (const auto& [n_sent, n_received] : std::vector<std::pair<size_t, size_t>>{
           {10, 20}, {100'000, 20}, {10, 100'000}, {100'000, 200'000}}) {
    for (const bool send_first : {true, false}) {
      const Bytes sent(n_sent);
      Bytes received(n_received);
      Waiter at_sender;
      Waiter at_receiver;
      const Tag tag = tag_of(key++);
      if (send_first) send(world, tag, sent, 0, at_sender);
      recv(world, tag, received, 1, at_receiver);
      if (!send_first) send(world, tag, sent, 0, at_sender);
      ASSERT_TRUE(at_receiver.wait(1)) << n_sent << " to " << n_received;
      EXPECT_EQ(at_receiver.first_error().code(), Code::kInvalidArgument);
      ASSERT_TRUE(at_sender.wait(1)) << n_sent << " to " << n_received;
    }
  }
}

TEST_P(MessagesTest, ACancelledReceiveIsNeverWrittenTo) {
  World world(GetParam(), {0, 1});
  const Bytes sent = random_bytes(4 << 20, 3);
  Bytes received(sent.size(), std::byte{0x55});
  const Bytes untouched = received;
  Waiter waiter;
  const TransferId id = recv(world, tag_of(1), received, 0, waiter);
  world.inside(1, [&] { world.fabric(1).endpoint(0).cancel(id); });
  ASSERT_TRUE(waiter.wait(1));
  EXPECT_EQ(waiter.first_error().code(), Code::kCancelled);
  // The sender has heard of the receive and sends into the void; a later message passes behind it.
  Waiter second;
  send(world, tag_of(1), sent, 0, second);
  Bytes next(sent.size());
  recv(world, tag_of(2), next, 1, second);
  send(world, tag_of(2), sent, 2, second);
  ASSERT_TRUE(second.wait(3));
  EXPECT_TRUE(second.first_error().ok()) << second.first_error().to_string();
  EXPECT_TRUE(next == sent);
  EXPECT_TRUE(received == untouched);
}

// The receiver is held up, so that the send stops halfway; its memory is overwritten after it has
// been cancelled.
TEST_P(MessagesTest, ACancelledSendIsNotReadAgain) {
  World world(GetParam(), {0, 1});
  Bytes sent(size_t{64} << 20, std::byte{0x11});
  Bytes received(sent.size(), std::byte{0x55});
  Waiter at_receiver;
  const TransferId recv_id = recv(world, tag_of(1), received, 0, at_receiver);
  // Behind this message the sender knows of the receive.
  Waiter known;
  Bytes answer(1);
  world.inside(1, [&] { world.fabric(1).endpoint(0).post_send(tag_of(3), answer, 0, known); });
  world.inside(0, [&] { world.fabric(0).endpoint(1).post_recv(tag_of(3), answer, 1, known); });
  ASSERT_TRUE(known.wait(2));
  std::promise<void> release;
  std::promise<void> held;
  world.fabric(1).progress().post([&] {
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  Waiter at_sender;
  const TransferId send_id = send(world, tag_of(1), sent, 1, at_sender);
  world.inside(0, [&] { world.fabric(0).endpoint(1).cancel(send_id); });
  ASSERT_TRUE(at_sender.wait(1));
  EXPECT_EQ(at_sender.first_error().code(), Code::kCancelled);
  std::fill(sent.begin(), sent.end(), std::byte{0x22});
  release.set_value();
  const Bytes small = random_bytes(10, 1);
  Bytes small_received(10);
  Waiter behind;
  send(world, tag_of(2), small, 0, behind);
  recv(world, tag_of(2), small_received, 1, behind);
  ASSERT_TRUE(behind.wait(2));
  EXPECT_TRUE(small_received == small);
  world.inside(1, [&] { world.fabric(1).endpoint(0).cancel(recv_id); });
  ASSERT_TRUE(at_receiver.wait(1));
  EXPECT_EQ(at_receiver.first_error().code(), Code::kCancelled);
  EXPECT_EQ(std::count(received.begin(), received.end(), std::byte{0x22}), 0);
}

// Receives that are cancelled while their bytes come in.
TEST_P(MessagesTest, AReceiveCancelledHalfwayIsNotWrittenAgain) {
  World world(GetParam(), {0, 1});
  const Bytes sent(size_t{4} << 20, std::byte{0x11});
  Bytes received(sent.size());
  uint64_t key = 0;
  for (size_t turns = 0; turns < 12; ++turns) {
    std::fill(received.begin(), received.end(), std::byte{0x55});
    Waiter waiter;
    const TransferId id = recv(world, tag_of(++key), received, 0, waiter);
    send(world, tag_of(key), sent, 1, waiter);
    for (size_t i = 0; i < turns; ++i) world.inside(1, [] {});
    world.inside(1, [&] { world.fabric(1).endpoint(0).cancel(id); });
    ASSERT_TRUE(waiter.wait(1));
    world.inside(1, [&] { std::fill(received.begin(), received.end(), std::byte{0x77}); });
    Bytes next(sent.size());
    Waiter behind;
    recv(world, tag_of(++key), next, 0, behind);
    send(world, tag_of(key), sent, 1, behind);
    ASSERT_TRUE(behind.wait(2));
    EXPECT_TRUE(next == sent);
    ASSERT_TRUE(waiter.wait(2));  // the sender has sent into the void
    EXPECT_EQ(std::count(received.begin(), received.end(), std::byte{0x11}), 0) << turns;
  }
}

TEST_P(MessagesTest, AFenceEndsWhatIsOlderAndKeepsWhatIsLater) {
  World world(GetParam(), {0, 1});
  const Bytes old_bytes = random_bytes(100'000, 4);
  const Bytes new_bytes = random_bytes(100'000, 5);
  Bytes received(old_bytes.size(), std::byte{0x55});
  Waiter waiter;
  // Two messages of one tag but for the generation; the older one is never asked for.
  send(world, tag_of(7, 1), old_bytes, 0, waiter);
  const Bytes small(10);
  send(world, tag_of(8, 1), small, 1, waiter);
  Waiter later;
  send(world, tag_of(7, 2), new_bytes, 2, later);
  world.fabric(0).fence(2);
  world.fabric(1).fence(2);
  ASSERT_TRUE(waiter.wait(2));  // the small one had gone before the fence
  recv(world, tag_of(7, 2), received, 3, later);
  ASSERT_TRUE(later.wait(2));
  EXPECT_TRUE(later.first_error().ok()) << later.first_error().to_string();
  EXPECT_TRUE(received == new_bytes);
  Waiter stale;
  recv(world, tag_of(7, 1), received, 4, stale);
  ASSERT_TRUE(stale.wait(1));
  EXPECT_EQ(stale.first_error().code(), Code::kCancelled);
  EXPECT_TRUE(received == new_bytes);
}

TEST_P(MessagesTest, ThePeersEndEndsItsTransfersAndNoOthers) {
  World world(GetParam(), {0, 1, 2});
  const Bytes sent = random_bytes(300'000, 6);
  Bytes from_dead(1'000'000);
  Bytes from_living(sent.size());
  Waiter dead;
  Waiter living;
  Waiter lost;
  world.fabric(1).add_peer_lost([&](PeerId peer, const Status& s) { lost.on_transfer(peer, s); });
  recv(world, tag_of(1), from_dead, 0, dead);
  Tag from_two = tag_of(2);
  from_two.source = 2;
  world.inside(1, [&] {
    world.fabric(1).endpoint(2).post_recv(from_two, from_living, 1, living);
    world.fabric(1).endpoint(0).post_send(tag_of(3), sent, 2, dead);
  });
  world.kill(0);
  ASSERT_TRUE(dead.wait(2));
  EXPECT_EQ(dead.first_error().code(), Code::kDisconnected);
  ASSERT_TRUE(lost.wait(1));
  EXPECT_EQ(lost.completions()[0].first, 0U);
  world.inside(2, [&] { world.fabric(2).endpoint(1).post_send(from_two, sent, 3, living); });
  ASSERT_TRUE(living.wait(2));
  EXPECT_TRUE(living.first_error().ok()) << living.first_error().to_string();
  EXPECT_TRUE(from_living == sent);
  Waiter refused;
  recv(world, tag_of(9), from_dead, 0, refused);
  ASSERT_TRUE(refused.wait(1));
  EXPECT_EQ(refused.first_error().code(), Code::kDisconnected);
}

TEST_P(MessagesTest, AnAbortWaitsForNobody) {
  World world(GetParam(), {0, 1});
  const Bytes sent = random_bytes(8 << 20, 7);
  Bytes received(sent.size());
  Waiter waiter;
  recv(world, tag_of(1), received, 0, waiter);
  world.fabric(1).abort_peer(0, make_status(Code::kCancelled, "a test"));
  ASSERT_TRUE(waiter.wait(1));
  EXPECT_EQ(waiter.first_error().code(), Code::kCancelled);
  Waiter connect;
  world.fabric(1).connect(0, {}, [&](const Status& s) { connect.on_transfer(0, s); });
  ASSERT_TRUE(connect.wait(1));
  EXPECT_EQ(connect.first_error().code(), Code::kDisconnected);
}

TEST_P(MessagesTest, LostAndDamagedFramesAreSeenAndRepeatedOnesDropped) {
  using Action = FaultScript::Action;
  for (const Action action :
       {Action::kDrop, Action::kCorrupt, Action::kDisconnect, Action::kDuplicate, Action::kDelay}) {
    FabricOptions options;
    options.messages.check_frames = FrameCheck::kAll;
    options.faults.rules.push_back({1, 2, action, 3'000'000});
    World world(GetParam(), {0, 1}, options);
    const Bytes sent = random_bytes(1'000'000, 8);
    Bytes received(sent.size());
    Waiter waiter;
    recv(world, tag_of(1), received, 0, waiter);
    send(world, tag_of(1), sent, 1, waiter);
    ASSERT_TRUE(waiter.wait(2)) << static_cast<int>(action);
    const bool harmless = action == Action::kDuplicate || action == Action::kDelay;
    EXPECT_EQ(waiter.first_error().ok(), harmless)
        << static_cast<int>(action) << waiter.first_error().to_string();
    if (harmless) {
      EXPECT_TRUE(received == sent);
    } else {
      log::reset_warnings();  // the damage is logged where it is found
    }
  }
}

TEST_P(MessagesTest, ALostLinkIsMadeAgain) {
  FabricOptions options;
  options.messages.check_frames = FrameCheck::kAll;
  options.faults.live = std::make_shared<LinkFaults>();
  Waiter lost;  // is told of the world's end too
  World world(GetParam(), {0, 1}, options);
  options.faults.live->arm(1, {FaultScript::Action::kCorrupt, 0});
  const Bytes sent = random_bytes(1'000'000, 8);
  Bytes received(sent.size());
  Waiter broken;
  for (const PeerId self : {0, 1}) {
    world.fabric(self).add_peer_lost([&](PeerId, const Status& s) { lost.on_transfer(0, s); });
  }
  recv(world, tag_of(1), received, 0, broken);
  send(world, tag_of(1), sent, 1, broken);
  ASSERT_TRUE(broken.wait(2));
  ASSERT_TRUE(lost.wait(2));  // on both sides
  EXPECT_EQ(broken.first_error().code(), Code::kDisconnected);
  log::reset_warnings();  // the damage is logged where it is found
  Waiter again;
  for (const PeerId self : {0, 1}) {
    world.fabric(self).connect(1 - self, world.fabric(1 - self).address(),
                               [&](const Status& s) { again.on_transfer(0, s); });
  }
  ASSERT_TRUE(again.wait(2));
  EXPECT_TRUE(again.first_error().ok()) << again.first_error().to_string();
  Waiter whole;
  recv(world, tag_of(1), received, 0, whole);
  send(world, tag_of(1), sent, 1, whole);
  ASSERT_TRUE(whole.wait(2));
  EXPECT_TRUE(whole.first_error().ok()) << whole.first_error().to_string();
  EXPECT_TRUE(received == sent);
}

TEST_P(MessagesTest, ALostLastFrameIsMissed) {
  FabricOptions options;
  options.beat_ns = 5'000'000;
  options.faults.live = std::make_shared<LinkFaults>();
  World world(GetParam(), {0, 1}, options);
  options.faults.live->arm(1, {FaultScript::Action::kDrop, 0});
  const Bytes sent = random_bytes(100, 9);
  Bytes received(sent.size());
  Waiter waiter;
  recv(world, tag_of(1), received, 0, waiter);
  send(world, tag_of(1), sent, 1, waiter);
  ASSERT_TRUE(waiter.wait(2));
  EXPECT_EQ(waiter.first_error().code(), Code::kDisconnected);
  log::reset_warnings();
}

TEST_P(MessagesTest, AFaultBefallsTheFrameThatItIsFor) {
  FabricOptions options;
  options.messages.check_frames = FrameCheck::kAll;
  options.faults.live = std::make_shared<LinkFaults>();
  World world(GetParam(), {0, 1}, options);
  options.faults.live->arm(1, {FaultScript::Action::kCorrupt, 0, 2});
  const Bytes sent = random_bytes(100, 9);
  for (int i = 0; i < 3; ++i) {
    Bytes received(sent.size());
    Waiter waiter;
    recv(world, tag_of(1), received, 0, waiter);
    send(world, tag_of(1), sent, 1, waiter);
    ASSERT_TRUE(waiter.wait(2));
    const bool struck = i == 2;
    EXPECT_EQ(waiter.first_error().code() == Code::kDisconnected, struck) << i;
    EXPECT_EQ(received == sent, !struck) << i;
  }
  log::reset_warnings();  // the damage is logged where it is found
}

TEST_P(MessagesTest, NothingPassesACutAndThatIsNoticed) {
  FabricOptions options;
  options.beat_ns = 5'000'000;
  options.messages.silent_after_ns = 50'000'000;
  options.faults.live = std::make_shared<LinkFaults>();
  World world(GetParam(), {0, 1}, options);
  options.faults.live->cut(0, INT64_MAX);
  options.faults.live->cut(1, INT64_MAX);
  Bytes received(100);
  Waiter waiter;
  recv(world, tag_of(1), received, 0, waiter);
  ASSERT_TRUE(waiter.wait(1));
  EXPECT_EQ(waiter.first_error().code(), Code::kDisconnected);
  EXPECT_NE(waiter.first_error().message().find("nothing has come for"), std::string::npos);
  log::reset_warnings();
}

INSTANTIATE_TEST_SUITE_P(Fabrics, MessagesTest, testing::ValuesIn(fabric_kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sgactor::transport

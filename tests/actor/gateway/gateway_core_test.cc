#include "actors/runtime/gateway_core.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

template <class T>
std::vector<T> of(const GatewayCore::Effects& effects) {
  std::vector<T> out;
  for (const auto& e : effects) {
    if (const T* match = std::get_if<T>(&e)) out.push_back(*match);
  }
  return out;
}

wire::Hello hello(wire::Role role, int32_t index = 0) {
  wire::Hello out;
  out.role = role;
  out.host = "a";
  out.pid = 4711;
  out.index = index;
  return out;
}
GatewaySelf coordinator_self() { return {true, {}, "build 1", 99}; }
GatewaySelf worker_self(int32_t index = 0) {
  return {false, hello(wire::Role::kWorker, index), "build 1", 0};
}

/// A coordinator's core and workers' cores, joined by links 1, 2, … whose frames the test carries.
class GatewayCoreTest : public testing::Test {
 protected:
  /// Lets a worker join by link `link`; returns what the coordinator did.
  GatewayCore::Effects join(GatewayCore& worker, LinkId link) {
    (void)coordinator_.on_opened(link, "1.2.3.4:5", true);
    const auto opened = worker.on_opened(link, "9.9.9.9:1", false);
    const auto frames = of<GatewayCore::SendFrame>(opened);
    EXPECT_EQ(frames.size(), 1U);
    auto effects = coordinator_.on_frame(link, frames.at(0).bytes);
    for (const auto& frame : of<GatewayCore::SendFrame>(effects)) {
      joined_ = worker.on_frame(link, frame.bytes);
    }
    return effects;
  }
  static std::string encoded(wire::PeerId sender, wire::PeerId receiver, wire::Body body,
                             int64_t generation = 1, uint64_t answers = 0) {
    return *wire::encode({sender, receiver, generation, 0, answers, std::move(body)});
  }

  GatewayCore coordinator_{coordinator_self()};
  GatewayCore::Effects joined_;
};

TEST_F(GatewayCoreTest, AWorkerJoins) {
  GatewayCore worker(worker_self());
  const auto effects = join(worker, 1);
  EXPECT_EQ(of<GatewayCore::Admit>(effects).size(), 1U);
  ASSERT_EQ(of<GatewayCore::Joined>(effects).size(), 1U);
  EXPECT_EQ(of<GatewayCore::Joined>(effects)[0].peer.name(), "worker 0 (pid 4711 on a)");
  EXPECT_EQ(worker.id(), 2U);
  ASSERT_EQ(of<GatewayCore::Joined>(joined_).size(), 1U);
  EXPECT_EQ(of<GatewayCore::Joined>(joined_)[0].peer.id, wire::kCoordinatorPeer);
}

TEST_F(GatewayCoreTest, AnotherBuildIsRefusedAndToldWhy) {
  GatewaySelf other = worker_self();
  other.build = "build 2";
  GatewayCore worker(other);
  const auto effects = join(worker, 1);
  EXPECT_TRUE(of<GatewayCore::Admit>(effects).empty());
  EXPECT_EQ(of<GatewayCore::CloseLink>(effects).size(), 1U);
  ASSERT_EQ(of<GatewayCore::Left>(joined_).size(), 1U);
  const Status why = of<GatewayCore::Left>(joined_)[0].why;
  EXPECT_EQ(why.code(), Code::kInvalidArgument);
  EXPECT_NE(why.message().find("build 2"), std::string::npos);
  EXPECT_NE(why.message().find("build 1"), std::string::npos);
  EXPECT_EQ(coordinator_.counts().refused, 1);
}

TEST_F(GatewayCoreTest, AnotherJobFileIsRefused) {
  GatewaySelf other = worker_self();
  other.job_hash = 98;
  GatewayCore worker(other);
  join(worker, 1);
  ASSERT_EQ(of<GatewayCore::Left>(joined_).size(), 1U);
  EXPECT_NE(of<GatewayCore::Left>(joined_)[0].why.message().find("another job file"),
            std::string::npos);
}

TEST_F(GatewayCoreTest, GarbageBeforeTheHelloClosesTheLinkOnly) {
  (void)coordinator_.on_opened(1, "1.2.3.4:5", true);
  const auto effects = coordinator_.on_frame(1, "no message at all");
  EXPECT_EQ(of<GatewayCore::CloseLink>(effects).size(), 1U);
  EXPECT_TRUE(of<GatewayCore::Admit>(effects).empty());
  // Any message but a hello, too.
  (void)coordinator_.on_opened(2, "1.2.3.4:5", true);
  const auto vote = coordinator_.on_frame(2, encoded(2, 1, Vote{0, 1, 1, 1}));
  EXPECT_EQ(of<GatewayCore::CloseLink>(vote).size(), 1U);
  EXPECT_TRUE(of<GatewayCore::Deliver>(vote).empty());
  EXPECT_EQ(coordinator_.counts().refused, 2);
  // What comes on a link that is closed is nothing.
  EXPECT_TRUE(coordinator_.on_frame(2, encoded(2, 1, Vote{0, 1, 1, 1})).empty());
}

TEST_F(GatewayCoreTest, StepMessagesOfAnotherGenerationAreDropped) {
  GatewayCore worker(worker_self());
  join(worker, 1);
  coordinator_.set_ranks(2, {0});
  EXPECT_EQ(
      of<GatewayCore::Deliver>(coordinator_.on_frame(1, encoded(2, 1, Vote{0, 1, 1, 5}))).size(),
      1U);
  coordinator_.set_generation(2);
  EXPECT_TRUE(coordinator_.on_frame(1, encoded(2, 1, Vote{0, 1, 1, 5})).empty());
  EXPECT_EQ(coordinator_.counts().stale, 1);
  EXPECT_EQ(
      of<GatewayCore::Deliver>(coordinator_.on_frame(1, encoded(2, 1, Vote{0, 1, 2, 5}, 2))).size(),
      1U);
  // What belongs to no generation is always heard.
  EXPECT_EQ(
      of<GatewayCore::Deliver>(coordinator_.on_frame(1, encoded(2, 1, wire::StopJob{"x"}))).size(),
      1U);
}

TEST_F(GatewayCoreTest, AWorkerFollowsTheRoutesToTheirGeneration) {
  GatewayCore worker(worker_self());
  join(worker, 1);
  (void)worker.on_frame(1, encoded(1, 2, wire::Routes{3, {}}));
  EXPECT_EQ(worker.generation(), 3);
  EXPECT_TRUE(of<GatewayCore::Deliver>(worker.on_frame(1, encoded(1, 2, BeginStep{1, 1}))).empty());
  EXPECT_EQ(of<GatewayCore::Deliver>(worker.on_frame(1, encoded(1, 2, BeginStep{1, 3}, 3))).size(),
            1U);
}

TEST_F(GatewayCoreTest, WhoSpeaksForAnotherIsCutOff) {
  GatewayCore worker(worker_self());
  join(worker, 1);
  coordinator_.set_ranks(2, {0, 1});
  const auto other_rank = coordinator_.on_frame(1, encoded(2, 1, RankReady{2, 1}));
  ASSERT_EQ(of<GatewayCore::Left>(other_rank).size(), 1U);
  EXPECT_NE(of<GatewayCore::Left>(other_rank)[0].why.message().find("worker 0"), std::string::npos);
  GatewayCore second(worker_self(1));
  join(second, 2);
  const auto other_sender = coordinator_.on_frame(2, encoded(7, 1, wire::StopJob{"x"}));
  EXPECT_EQ(of<GatewayCore::Left>(other_sender).size(), 1U);
}

TEST_F(GatewayCoreTest, QuestionsAreAnsweredOnce) {
  GatewayCore worker(worker_self());
  join(worker, 1);
  const auto asked = coordinator_.ask(2, wire::LoadPlan{}, 77, 1000);
  const auto frames = of<GatewayCore::SendFrame>(asked);
  ASSERT_EQ(frames.size(), 1U);
  const auto heard = of<GatewayCore::Deliver>(worker.on_frame(1, frames[0].bytes));
  ASSERT_EQ(heard.size(), 1U);
  const auto reply = worker.send(1, wire::PlanLoaded{0, "addr", "f"}, heard[0].envelope.request);
  const std::string bytes = of<GatewayCore::SendFrame>(reply).at(0).bytes;
  const auto answered = of<GatewayCore::Answered>(coordinator_.on_frame(1, bytes));
  ASSERT_EQ(answered.size(), 1U);
  EXPECT_EQ(answered[0].token, 77U);
  EXPECT_TRUE(answered[0].answer.ok());
  EXPECT_TRUE(of<GatewayCore::Answered>(coordinator_.on_frame(1, bytes)).empty());
  EXPECT_EQ(coordinator_.num_pending(), 0U);
}

TEST_F(GatewayCoreTest, QuestionsFailAtOnceWhenThePeerGoes) {
  GatewayCore worker(worker_self());
  join(worker, 1);
  (void)coordinator_.ask(2, wire::LoadPlan{}, 77, 1'000'000);
  const auto effects =
      coordinator_.on_closed(1, make_status(Code::kDisconnected, "connection reset"));
  const auto answered = of<GatewayCore::Answered>(effects);
  ASSERT_EQ(answered.size(), 1U);
  EXPECT_NE(answered[0].answer.status().message().find("worker 0 (pid 4711 on a) is gone"),
            std::string::npos);
  EXPECT_EQ(of<GatewayCore::Left>(effects).size(), 1U);
  ASSERT_GE(effects.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<GatewayCore::Answered>(effects.back()))
      << "who has gone is forgotten before the answer comes, which is no refusal then";
  const auto late = of<GatewayCore::Answered>(coordinator_.ask(2, wire::LoadPlan{}, 78, 1000));
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].answer.status().code(), Code::kDisconnected);
}

TEST_F(GatewayCoreTest, QuestionsTimeOut) {
  GatewayCore worker(worker_self());
  join(worker, 1);
  (void)coordinator_.ask(2, wire::LoadPlan{}, 77, 1000);
  EXPECT_TRUE(coordinator_.tick(999).empty());
  const auto answered = of<GatewayCore::Answered>(coordinator_.tick(1000));
  ASSERT_EQ(answered.size(), 1U);
  EXPECT_EQ(answered[0].answer.status().code(), Code::kTimeout);
  EXPECT_NE(answered[0].answer.status().message().find("load_plan"), std::string::npos);
  EXPECT_TRUE(coordinator_.tick(5000).empty());
}

TEST_F(GatewayCoreTest, TheCoordinatorRelays) {
  GatewayCore first(worker_self(0));
  GatewayCore second(worker_self(1));
  join(first, 1);
  join(second, 2);
  const auto sent = of<GatewayCore::SendFrame>(first.send(3, wire::Opaque{5, "hello"}));
  ASSERT_EQ(sent.size(), 1U);
  const auto relayed = of<GatewayCore::SendFrame>(coordinator_.on_frame(1, sent[0].bytes));
  ASSERT_EQ(relayed.size(), 1U);
  EXPECT_EQ(relayed[0].link, 2U);
  const auto heard = of<GatewayCore::Deliver>(second.on_frame(2, relayed[0].bytes));
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].envelope.sender, 2U);
  EXPECT_EQ(std::get<wire::Opaque>(heard[0].envelope.body).payload, "hello");
  EXPECT_EQ(coordinator_.counts().relayed, 1);
}

}  // namespace
}  // namespace sgactor::actors

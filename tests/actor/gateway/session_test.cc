// Coordinator and worker in one process, two sessions, real links: step messages through proxies.
#include "actors/protocol/status_error.h"
#include "actors/runtime/remote_session.h"

#include <caf/all.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace sgactor::actors {
namespace {

constexpr int64_t kLongMs = 20000;
constexpr auto kLong = std::chrono::milliseconds(kLongMs);

/// A worker that answers BeginStep with a vote and Commit with StepDone.
WorkerActor::behavior_type echo_worker(WorkerActor::pointer self, CoordinatorActor coordinator) {
  self->send(coordinator, RankReady{0, 1});
  return {
      [=](const BeginStep& m) {
        self->send(coordinator, Vote{0, 1, m.generation, m.step});
      },
      [=](const Commit& m) {
        StepDone done;
        done.step = m.step;
        done.numbers = {1.5F, 0.5F, 0.25F, true};
        self->send(coordinator, done);
      },
      [=](const BeginValidation&) {
        self->quit(to_caf(make_status(Code::kDeviceFault, "the device is gone")));
      },
      [](const TakeSnapshot&) {},
      [](const SnapshotEnqueued&) {},
      [](const Finish&) {},
      [](const LaneToken&) {},
      [](const WorkComplete&) {},
      [](const StepPrepared&) {},
      [](const NumbersRead&) {},
      [](const InputsKept&) {},
      [](const PoolReport&) {},
      [](const Rejoined&) {},
      [=](const Resume& m) {
        self->send(coordinator, Vote{0, 1, m.generation, m.committed + 1});
      },
      [](const Recheck&) {},
      [](const GradientChecked&) {},
  };
}

/// What the coordinator hears, for the test's thread.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;
  void add(std::string line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::move(line));
    changed.notify_all();
  }
  bool wait(size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kLong, [&] { return lines.size() >= count; });
  }
};

struct CoordinatorParts {
  GatewayActor gateway;
  wire::PeerId peer;
  Heard* heard;
  std::promise<WorkerActor>* proxy;
};

CoordinatorActor::behavior_type listening_coordinator(CoordinatorActor::pointer self,
                                                      const CoordinatorParts& parts) {
  Heard* heard = parts.heard;
  self->set_down_handler(
      [heard](caf::down_msg& msg) { heard->add("down " + from_caf(msg.reason).message()); });
  self->set_exit_handler([self](caf::exit_msg& msg) {
    if (msg.reason == caf::exit_reason::user_shutdown) self->quit(msg.reason);
  });
  parts.proxy->set_value(
      spawn_worker_proxy(self, parts.gateway, parts.peer, {0}, CoordinatorActor(self)));
  return {
      [=](const RankReady& m) { heard->add("ready " + std::to_string(m.rank)); },
      [=](const Vote& m) { heard->add("vote " + std::to_string(m.step)); },
      [](const JournalWritten&) {},
      [=](const StepDone& m) { heard->add("done " + std::to_string(m.numbers.loss)); },
      [](const ValidationDone&) {},
      [](const SnapshotEnqueued&) {},
      [](const SnapshotWritten&) {},
      [](const CheckpointCommitted&) {},
      [](const RankFinished&) {},
      [=](const FaultReport& m) { heard->add("fault " + m.status.message()); },
      [](const Fence&) {},
      [](const Adopt&) {},
  };
}

class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    authority_ = *TlsAuthority::create();
    GatewaySelf self{true, {}, "build", 9};
    coordinator_ = *RemoteSession::create(*authority_->issue_server(), self, {}, 1);
    address_ = "127.0.0.1:" + std::to_string(*coordinator_->listen("127.0.0.1", 0));
    worker_ = make_worker();
    const auto joined = worker_->join({address_}, kLongMs);
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    const auto event = next(*coordinator_, SessionEvent::Kind::kJoined);
    ASSERT_TRUE(event.has_value());
    peer_ = event->peer.id;
  }
  std::unique_ptr<RemoteSession> make_worker(const std::string& build = "build") {
    GatewaySelf self{false, {}, build, 0};
    self.hello.role = wire::Role::kWorker;
    self.hello.host = "here";
    self.hello.pid = 1;
    return *RemoteSession::create(*authority_->issue_member(), self, {}, 1);
  }
  static std::optional<SessionEvent> next(RemoteSession& session, SessionEvent::Kind kind) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < deadline) {
      auto event = session.next(100);
      if (event && event->kind == kind) return event;
    }
    return std::nullopt;
  }
  /// Coordinator here, worker there, each with what stands for the other.
  void connect_actors() {
    std::promise<WorkerActor> proxy;
    auto future = proxy.get_future();
    listener_ = coordinator_->system().spawn(
        listening_coordinator, CoordinatorParts{coordinator_->gateway(), peer_, &heard_, &proxy});
    worker_proxy_ = future.get();
    stand_in_ = spawn_coordinator_proxy(
        worker_->system(), worker_->gateway(),
        [](caf::local_actor* parent, const CoordinatorActor& c) {
          return parent->spawn<caf::linked + caf::monitored>(echo_worker, c);
        },
        0);
  }
  void TearDown() override {
    if (listener_) caf::anon_send_exit(listener_, caf::exit_reason::user_shutdown);
    if (stand_in_) caf::anon_send_exit(stand_in_, caf::exit_reason::user_shutdown);
    listener_ = nullptr;
    worker_proxy_ = nullptr;
    stand_in_ = nullptr;
    worker_.reset();
    coordinator_.reset();
  }

  std::unique_ptr<TlsAuthority> authority_;
  std::unique_ptr<RemoteSession> coordinator_, worker_;
  std::string address_;
  wire::PeerId peer_ = 0;
  Heard heard_;
  CoordinatorActor listener_;
  WorkerActor worker_proxy_;
  CoordinatorActor stand_in_;
};

TEST_F(SessionTest, StepMessagesGoThroughTheProxies) {
  connect_actors();
  ASSERT_TRUE(heard_.wait(1));
  EXPECT_EQ(heard_.lines[0], "ready 0");
  for (int64_t step = 1; step <= 20; ++step) {
    caf::anon_send(worker_proxy_, BeginStep{step, 1});
    ASSERT_TRUE(heard_.wait(static_cast<size_t>(2 * step)));
    EXPECT_EQ(heard_.lines.back(), "vote " + std::to_string(step));
    caf::anon_send(worker_proxy_, Commit{step, 1});
    ASSERT_TRUE(heard_.wait(static_cast<size_t>((2 * step) + 1)));
    EXPECT_EQ(heard_.lines.back(), "done 1.500000");
  }
}

TEST_F(SessionTest, TheLossOfAProcessEndsItsProxyWithItsName) {
  connect_actors();
  ASSERT_TRUE(heard_.wait(1));
  caf::anon_send_exit(stand_in_, caf::exit_reason::user_shutdown);
  stand_in_ = nullptr;
  worker_.reset();
  ASSERT_TRUE(heard_.wait(2));
  EXPECT_NE(heard_.lines[1].find("down worker 0 (pid 1 on here) is gone"), std::string::npos)
      << heard_.lines[1];
  EXPECT_TRUE(next(*coordinator_, SessionEvent::Kind::kLeft).has_value());
}

TEST_F(SessionTest, AWorkersOwnEndIsAFault) {
  connect_actors();
  ASSERT_TRUE(heard_.wait(1));
  caf::anon_send(worker_proxy_, BeginValidation{1, 1});
  ASSERT_TRUE(heard_.wait(2));
  EXPECT_EQ(heard_.lines[1], "fault the device is gone");
}

TEST_F(SessionTest, MessagesBetweenProcessesAndAnswers) {
  coordinator_->ask(peer_, wire::LoadPlan{}, kLongMs);
  const auto asked = next(*worker_, SessionEvent::Kind::kMessage);
  ASSERT_TRUE(asked.has_value());
  worker_->send(asked->peer.id, wire::PlanLoaded{4, "addr", "f"}, asked->envelope.request);
  const auto answer = next(*coordinator_, SessionEvent::Kind::kAnswer);
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->status.ok());
  EXPECT_EQ(std::get<wire::PlanLoaded>(answer->envelope.body).worker, 4);
}

TEST_F(SessionTest, UnansweredQuestionsFailWhenTheProcessGoes) {
  coordinator_->ask(peer_, wire::LoadPlan{}, 1'000'000);
  ASSERT_TRUE(next(*worker_, SessionEvent::Kind::kMessage).has_value());
  worker_.reset();
  const auto answer = next(*coordinator_, SessionEvent::Kind::kAnswer);
  ASSERT_TRUE(answer.has_value());
  EXPECT_NE(answer->status.message().find("worker 0"), std::string::npos);
}

TEST_F(SessionTest, PayloadsOfLayersAboveReachTheirSubscriber) {
  std::promise<std::string> heard;
  caf::anon_send(coordinator_->gateway(),
                 SubscribeOpaque{7, [&](wire::PeerId from, const std::string& payload) {
                                   heard.set_value(std::to_string(from) + payload);
                                 }});
  coordinator_->flush(kLongMs);
  worker_->send(wire::kCoordinatorPeer, wire::Opaque{8, "nobody listens"});
  worker_->send(wire::kCoordinatorPeer, wire::Opaque{7, " says hello"});
  auto future = heard.get_future();
  ASSERT_EQ(future.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(future.get(), std::to_string(peer_) + " says hello");
}

TEST_F(SessionTest, AnotherBuildMayNotJoin) {
  const auto other = make_worker("another build");
  const auto joined = other->join({address_}, kLongMs);
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.status().code(), Code::kInvalidArgument);
  EXPECT_NE(joined.status().message().find("another build"), std::string::npos);
}

TEST_F(SessionTest, AnotherJobsTokenIsSaidToBeWrong) {
  const auto other = *TlsAuthority::create();
  const auto stranger =
      *RemoteSession::create(*other->issue_member(), {false, {}, "build", 0}, {}, 1);
  const auto joined = stranger->join({address_}, kLongMs);
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.status().code(), Code::kCorruption);
  EXPECT_NE(joined.status().message().find("not of this job"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::actors

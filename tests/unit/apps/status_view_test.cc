#include "apps/sgactor/status_view.h"

#include "apps/sgactor/status_page.h"
#include "apps/sgactor/top_view.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace sgactor::apps {
namespace {

constexpr int64_t kNow = 50'000;

RunFacts run_facts() {
  RunFacts facts;
  facts.job = "job";
  facts.run = "/runs/a";
  facts.version = "1.2";
  facts.host = "here";
  facts.pid = 7;
  facts.num_steps = 100;
  facts.data_parallel = facts.logical_data_parallel = 2;
  return facts;
}

StepFacts step_facts() {
  StepFacts step;
  step.step = 12;
  step.measured = true;
  step.loss = 1.5F;
  step.grad_norm = 0.25F;
  step.lr = 0.5F;
  step.tokens = 64;
  step.all_tokens = 768;
  step.tokens_per_second = 3200;
  step.step_ms = 20;
  step.tflops = 0.5;
  step.memory_bytes = 1 << 29;
  step.seconds_left = 1.75;
  step.generation = 2;
  step.done_ms = kNow - 30;
  return step;
}

MemberFacts member_facts() {
  MemberFacts members;
  members.state = RunState::kRunning;
  members.generation = 2;
  members.num_faults = 1;
  members.workers = {{0, "host \"a\"\\\n", 11, "cpu:0", {0, 1}, "running", kNow - 40},
                     {3, "b", 12, "cpu:1", {}, "spare", kNow - 1250},
                     {4, "b", 0, "cpu:1", {}, "starting", 0}};
  return members;
}

TEST(StatusMetrics, AreExactlyThis) {
  StatusBoard board(run_facts(), nullptr);
  board.set_step(step_facts());
  board.set_members(member_facts());
  board.set_checkpoint(10);
  board.set_validation(10, 1.625);
  board.add_recovery(R"({"generation":2,"fault":"worker exit","step":9})");
  EXPECT_EQ(status_metrics(board.read(), kNow),
            R"(# HELP sgactor_training_info The run; always 1.
# TYPE sgactor_training_info gauge
sgactor_training_info{job="job",run="/runs/a",version="1.2"} 1
# HELP sgactor_training_state 1 for the state that the run is in.
# TYPE sgactor_training_state gauge
sgactor_training_state{state="ready"} 0
sgactor_training_state{state="running"} 1
sgactor_training_state{state="frozen"} 0
sgactor_training_state{state="migrating"} 0
sgactor_training_state{state="draining"} 0
sgactor_training_state{state="done"} 0
sgactor_training_state{state="failed"} 0
# HELP sgactor_training_step Step committed last.
# TYPE sgactor_training_step gauge
sgactor_training_step 12
# HELP sgactor_training_steps Steps of the job.
# TYPE sgactor_training_steps gauge
sgactor_training_steps 100
# HELP sgactor_training_loss Mean loss of the step in nats a token.
# TYPE sgactor_training_loss gauge
sgactor_training_loss 1.5
# HELP sgactor_training_gradient_norm Global norm before clipping.
# TYPE sgactor_training_gradient_norm gauge
sgactor_training_gradient_norm 0.25
# HELP sgactor_training_learning_rate Learning rate of the step.
# TYPE sgactor_training_learning_rate gauge
sgactor_training_learning_rate 0.5
# HELP sgactor_training_tokens_per_second Tokens a second in the step.
# TYPE sgactor_training_tokens_per_second gauge
sgactor_training_tokens_per_second 3200
# HELP sgactor_training_tokens_total Tokens of all steps since this process began.
# TYPE sgactor_training_tokens_total counter
sgactor_training_tokens_total 768
# HELP sgactor_training_step_seconds Wall time of the step.
# TYPE sgactor_training_step_seconds gauge
sgactor_training_step_seconds 0.02
# HELP sgactor_training_memory_bytes Planned arena of a rank.
# TYPE sgactor_training_memory_bytes gauge
sgactor_training_memory_bytes 536870912
# HELP sgactor_training_time_left_seconds Guess for the steps that are left.
# TYPE sgactor_training_time_left_seconds gauge
sgactor_training_time_left_seconds 1.75
# HELP sgactor_training_last_step_age_seconds Time since the step was committed.
# TYPE sgactor_training_last_step_age_seconds gauge
sgactor_training_last_step_age_seconds 0.03
# HELP sgactor_training_validation_step Step behind which was validated.
# TYPE sgactor_training_validation_step gauge
sgactor_training_validation_step 10
# HELP sgactor_training_validation_loss Mean loss of held-out data.
# TYPE sgactor_training_validation_loss gauge
sgactor_training_validation_loss 1.625
# HELP sgactor_training_checkpoint_step Newest checkpoint; 0: none.
# TYPE sgactor_training_checkpoint_step gauge
sgactor_training_checkpoint_step 10
# HELP sgactor_training_generation Number of the current membership.
# TYPE sgactor_training_generation gauge
sgactor_training_generation 2
# HELP sgactor_training_workers Worker processes.
# TYPE sgactor_training_workers gauge
sgactor_training_workers{state="running"} 1
sgactor_training_workers{state="loading"} 0
sgactor_training_workers{state="silent"} 0
sgactor_training_workers{state="spare"} 1
sgactor_training_workers{state="starting"} 1
# HELP sgactor_training_recoveries_total Lines of recoveries.jsonl.
# TYPE sgactor_training_recoveries_total counter
sgactor_training_recoveries_total 1
# HELP sgactor_training_faults_total Faults since this process began.
# TYPE sgactor_training_faults_total counter
sgactor_training_faults_total 1
# HELP sgactor_training_last_heartbeat_age_seconds Time since a worker was heard.
# TYPE sgactor_training_last_heartbeat_age_seconds gauge
sgactor_training_last_heartbeat_age_seconds{worker="0",host="host \"a\"\\\n"} 0.04
sgactor_training_last_heartbeat_age_seconds{worker="3",host="b"} 1.25
)");
}

TEST(StatusMetrics, NumbersThatAreNoneHaveNames) {
  StatusBoard board(run_facts(), nullptr);
  StepFacts step = step_facts();
  step.loss = std::numeric_limits<float>::quiet_NaN();
  step.grad_norm = std::numeric_limits<float>::infinity();
  step.seconds_left = -std::numeric_limits<double>::infinity();
  step.mfu = 0.5;
  board.set_step(step);
  const std::string text = status_metrics(board.read(), kNow);
  EXPECT_NE(text.find("\nsgactor_training_loss NaN\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nsgactor_training_gradient_norm +Inf\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nsgactor_training_time_left_seconds -Inf\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nsgactor_training_mfu 0.5\n"), std::string::npos) << text;
}

TEST(StatusMetrics, WhatIsNotKnownYetHasNoSample) {
  RunFacts facts = run_facts();
  facts.first_step = 31;
  const StatusBoard board(facts, nullptr);
  const std::string text = status_metrics(board.read(), kNow);
  EXPECT_NE(text.find("\nsgactor_training_step 30\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nsgactor_training_checkpoint_step 30\n"), std::string::npos) << text;
  for (const char* name :
       {"sgactor_training_loss", "sgactor_training_mfu", "sgactor_training_step_seconds", "NaN"}) {
    EXPECT_EQ(text.find(name), std::string::npos) << text;
  }
}

TEST(StatusJson, IsExactlyThis) {
  StatusBoard board(run_facts(), nullptr);
  board.set_step(step_facts());
  board.set_members(member_facts());
  board.set_checkpoint(10);
  board.add_recovery(R"({"generation":2,"fault":"worker exit","step":9,"placed_ms":null})");
  EXPECT_EQ(
      status_json(board.read(), kNow),
      R"({"state":"running","trouble":"","job":"job","run":"/runs/a","version":"1.2",)"
      R"("host":"here","pid":7,"step":12,"steps":100,"loss":1.5,"loss_bits":"3fc00000",)"
      R"("grad_norm":0.25,"lr":0.5,"tokens":64,"tok_s":3200.0,"step_ms":20.0,"tflops":0.5,)"
      R"("mfu":null,"mem_gib":0.5,"step_age_ms":30,"seconds_left":1.75,"checkpoint_step":10,)"
      R"("validation_step":0,"validation_loss":null,"generation":2,)"
      R"("mesh":{"pp":1,"dp":2,"tp":1,"logical_dp":2,"zero_stage":0},)"
      R"("workers":[{"index":0,"host":"host \"a\"\\\n","pid":11,"device":"cpu:0","ranks":[0,1],)"
      R"("state":"running","heartbeat_age_ms":40},)"
      R"({"index":3,"host":"b","pid":12,"device":"cpu:1","ranks":[],"state":"spare",)"
      R"("heartbeat_age_ms":1250},)"
      R"({"index":4,"host":"b","pid":0,"device":"cpu:1","ranks":[],"state":"starting",)"
      R"("heartbeat_age_ms":null}],"spares":1,"num_faults":1,"num_recoveries":1,)"
      R"("recoveries":[{"generation":2,"fault":"worker exit","step":9,"placed_ms":null}]})"
      "\n");
}

TEST(StatusJson, NumbersThatAreNoneAreNull) {
  RunFacts facts = run_facts();
  facts.host = "\xff\x01";  // no UTF-8
  StatusBoard board(facts, nullptr);
  StepFacts step = step_facts();
  step.loss = std::numeric_limits<float>::quiet_NaN();
  step.seconds_left = std::numeric_limits<double>::infinity();
  board.set_step(step);
  const auto json = nlohmann::json::parse(status_json(board.read(), kNow));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_EQ(json["loss_bits"], "7fc00000");
  EXPECT_TRUE(json["seconds_left"].is_null());
}

TEST(StatusHtml, EscapesWhatItShowsAndNeedsNothingElse) {
  RunFacts facts = run_facts();
  facts.job = "<script>alert(\"1\") & more";
  StatusBoard board(facts, nullptr);
  board.set_step(step_facts());
  MemberFacts members = member_facts();
  members.workers[0].host = "<b>";
  board.set_members(members);
  board.add_recovery(R"({"fault":"<i>","culprit":"a\u0000b","step":9,"placed_ms":null})");
  const std::string html = status_html(board.read(), kNow);
  EXPECT_NE(html.find("&lt;script&gt;alert(&quot;1&quot;) &amp; more"), std::string::npos) << html;
  for (const char* raw : {"<script", "<b>", "<i>", "http://", "https://", "src="}) {
    EXPECT_EQ(html.find(raw), std::string::npos) << raw << "\n" << html;
  }
  EXPECT_NE(html.find("<td>12 of 100</td>"), std::string::npos) << html;
  EXPECT_NE(html.find("width: 12.0%"), std::string::npos) << html;
}

TEST(StatusBoard, StateIsThatOfTheMembersUntilTheEnd) {
  std::atomic<bool> stopping{false};
  StatusBoard board(run_facts(), &stopping);
  EXPECT_EQ(board.read().state, RunState::kReady);
  board.set_members(member_facts());
  EXPECT_EQ(board.read().state, RunState::kRunning);
  stopping = true;
  EXPECT_EQ(board.read().state, RunState::kDraining);
  board.end(RunState::kFailed);
  board.set_members(member_facts());
  EXPECT_EQ(board.read().state, RunState::kFailed);
}

TEST(StatusBoard, KeepsTheNewestRecoveriesAndCountsAll) {
  StatusBoard board(run_facts(), nullptr);
  for (int i = 1; i <= 30; ++i) board.add_recovery("{\"step\":" + std::to_string(i) + "}");
  board.add_recovery("cut");
  const StatusSnapshot status = board.read();
  EXPECT_EQ(status.num_recoveries, 31);
  ASSERT_EQ(status.recoveries->size(), 20U);
  EXPECT_EQ(status.recoveries->front()["step"], 11);
  EXPECT_EQ(status.recoveries->back()["step"], 30);
}

TEST(StatusBoard, WhatWasReadDoesNotChange) {
  StatusBoard board(run_facts(), nullptr);
  board.set_members(member_facts());
  const StatusSnapshot before = board.read();
  board.set_members({});
  board.add_recovery("{}");
  EXPECT_EQ(before.members->workers.size(), 3U);
  EXPECT_TRUE(before.recoveries->empty());
}

TEST(StatusPage, AnswersFourPaths) {
  StatusBoard board(run_facts(), nullptr);
  EXPECT_EQ(answer_status(board.read(), "/", kNow).type, "text/html; charset=utf-8");
  EXPECT_EQ(answer_status(board.read(), "/status", kNow).type, "application/json");
  EXPECT_EQ(answer_status(board.read(), "/metrics", kNow).type,
            "text/plain; version=0.0.4; charset=utf-8");
  for (const char* path : {"", "/status/", "/../status", "//", "/healthz?"}) {
    EXPECT_EQ(answer_status(board.read(), path, kNow).status, 404) << path;
  }
  const auto health = [&] {
    const HttpReply reply = answer_status(board.read(), "/healthz", kNow);
    return std::to_string(reply.status) + " " + reply.body;
  };
  EXPECT_EQ(health(), "503 no step has begun\n");
  MemberFacts members = member_facts();
  board.set_members(members);
  EXPECT_EQ(health(), "200 ok\n");
  members.state = RunState::kFrozen;
  members.trouble = "hang: worker 1";
  board.set_members(members);
  EXPECT_EQ(health(), "503 recovers from hang: worker 1\n");
  members.state = RunState::kRunning;
  board.set_members(members);
  EXPECT_EQ(health(), "503 hang: worker 1\n");
  board.end(RunState::kFailed);
  EXPECT_EQ(health(), "503 the run has failed\n");
  board.end(RunState::kDone);
  EXPECT_EQ(health(), "200 ok\n");
}

TEST(TopView, ReadsWhatAPageTells) {
  StatusBoard board(run_facts(), nullptr);
  board.set_step(step_facts());
  MemberFacts members = member_facts();
  members.workers[0].host = "far away";
  board.set_members(members);
  for (int i = 1; i <= 25; ++i) {
    board.add_recovery(R"({"step":9,"fault":"hang","culprit":"worker 1","restored_ms":12})");
  }
  auto view = view_of_status(status_json(board.read(), kNow));
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  view->page = "h:80";
  EXPECT_EQ(view_text(*view, 1),
            "run         /runs/a: running\n"
            "page        http://h:80/\n"
            "step        12 of 100, 30.0 ms ago\n"
            "loss        1.5000, gradient norm 0.25, lr 0.5\n"
            "rate        3.20 k tokens/s, 20.0 ms a step\n"
            "memory      0.5 GiB planned\n"
            "left        1.8 s\n"
            "generation  2\n"
            "worker      host                      pid  ranks                 memory  heard"
            "        state\n"
            "0           far away                   11  0,1                        -  40.0 ms ago"
            "  running\n"
            "3           b                          12  spare                      -  1.2 s ago"
            "    spare\n"
            "4           b                           0  spare                      -  -"
            "            starting\n"
            "recoveries  25\n"
            "  after step 9: hang (worker 1), 12 ms until the state was restored\n");
}

TEST(TopView, RefusesWhatNoPageTells) {
  for (const char* text : {"", "null", "[]", "{}", R"({"step":1,"state":"x"})",
                           R"({"step":1,"state":"x","workers":{}})"}) {
    const auto view = view_of_status(text);
    ASSERT_FALSE(view.ok()) << text;
    EXPECT_EQ(view.status().message(), "is no status page of sgactor");
  }
  // Other types than a page gives are as good as nothing.
  const auto odd = view_of_status(
      R"({"step":"a","state":7,"workers":[1,{"index":"x","ranks":{"a":1}}],"recoveries":[0,{}]})");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->workers.size(), 1U);
  EXPECT_EQ(odd->recoveries.size(), 1U);
}

TEST(StatusPage, IsNotThereUnlessItIsAskedFor) {
  const JobSpec job;
  const auto page = StatusPage::create(job, {"nowhere"}, 1, nullptr);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(*page, nullptr);
}

}  // namespace
}  // namespace sgactor::apps

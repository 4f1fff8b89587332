// Profile feedback as a user meets it: a run records its times, the next plan goes by them, and
// what is no profile is refused before anything starts.
#include "tests/e2e/cli/program.h"

#include <nlohmann/json.hpp>

namespace sgactor::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ProgramProfile : public ProgramTest {
 protected:
  ProgramResult train(const std::string& run_dir, std::vector<std::string> more) const {
    std::vector<std::string> args = {"train",
                                     "job.toml",
                                     "--run-dir",
                                     run_dir,
                                     "--parallelism.data_parallel_degree=2",
                                     "--parallelism.zero_stage=3"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  }
  [[nodiscard]] std::string passes(const std::string& profile) const {
    std::vector<std::string> args = {"plan", "job.toml", "--passes",
                                     "--parallelism.data_parallel_degree=2",
                                     "--parallelism.zero_stage=3"};
    if (!profile.empty()) args.push_back("--profile.use=" + profile);
    const ProgramResult r = run(args);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  }
};

TEST_F(ProgramProfile, ARunRecordsAndTheNextUsesIt) {
  const ProgramResult first = train("first", {"--profile.record=times.json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const json profile = json::parse(read("times.json"));
  EXPECT_EQ(profile["backend"], "cpu");
  EXPECT_FALSE(profile["device"].get<std::string>().empty());
  EXPECT_GT(profile["subgraphs"].size(), 5U);
  for (const json& s : profile["subgraphs"]) EXPECT_GT(s["median_ns"].get<int64_t>(), 0);
  bool gathers = false;
  for (const json& c : profile["collectives"]) {
    gathers = gathers || c["kind"] == "all_gather";
    EXPECT_EQ(c["members"], 2);
    EXPECT_GT(c["bytes"].get<int64_t>(), 0);
  }
  EXPECT_TRUE(gathers);

  EXPECT_EQ(passes("").find("measured"), std::string::npos);
  const std::string out = passes("times.json");
  EXPECT_NE(out.find("compiled    in"), std::string::npos) << "the key holds the profile";
  const size_t num = profile["subgraphs"].size();
  const std::string all = std::to_string(num) + " of " + std::to_string(num);
  EXPECT_NE(out.find(all + " subgraphs measured"), std::string::npos) << out;
  EXPECT_NE(passes("times.json").find("from cache  in"), std::string::npos);
  // Times change when things happen, never what is computed.
  const ProgramResult second = train("second", {"--profile.use=times.json"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(loss_bits("first"), loss_bits("second"));
  // Another content under the same name is another plan.
  json other = profile;
  other["subgraphs"][0]["median_ns"] = 1;
  write("times.json", other.dump());
  EXPECT_NE(passes("times.json").find("compiled    in"), std::string::npos);
}

TEST_F(ProgramProfile, WhatIsNoProfileIsRefused) {
  write("cut.json", "{\"format\": \"sgactor-profile-1\", \"backend\": ");
  write("other.json", "{\"format\": \"something\"}");
  for (const char* command : {"train", "plan"}) {
    expect_refused({command, "job.toml", "--profile.use=cut.json"},
                   {"profile.use", "cut.json", "is no whole JSON"});
    expect_refused({command, "job.toml", "--profile.use=other.json"},
                   {"profile.use", "other.json", "expected \"format\""});
    expect_refused({command, "job.toml", "--profile.use=absent.json"},
                   {"profile.use", "absent.json"});
  }
  expect_refused(
      {"train", "job.toml", "--profile.record=t.json", "--training.micro_batch_size=auto"},
      {"profile.record", "micro_batch_size"});
}

}  // namespace
}  // namespace sgactor::tests

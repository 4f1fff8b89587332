// What the compiler's options and its cache mean to a user: cached plans give the same bits,
// damaged ones are compiled anew, bf16 trains, the page of a plan stands alone, and the micro-batch
// size finds itself without changing which samples a step sees.
#include "tests/e2e/cli/program.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace sgactor::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ProgramCompile : public ProgramTest {
 protected:
  /// Files of the cache.
  [[nodiscard]] std::vector<fs::path> plans() const {
    std::vector<fs::path> found;
    if (!fs::exists(cache_ / "sgactor")) return found;
    for (const auto& entry : fs::directory_iterator(cache_ / "sgactor")) {
      found.push_back(entry.path());
    }
    return found;
  }
  void train(const std::string& run_dir, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"train", "job.toml", "--run-dir", run_dir};
    args.insert(args.end(), more.begin(), more.end());
    result_ = run(args);
    ASSERT_EQ(result_.exit_code, 0) << result_.err;
  }
  [[nodiscard]] std::vector<json> lines(const std::string& file) const {
    std::vector<json> all;
    std::istringstream text(read(file));
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  }
  ProgramResult result_;
};

TEST_F(ProgramCompile, CachedPlansGiveTheSameBits) {
  train("first");
  ASSERT_EQ(plans().size(), 1U);
  const auto written = fs::last_write_time(plans()[0]);
  train("second");
  train("third", {"--no-cache"});
  EXPECT_EQ(plans().size(), 1U);
  EXPECT_EQ(fs::last_write_time(plans()[0]), written);
  EXPECT_EQ(loss_bits("first"), loss_bits("second"));
  EXPECT_EQ(loss_bits("first"), loss_bits("third"));
  // Another plan is another file; what no plan depends on is not.
  train("fourth", {"--training.seed=9", "--checkpoint.interval=3"});
  EXPECT_EQ(plans().size(), 1U);
  train("fifth", {"--training.micro_batch_size=1"});
  EXPECT_EQ(plans().size(), 2U);
  train("sixth", {"--cache-dir", "mine"});
  EXPECT_EQ(plans().size(), 2U);
  EXPECT_TRUE(exists("mine"));
}

TEST_F(ProgramCompile, DamagedPlansAreCompiledAnew) {
  train("first");
  ASSERT_EQ(plans().size(), 1U);
  const fs::path file = plans()[0];
  const auto size = fs::file_size(file);
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(size / 2));
    bytes.put('\x7f').put('\x00').put('\x7f');
  }
  train("second");
  EXPECT_NE(result_.err.find("the checksum of the cached plan is wrong; compiling again"),
            std::string::npos)
      << result_.err;
  fs::resize_file(file, size / 3);
  train("third");
  EXPECT_NE(result_.err.find("compiling again"), std::string::npos) << result_.err;
  train("fourth");
  EXPECT_EQ(result_.err.find("compiling again"), std::string::npos) << result_.err;
  for (const char* other : {"second", "third", "fourth"}) {
    EXPECT_EQ(loss_bits("first"), loss_bits(other)) << other;
  }
}

TEST_F(ProgramCompile, PlanIsReadFromTheCache) {
  const ProgramResult cold = run({"plan", "job.toml", "--passes"});
  const ProgramResult warm = run({"plan", "job.toml", "--passes"});
  ASSERT_EQ(warm.exit_code, 0) << warm.err;
  EXPECT_NE(cold.out.find("compiled    in"), std::string::npos) << cold.out;
  EXPECT_NE(warm.out.find("from cache  in"), std::string::npos) << warm.out;
  EXPECT_EQ(cold.out.substr(cold.out.find("passes\n")), warm.out.substr(warm.out.find("passes\n")));
}

TEST_F(ProgramCompile, PlanWritesOnePage) {
  const ProgramResult r = run({"plan", "job.toml", "--training.dtype=bf16", "--html", "plan.html"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::string page = read("plan.html");
  EXPECT_NE(page.find("in bf16"), std::string::npos);
  EXPECT_EQ(page.find("//"), std::string::npos);
  EXPECT_EQ(run({"plan", "job.toml", "--html", "absent/plan.html"}).exit_code, 2);
}

TEST_F(ProgramCompile, Bf16TrainsCloseToF32) {
  train("wide");
  train("narrow", {"--training.dtype=bf16"});
  EXPECT_NE(loss_bits("wide"), loss_bits("narrow"));
  const auto wide = lines("wide/metrics.jsonl");
  const auto narrow = lines("narrow/metrics.jsonl");
  ASSERT_EQ(wide.size(), narrow.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    const double loss = wide[i]["loss"];
    EXPECT_NEAR(narrow[i]["loss"].get<double>(), loss, 0.01 * loss);
  }
}

TEST_F(ProgramCompile, MicroBatchSizeFindsItself) {
  const std::vector<std::string> batch = {"--training.global_batch_size=8", "--training.steps=40",
                                          "--training.seq_len=8"};
  std::vector<std::string> automatic = batch;
  automatic.insert(automatic.end(),
                   {"--training.micro_batch_size=auto", "--training.micro_batch_start=1"});
  train("fixed", batch);
  train("auto", automatic);
  std::vector<int64_t> sizes;
  bool settled = false;
  for (const json& line : lines("auto/audit.jsonl")) {
    if (line["who"] != "micro_batch_tuner") continue;
    EXPECT_EQ(line["what"], "micro_batch_size");
    EXPECT_FALSE(settled) << "a decision after the last one";
    settled = line["settled"];
    EXPECT_EQ(8 % line["to"].get<int64_t>(), 0);
    EXPECT_GT(line["planned_bytes"].get<int64_t>(), 0);
    EXPECT_FALSE(line["reason"].get<std::string>().empty());
    sizes.push_back(line["to"]);
  }
  EXPECT_TRUE(settled);
  EXPECT_GE(sizes.size(), 2U);
  // Steps run on without a gap and see the samples of a run of fixed size.
  const auto commits = [&](const std::string& run_dir) {
    std::vector<std::pair<int64_t, std::string>> all;
    for (const json& line : lines(run_dir + "/audit.jsonl")) {
      if (line["what"] == "commit") all.emplace_back(line["step"], line["sample_hash"]);
    }
    return all;
  };
  EXPECT_EQ(commits("auto").size(), 40U);
  EXPECT_EQ(commits("auto"), commits("fixed"));
  const auto fixed = lines("fixed/metrics.jsonl");
  const auto tuned = lines("auto/metrics.jsonl");
  ASSERT_EQ(fixed.size(), tuned.size());
  for (size_t i = 0; i < fixed.size(); ++i) {
    const double loss = fixed[i]["loss"];
    EXPECT_NEAR(tuned[i]["loss"].get<double>(), loss, 1e-3 * loss) << "step " << i + 1;
  }
  // A resumed run takes the size of its checkpoint.
  const ProgramResult more = run({"train", "--resume", "--run-dir", "auto", "--training.steps=42"});
  EXPECT_EQ(more.exit_code, 0) << more.err;
}

/// The order of a ring is not the tree's, but it is the same in every run, whoever hosts the ranks,
/// and what a replica executes again it finds the same.
TEST_F(ProgramCompile, FastSumsAreCloseToExactOnesAndRepeat) {
  const std::vector<std::string> mesh = {"--training.steps=12",
                                         "--parallelism.data_parallel_degree=4",
                                         "--training.micro_batch_size=1"};
  std::vector<std::string> fast = mesh;
  fast.push_back("--parallelism.reduction=fast");
  train("exact", mesh);
  train("fast", fast);
  train("again", fast);
  fast.insert(fast.end(), {"--workers", "2", "--resilience.verify_interval=2"});
  train("workers", fast);
  EXPECT_NE(loss_bits("fast"), loss_bits("exact"));
  EXPECT_EQ(loss_bits("fast"), loss_bits("again"));
  EXPECT_EQ(loss_bits("fast"), loss_bits("workers"));
  const auto exact = lines("exact/metrics.jsonl");
  const auto summed = lines("fast/metrics.jsonl");
  ASSERT_EQ(exact.size(), 12U);
  ASSERT_EQ(summed.size(), 12U);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double loss = exact[i]["loss"];
    EXPECT_NEAR(summed[i]["loss"].get<double>(), loss, 1e-4 * loss);
  }
}

/// Whatever size the tuner has settled on, validation reads what it read before.
TEST_F(ProgramCompile, AResumedRunValidatesOnTheSameSamples) {
  const std::vector<std::string> validates = {
      "--training.steps=3", "--training.validation_interval=3", "--training.validation_batches=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), validates.begin(), validates.end());
    return more;
  };
  const auto loss_of = [&](const std::string& run_dir) {
    const auto all = lines(run_dir + "/validation.jsonl");
    EXPECT_EQ(all.size(), 1U) << run_dir;
    return all.empty() ? 0.0 : all[0]["loss"].get<double>();
  };
  train("one", with({"--training.micro_batch_size=1"}));
  train("four", with({"--training.micro_batch_size=4"}));
  const double expected = loss_of("one");
  ASSERT_GT(std::abs(loss_of("four") - expected), 1e-3 * expected) << "other samples";
  // A checkpoint of a run in which size 4 is in use.
  train("auto", {"--training.micro_batch_size=4", "--training.steps=2"});
  const ProgramResult more =
      run({"train", "--resume", "--run-dir", "auto", "--training.micro_batch_size=auto",
           "--training.micro_batch_start=1", validates[0], validates[1], validates[2]});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_NEAR(loss_of("auto"), expected, 1e-4 * expected);
}

}  // namespace
}  // namespace sgactor::tests

#include "apps/sgactor/run_recorder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace sgactor::apps {
namespace {

TEST(Metrics, ShareOfThePeakIsGivenWhereThePeakIsKnown) {
  actors::StepReport r;
  r.tokens = 1000;
  r.step_ms = 500;
  const auto line = nlohmann::json::parse(metrics_line(r, 1e9, 0, 8e12));
  EXPECT_DOUBLE_EQ(line["mfu"].get<double>(), 0.25);
  EXPECT_TRUE(nlohmann::json::parse(metrics_line(r, 1e9, 0))["mfu"].is_null());
}

class KnownPeak : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::path(testing::TempDir()) / "sga_metrics.cluster";
    std::ofstream(file_) << "network 1e9 1e-5\nhost a 1e10 1e-6\n  device h200 1000000 5e14 4e12\n";
    job_.compile.topology = file_.string();
    job_.training.dtype = "bf16";
  }
  void TearDown() override { std::filesystem::remove(file_); }

  std::filesystem::path file_;
  JobSpec job_;
};

TEST_F(KnownPeak, IsOfTheTopologysDeviceAWorker) {
  EXPECT_EQ(known_peak_flops(job_, "cuda:all", 4), 20e14);
  job_.parallelism.data_parallel_degree = 3;
  EXPECT_EQ(known_peak_flops(job_, "cuda", 0), 15e14);
}

TEST_F(KnownPeak, IsOfProductsInSixteenBits) {
  job_.training.dtype = "f32";
  EXPECT_EQ(known_peak_flops(job_, "cuda", 1), 0);
  EXPECT_EQ(known_peak_flops(job_, "cuda:0", 4), 0);
}

TEST_F(KnownPeak, IsNoneOfAnotherKindOfDevice) {
  EXPECT_EQ(known_peak_flops(job_, "cpu:2", 1), 0);
  EXPECT_EQ(known_peak_flops(job_, "reference", 1), 0);
  std::ofstream(file_) << "network 1e9 1e-5\nhost a 1e10 1e-6\n  device cpu 1000000 1e11 1e10\n";
  EXPECT_EQ(known_peak_flops(job_, "cpu:2", 1), 1e11);
  EXPECT_EQ(known_peak_flops(job_, "cuda", 1), 0);
  job_.compile.topology.clear();
  EXPECT_EQ(known_peak_flops(job_, "cuda", 1), 0);
}

}  // namespace
}  // namespace sgactor::apps

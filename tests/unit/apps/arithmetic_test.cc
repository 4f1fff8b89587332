#include "apps/sgactor/arithmetic.h"

#include "apps/sgactor/resume.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgactor::apps {
namespace {

const std::string kCpu = "cpu/avx512/OpenBLAS 0.3.21 SkylakeX";
const std::string kOlder = "cpu/avx2/OpenBLAS 0.3.21 Haswell";
const std::string kCuda = "cuda-1/sm90x132/cublaslt-120901/tuned-7/cudnn-91400";

TEST(Arithmetic, SaysPartByPartWhatDiffers) {
  EXPECT_EQ(arithmetic_difference(kCpu, kCpu), "");
  EXPECT_EQ(arithmetic_difference(kOlder, kCpu),
            "kernel family avx2, was avx512; library OpenBLAS 0.3.21 Haswell, was OpenBLAS 0.3.21 "
            "SkylakeX");
  EXPECT_EQ(arithmetic_difference(kCuda, kCpu), "device kind cuda, was cpu");
  EXPECT_EQ(arithmetic_difference("reference-1", kCuda), "device kind reference, was cuda");
  EXPECT_EQ(arithmetic_difference("reference-2", "reference-1"),
            "kernels reference-2, was reference-1");
  EXPECT_EQ(arithmetic_difference("cuda-1/sm90x114/cublaslt-120901/tuned-7/no-cudnn", kCuda),
            "kind of GPU sm90x114, was sm90x132; library no-cudnn, was cudnn-91400");
  EXPECT_EQ(arithmetic_difference(kCuda + "/atomics", kCuda), "setting atomics, was none");
  EXPECT_EQ(arithmetic_difference(kCuda, kCuda + "/atomics"), "setting none, was atomics");
}

TEST(Arithmetic, SaysWhereATableOfProductsIs) {
  const std::string other = "cuda-1/sm90x132/cublaslt-120901/default/cudnn-91400";
  const std::string text = arithmetic_difference(other, kCuda);
  EXPECT_EQ(text.rfind("table of products default, was tuned-7 (", 0), 0U) << text;
  EXPECT_NE(text.find("SGACTOR_CUDA_MATMULS"), std::string::npos) << text;
  EXPECT_NE(text.find("sgactor/cuda-matmuls.txt"), std::string::npos) << text;
}

TEST(Arithmetic, NamesTheRankWhereNotAllDifferAlike) {
  EXPECT_EQ(arithmetic_difference(same_arithmetic(4, kCuda), same_arithmetic(4, kCpu)),
            "device kind cuda, was cpu");
  EXPECT_EQ(arithmetic_difference(same_arithmetic(2, kCpu), {{0, kCpu}, {1, kCuda}}),
            "rank 1: device kind cpu, was cuda");
  EXPECT_EQ(
      arithmetic_difference(same_arithmetic(3, kCpu), {{0, kCpu}, {1, kCuda}, {2, "reference-1"}}),
      "rank 1 and 1 more ranks: device kind cpu, was cuda");
  EXPECT_EQ(arithmetic_difference(same_arithmetic(2, kCpu), {}), "") << "not recorded";
}

class Recorded : public testing::Test {
 protected:
  void SetUp() override {
    run_ = {testing::TempDir() + "/sga_arithmetic_" + std::to_string(::getpid())};
    std::filesystem::remove_all(run_.path);
    std::filesystem::create_directories(run_.path);
  }
  void TearDown() override { std::filesystem::remove_all(run_.path); }
  void record(int64_t step, const RankArithmetic& is, const std::string& inexact = "") {
    const Status written = record_arithmetic(run_, step, is, inexact);
    EXPECT_TRUE(written.ok()) << written.to_string();
  }
  void append(const std::string& text) {
    std::ofstream(run_.audit(), std::ios::binary | std::ios::app) << text;
  }
  [[nodiscard]] std::string audit() const {
    std::ostringstream text;
    text << std::ifstream(run_.audit(), std::ios::binary).rdbuf();
    return text.str();
  }

  RunDirectory run_;
};

TEST_F(Recorded, IsWhatMadeTheStateOfAStep) {
  EXPECT_TRUE(read_arithmetic(run_, 8, 2).empty()) << "there is no file";
  append(R"({"time":1,"who":"main","what":"start","first_step":1,"fingerprint_hash":"00"})"
         "\n");
  EXPECT_TRUE(read_arithmetic(run_, 8, 2).empty()) << "of a run from before";
  record(1, same_arithmetic(2, kCpu));
  append(R"({"time":2,"who":"coordinator","what":"commit","step":8})"
         "\n");
  record(9, {{0, kCpu}, {1, kCuda}}, "rank 1: device kind cuda, was cpu");
  EXPECT_EQ(read_arithmetic(run_, 8, 2), same_arithmetic(2, kCpu));
  const RankArithmetic mixed{{0, kCpu}, {1, kCuda}};
  EXPECT_EQ(read_arithmetic(run_, 9, 2), mixed);
  EXPECT_TRUE(read_arithmetic(run_, 0, 2).empty()) << "no step was done";
  // Begins again behind a checkpoint: steps 7 and later are no longer what they were.
  record(7, same_arithmetic(2, kOlder));
  EXPECT_EQ(read_arithmetic(run_, 6, 2), same_arithmetic(2, kCpu));
  EXPECT_EQ(read_arithmetic(run_, 20, 2), same_arithmetic(2, kOlder));
  // A line that a crash has cut is none.
  const std::string whole = audit();
  record(15, same_arithmetic(2, kCuda));
  std::filesystem::resize_file(run_.audit(), audit().size() - 1);
  EXPECT_EQ(read_arithmetic(run_, 20, 2), same_arithmetic(2, kOlder));
  EXPECT_NE(whole.find(R"("inexact":"rank 1: device kind cuda, was cpu")"), std::string::npos);
}

TEST_F(Recorded, MayBeOfAnotherNumberOfRanksIfAllWereAlike) {
  record(1, same_arithmetic(2, kCpu));
  EXPECT_EQ(read_arithmetic(run_, 4, 3), same_arithmetic(3, kCpu));
  record(5, {{0, kCpu}, {1, kCuda}});
  const RankArithmetic was = read_arithmetic(run_, 5, 3);
  EXPECT_EQ(was.size(), 3U);
  for (const std::string& is : {kCpu, kCuda}) {
    const std::string text = arithmetic_difference(same_arithmetic(3, is), was);
    EXPECT_NE(text.find("the number of ranks is another"), std::string::npos) << text;
  }
}

TEST_F(Recorded, IsComparedByAResume) {
  const RankArithmetic here = same_arithmetic(2, kOlder);
  EXPECT_TRUE(check_arithmetic(run_, here, here, false).ok());
  EXPECT_TRUE(check_arithmetic(run_, here, {}, false).ok());
  const Status refused = check_arithmetic(run_, here, same_arithmetic(2, kCpu), false);
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_EQ(refused.scope(), Scope::kDevice);
  EXPECT_NE(refused.message().find("kernel family avx2, was avx512"), std::string::npos);
  EXPECT_NE(refused.message().find("--resilience.allow_inexact=true"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::apps

#include "apps/sgactor/command_line.h"

#include "apps/sgactor/device.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

TEST(Overrides, AreTakenOutInBothForms) {
  std::vector<std::string> args = {"train", "--training.steps=5", "job.toml", "--optimizer.lr",
                                   "1e-3",  "--resume",           "--a.b=",   "--run-dir=x.y"};
  const auto overrides = split_overrides(args);
  ASSERT_TRUE(overrides.ok()) << overrides.status().to_string();
  EXPECT_EQ(args, (std::vector<std::string>{"train", "job.toml", "--resume", "--run-dir=x.y"}));
  ASSERT_EQ(overrides->size(), 3U);
  EXPECT_EQ((*overrides)[0].key, "training.steps");
  EXPECT_EQ((*overrides)[0].value, "5");
  EXPECT_EQ((*overrides)[1].value, "1e-3");
  EXPECT_EQ((*overrides)[2].value, "");
}

TEST(Overrides, MissingValue) {
  std::vector<std::string> args = {"--training.steps"};
  EXPECT_EQ(split_overrides(args).status().message(),
            "--training.steps: expected a value, as in --training.steps=VALUE");
}

/// What `sgactor ARGS` says on standard error.
std::string refused(const std::vector<std::string>& args) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program({}, {}, args), kExitUsage);
  return testing::internal::GetCapturedStderr();
}

TEST(Words, ThatAreUnknownAreNamedWithTheNearest) {
  EXPECT_EQ(refused({"train", "job.toml", "--device", "cuda"}),
            "sgactor: train: unknown option --device; did you mean --devices?\n");
  EXPECT_EQ(refused({"train", "job.toml", "--resum"}),
            "sgactor: train: unknown option --resum; did you mean --resume?\n");
  EXPECT_EQ(refused({"train", "job.toml", "--steps=5"}),
            "sgactor: train: unknown option --steps; did you mean --training.steps?\n");
  EXPECT_EQ(refused({"train", "job.toml", "--bf16"}),
            "sgactor: train: unknown option --bf16; did you mean --training.dtype=bf16?\n");
  EXPECT_EQ(refused({"train", "job.toml", "--learning-rate=1"}),
            "sgactor: train: unknown option --learning-rate; did you mean --optimizer.lr?\n");
  EXPECT_EQ(refused({"plan", "job.toml", "--qzx"}), "sgactor: plan: unknown option --qzx\n");
  EXPECT_EQ(refused({"plan", "a.toml", "b.toml"}), "sgactor: plan: unexpected argument b.toml\n");
}

TEST(Words, ThatAreMissingAreListed) {
  const std::string ckpt = refused({"ckpt"});
  EXPECT_EQ(ckpt.rfind("sgactor: ckpt: expected a subcommand, one of ls, show, verify", 0), 0U)
      << ckpt;
  EXPECT_EQ(refused({"plan"}), "sgactor: plan: job is required\n");
  EXPECT_NE(refused({"chaos", "--simulate", "job.toml"}).find("takes no job"), std::string::npos);
}

TEST(Devices, Grammar) {
  EXPECT_EQ(parse_devices("cpu:2")->options.num_threads, 2);
  EXPECT_EQ(parse_devices("cpu")->options.num_threads, 0);
  EXPECT_EQ(parse_devices("reference")->backend, "reference");
  EXPECT_EQ(parse_devices("cuda:all")->backend, "cuda");
  for (const char* bad :
       {"cpu:", "cpu:0", "cpu:x", "cpu:-1", "cpu:2x", "reference:2", "cpu:99999"}) {
    const auto s = parse_devices(bad).status();
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(s.message().rfind(std::string("--devices ") + bad + ": expected cpu", 0), 0U);
  }
}

TEST(Devices, MissingBackendIsExitCode3) {
  kernels::BackendTable table;
  table.add({"cuda", {}, "module sgactor_cuda.so not found beside the program"});
  const auto backend = create_device(table, {"cuda", {}});
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(exit_code(backend.status()), kExitNoDevice);
  EXPECT_EQ(exit_code(create_device(table, {"tpu", {}}).status()), kExitNoDevice);
}

TEST(ExitCodes, FollowTheStatus) {
  EXPECT_EQ(exit_code(Status()), 0);
  EXPECT_EQ(exit_code(invalid_argument("x")), 2);
  EXPECT_EQ(exit_code(corruption("x")), 2);
  EXPECT_EQ(exit_code(unsupported("x")), 2);
  EXPECT_EQ(exit_code(internal_error("x")), 1);
  EXPECT_EQ(exit_code(make_status(Code::kOutOfMemory, "x", Scope::kDevice)), 3);
  EXPECT_EQ(exit_code(make_status(Code::kOutOfMemory, "x", Scope::kCall)), 1);
}

TEST(Version, NamesEachBackendOrWhyItIsMissing) {
  kernels::BackendTable table;
  table.add({"cuda", {}, "module sgactor_cuda.so not found beside the program"});
  const std::string text = version_text(table);
  EXPECT_EQ(text.rfind("sgactor ", 0), 0U);
  EXPECT_NE(text.find("cuda:      module sgactor_cuda.so not found beside the program\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace sgactor::apps

#include "apps/sgactor/job_spec.h"

#include "graph/base/philox.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace sgactor::apps {
namespace {

constexpr const char* kMinimal = "[model]\npreset = \"llama-tiny\"\n";

std::string error_of(const std::string& toml, const std::vector<JobOverride>& overrides = {}) {
  const auto job = parse_job(toml, "job.toml", overrides);
  return job.ok() ? "" : job.status().message();
}
std::string with(const std::string& more) { return kMinimal + more; }

TEST(JobSpec, MinimalFileHasDefaults) {
  const auto job = parse_job(kMinimal, "dir/small.toml", {});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  EXPECT_EQ(job->model.preset, "llama-tiny");
  EXPECT_EQ(job->training.steps, 100);
  EXPECT_EQ(job->data.kind, "mock");
  EXPECT_EQ(job->name, "small");
  EXPECT_EQ(job->num_micro_batches(), 4);
  EXPECT_EQ(job->decay_end(), 100);
}

TEST(JobSpec, AutoMicroBatchBeginsWithASizeThatDivides) {
  const auto job = parse_job(with("[training]\nmicro_batch_size = \"auto\"\n"), "job.toml", {});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  EXPECT_TRUE(job->training.auto_micro_batch);
  EXPECT_EQ(job->training.micro_batch_size, 4);
  const auto again = parse_job(write_job(*job, false), "job.toml", {});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(again->training.auto_micro_batch);
  for (const auto& [batch, start, size] :
       {std::tuple{"9", "0", 3}, {"7", "0", 1}, {"16", "8", 8}, {"16", "16", 16}}) {
    const auto sized = parse_job(kMinimal, "job.toml",
                                 {{"training.micro_batch_size", "auto"},
                                  {"training.global_batch_size", batch},
                                  {"training.micro_batch_start", start}});
    ASSERT_TRUE(sized.ok()) << sized.status().to_string();
    EXPECT_EQ(sized->training.micro_batch_size, size) << batch;
  }
  EXPECT_NE(error_of(with("[training]\nmicro_batch_size = \"Auto\"\n")).find("or \"auto\""),
            std::string::npos);
  EXPECT_NE(error_of(with("[training]\nseq_len = \"auto\"\n")).find("training.seq_len"),
            std::string::npos);
  EXPECT_NE(error_of(kMinimal, {{"training.micro_batch_start", "2"}}).find("\"auto\""),
            std::string::npos);
  EXPECT_NE(error_of(kMinimal,
                     {{"training.micro_batch_size", "auto"}, {"training.micro_batch_start", "3"}})
                .find("does not divide"),
            std::string::npos);
}

TEST(JobSpec, AWordOrTrueOrFalse) {
  for (const auto& [text, value] :
       {std::pair{"true", "true"}, {"false", "false"}, {"\"auto\"", "auto"}}) {
    const auto job =
        parse_job(with(std::string("[compile]\nf8_head = ") + text + "\n"), "job.toml", {});
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    EXPECT_EQ(job->compile.f8_head, value);
    const auto again = parse_job(write_job(*job, false), "job.toml", {});
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again->compile.f8_head, value);
  }
  for (const std::string line : {"f8_head = 1", "f8_head = \"maybe\"", "f8_layout = true"}) {
    EXPECT_NE(error_of(with("[compile]\n" + line + "\n")).find("compile.f8_"), std::string::npos)
        << line;
  }
}

TEST(JobSpec, RoomForTheHeadIsASize) {
  for (const std::string room : {"auto", "none", "1.5 GiB"}) {
    EXPECT_EQ(error_of(with("[compile]\nhead_room = \"" + room + "\"\n")), "") << room;
  }
  EXPECT_NE(error_of(with("[compile]\nhead_room = \"some\"\n")).find("compile.head_room"),
            std::string::npos);
}

TEST(JobSpec, ReadsEverySection) {
  const auto job = parse_job(R"(
[model]
preset = "llama-15m"
vocab_size = 300
[data]
validation_fraction = 0.1
shuffle = false
[training]
steps = 7
micro_batch_size = 2
global_batch_size = 6
validation_interval = 3
[optimizer]
lr = 1
min_lr = 0.5
[parallelism]
reduction = "fast"
[resilience]
orphan_timeout = 5
[checkpoint]
export_hf = true
[compile]
disable_passes = ["fuse_ops", "plan_memory"]
[log]
sample_prompt = "a \"b\"\n"
[plugins]
)",
                             "job.toml", {});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  EXPECT_EQ(job->model.vocab_size, 300);
  EXPECT_FALSE(job->data.shuffle);
  EXPECT_EQ(job->num_micro_batches(), 3);
  EXPECT_EQ(job->optimizer.lr, 1.0);  // an integer is a number
  EXPECT_EQ(job->parallelism.reduction, "fast");
  EXPECT_EQ(job->resilience.orphan_timeout, 5.0);
  EXPECT_TRUE(job->checkpoint.export_hf);
  EXPECT_EQ(job->compile.disable_passes, (std::vector<std::string>{"fuse_ops", "plan_memory"}));
  EXPECT_EQ(job->log.sample_prompt, "a \"b\"\n");
}

TEST(JobSpec, UnknownKeyNamesPlaceAndNearest) {
  EXPECT_EQ(error_of(with("[training]\nstepz = 3\n")),
            "job.toml:4: training.stepz: unknown key; did you mean training.steps?");
  EXPECT_EQ(error_of(with("[optimizer]\nlearning_rate = 3\n")),
            "job.toml:4: optimizer.learning_rate: unknown key; did you mean optimizer.lr?");
}

TEST(JobSpec, KeyInWrongSectionNamesTheRightOne) {
  EXPECT_EQ(error_of(with("[optimizer]\nseq_len = 3\n")),
            "job.toml:4: optimizer.seq_len: unknown key; did you mean training.seq_len?");
}

TEST(JobSpec, UnknownSectionNamesNearest) {
  EXPECT_EQ(error_of(with("[trainings]\nsteps = 3\n")),
            "job.toml:3: [trainings]: unknown section; did you mean [training]?");
}

TEST(JobSpec, KeyOutsideSection) {
  EXPECT_EQ(
      error_of("steps = 3\n"),
      "job.toml:1: steps: a key must stand below its [section]; did you mean training.steps?");
  EXPECT_EQ(error_of("training = 3\n"),
            "job.toml:1: training: expected a section, got the integer 3");
}

TEST(JobSpec, WrongTypeSaysWhatWasExpected) {
  EXPECT_EQ(error_of(with("[training]\nsteps = \"many\"\n")),
            "job.toml:4: training.steps: expected an integer of at least 1, got the string "
            "\"many\"");
  EXPECT_EQ(error_of(with("[training]\nsteps = 2.5\n")),
            "job.toml:4: training.steps: expected an integer of at least 1, got the number 2.5");
  EXPECT_EQ(error_of(with("[data]\nshuffle = 1\n")),
            "job.toml:4: data.shuffle: expected true or false, got the integer 1");
  EXPECT_EQ(error_of(with("[compile]\ndisable_passes = \"x\"\n")),
            "job.toml:4: compile.disable_passes: expected a list of strings, got the string \"x\"");
}

TEST(JobSpec, OutOfRange) {
  EXPECT_EQ(error_of(with("[training]\nsteps = 0\n")),
            "job.toml:4: training.steps: expected an integer of at least 1, got 0");
  EXPECT_EQ(error_of(with("[data]\nvalidation_fraction = 1.0\n")),
            "job.toml:4: data.validation_fraction: expected a number from 0 to below 1, got 1");
  EXPECT_EQ(error_of(with("[optimizer]\nlr = nan\n")),
            "job.toml:4: optimizer.lr: expected a number above 0, got nan");
  EXPECT_EQ(error_of(with("[data]\nkind = \"csv\"\n")),
            "job.toml:4: data.kind: expected one of text, megatron, mock, got \"csv\"");
}

TEST(JobSpec, NotToml) {
  const std::string error = error_of("[model\npreset = 3\n");
  EXPECT_EQ(error.rfind("job.toml:1: not TOML: ", 0), 0U) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  EXPECT_NE(error_of("[model]\npreset = \"a\"\npreset = \"b\"\n").find("job.toml:3: not TOML: "),
            std::string::npos);
}

TEST(JobSpec, BatchThatDoesNotDivide) {
  EXPECT_EQ(error_of(with("[training]\nmicro_batch_size = 3\nglobal_batch_size = 16\n")),
            "job.toml:5: training.global_batch_size: 16 does not divide by "
            "training.micro_batch_size 3 times 1 data-parallel rank; expected a multiple of 3");
}

TEST(JobSpec, Combinations) {
  EXPECT_EQ(error_of("[training]\nsteps = 1\n"),
            "job.toml: model.preset: expected a preset, or model.hf with a Hugging Face directory");
  EXPECT_EQ(error_of(with("hf = \"x\"\n")),
            "job.toml:3: model.hf: give model.preset or model.hf, not both");
  EXPECT_EQ(error_of(with("[data]\nkind = \"text\"\n")),
            "job.toml: data.path: expected a path, because data.kind is \"text\"");
  EXPECT_EQ(error_of(with("[optimizer]\nmin_lr = 1.0\n")),
            "job.toml:4: optimizer.min_lr: expected at most optimizer.lr 0.0003, got 1");
  EXPECT_EQ(error_of(with("[training]\nvalidation_interval = 2\n")),
            "job.toml:4: training.validation_interval: needs data.validation_fraction above 0");
}

TEST(JobSpec, SizesThatNoPlanCanHold) {
  EXPECT_NE(error_of(with("[training]\nmicro_batch_size = 1\nglobal_batch_size = 1000000\n"))
                .find("makes 1000000 micro-batches a step; expected at most 16384"),
            std::string::npos);
  EXPECT_NE(error_of(with("[training]\nmicro_batch_size = 4096\nglobal_batch_size = 4096\n"
                          "seq_len = 1048576\n"))
                .find("makes micro-batches of 4294967296 tokens"),
            std::string::npos);
}

// A thousand damaged copies of a whole job file: each parses or is refused in one line, and the
// place of the damage does not matter.
TEST(JobSpec, DamagedFilesAreReadOrRefused) {
  const std::string whole = write_job(*parse_job(kMinimal, "job.toml", {}), true);
  const PhiloxStream random{7, 11};
  constexpr std::string_view kBytes =
      "\n\"'[]{}=#.,\\ \x00\x7f\xff"
      "0azA-+_";
  int refused = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    std::string text = whole;
    for (uint64_t k = 0; k < 1 + i % 3; ++k) {
      const uint64_t at = random.below(8 * i + 2 * k, text.size());
      const char c = kBytes[random.below(8 * i + 2 * k + 1, kBytes.size())];
      if (i % 4 == 0)
        text.resize(at);
      else if (i % 4 == 1)
        text.insert(at, 1, c);
      else if (i % 4 == 2)
        text[at] = c;
      else
        text.erase(at, 1 + i % 7);
      if (text.empty()) break;
    }
    const auto job = parse_job(text, "job.toml", {});
    if (job.ok()) continue;
    ++refused;
    EXPECT_EQ(job.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(job.status().message().find('\n'), std::string::npos) << job.status().message();
    EXPECT_EQ(job.status().message().rfind("job.toml", 0), 0U) << job.status().message();
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 1000);  // damage inside a comment is none
}

TEST(JobSpec, OverridesApplyInOrderAndNameThemselves) {
  const auto job = parse_job(kMinimal, "job.toml",
                             {{"training.steps", "5"},
                              {"training.steps", "6"},
                              {"data.shuffle", "false"},
                              {"compile.disable_passes", "a,b"},
                              {"optimizer.lr", "1e-2"},
                              {"log.sample_prompt", "x=y z"}});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  EXPECT_EQ(job->training.steps, 6);
  EXPECT_FALSE(job->data.shuffle);
  EXPECT_EQ(job->compile.disable_passes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(job->optimizer.lr, 0.01);
  EXPECT_EQ(job->log.sample_prompt, "x=y z");
  EXPECT_EQ(error_of(kMinimal, {{"training.step", "5"}}),
            "--training.step=5: training.step: unknown key; did you mean training.steps?");
  EXPECT_EQ(error_of(kMinimal, {{"training.steps", "5x"}}),
            "--training.steps=5x: training.steps: expected an integer of at least 1, got \"5x\"");
  EXPECT_EQ(error_of(kMinimal, {{"data.shuffle", "yes"}}),
            "--data.shuffle=yes: data.shuffle: expected true or false, got \"yes\"");
}

TEST(JobSpec, ResolvedFileReadsBackTheSame) {
  const auto job = parse_job(kMinimal, "job.toml",
                             {{"optimizer.lr", "0.00031415926535897"},
                              {"log.sample_prompt", "\"quoted\"\n\x01 \xC3\xA9 \\"},
                              {"compile.disable_passes", "a,b"}});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  for (const bool comments : {false, true}) {
    const std::string text = write_job(*job, comments);
    const auto again = parse_job(text, "job.toml", {});
    ASSERT_TRUE(again.ok()) << again.status().to_string() << "\n" << text;
    EXPECT_EQ(write_job(*again, comments), text);
    EXPECT_EQ(again->optimizer.lr, 0.00031415926535897);
    EXPECT_EQ(again->log.sample_prompt, job->log.sample_prompt);
  }
}

TEST(JobSpec, UnsupportedIsRefusedOnlyWhenAsked) {
  // Of one data-parallel rank nobody has a replica.
  for (const JobOverride& o : std::vector<JobOverride>{{"resilience.mode", "replicas"}}) {
    const auto job = parse_job(kMinimal, "job.toml", {o});
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    const Status s = check_supported(*job);
    EXPECT_EQ(s.code(), Code::kUnsupported) << o.key;
    EXPECT_EQ(s.message().rfind("--" + o.key + "=" + o.value + ": " + o.key + ": ", 0), 0U)
        << s.message();
  }
  const auto plain = parse_job(kMinimal, "job.toml", {});
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(check_supported(*plain).ok());
}

TEST(JobSpec, MissingFileIsOneLine) {
  const auto job = load_job("no/such/job.toml", {});
  ASSERT_FALSE(job.ok());
  EXPECT_EQ(job.status().message(),
            "no/such/job.toml: cannot read the job file: No such file or directory");
}

TEST(JobSpec, PathsAreRelativeToTheJobFileFirst) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "sga_job_paths";
  fs::create_directories(dir);
  std::ofstream(dir / "text.txt") << "hello";
  std::ofstream(dir / "tokens.idx") << "x";
  std::ofstream(dir / "job.toml") << kMinimal << "[data]\nkind = \"text\"\npath = \"text.txt\"\n";
  auto job = load_job((dir / "job.toml").string(), {});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  EXPECT_EQ(job->data.path, (dir / "text.txt").string());
  EXPECT_EQ(job->data.tokenizer, "bytes");
  job = load_job((dir / "job.toml").string(), {{"data.path", "tokens"}});
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->data.path, (dir / "tokens").string());  // a prefix: its .idx is there
  job = load_job((dir / "job.toml").string(), {{"data.path", "elsewhere.txt"}});
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->data.path, (fs::current_path() / "elsewhere.txt").string());
  // What is nowhere is blamed where the writer of the file would put it.
  std::ofstream(dir / "job.toml") << kMinimal
                                  << "[data]\nkind = \"text\"\npath = \"corpus.txt\"\n"
                                     "[plugins]\nlibraries = [\"build/mine.so\"]\n"
                                     "[profile]\nrecord = \"times.json\"\n";
  job = load_job((dir / "job.toml").string(), {});
  ASSERT_TRUE(job.ok()) << job.status().to_string();
  EXPECT_EQ(job->data.path, (dir / "corpus.txt").string());
  EXPECT_EQ(job->plugins.libraries[0], (dir / "build/mine.so").string());
  EXPECT_EQ(job->profile.record, (fs::current_path() / "times.json").string());
  fs::remove_all(dir);
}

}  // namespace
}  // namespace sgactor::apps

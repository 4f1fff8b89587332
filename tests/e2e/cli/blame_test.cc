// A refusal names the key, option or tensor that is at fault, and what is right is not refused.
#include "tests/e2e/cli/program.h"

namespace sgactor::tests {
namespace {

using Blame = ProgramTest;

std::vector<std::string> train(std::vector<std::string> more) {
  std::vector<std::string> args = {"train", "job.toml", "--run-dir", "out"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST_F(Blame, ValuesThatAreNotUtf8) {
  expect_refused(train({"--data.path=t\xe9.txt"}), {"data.path: is not UTF-8"});
  expect_refused(train({"--log.sample_prompt=\xff"}), {"log.sample_prompt: is not UTF-8"});
  expect_refused({"init", "--log.sample_prompt=a\xc3"}, {"log.sample_prompt: is not UTF-8"});
  const ProgramResult r = run({"init", "--log.sample_prompt=\xc3\xa9"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

TEST_F(Blame, SequencesLongerThanTheModelTakes) {
  expect_refused(train({"--training.seq_len=129"}),
                 {"training.seq_len: expected at most the model's max_position_embeddings 128"});
  std::string job = read("job.toml");
  job.replace(job.find("seq_len = 16"), 12, "seq_len = 129");
  write("long.toml", job);
  expect_refused({"plan", "long.toml"}, {"long.toml:9: training.seq_len: expected at most"});
}

TEST_F(Blame, DataKeys) {
  write("bad.json", "{");
  expect_refused(train({"--data.tokenizer=bad.json"}),
                 {"--data.tokenizer=bad.json: data.tokenizer: ", "bad.json"});
  expect_refused(train({"--data.validation_fraction=0.00001"}),
                 {": data.validation_fraction: ", "at least 2 expected"});
  expect_refused(train({"--data.validation_fraction=0.99999"}),
                 {": data.validation_fraction: ", "at least 2 expected"});
  write("short.txt", "x");
  expect_refused(train({"--data.path=short.txt"}), {": data.path: ", "at least 2 expected"});
}

TEST_F(Blame, PassesThatCannotBeDisabled) {
  expect_refused(train({"--compile.disable_passes=fuse_ops,hope"}),
                 {"--compile.disable_passes=fuse_ops,hope: compile.disable_passes: pass \"hope\"",
                  "fuse_ops"});
  EXPECT_EQ(run({"plan", "job.toml", "--compile.disable_passes=fuse_ops"}).exit_code, 0);
  EXPECT_NE(run({"init"}).out.find("passes to leave out; those that can be: fuse_ops"),
            std::string::npos);
}

TEST_F(Blame, OptionsOfGenerate) {
  const auto generate = [](const std::string& option, const std::string& value) {
    return std::vector<std::string>{"generate", "out", "--prompt", "line ", option + "=" + value};
  };
  ASSERT_EQ(run(train({"--training.steps=1"})).exit_code, 0);
  for (const char* value : {"nan", "-nan", "inf", "-1", "101", "warm"})
    expect_refused(generate("--temperature", value), {"--temperature", value});
  for (const char* value : {"-1", "x"})
    expect_refused(generate("--seed", value), {"--seed", value});
  EXPECT_EQ(run(generate("--temperature", "0")).exit_code, 0);
  EXPECT_EQ(run(generate("--seed", "18446744073709551615")).exit_code, 0);
}

TEST_F(Blame, BytesNeedNoVocabularyOf256) {
  ASSERT_EQ(run(train({"--model.vocab_size=300", "--training.steps=1"})).exit_code, 0);
  const ProgramResult r =
      run({"generate", "out", "--prompt", "line ", "--max-tokens", "30", "--seed", "2"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out.rfind("line ", 0), 0U) << r.out;
}

TEST_F(Blame, ImportWithoutTokenizerNamesNone) {
  ASSERT_EQ(run(train({"--model.vocab_size=300", "--training.steps=1"})).exit_code, 0);
  ASSERT_EQ(run({"ckpt", "export", "out", "hf"}).exit_code, 0);
  ASSERT_EQ(run({"ckpt", "import", "hf", "back"}).exit_code, 0);
  expect_refused({"generate", "back", "--prompt", "x"}, {"has no tokenizer"});
}

TEST_F(Blame, TensorsThatAreTooMany) {
  ASSERT_EQ(run(train({"--training.steps=1"})).exit_code, 0);
  ASSERT_EQ(run({"ckpt", "export", "out", "hf"}).exit_code, 0);
  // A model of one layer less has no place for the tensors of the second.
  std::string config = read("hf/config.json");
  const size_t at = config.find("\"num_hidden_layers\"");
  config.replace(config.find('2', at), 1, "1");
  write("hf/config.json", config);
  const std::string tensor = "hf: tensor model.layers.1.";
  expect_refused({"ckpt", "import", "hf", "back"}, {tensor});
  expect_refused({"ckpt", "export", "hf", "back"}, {tensor});
  expect_refused({"generate", "hf", "--prompt", "x"}, {tensor});
  expect_refused({"train", "job.toml", "--run-dir", "on", "--model.hf=hf", "--model.weights=hf"},
                 {"model.weights", tensor});
}

TEST_F(Blame, ExportKeepsTheTokenizer) {
  ASSERT_EQ(run(train({"--training.steps=1"})).exit_code, 0);
  ASSERT_EQ(run({"ckpt", "export", "out", "hf"}).exit_code, 0);
  write("hf/tokenizer.model", "pieces");
  ASSERT_EQ(run({"ckpt", "export", "hf", "again"}).exit_code, 0);
  EXPECT_EQ(read("again/tokenizer.model"), "pieces");
  write("hf/tokenizer.json", "{}");
  ASSERT_EQ(run({"ckpt", "export", "hf", "third"}).exit_code, 0);
  EXPECT_EQ(read("third/tokenizer.json"), "{}");
}

TEST_F(Blame, JobKeysWhereNoJobIsRead) {
  expect_refused({"generate", "out", "--prompt", "x", "--max.tokens=5"},
                 {"generate takes no keys", "--max.tokens"});
  expect_refused({"ckpt", "ls", "out", "--foo.bar=3"}, {"ckpt takes no keys", "--foo.bar"});
}

TEST_F(Blame, BudgetsThatCannotBeMet) {
  const std::vector<std::string> parts = {"--training.memory_budget=1MiB: training.memory_budget: ",
                                          "a memory budget of 1.00 MiB cannot be met",
                                          "the least is "};
  const std::string batch = "--training.global_batch_size=64";
  const std::string size = "--training.micro_batch_size=64";
  const std::string budget = "--training.memory_budget=1MiB";
  expect_refused({"plan", "job.toml", batch, size, budget}, parts);
  expect_refused(train({batch, size, budget}), parts);
}

TEST_F(Blame, DegreesThatDoNotFitTheModel) {
  const std::string tp = "--parallelism.tensor_parallel_degree=4";
  const std::string pp = "--parallelism.pipeline_parallel_degree=9";
  for (const char* command : {"plan", "train"}) {
    expect_refused({command, "job.toml", tp},
                   {tp + ": parallelism.tensor_parallel_degree: ", "do not divide over the 4 ranks",
                    "the next that divides is 2"});
    expect_refused({command, "job.toml", pp}, {pp + ": parallelism.pipeline_parallel_degree: ",
                                               "9 pipeline stages for 4 ", "expected 4 or fewer"});
  }
}

TEST_F(Blame, MoreRanksThanDevicesToSimulate) {
  write("two.cluster",
        "network 1e9 1e-5\nhost a 1e11 1e-6\ndevice gpu 1e11 1e14 1e12\n"
        "device gpu 1e11 1e14 1e12\n");
  const std::string dp = "--parallelism.data_parallel_degree=4";
  const std::vector<std::string> command = {"simulate", "job.toml", "--topology", "two.cluster",
                                            "--training.micro_batch_size=1"};
  std::vector<std::string> four = command;
  four.push_back(dp);
  expect_refused(four, {dp + ": parallelism.data_parallel_degree: pp 1 x dp 4 x tp 1 are 4",
                        "two.cluster has 2 devices; expected 2 or fewer"});
  std::vector<std::string> two = command;
  two.push_back("--parallelism.data_parallel_degree=2");
  EXPECT_EQ(run(two).exit_code, 0);
}

}  // namespace
}  // namespace sgactor::tests

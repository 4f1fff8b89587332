// Every line of bad input: exit code 2, one line that names what was wrong, nothing written.
#include "tests/e2e/cli/program.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <thread>

namespace sgactor::tests {
namespace {

using BadInput = ProgramTest;

std::vector<std::string> train(std::vector<std::string> more) {
  std::vector<std::string> args = {"train", "job.toml", "--run-dir", "out"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST_F(BadInput, Commands) {
  expect_refused({"trian", "job.toml"}, {"unknown command 'trian'", "did you mean train?"});
  expect_refused({"frobnicate"}, {"unknown command 'frobnicate'", "--help"});
  expect_refused({"train", "job.toml", "--resum"},
                 {"train: unknown option --resum; did you mean --resume?"});
  expect_refused({"train"}, {"expected a job file"});
  expect_refused({"train", "job.toml", "--resume"}, {"--resume: needs --run-dir"});
  expect_refused(train({"--workers", "2"}), {"--workers 2", "1 logical rank", "expected 1 to 1"});
  expect_refused(train({"--devices", "cpu:0"}), {"--devices cpu:0: expected"});
  expect_refused({"train", "job.toml", "--run-dir", ""}, {"--run-dir: expected a directory"});
  expect_refused({"ckpt"}, {"subcommand"});
  expect_refused({"ckpt", "lss", "out"},
                 {"ckpt: unknown command 'lss'; expected one of ls, show, verify, export, import"});
  expect_refused({"bench", "nothing"}, {"bench: unknown command 'nothing'; expected one of "});
  expect_refused({"plan"}, {"job"});
}

TEST_F(BadInput, StandardOutputThatIsFull) {
  std::filesystem::create_symlink("/dev/full", path(".out"));
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--version"}, {"--help"}, {"plan", "job.toml"}}) {
    int status = 0;
    ASSERT_GT(waitpid(start(args), &status, 0), 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << args[0] << " " << status;
    EXPECT_EQ(read(".err"), "sgactor: standard output: cannot write\n") << args[0];
  }
}

TEST_F(BadInput, Keys) {
  expect_refused(train({"--training.stepz=3"}),
                 {"--training.stepz=3: training.stepz: unknown key; did you mean training.steps?"});
  expect_refused(train({"--training.steps=lots"}),
                 {"training.steps: expected an integer of at least 1, got \"lots\""});
  write("bad.toml",
        "[model]\npreset = \"llama-tiny\"\n[optimizer]\nlearningrate = 1\nlr = \"x\"\n");
  expect_refused({"train", "bad.toml"}, {"bad.toml:4: optimizer.learningrate: unknown key"});
  write("bad.toml", "[model]\npreset = \"llama-tiny\"\n[optimizer]\nlr = \"x\"\n");
  expect_refused({"plan", "bad.toml"}, {"bad.toml:4: optimizer.lr: expected a number above 0"});
  write("bad.toml", "[model]\npreset = \"llama-tinny\"\n");
  expect_refused({"plan", "bad.toml"},
                 {"bad.toml:2: model.preset: unknown preset", "did you mean llama-tiny?"});
  write("bad.toml", "[model\n");
  expect_refused({"plan", "bad.toml"}, {"bad.toml:1: not TOML"});
  expect_refused({"init", "--preset", "gpt-2"}, {"unknown preset \"gpt-2\"", "llama-tiny"});
}

TEST_F(BadInput, BatchThatDoesNotDivide) {
  expect_refused(train({"--training.micro_batch_size=3"}),
                 {"job.toml:11: training.global_batch_size: 4 does not divide", "multiple of 3"});
}

TEST_F(BadInput, BeyondThisBuild) {
  expect_refused(train({"--training.dtype=fp4"}), {"training.dtype", "bf16, fp8"});
  expect_refused(train({"--resilience.mode=replicas"}), {"resilience.mode", "\"off\""});
  expect_refused(train({"--resilience.mode=mirror"}), {"resilience.mode", "\"off\""});
}

TEST_F(BadInput, MissingFiles) {
  expect_refused({"train", "absent.toml"}, {"absent.toml: cannot read the job file"});
  expect_refused({"train", "tiny"}, {"tiny: expected a job file, got a directory"});
  expect_refused(train({"--data.path=absent.txt"}), {"data.path", "absent.txt"});
  expect_refused(train({"--model.hf=absent"}), {"model.hf", "absent"});
  expect_refused(train({"--model.weights=absent"}), {"model.weights", "absent"});
  expect_refused(train({"--data.tokenizer=absent.model"}), {"absent.model"});
  expect_refused({"generate", "absent", "--prompt", "x"}, {"absent: expected a run directory"});
  expect_refused({"ckpt", "ls", "absent"}, {"absent"});
  expect_refused({"ckpt", "export", "absent", "hf"}, {"absent"});
  expect_refused({"ckpt", "import", "absent", "run"}, {"absent"});
}

TEST_F(BadInput, DirectoriesThatCannotBeMade) {
  expect_refused({"plan", "job.toml", "--dump-ir", "text.txt/ir"}, {"--dump-ir", "text.txt"});
  ASSERT_EQ(run(train({})).exit_code, 0);
  ASSERT_EQ(run({"ckpt", "export", "out", "hf"}).exit_code, 0);
  expect_refused({"ckpt", "import", "hf", "text.txt/run"}, {"text.txt"});
}

TEST_F(BadInput, FilesThatAreNotReadFurther) {
  expect_refused({"plan", "/dev/zero"}, {"/dev/zero: expected a regular file"});
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::filesystem::remove(path("tiny/config.json"));
  std::filesystem::create_symlink("/dev/zero", path("tiny/config.json"));
  const ProgramResult endless = run({"plan", "job.toml"});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_NE(endless.err.find("config.json: expected a regular file"), std::string::npos)
      << endless.err;
  std::filesystem::remove(path("tiny/config.json"));
  for (const char* name : {"tiny/config.json", "job.toml"}) {
    write(name, "#");
    std::filesystem::resize_file(path(name), (16 << 20) + 1);
  }
  expect_refused({"plan", "job.toml"}, {"job.toml: is 16777217 bytes long; expected at most"});
  expect_refused({"ckpt", "import", "tiny", "run"}, {"tiny/config.json: is 16777217 bytes long"});
  std::filesystem::remove(path("job.toml"));
  std::filesystem::rename(path("pipe"), path("job.toml"));
  const ProgramResult pipe = run({"plan", "job.toml"});
  EXPECT_EQ(pipe.exit_code, 2);
  EXPECT_EQ(pipe.err, "sgactor: job.toml: expected a regular file\n");
}

TEST_F(BadInput, ConfigThatIsNoLlama) {
  write("gpt/config.json", R"({"model_type": "gpt2", "vocab_size": 256})");
  expect_refused(train({"--model.hf=gpt"}), {"model.hf", "gpt/config.json", "model_type", "gpt2"});
  write("gpt/config.json", "{");
  expect_refused(train({"--model.hf=gpt"}), {"gpt/config.json"});
  write("gpt/config.json", "[]");
  expect_refused({"ckpt", "import", "gpt", "run"}, {"gpt/config.json"});
}

TEST_F(BadInput, TokenBeyondTheVocabulary) {
  expect_refused(train({"--model.vocab_size=100"}), {"data.path", "text.txt", "100"});
}

TEST_F(BadInput, RunDirectoryThatExists) {
  write("out/keep.txt", "mine");
  expect_refused(train({}), {"--run-dir out: exists and is not empty", "--resume"});
  expect_refused({"ckpt", "export", "tiny", "out"}, {"out: exists already"});
  expect_refused({"ckpt", "import", "tiny", "out"}, {"out: exists already"});
  expect_refused({"train", "job.toml", "--run-dir", "text.txt"}, {"text.txt", "there is a file"});
}

TEST_F(BadInput, RunDirectoryInUse) {
  write("out/lock", "4711\n");
  const int fd = open(path("out/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  const std::string message = "sgactor: out: run directory is in use by pid 4711\n";
  expect_refused(train({}), {message});
  expect_refused(train({"--resume"}), {message});
  close(fd);  // what a killed process leaves: a file that nobody holds
  const ProgramResult result = run(train({}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(exists("out/lock"));
}

TEST_F(BadInput, RunHoldsItsDirectory) {
  const int pid = start(train({"--training.steps=1000000", "--checkpoint.interval=0"}));
  while (!exists("out/metrics.jsonl") || read("out/metrics.jsonl").empty()) {
    ASSERT_EQ(kill(pid, 0), 0);
    std::this_thread::yield();
  }
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--resume"}}) {
    const ProgramResult second = run(train(more));
    EXPECT_EQ(second.exit_code, 2);
    EXPECT_EQ(second.err,
              "sgactor: out: run directory is in use by pid " + std::to_string(pid) + "\n");
  }
  kill(pid, SIGINT);
  EXPECT_EQ(wait(pid).exit_code, 130);
}

TEST_F(BadInput, CutAuditLineIsNotGluedToTheNext) {
  ASSERT_EQ(run(train({})).exit_code, 0);
  const std::string whole = read("out/audit.jsonl");
  write("out/audit.jsonl", whole + R"({"time":1,"who)");
  ASSERT_EQ(run(train({"--resume", "--training.steps=7"})).exit_code, 0);
  const std::string audit = read("out/audit.jsonl");
  EXPECT_EQ(audit.rfind(whole, 0), 0U);
  std::istringstream lines(audit);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST_F(BadInput, StepDirectoryIsListed) {
  ASSERT_EQ(run(train({})).exit_code, 0);
  std::string step;
  for (const auto& entry : std::filesystem::directory_iterator(path("out/ckpt"))) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) step = std::max(step, name);
  }
  const ProgramResult result = run({"ckpt", "ls", "out/ckpt/" + step});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("out/ckpt/" + step + "  whole"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find_first_not_of(' '), result.out.find('6')) << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
}

TEST_F(BadInput, ResumeOfNothing) {
  expect_refused(train({"--resume"}), {"--resume: out", "no such run directory"});
  write("out/ckpt/.keep", "");
  expect_refused(train({"--resume"}), {"out"});
}

// --- hostile files ---------------------------------------------------------------------------

std::string length_prefix(uint64_t n) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &n, 8);
  return bytes;
}

TEST_F(BadInput, HostileSafetensors) {
  const std::string norm = R"("model.norm.weight":{"dtype":"F32","shape":[32],"data_offsets":)";
  const auto file = [&](const std::string& json, size_t data) {
    return length_prefix(json.size()) + json + std::string(data, '\0');
  };
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"empty file", ""},
      {"length 0", length_prefix(0)},
      {"huge length", length_prefix(uint64_t{1} << 60) + "{}"},
      {"cut header", length_prefix(100) + "{"},
      {"cut data", file("{" + norm + "[0,128]}}", 100)},
      {"out of file", file("{" + norm + "[1000,1128]}}", 128)},
      {"trailing bytes", file("{" + norm + "[0,128]}}", 200)},
      {"duplicate name", file("{" + norm + "[0,128]}," + norm + "[128,256]}}", 256)},
      {"overlap",
       file("{" + norm + R"([0,128]},"b":{"dtype":"F32","shape":[32],"data_offsets":[64,192]}})",
            192)},
      {"no JSON", file("hello", 0)},
  };
  for (const auto& [what, bytes] : cases) {
    SCOPED_TRACE(what);
    write("tiny/model.safetensors", bytes);
    expect_refused(train({"--model.weights=tiny"}), {"model.safetensors"});
    expect_refused({"ckpt", "import", "tiny", "run"}, {"model.safetensors"});
  }
  write("tiny/model.safetensors", file("{" + norm + "[0,128]}}", 128));
  expect_refused(train({"--model.weights=tiny"}), {"model.weights", "model.embed_tokens.weight"});
}

/// A Megatron index of one sequence of `length` 2-byte tokens at `offset` of the .bin.
std::string megatron_index(int32_t length, int64_t offset) {
  std::string bytes("MMIDIDX\0\0", 9);
  const auto put = [&](auto value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof value);
  };
  put(uint64_t{1});  // version
  put(uint8_t{8});   // uint16
  put(uint64_t{1});  // sequences
  put(uint64_t{2});  // document bounds
  put(length);
  put(offset);
  put(int64_t{0});
  put(int64_t{1});
  return bytes;
}

TEST_F(BadInput, IndexThatPointsPastItsBin) {
  write("tokens.bin", std::string(200, '\1'));
  const auto megatron = train({"--data.kind=megatron", "--data.path=tokens"});
  write("tokens.idx", megatron_index(101, 0));
  expect_refused(megatron, {"tokens"});
  write("tokens.idx", megatron_index(50, 102));
  expect_refused(megatron, {"tokens"});
  write("tokens.idx", megatron_index(50, -2));
  expect_refused(megatron, {"tokens"});
  write("tokens.idx", "MMIDIDX");
  expect_refused(megatron, {"tokens.idx"});
  write("tokens.idx", megatron_index(100, 0));  // well-formed, but 0x0101 is no id below 256
  expect_refused(megatron, {"257", "256"});
}

}  // namespace
}  // namespace sgactor::tests

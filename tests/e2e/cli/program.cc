#include "tests/e2e/cli/program.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace sgactor::tests {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "initializer_range": 0.02, "attention_bias": false, "mlp_bias": false
})";

constexpr const char* kJob = R"([model]
hf = "tiny"
[data]
kind = "text"
path = "text.txt"
validation_fraction = 0.1
[training]
steps = 6
seq_len = 16
micro_batch_size = 2
global_batch_size = 4
[optimizer]
lr = 0.01
min_lr = 0.001
warmup_steps = 2
decay_steps = 20
[checkpoint]
interval = 2
keep = 0
)";

std::string slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

void ProgramTest::SetUp() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  // The process id: the same test of another build may run beside this one.
  dir_ = fs::path(testing::TempDir()) / ("sga_cli_" + std::to_string(::getpid()) + "_" +
                                         info->test_suite_name() + "_" + info->name());
  fs::remove_all(dir_);
  // The program's compiled plans: beside the directory, and gone with it.
  cache_ = fs::path(dir_.string() + "_cache");
  fs::remove_all(cache_);
  setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
  fs::create_directories(dir_ / "tiny");
  write("tiny/config.json", kConfig);
  write("job.toml", kJob);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
  write("text.txt", text);
}

void ProgramTest::TearDown() {
  fs::remove_all(dir_);
  fs::remove_all(cache_);
}

std::string ProgramTest::read(const std::string& name) const { return slurp(dir_ / name); }

void ProgramTest::write(const std::string& name, const std::string& bytes) const {
  fs::create_directories((dir_ / name).parent_path());
  std::ofstream(dir_ / name, std::ios::binary) << bytes;
}

int ProgramTest::start(const std::vector<std::string>& args) const {
  std::vector<std::string> words = {SGA_PROGRAM};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = path(".out");
  const std::string err = path(".err");
  const int pid = fork();
  if (pid != 0) return pid;
  // In the child only calls that are safe after a fork.
  if (chdir(dir_.c_str()) != 0) _exit(126);
  const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int err_fd = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int in_fd = open("/dev/null", O_RDONLY);
  dup2(in_fd, 0);
  dup2(out_fd, 1);
  dup2(err_fd, 2);
  execv(argv[0], argv.data());
  _exit(127);
}

ProgramResult ProgramTest::wait(int pid) const {
  int status = 0;
  waitpid(pid, &status, 0);
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read(".out");
  result.err = read(".err");
  return result;
}

ProgramResult ProgramTest::run(const std::vector<std::string>& args) const {
  return wait(start(args));
}

std::map<std::string, std::string> ProgramTest::snapshot() const {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
    const std::string name = fs::relative(entry.path(), dir_).string();
    if (name == ".out" || name == ".err") continue;
    files[name] = entry.is_regular_file() ? slurp(entry.path()) : "";
  }
  return files;
}

void ProgramTest::expect_refused(const std::vector<std::string>& args,
                                 const std::vector<std::string>& parts) const {
  std::string command = "sgactor";
  for (const std::string& arg : args) command += " " + arg;
  const auto before = snapshot();
  const ProgramResult result = run(args);
  EXPECT_EQ(result.exit_code, 2) << command << "\n" << result.err;
  EXPECT_EQ(result.out, "") << command;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.err.rfind("sgactor: ", 0), 0U) << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.err.find(part), std::string::npos) << command << "\n" << result.err << part;
  EXPECT_TRUE(snapshot() == before) << command << " changed files";
}

std::vector<std::string> ProgramTest::loss_bits(const std::string& run_dir) const {
  std::vector<std::string> bits;
  std::istringstream lines(read(run_dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    bits.push_back(nlohmann::json::parse(line).at("loss_bits"));
  return bits;
}

}  // namespace sgactor::tests

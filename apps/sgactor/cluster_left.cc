#include "apps/sgactor/cluster_left.h"

#include "actors/runtime/journal.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/cluster_standing.h"
#include "graph/base/log.h"
#include "transport/storage/run_files.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

std::string left_file(const RunDirectory& run) { return run.path + "/control/left.json"; }
std::string server_file(const RunDirectory& run) { return run.path + "/control/coordinator"; }
std::string token_file(const RunDirectory& run) { return run.path + "/control/token"; }

std::string read_text(const std::string& file) {
  std::ostringstream out;
  out << std::ifstream(file, std::ios::binary).rdbuf();
  return out.str();
}

template <class Each>
void each_line(const std::string& file, const Each& each) {
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) return;  // without a newline: not finished
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) each(json);
  }
}

std::optional<uint64_t> parse_hex(const Json& line, const char* key) {
  const std::string text = line.value(key, "");
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::vector<LeftRun::Worker> workers_of(const Json& state) {
  std::vector<LeftRun::Worker> out;
  for (const Json& w : state.value("workers", Json::array())) {
    out.push_back({w.value("index", int32_t{0}), w.value("pid", int64_t{0}), w.value("host", ""),
                   w.value("node", int64_t{0}), w.value("ranks", std::vector<int32_t>())});
  }
  return out;
}

}  // namespace

Status write_left_facts(const RunDirectory& run, const LeftFacts& f) {
  const Json json = {{"build", f.build},
                     {"job_hash", f.job_hash},
                     {"schema_hash", f.schema_hash},
                     {"pid", f.pid},
                     {"secret", to_hex(f.secret)},
                     {"mirror", to_hex(f.mirror)},
                     {"next_index", f.next_index},
                     {"closed", f.closed},
                     {"fingerprints", f.fingerprints}};
  return transport::write_file_atomic(left_file(run), json.dump() + "\n");
}

Status write_left(const RunDirectory& run, const LeftFacts& facts) {
  SGA_TRY(actors::write_token(server_file(run), facts.server));
  return write_left_facts(run, facts);
}

void remove_left(const RunDirectory& run) {
  ::unlink(left_file(run).c_str());
  ::unlink(server_file(run).c_str());
}

Result<std::optional<LeftRun>> read_left(const RunDirectory& run) {
  const std::optional<LeftRun> nothing;
  const Json json = Json::parse(read_text(left_file(run)), nullptr, /*allow_exceptions=*/false);
  const Json state = Json::parse(read_text(run.state()), nullptr, /*allow_exceptions=*/false);
  auto server = actors::read_token(server_file(run));
  auto member = actors::read_token(token_file(run));
  if (!json.is_object() || !server.ok() || !member.ok()) return nothing;
  SGA_ASSIGN(auto journal, actors::parse_journal(read_text(run.journal())));
  LeftRun out;
  try {
    LeftFacts& f = out.facts;
    f.build = json.at("build").get<std::string>();
    f.job_hash = json.at("job_hash").get<uint64_t>();
    f.schema_hash = json.at("schema_hash").get<uint64_t>();
    f.pid = json.at("pid").get<int64_t>();
    f.secret = from_hex(json.at("secret").get<std::string>());
    f.mirror = from_hex(json.at("mirror").get<std::string>());
    f.next_index = json.at("next_index").get<int32_t>();
    // A build before this one has left neither; whoever waits for it is sent away by its build.
    if (json.contains("closed")) f.closed = json["closed"].get<std::set<HostDevice>>();
    if (json.contains("fingerprints")) {
      f.fingerprints = json["fingerprints"].get<std::map<int32_t, std::string>>();
    }
    if (state.is_object()) {
      out.generation = state.value("generation", int64_t{0});
      out.workers = workers_of(state);
    }
  } catch (const Json::exception& error) {
    log::warn("{}: {}", left_file(run), error.what());
    return nothing;
  }
  out.facts.server = std::move(*server);
  out.member = std::move(member->identity);
  if (!journal.empty()) out.standing = std::move(journal.back());
  out.generation = std::max(out.generation, out.standing.generation);
  return std::optional<LeftRun>(std::move(out));
}

bool is_process_of(const std::string& token_file, int64_t pid) {
  if (pid <= 1) return false;
  return read_text("/proc/" + std::to_string(pid) + "/cmdline").find(token_file) !=
         std::string::npos;
}

void dismiss_left(const RunDirectory& run, const LeftRun& left) {
  const std::string token = std::filesystem::absolute(token_file(run)).string();
  std::set<int64_t> nodes;
  for (const LeftRun::Worker& worker : left.workers) {
    if (worker.host == host_name() && worker.node_pid > 1) nodes.insert(worker.node_pid);
  }
  for (const int64_t pid : nodes) {
    if (is_process_of(token, pid)) ::kill(static_cast<pid_t>(pid), SIGTERM);
  }
}

RecordedSteps read_recorded(const RunDirectory& run, int64_t first_step) {
  std::map<int64_t, uint64_t> samples;
  each_line(run.audit(), [&](const Json& line) {
    if (line.value("what", "") != "commit") return;
    if (const auto hash = parse_hex(line, "sample_hash")) {
      samples[line.value("step", int64_t{0})] = *hash;
    }
  });
  RecordedSteps out;
  bool whole = true;
  each_line(run.metrics(), [&](const Json& line) {
    const auto step = line.value("step", int64_t{0});
    if (step < first_step || !whole) return;
    const auto bits = parse_hex(line, "loss_bits");
    const auto sample = samples.find(step);
    const int64_t expected = first_step + static_cast<int64_t>(out.steps.size());
    whole = step == expected && bits && sample != samples.end();
    if (whole) out.steps.push_back({static_cast<uint32_t>(*bits), sample->second});
  });
  const int64_t last = first_step - 1 + static_cast<int64_t>(out.steps.size());
  each_line(run.validation(), [&](const Json& line) {
    const auto step = line.value("step", int64_t{0});
    if (step <= last) out.validated.insert(step);
  });
  return out;
}

}  // namespace sgactor::apps

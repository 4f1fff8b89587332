#include "tests/differential/torch/parity_fixture.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <fstream>
#include <iterator>

namespace sgactor::differential {

namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Status read_batches(const std::string& path, ParityFixture& fixture) {
  SGA_ASSIGN(const auto file, transport::SafetensorsFile::open(path));
  for (const auto& [name, ids] :
       {std::pair("tokens", &fixture.tokens), std::pair("targets", &fixture.targets)}) {
    SGA_ASSIGN(const auto bytes, file->tensor(name));
    const Shape& shape = file->entries().at(name).type.shape;
    if (shape.rank() != 4) return invalid_argument(path + ": expected four dims");
    fixture.num_steps = shape.dim(0);
    fixture.num_micro_batches = shape.dim(1);
    fixture.batch = shape.dim(2);
    fixture.seq_len = shape.dim(3);
    ids->resize(bytes.size() / sizeof(int32_t));
    std::memcpy(ids->data(), bytes.data(), bytes.size());
  }
  return {};
}

void read_expected(const nlohmann::json& json, ParityFixture& fixture) {
  const auto& o = json.at("optimizer");
  graph::OptimizerOptions& to = fixture.optimizer;
  to.lr = o.at("lr");
  to.min_lr = o.at("min_lr");
  to.warmup_steps = o.at("warmup_steps");
  to.decay_steps = o.at("decay_steps");
  to.beta1 = o.at("beta1");
  to.beta2 = o.at("beta2");
  to.eps = o.at("eps");
  to.weight_decay = o.at("weight_decay");
  to.max_grad_norm = o.at("max_grad_norm");
  json.at("loss").get_to(fixture.losses);
  json.at("grad_norm").get_to(fixture.grad_norms);
  json.at("lr").get_to(fixture.learning_rates);
  json.at("final_norm").get_to(fixture.final_norms);
}

}  // namespace

int64_t ParityFixture::valid_tokens(int64_t step) const {
  int64_t count = 0;
  for (size_t i = offset(step, 0); i < offset(step + 1, 0); ++i) count += targets[i] >= 0 ? 1 : 0;
  return count;
}

Result<ParityFixture> read_parity_fixture(const std::string& dir) {
  ParityFixture fixture;
  const std::string config = dir + "/config.json";
  SGA_ASSIGN(fixture.config, graph::parse_hf_config(read_text(config), config));
  SGA_ASSIGN(fixture.start, transport::HfDirectory::open(dir));
  SGA_ASSIGN(fixture.final_weights, transport::SafetensorsFile::open(dir + "/final.safetensors"));
  SGA_TRY(read_batches(dir + "/batches.safetensors", fixture));
  const std::string expected = dir + "/expected.json";
  try {
    read_expected(nlohmann::json::parse(read_text(expected)), fixture);
  } catch (const std::exception& e) {
    return invalid_argument(fmt::format("{}: {}", expected, e.what()));
  }
  return fixture;
}

}  // namespace sgactor::differential

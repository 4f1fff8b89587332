#include "tests/actor/training_rig.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/symbolic/symbolic_backend.h"
#include "transport/storage/initial_state.h"

#include <atomic>
#include <bit>
#include <set>

namespace sgactor::testing_support {
namespace {

constexpr uint64_t kSeed = 7;

graph::LlamaConfig tiny_model() {
  graph::LlamaConfig config;
  config.vocab_size = 64;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  return config;
}

Result<std::unique_ptr<kernels::Backend>> create_backend(const std::string& name,
                                                         int32_t num_threads) {
  kernels::BackendOptions options;
  options.num_threads = num_threads;
  if (name == "cpu") return kernels::create_cpu_backend(options);
  if (name == "reference") return kernels::create_reference_backend(options);
  return kernels::create_symbolic_backend(options);
}

graph::StorageModel storage_of(const std::string& backend) {
  if (backend == "cpu") return graph::StorageModel::kNative;
  return backend == "reference" ? graph::StorageModel::kFloat64 : graph::StorageModel::kHash;
}

std::shared_ptr<const transport::StateSource> initial_state(const graph::LlamaConfig& model) {
  std::vector<transport::InitialParameter> parameters;
  for (const graph::ParameterSpec& p : graph::llama_parameters(model)) {
    parameters.push_back({p.name, p.type, p.init_std, p.init_one});
  }
  return transport::with_zero_moments(transport::make_initial_state(std::move(parameters), kSeed));
}

}  // namespace

Result<std::unique_ptr<TrainingRig>> TrainingRig::create(const Options& options) {
  auto rig = std::make_unique<TrainingRig>();
  rig->options = options;
  SGA_ASSIGN(rig->backend, create_backend(options.backend, options.num_threads));
  const graph::LlamaConfig model = tiny_model();
  graph::CompileOptions compile;
  compile.micro_batch_size = options.micro_batch_size;
  compile.num_micro_batches = options.num_micro_batches;
  compile.seq_len = options.seq_len;
  compile.optimizer.warmup_steps = 2;
  compile.optimizer.decay_steps = 20;
  compile.storage = storage_of(options.backend);
  compile.optimizer.norm_chunk = 64;  // shards of a few elements
  compile.mesh = options.mesh;
  compile.zero_stage = options.zero_stage;
  compile.pipeline = options.pipeline;
  compile.chunks_per_stage = options.chunks_per_stage;
  SGA_ASSIGN(graph::Compiled training, graph::compile_training(model, compile));
  rig->plan = std::move(training.plan);
  transport::DataSpec data;
  data.kind = "mock";
  data.vocab_size = model.vocab_size;
  data.seed = kSeed;
  data.mock_tokens = 1000;
  data.validation_fraction = options.validation ? 0.2 : 0;
  SGA_ASSIGN(rig->data, transport::open_datasets(data));
  rig->sampler = std::make_unique<transport::Sampler>(
      rig->data.train, kSeed, options.seq_len,
      options.micro_batch_size * options.num_micro_batches * options.mesh.dp, true);
  if (options.validation) {
    graph::ForwardOptions forward;
    forward.batch = options.micro_batch_size;
    forward.seq_len = options.seq_len;
    graph::CompileOptions alone = compile;
    alone.mesh = {};
    alone.zero_stage = 0;
    SGA_ASSIGN(graph::Compiled validation, graph::compile_forward(model, forward, alone));
    rig->validation_plan = std::move(validation.plan);
    rig->validation_sampler = std::make_unique<transport::Sampler>(
        rig->data.validation, kSeed, options.seq_len, options.micro_batch_size, false);
  }
  rig->state = initial_state(model);
  if (rig->plan.ranks.size() > 1) SGA_TRY(rig->connect());
  return rig;
}

Status TrainingRig::connect() {
  const auto network = std::make_shared<transport::InprocNetwork>();
  if (options.manual_progress) progress = std::make_shared<transport::ManualProgress>();
  transport::RouteTable routes;
  routes.generation = 1;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    routes.peer_of_rank[static_cast<int32_t>(r)] =
        static_cast<transport::PeerId>(r) % static_cast<transport::PeerId>(options.num_processes);
  }
  for (int32_t p = 0; p < options.num_processes; ++p) {
    SGA_ASSIGN(auto fabric, transport::InprocFabric::create(
                                network, static_cast<transport::PeerId>(p), {}, progress));
    fabrics.push_back(std::move(fabric));
  }
  std::atomic<int> num_answers{0};
  std::atomic<bool> failed{false};
  int num_asked = 0;
  for (const auto& from : fabrics) {
    for (const auto& to : fabrics) {
      if (from == to) continue;
      ++num_asked;
      from->connect(to->self(), to->address(), [&](const Status& status) {
        if (!status.ok()) failed = true;
        ++num_answers;
        num_answers.notify_all();
      });
    }
  }
  if (progress) progress->run_until_idle();
  for (int n = num_answers; n < num_asked; n = num_answers) num_answers.wait(n);
  if (failed) return internal_error("fabrics of one process did not connect");
  for (const auto& fabric : fabrics) {
    collectives.push_back(std::make_unique<transport::Collectives>(*fabric));
    collectives.back()->set_routes(routes);
  }
  if (progress) progress->run_until_idle();
  return {};
}

actors::TrainingInputs TrainingRig::inputs(actors::TrainingObserver* observer) const {
  actors::TrainingInputs in;
  in.plan = &plan;
  in.validation_plan = options.validation ? &validation_plan : nullptr;
  in.backend = backend.get();
  in.sampler = sampler.get();
  in.validation_sampler = validation_sampler.get();
  in.initial_state = state.get();
  in.observer = observer;
  in.collectives = collectives.empty() ? nullptr : collectives[0].get();
  return in;
}

Result<TrainingRig::Expected> TrainingRig::run_without_actors(int64_t last_step) const {
  if (plan.ranks.size() > 1) return run_mesh_without_actors(last_step);
  Expected out;
  SGA_ASSIGN(out.executor, PlanExecutor::create(plan, *backend));
  SGA_TRY(out.executor->load_state(*state));
  const auto m = static_cast<size_t>(options.num_micro_batches);
  const auto n = static_cast<size_t>(options.micro_batch_size * options.seq_len);
  std::vector<std::vector<int32_t>> tokens(m, std::vector<int32_t>(n)), targets = tokens;
  for (int64_t step = 1; step <= last_step; ++step) {
    std::vector<PlanExecutor::MicroBatch> batches;
    for (size_t i = 0; i < m; ++i) {
      sampler->fill(step, static_cast<int64_t>(i) * options.micro_batch_size, tokens[i],
                    targets[i]);
      batches.push_back({tokens[i], targets[i]});
    }
    SGA_TRY(out.executor->run_step(step, 1.0 / static_cast<double>(sampler->valid_tokens(step)),
                                   batches));
    SGA_ASSIGN(const std::vector<double> loss, out.executor->read("loss"));
    SGA_ASSIGN(const std::vector<double> norm, out.executor->read("grad_norm"));
    out.losses.push_back(static_cast<float>(loss.at(0)));
    out.grad_norms.push_back(static_cast<float>(norm.at(0)));
  }
  return out;
}

Result<TrainingRig::Expected> TrainingRig::run_mesh_without_actors(int64_t last_step) const {
  Expected out;
  SGA_ASSIGN(out.mesh, MeshExecutor::create(plan, *backend));
  SGA_TRY(out.mesh->load_state(*state));
  const auto num_dp = static_cast<size_t>(options.mesh.dp);
  const auto m = static_cast<size_t>(options.num_micro_batches);
  const auto n = static_cast<size_t>(options.micro_batch_size * options.seq_len);
  std::vector<std::vector<int32_t>> tokens(num_dp * m, std::vector<int32_t>(n)), targets = tokens;
  for (int64_t step = 1; step <= last_step; ++step) {
    std::vector<std::vector<PlanExecutor::MicroBatch>> batches(num_dp);
    for (size_t i = 0; i < num_dp * m; ++i) {
      sampler->fill(step, static_cast<int64_t>(i) * options.micro_batch_size, tokens[i],
                    targets[i]);
      batches[i / m].push_back({tokens[i], targets[i]});
    }
    SGA_TRY(
        out.mesh->run_step(step, 1.0 / static_cast<double>(sampler->valid_tokens(step)), batches));
    SGA_ASSIGN(const float loss, out.mesh->loss());
    SGA_ASSIGN(const float norm, out.mesh->metric("grad_norm"));
    out.losses.push_back(loss);
    out.grad_norms.push_back(norm);
  }
  return out;
}

std::vector<graph::Buffer> TrainingRig::state_buffers() const {
  std::vector<graph::Buffer> out;
  std::set<std::string> names;
  for (const graph::RankProgram& program : plan.programs) {
    for (const graph::Buffer& b : program.buffers) {
      const bool is_state =
          b.kind == graph::BufferKind::kParameter || b.kind == graph::BufferKind::kMoment;
      if (is_state && names.insert(b.name).second) out.push_back(b);
    }
  }
  return out;
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out;
  for (float v : values) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

std::vector<float> losses(const std::vector<actors::StepReport>& steps) {
  std::vector<float> out;
  for (const actors::StepReport& s : steps) out.push_back(s.loss);
  return out;
}

std::vector<float> grad_norms(const std::vector<actors::StepReport>& steps) {
  std::vector<float> out;
  for (const actors::StepReport& s : steps) out.push_back(s.grad_norm);
  return out;
}

}  // namespace sgactor::testing_support

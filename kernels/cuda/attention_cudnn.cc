// Fused attention through cuDNN's graph API. The library is opened at run time, so that the module
// starts without it. Letters as in attention.h.
#include "graph/base/units.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/cudnn_status.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cudnn_frontend {
// The front end finds cuDNN's functions here. Set once, before the first call.
void* cudnn_dlhandle = nullptr;  // NOLINT: the front end's name
}  // namespace cudnn_frontend

namespace sgactor::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDo, kDq, kDk, kDv };

/// What the library opens for its first plan; in the order in which they need one another.
constexpr const char* kBehind[] = {"libcudnn_graph.so.9", "libcudnn_heuristic.so.9",
                                   "libcudnn_engines_runtime_compiled.so.9",
                                   "libcudnn_engines_precompiled.so.9"};

/// Why the library is not there; empty if it is. Opens it, once.
const std::string& missing_cudnn() {
  static const std::string why = [] {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (fe::cudnn_dlhandle != nullptr) return std::string();
    const char* said = dlerror();
    return std::string(said != nullptr ? said : "libcudnn.so.9 is not there");
  }();
  return why;
}
bool open_cudnn() { return missing_cudnn().empty(); }

/// For measurements only: what determinism costs. The bits then differ from run to run.
bool atomics_allowed() { return std::getenv("SGACTOR_CUDA_ATTENTION_ATOMICS") != nullptr; }

/// As cudnn_failure; takes the runtime's own error along, which else our next launch would report.
Status failed(std::string text, bool has_no_kernel) {
  if (const cudaError_t left = cudaGetLastError(); left != cudaSuccess)
    text += std::string("; ") + cudaGetErrorName(left);
  const Status status = cudnn_failure(text, has_no_kernel);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (status.code() != Code::kOutOfMemory ||
      cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
    return status;
  return cudnn_failure(text + "; " + format_bytes(static_cast<int64_t>(free_bytes)) + " of " +
                           format_bytes(static_cast<int64_t>(total_bytes)) + " free",
                       has_no_kernel);
}

Status status_of(cudnnStatus_t s, const char* what) {
  if (s == CUDNN_STATUS_SUCCESS) return {};
  return failed(std::string(what) + ": " + fe::detail::get_error_string(s), false);
}

Status fe_status(fe::error_t e) {
  if (e.is_good()) return {};
  const fe::error_code_t code = e.get_code();
  return failed(e.get_message(),
                code == fe::error_code_t::GRAPH_NOT_SUPPORTED ||
                    code == fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED);
}

/// Of what the front end throws: the library lacks a function, or the node such a shape.
Status exception_status(const std::exception& e) {
  const std::string_view text = e.what();
  return failed(e.what(), text.starts_with("Unable to find symbol") ||
                              text.starts_with("No suitable implementation"));
}

/// The front end's graph, which does not pass on why the library names no kernels.
class Graph : public fe::graph::Graph {
 public:
  /// Asks the library for its kernels, best first.
  Status find_kernels() {
    const std::vector<fe::HeurMode_t> modes = {fe::HeurMode_t::A};
    fe::error_t e = create_execution_plans(modes);
    if (e.get_code() != fe::error_code_t::HEURISTIC_QUERY_FAILED || operation_graph == nullptr)
      return fe_status(e);
    fe::EngineConfigList found;
    const std::vector<cudnnStatus_t> again =
        fe::get_heuristics_list(modes, *operation_graph, fe::allowAllConfig, found, true);
    const cudnnStatus_t said = again.empty() ? CUDNN_STATUS_INTERNAL_ERROR : again.front();
    if (said == CUDNN_STATUS_SUCCESS && found.empty())
      return unsupported("cuda: cudnn: " + e.get_message());
    return failed(e.get_message() + "; asked again: " + fe::detail::get_error_string(said), false);
  }

  /// Takes the first of them that the library can build, as build_plans would, which however goes
  /// on to the next one, of other bits, for any failure.
  Status build_first(cudnnHandle_t handle) {
    Status refused = unsupported("cuda: cudnn: no kernel");
    for (int64_t i = 0; i < get_execution_plan_count(); ++i) {
      Status built = fe_status(build_plan_at_index(i));
      // That plan is then chosen: what is left is to make it ready to run.
      if (built.ok())
        return fe_status(build_plans(handle, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
      if (built.code() != Code::kUnsupported) return built;
      refused = std::move(built);
    }
    return refused;
  }
};

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention() = default;
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;
  ~CudnnAttention() override {
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }

  Status build(const AttentionShape& s, bool gradient) {
    SGA_TRY(find_plans(s, gradient));
    SGA_TRY(graph_.build_first(handle_));
    SGA_TRY(fe_status(graph_.get_workspace_size(workspace_bytes_)));
    return {};
  }

  /// The first part of build: asks the library which kernels it has, which it sets itself up for.
  Status find_plans(const AttentionShape& s, bool gradient) {
    gradient_ = gradient;
    SGA_TRY(status_of(fe::detail::create_handle(&handle_), "no handle"));
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (gradient) {
      add_gradient(s);
    } else {
      add_forward(s);
    }
    SGA_TRY(fe_status(graph_.validate()));
    SGA_TRY(fe_status(graph_.build_operation_graph(handle_)));
    return graph_.find_kernels();
  }

  [[nodiscard]] int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status run(CUstream_st* stream, const AttentionPointers& p, void* workspace) const override {
    std::unordered_map<int64_t, void*> pack = {{kQ, const_cast<void*>(p.q)},
                                               {kK, const_cast<void*>(p.k)},
                                               {kV, const_cast<void*>(p.v)},
                                               {kO, p.o},
                                               {kStats, p.lse}};
    if (gradient_) {
      pack[kDo] = const_cast<void*>(p.d_o);
      pack[kDq] = p.dq;
      pack[kDk] = p.dk;
      pack[kDv] = p.dv;
    }
    // The handle has one stream at a time.
    const std::lock_guard lock(mutex_);
    try {
      if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS)
        return make_status(Code::kDeviceFault, "cuda: cudnn: cannot set the stream", Scope::kRank);
      fe::error_t e = graph_.execute(handle_, pack, workspace);
      if (e.is_bad())
        return make_status(Code::kDeviceFault, "cuda: cudnn: " + e.get_message(), Scope::kRank);
    } catch (const std::exception& e) {
      return internal_error(std::string("cuda: cudnn: ") + e.what());
    }
    return {};
  }

 private:
  using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  /// [B, T, heads, K] seen as [B, heads, T, K]; a token may have more heads than these.
  static std::vector<int64_t> dims(const AttentionShape& s, bool queries) {
    return {s.B, queries ? s.H : s.G, s.T, s.K};
  }
  static std::vector<int64_t> strides(const AttentionShape& s, bool queries) {
    const int64_t in_row = queries ? s.H_row : s.G_row;
    const int64_t heads = in_row > 0 ? in_row : queries ? s.H : s.G;
    return {s.T * heads * s.K, s.K, heads * s.K, 1};
  }
  static fe::graph::Tensor_attributes heads_first(const char* name, int64_t uid,
                                                  const AttentionShape& s, bool queries) {
    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(uid)
        .set_dim(dims(s, queries))
        .set_stride(strides(s, queries));
  }
  static void place(const Tensor& t, int64_t uid, const AttentionShape& s, bool queries) {
    t->set_output(true).set_uid(uid).set_dim(dims(s, queries)).set_stride(strides(s, queries));
  }
  static fe::graph::Tensor_attributes stats(const AttentionShape& s) {
    return fe::graph::Tensor_attributes()
        .set_name("stats")
        .set_uid(kStats)
        .set_dim({s.B, s.H, s.T, 1})
        .set_stride({s.H * s.T, s.T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }

  void add_forward(const AttentionShape& s) {
    const Tensor q = graph_.tensor(heads_first("q", kQ, s, true));
    const Tensor k = graph_.tensor(heads_first("k", kK, s, false));
    const Tensor v = graph_.tensor(heads_first("v", kV, s, false));
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(s.causal)
                       .set_attn_scale(static_cast<float>(s.scale));
    auto [o, lse] = graph_.sdpa(q, k, v, options);
    place(o, kO, s, true);
    lse->set_output(true)
        .set_uid(kStats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s.B, s.H, s.T, 1})
        .set_stride({s.H * s.T, s.T, 1, 1});
  }

  void add_gradient(const AttentionShape& s) {
    const Tensor q = graph_.tensor(heads_first("q", kQ, s, true));
    const Tensor k = graph_.tensor(heads_first("k", kK, s, false));
    const Tensor v = graph_.tensor(heads_first("v", kV, s, false));
    const Tensor o = graph_.tensor(heads_first("o", kO, s, true));
    const Tensor d_o = graph_.tensor(heads_first("do", kDo, s, true));
    const Tensor lse = graph_.tensor(stats(s));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention gradient")
                       .set_causal_mask(s.causal)
                       .set_attn_scale(static_cast<float>(s.scale))
                       .set_deterministic_algorithm(!atomics_allowed());
    auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, o, d_o, lse, options);
    place(dq, kDq, s, true);
    place(dk, kDk, s, false);
    place(dv, kDv, s, false);
  }

  cudnnHandle_t handle_ = nullptr;
  mutable std::mutex mutex_;
  mutable Graph graph_;
  int64_t workspace_bytes_ = 0;
  bool gradient_ = false;
};

}  // namespace

Result<std::shared_ptr<const FusedAttention>> create_fused_attention(const AttentionShape& shape,
                                                                     bool gradient) {
  if (!open_cudnn()) return unsupported("cuda: no cudnn: " + missing_cudnn());
  try {
    auto attention = std::make_shared<CudnnAttention>();
    SGA_TRY(attention->build(shape, gradient));
    return std::shared_ptr<const FusedAttention>(std::move(attention));
  } catch (const std::exception& e) {
    return exception_status(e);
  }
}

void load_attention_libraries() {
  if (!open_cudnn()) return;
  // Kept open; without one of them the library says so itself.
  for (const char* name : kBehind) static_cast<void>(dlopen(name, RTLD_LAZY | RTLD_LOCAL));
}

std::string attention_fingerprint() {
  if (!open_cudnn()) return "no-cudnn";
  using Version = size_t (*)();
  const auto version = reinterpret_cast<Version>(dlsym(fe::cudnn_dlhandle, "cudnnGetVersion"));
  return "cudnn-" + (version == nullptr ? std::string("unknown") : std::to_string(version()));
}

void load_fused_attention(int32_t index) {
  static std::once_flag once;
  std::call_once(once, [index] {
    if (!open_cudnn() || cudaSetDevice(index) != cudaSuccess) return;
    try {
      // To build the plan too would keep the first body that needs one waiting for its turn.
      CudnnAttention attention;
      const AttentionShape small{.B = 1, .T = 256, .H = 4, .G = 1, .K = 64, .scale = 0.125};
      static_cast<void>(attention.find_plans(small, false).ok());
    } catch (const std::exception&) {
      // Whoever asks for attention meets the same, and says so.
    }
  });
}

}  // namespace sgactor::kernels::cuda

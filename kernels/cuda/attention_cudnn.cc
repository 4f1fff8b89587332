// Fused attention through cuDNN's graph API. The library is opened at run time, so that the module
// starts without it. Letters as in attention.h.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_status.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
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

bool open_cudnn() {
  static std::once_flag once;
  std::call_once(once, [] { fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL); });
  return fe::cudnn_dlhandle != nullptr;
}

/// For measurements only: what determinism costs. The bits then differ from run to run.
bool atomics_allowed() { return std::getenv("SGACTOR_CUDA_ATTENTION_ATOMICS") != nullptr; }

Status fe_status(fe::error_t e) {
  if (e.is_good()) return {};
  return unsupported("cuda: cudnn: " + e.get_message());
}

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
    SGA_TRY(fe_status(graph_.check_support(handle_)));
    SGA_TRY(fe_status(graph_.build_plans(handle_, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
    SGA_TRY(fe_status(graph_.get_workspace_size(workspace_bytes_)));
    return {};
  }

  /// The first part of build: asks the library which kernels it has, which it sets itself up for.
  Status find_plans(const AttentionShape& s, bool gradient) {
    gradient_ = gradient;
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS)
      return unsupported("cuda: cudnn: no handle");
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
    return fe_status(graph_.create_execution_plans({fe::HeurMode_t::A}));
  }

  [[nodiscard]] int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status run(cudaStream_t stream, const AttentionPointers& p, void* workspace) const override {
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

  /// [B, T, heads, K] seen as [B, heads, T, K].
  static fe::graph::Tensor_attributes heads_first(const char* name, int64_t uid,
                                                  const AttentionShape& s, int64_t heads) {
    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(uid)
        .set_dim({s.B, heads, s.T, s.K})
        .set_stride({s.T * heads * s.K, s.K, heads * s.K, 1});
  }
  static void place(const Tensor& t, int64_t uid, const AttentionShape& s, int64_t heads) {
    t->set_output(true)
        .set_uid(uid)
        .set_dim({s.B, heads, s.T, s.K})
        .set_stride({s.T * heads * s.K, s.K, heads * s.K, 1});
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
    const Tensor q = graph_.tensor(heads_first("q", kQ, s, s.H));
    const Tensor k = graph_.tensor(heads_first("k", kK, s, s.G));
    const Tensor v = graph_.tensor(heads_first("v", kV, s, s.G));
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(s.causal)
                       .set_attn_scale(static_cast<float>(s.scale));
    auto [o, lse] = graph_.sdpa(q, k, v, options);
    place(o, kO, s, s.H);
    lse->set_output(true)
        .set_uid(kStats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s.B, s.H, s.T, 1})
        .set_stride({s.H * s.T, s.T, 1, 1});
  }

  void add_gradient(const AttentionShape& s) {
    const Tensor q = graph_.tensor(heads_first("q", kQ, s, s.H));
    const Tensor k = graph_.tensor(heads_first("k", kK, s, s.G));
    const Tensor v = graph_.tensor(heads_first("v", kV, s, s.G));
    const Tensor o = graph_.tensor(heads_first("o", kO, s, s.H));
    const Tensor d_o = graph_.tensor(heads_first("do", kDo, s, s.H));
    const Tensor lse = graph_.tensor(stats(s));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention gradient")
                       .set_causal_mask(s.causal)
                       .set_attn_scale(static_cast<float>(s.scale))
                       .set_deterministic_algorithm(!atomics_allowed());
    auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, o, d_o, lse, options);
    place(dq, kDq, s, s.H);
    place(dk, kDk, s, s.G);
    place(dv, kDv, s, s.G);
  }

  cudnnHandle_t handle_ = nullptr;
  mutable std::mutex mutex_;
  mutable fe::graph::Graph graph_;
  int64_t workspace_bytes_ = 0;
  bool gradient_ = false;
};

}  // namespace

Result<std::shared_ptr<const FusedAttention>> create_fused_attention(const AttentionShape& shape,
                                                                     bool gradient) {
  if (!open_cudnn()) return unsupported("cuda: libcudnn.so.9 is not there");
  try {
    auto attention = std::make_shared<CudnnAttention>();
    SGA_TRY(attention->build(shape, gradient));
    return std::shared_ptr<const FusedAttention>(std::move(attention));
  } catch (const std::exception& e) {
    return unsupported(std::string("cuda: cudnn: ") + e.what());
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
